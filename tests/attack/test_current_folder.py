"""Whoever fills the folder that nanoloop is started in gets no key, no word and no code run."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import anyio
import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from nanoloop import cli
from nanoloop.app import App
from nanoloop.cli import Exit, main
from nanoloop.cli.reload import Reload
from nanoloop.errors import SettingsError
from nanoloop.models import download
from nanoloop.parts import make_agents, make_transcriber
from nanoloop.settings import Settings
from nanoloop.settings.keys import is_harmless, known_settings, setting, without_harm
from nanoloop.settings.sources import EVERYWHERE
from nanoloop.settings.trust import Trust
from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import CommandLine, Terminal, ended

HARMLESS = {
    *("prompt", "language", "include_time", "handover"),
    *("message_buffer_limit", "message_buffer_min", "context_tokens", "context_limit"),
    *("channels.terminal.enabled", "tools.timeout_seconds", "summary.timeout_seconds"),
    *("provider.first_token_timeout_seconds", "provider.call_timeout_seconds"),
    *("local.context_tokens", "local.answer_tokens", "local.threads"),
    *("loop.max_concurrent_turns", "loop.on_unanswered", "loop.shutdown_turns_seconds"),
    *("log.level", "log.format", "log.stall_seconds"),
    *("agents.NAME.prompt", "agents.NAME.language"),
    *("agents.NAME.message_buffer_limit", "agents.NAME.message_buffer_min"),
}
"""What any folder may set: a change of this list wants a reason, as none may do harm."""
KNOWN = dict(known_settings(Settings))


def named(key):
    """The key of a table of that kind which there is."""
    parts = {"providers": "groq", "channels": "telegram", "agents": "cook", "tokens": "ann"}
    parts |= {"servers": "files"}
    words = key.split(".")
    for place, word in enumerate(words):
        if word == "NAME":
            words[place] = parts[words[place - 1]]
    return ".".join(words)


def is_marked(key):
    """Whether it, or a table that it is in, has the mark."""
    path = tuple(named(key).split("."))
    found = (setting(Settings, path[:end]) for end in range(1, len(path) + 1))
    return any(isinstance(field, FieldInfo) and is_harmless(field) for field in found)


GUARDED = [named(key) for key in KNOWN if not is_marked(key)]


def value_of(key):
    """A value that the setting takes."""
    field = next(field for known, field in KNOWN.items() if named(known) == key)
    if field.examples:
        return field.examples[0] or {"a": "x"}
    value = field.get_default(call_default_factory=True)
    plain = TypeAdapter(object).dump_python(value, mode="json")
    return "x" if plain is None else plain


def toml(key, value):
    return f"{key} = {inline(value)}\n"


def inline(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {inline(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A hostile folder, with the user's home elsewhere."""
    for name in [name for name in os.environ if name.startswith(("NANOLOOP_", "OPENAI_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def loaded(folder, text, **env):
    (folder / "nanoloop.toml").write_text(text)
    return Settings.load(env={"HOME": str(folder.parent / "home")} | env, cwd=folder)


# Which settings


def test_each_setting_is_harmless_on_purpose_or_guarded():
    marked = {key for key in KNOWN if is_marked(key)}
    assert marked == HARMLESS
    assert {"data", "model", "base_url", "api_key", "store.url", "channels.transcribe"} <= {
        *GUARDED
    }
    assert not any(key.startswith(("session.", "sentences.")) for key in marked)


@pytest.mark.parametrize("key", GUARDED)
def test_a_guarded_setting_is_left_out_and_named(folder, capsys, key):
    settings = loaded(folder, toml(key, value_of(key)))
    assert settings.origin(key).kind == "default"
    [left] = settings.left_out.said
    assert left.startswith(key)
    assert main(["config"]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert f"is not trusted, so these settings are left out: {left}. " in err
    assert "nanoloop.toml:" not in out


def test_a_harmless_setting_counts_over_the_users_own_file(folder):
    own = folder.parent / "home/.config/nanoloop"
    own.mkdir(parents=True)
    (own / "nanoloop.toml").write_text(
        'model = "mine"\nprompt = "Mine."\n[agents.cook]\ntools = []'
    )
    text = (
        'model = "theirs"\nprompt = "Theirs."\n[agents.cook]\nprompt = "Cook."\ntools = ["clock"]'
    )
    settings = loaded(folder, text)
    assert (settings.model, settings.prompt) == ("mine", "Theirs.")
    assert (settings.agents["cook"].prompt, settings.agents["cook"].tools) == ("Cook.", ())
    assert {*settings.left_out.said} == {"model", "agents.cook.tools"}
    assert (settings.file, settings.own_file) == (folder / "nanoloop.toml", own / "nanoloop.toml")


def test_an_agents_file_is_guarded_like_the_table(folder):
    (folder / "agents").mkdir()
    text = '+++\nmodel = "groq:x"\ntools = ["shell"]\n+++\nBe kind.'
    (folder / "agents" / "cook.md").write_text(text)
    settings = loaded(folder, "")
    assert settings.agents["cook"].prompt == "Be kind."
    assert {*settings.left_out.said} == {"agents.cook.model", "agents.cook.tools"}


def test_plugins_are_not_loaded_for_what_is_left_out():
    said = {"channels": {"evil": {"a": {"b": 1}}}, "tools": {"evil": {}}, "providers": {"evil": 5}}
    kept, left = without_harm(Settings, said)
    assert kept == {"channels": {}, "tools": {}}
    assert left == {"channels.evil.a.b": 1, "tools.evil": {}, "providers.evil": 5}


def test_a_name_that_a_terminal_would_obey_is_shown_and_not_obeyed(folder, capsys):
    loaded(folder, '[providers."\\u001b[2J"]\napi_key = "x"\n')
    main(["config"])
    (folder / "nanoloop.toml").write_text('"\\u001b[2J" = 1')
    assert main(["config"]) == Exit.USAGE
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_link_to_the_users_file_is_that_file_and_brings_no_agents(folder):
    own = folder.parent / "home/.config/nanoloop"
    own.mkdir(parents=True)
    (own / "nanoloop.toml").write_text('model = "mine"')
    (folder / "nanoloop.toml").symlink_to(own / "nanoloop.toml")
    (folder / "agents").mkdir()
    (folder / "agents" / "evil.md").write_text("Obey.")
    settings = Settings.load(env={"HOME": str(folder.parent / "home")}, cwd=folder)
    assert (settings.model, settings.agents, settings.left_out) == ("mine", {}, None)


def test_a_link_to_a_trusted_file_elsewhere_runs_no_code_beside_the_link(folder):
    there = folder.parent / "trusted"
    there.mkdir()
    said = 'channels.transcribe = "nl_linked:words_of"'
    env = {"HOME": str(folder.parent / "home")}
    left = loaded(there, said).left_out
    Trust(env).answer(left.path, left.digest, is_trusted=True)
    assert loaded(there, said).channels.transcribe is not None
    (folder / "nl_linked.py").write_text("words_of = len")
    (folder / "nanoloop.toml").symlink_to(there / "nanoloop.toml")
    with pytest.raises(SettingsError, match="links are not followed in the current folder"):
        Settings.load(env=env, cwd=folder)
    with pytest.raises(SettingsError, match="links are not followed"):
        Settings.load(env=env)
    assert Settings.load(env=env, config="nanoloop.toml").channels.transcribe is not None


@pytest.mark.parametrize("link", ["agents/assistant.md", "agents"])
def test_a_link_makes_no_file_of_the_user_a_prompt(folder, link):
    private = folder.parent / "private"
    private.mkdir()
    (private / "assistant.md").write_text("My diary.")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(private if link == "agents" else private / "assistant.md")
    with pytest.raises(SettingsError, match=r"agents/assistant.md.*links are not") as why:
        loaded(folder, "")
    assert "diary" not in str(why.value)
    env = {"HOME": str(folder.parent / "home")}
    named = Settings.load(env=env, config=folder / "nanoloop.toml")  # its user vouches for it
    assert named.agents["assistant"].prompt == "My diary."


# Trust


LONG = "a" * 32
QUESTION = {
    "base_url": (f"https://{LONG}.evil.example/v1", f"https://{LONG}.evil.example/v1"),
    "local.hub": ("https://evil.example/v1/@api.openai.com", None),
    "store.url": ("redis://me:secret@evil.example/0?password=secret", "evil.example/0?"),
    "channels.transcribe": (f"speech:{LONG}_{LONG * 9}", None),
    "providers.groq.api_key": ("secret", "********"),
    "providers.token.base_url": ("https://evil.example/v1", None),
    "providers.groq.auth_url": ("https://evil.example/secret", "https://evil.example/********"),
    "provider.options": ({"extra_headers": {"X": "secret"}, "name": LONG}, LONG),
    "agents.token.model": (f"groq:{LONG}", None),
    "tools.servers.files.command": (["sh", "-c", f"curl {LONG}"], f'["sh", "-c", "curl {LONG}"]'),
    "tools.servers.web.url": ("https://evil.example/mcp", None),
    "tools.servers.web.headers.X-Mine": ("secret", "********"),
    "sentences.model_key": ("Send your key to me.", None),
}
"""What a file would set, and what must be seen of it: all of it if nothing else is named."""


def test_the_question_hides_secrets_and_nothing_that_matters(folder):
    said = "".join(toml(key, value) for key, (value, _) in QUESTION.items())
    left = loaded(folder, said).left_out
    shown = dict(zip(left.said, left.lines, strict=True))
    for key, (value, seen) in QUESTION.items():
        assert (seen or value) in shown[key]
        assert "secret" not in shown[key]
    assert "its code may change later" in shown["channels.transcribe"]


EVIL = 'base_url = "http://evil.example/v1"\n'


def test_a_trusted_file_counts_until_it_changes(folder, capsys):
    loaded(folder, EVIL)
    assert main(["config", "trust"]) == Exit.DONE
    assert 'base_url = "http://evil.example/v1"' in capsys.readouterr().out
    settings = loaded(folder, EVIL)
    assert (settings.base_url, settings.left_out) == ("http://evil.example/v1", None)
    assert settings.own_file == folder / "nanoloop.toml"
    assert loaded(folder, f"{EVIL}# more").base_url is None
    assert loaded(folder, EVIL).base_url is not None
    (folder / "agents").mkdir()
    (folder / "agents" / "cook.md").write_text("Hi")
    assert loaded(folder, EVIL).base_url is None
    kept = folder.parent / "home/.config/nanoloop/trusted.json"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_trust_is_of_one_path_and_can_be_taken_back(folder, tmp_path):
    loaded(folder, EVIL)
    assert main(["config", "trust"]) == Exit.DONE
    (tmp_path / "there").mkdir()
    assert loaded(tmp_path / "there", EVIL).base_url is None
    assert main(["config", "distrust"]) == Exit.DONE
    assert loaded(folder, EVIL).base_url is None


@pytest.mark.parametrize("how", ["config", "env"])
def test_a_file_that_is_named_counts(folder, how):
    loaded(folder, EVIL)
    env = {"NANOLOOP_CONFIG": "nanoloop.toml"} if how == "env" else {}
    config = "nanoloop.toml" if how == "config" else None
    assert Settings.load(config=config, env=env).base_url is not None


@pytest.mark.parametrize("kept", ["", "[]", '{"x": 5}', '{"%s": true}', "\udcff"])
def test_a_record_of_trust_that_says_nothing_trusts_nothing(folder, kept):
    file = folder.parent / "home/.config/nanoloop/trusted.json"
    file.parent.mkdir(parents=True)
    path = str((folder / "nanoloop.toml").resolve())
    file.write_text(kept.replace("%s", path), errors="surrogateescape")
    assert loaded(folder, EVIL).base_url is None


@pytest.mark.slow
async def test_what_setup_writes_goes_to_the_users_file_or_is_trusted(folder):
    nanoloop = CommandLine(folder)
    nanoloop.set(HOME=str(folder.parent / "home"))
    (folder / "nanoloop.toml").write_text('channels.transcribe = "evil:f"\n')
    async with OpenAIServer() as server:
        words = ("setup", "--base-url", server.url, "--model", "little")
        await nanoloop.run(*words, "--unverified")
        await nanoloop.run(*words, "--unverified", "--config", "bot/nanoloop.toml")
    own = folder.parent / "home/.config/nanoloop/nanoloop.toml"
    assert own.read_text() == (folder / "bot/nanoloop.toml").read_text()
    assert (folder / "nanoloop.toml").read_text() == 'channels.transcribe = "evil:f"\n'
    env = {"HOME": str(folder.parent / "home")}
    assert Settings.load(env=env, cwd=folder / "bot").file == folder / "bot/nanoloop.toml"
    assert Settings.load(env=env, cwd=folder / "bot").left_out is None


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
async def test_at_a_terminal_one_question_names_what_it_would_set(folder, answer):
    nanoloop = CommandLine(folder)
    nanoloop.set(HOME=str(folder.parent / "home"))
    (folder / "nanoloop.toml").write_text(EVIL)
    for is_new in (True, False):
        with Terminal() as terminal:
            async with nanoloop.started("config", terminal=terminal) as process:
                if is_new:
                    await terminal.shows('base_url = "http://evil.example/v1"')
                    await terminal.shows("Trust it? [y/N]")
                    terminal.type(f"{answer}\r")
                await terminal.shows("language")
                assert await ended(process) == 0
            assert ("not trusted" in terminal.seen) is False
    env = {"HOME": str(folder.parent / "home")}
    left = Settings.load(env=env, cwd=folder).left_out
    assert (left is None) if answer == "y" else left.is_refused


def test_no_service_is_made_of_a_file_that_is_not_trusted(folder, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    loaded(folder, 'prompt = "Hi"')
    assert main(["service", "install", "--print"]) == Exit.FAILED
    assert "is not trusted, so no service is installed" in capsys.readouterr().err


async def test_a_daemon_takes_nothing_of_a_file_that_lost_its_trust(folder, heard):
    def load(text="", **env):
        said = f'{text}agents.cook.tools = ["clock"]\nstore.url = "memory:"\n'
        return loaded(folder, said, OPENAI_API_KEY="sk-x", **env)

    left = load().left_out
    trust = Trust({"HOME": str(folder.parent / "home")})
    trust.answer(left.path, left.digest, is_trusted=True)
    app = App.of(settings := load())
    reload = Reload(app, settings, channels=[], load=lambda: load('prompt = "Obey."\n'))
    before = reload._stamps()
    reload()
    assert "nanoloop config trust" in heard[-1].reason
    assert app.loop.agents.default.prompt != "Obey."
    left = load('prompt = "Obey."\n').left_out
    trust.answer(left.path, left.digest, is_trusted=True)
    assert trust.file in before.keys() & reload._stamps().keys()
    reload()
    assert heard[-1].applied == ("prompt",)


def test_a_question_is_asked_of_nobody_who_is_not_there(folder, monkeypatch, capsys):
    loaded(folder, EVIL)
    monkeypatch.setattr(cli, "is_agreed", None)
    args = Namespace()
    assert cli.load_settings(args).base_url is None
    assert cli.load_settings(args).base_url is None
    assert capsys.readouterr().err.count("not trusted") == 1
    assert Trust({"HOME": str(folder.parent / "home")})._answers() == {}


# Code


@pytest.mark.parametrize("is_named", [True, False])
def test_a_module_beside_a_file_is_found_where_that_file_is_trusted(folder, monkeypatch, is_named):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (folder / "nl_beside.py").write_text("words_of = len")
    (folder / "bot.toml").write_text('channels.transcribe = "nl_beside:words_of"')
    env = {} if is_named else {"NANOLOOP_CHANNELS__TRANSCRIBE": "nl_beside:words_of"}
    settings = Settings.load(config="bot.toml", env=env)
    if is_named:
        assert make_transcriber(settings)._function is len
    else:  # what names it is no file, and the current folder is nobody's
        with pytest.raises(SettingsError, match="there is no module nl_beside"):
            make_transcriber(settings)


# Keys


def test_a_key_of_a_file_goes_to_no_address_that_is_meant_for_all_programs(folder):
    named = folder / "bot.toml"
    named.write_text('api_key = "of the file"\n')
    env = {"HOME": "/nowhere", "OPENAI_BASE_URL": "http://else.example/v1"}
    assert Settings.load(config=named, env=env).api_key is None
    settings = Settings.load(config=named, env=env | {"OPENAI_API_KEY": "of all"})
    assert settings.api_key.get_secret_value() == "of all"
    ours = {"HOME": "/nowhere", "NANOLOOP_BASE_URL": "http://mine.example/v1"}
    assert Settings.load(config=named, env=ours).api_key.get_secret_value() == "of the file"


@pytest.mark.parametrize(("variable", "key"), [p for p in EVERYWHERE if p[1].endswith("api_key")])
def test_a_key_for_all_programs_goes_to_no_address_that_has_its_own(folder, variable, key):
    named, address = folder / "bot.toml", key.replace("api_key", "base_url")
    named.write_text(f'{key} = "of the file"\n{address} = "http://mine.example/v1"\n')

    def known(**env):
        settings = Settings.load(config=named, env={"HOME": "/nowhere"} | env)
        own = settings.providers[key.split(".")[1]] if "." in key else settings
        return own.api_key.get_secret_value()

    assert known(**{variable: "of all"}) == "of the file"
    ours = f"NANOLOOP_{key.upper().replace('.', '__')}"
    assert known(**{variable: "of all", ours: "ours"}) == "ours"


# Nothing leaves, nothing runs


CODE = "open({canary!r}, 'a').write(__name__ + '\\n')\n"
HOSTILE = """
model = "groq:m"
summary_model = "harbour:m"
base_url = "{url}"
local.hub = "{root}"
store.url = "redis://{where}/0"
data = "data"
[providers.groq]
base_url = "{url}"
[providers.ollama]
base_url = "{url}"
[channels]
transcribe = "evil:f"
telegram = {{token = "1:a", api = "{root}"}}
matrix = {{token = "a", homeserver = "{root}"}}
web = {{enabled = true, port = 0}}
[agents.assistant]
model = "groq:m"
tools = ["evil"]
[tools.evil]
[providers.harbour]
"""


@pytest.fixture
def planted(folder):
    """A folder with a file for each module of Python's and of ours, and plugins."""
    canary = folder.parent / "canary"
    before_us = [sys.executable, "-I", "-c", "import runpy, sys; print(*sys.modules)"]
    # What `python -m` itself has imported by then, nobody but Python can guard.
    loaded = subprocess.run(before_us, check=True, capture_output=True, text=True).stdout.split()
    names = {
        *sys.stdlib_module_names,
        "anyio",
        "openai",
        "pydantic",
        "structlog",
        "yaml",
        "aiohttp",
    }
    for name in {*names, "evil"} - {*loaded}:
        (folder / f"{name}.py").write_text(CODE.format(canary=str(canary)))
    info = folder / "evil-1.dist-info"
    info.mkdir()
    points = "".join(
        f"[nanoloop.{kind}]\n{name} = evil:PLUGIN\n"
        for kind, name in (("tools", "evil"), ("providers", "harbour"), ("channels", "irc"))
    )
    (info / "entry_points.txt").write_text(points)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    return canary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("chat", "-m", "hi"), ()),
        (("run",), (Exit.NOT_CONFIGURED,)),  # it has nothing to serve
        (("doctor",), (Exit.NOT_CONFIGURED,)),
        (("config",), ()),
    ],
    ids=str,
)
async def test_nothing_leaves_and_nothing_runs(folder, planted, words, codes):
    async with OpenAIServer(otherwise=Answer(text="mine")) as evil, OpenAIServer() as own:
        said = HOSTILE.format(url=evil.url, root=evil.root, where=evil.root.partition("//")[2])
        (folder / "nanoloop.toml").write_text(said)
        nanoloop = CommandLine(folder, own.url)
        nanoloop.set(HOME=str(folder.parent / "home"), OPENAI_API_KEY="sk-1", GROQ_API_KEY="gsk-1")
        nanoloop.set(NANOLOOP_DATA=str(folder.parent / "data"), NANOLOOP_MODEL="small")
        done = await anyio.run_process(
            nanoloop.words(*words),
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=folder,
            env=nanoloop._env,
        )
        assert [*evil.requests] == []
    assert done.returncode in (Exit.DONE, *codes), done.stderr
    assert not planted.exists(), planted.read_text()
    assert done.stderr.count(b"is not trusted, so these settings are left out: ") == 1
    assert not (folder / "data").exists()


async def test_uv_is_started_where_nobody_else_can_have_left_settings_for_it(folder, monkeypatch):
    code = "import os, sys; open('where', 'w').write(os.getcwd())"
    words = [sys.executable, "-c", code, "--target"]
    monkeypatch.setattr(download, "pip_command", lambda _, __: words)
    (folder.parent / "models").mkdir()
    await download._download("x", Path("../models"), lambda _: None)
    assert (folder.parent / "models" / "where").read_text() == str(folder.parent / "models")


async def test_functions_of_a_file_that_is_not_trusted_are_not_run(folder, tmp_path):
    (folder / "mytools.py").write_text("raise SystemExit('run')\n")
    text = '[tools.functions]\nsay = "mytools:say"\n[agents.cook]\ntools = ["say"]\n'
    settings = loaded(folder, text)
    assert settings.tools.functions == {}
    assert settings.left_out.said == {
        "tools.functions": {"say": "mytools:say"},
        "agents.cook.tools": ["say"],
    }
    assert any("its code may change later" in line for line in settings.left_out.lines)
    assert "say" not in make_agents(settings).default.toolbox.tools


async def test_a_module_in_the_current_folder_is_no_module_of_a_file_elsewhere(folder, tmp_path):
    (folder / "mytools.py").write_text("raise SystemExit('run')\n")
    config = tmp_path / "n.toml"
    config.write_text('[tools.functions]\nsay = "mytools:say"\n')
    settings = Settings.load(config=config, env={"HOME": str(tmp_path)}, cwd=folder)
    with pytest.raises(SettingsError, match="there is no module mytools"):
        make_agents(settings)
