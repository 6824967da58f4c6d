"""The command line: finding commands, exit codes, and `nanoloop config`."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoloop import __version__, cli, plugins
from nanoloop.cli import COMMANDS, Exit, main
from nanoloop.cli.config import example, values
from nanoloop.errors import NoConnection, SessionNotFound, SettingsError, StoreLocked
from nanoloop.settings import ChannelSettings, Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import known_settings
from tests.packages import without_what_is_gone

ROOT = Path(__file__).parent.parent
PLATFORM = plugins.names("channels")[0]
SHARED = PlatformSettings.model_fields.keys()
OWN = [
    f"channels.{PLATFORM}.{name}"
    for name in ChannelSettings.table_for(PLATFORM).model_fields.keys() - SHARED
]
"""What it takes that others do not."""


@pytest.fixture(autouse=True)
def empty_world(tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(monkeypatch):
    """Let `nanoloop demo` do something else."""

    def command(run, *flags):
        module = SimpleNamespace(add_arguments=lambda _: None, run=run)
        monkeypatch.setattr(cli, "import_module", lambda _: module)
        return main(["demo", *flags])

    return command


def raising(error):
    def run(_):
        raise error

    return run


def test_config_shows_each_setting_with_value_and_origin(capsys, monkeypatch):
    monkeypatch.setenv("NANOLOOP_LOG__LEVEL", "debug")
    assert main(["config", "--model", "small"]) == Exit.DONE
    out = capsys.readouterr().out
    assert re.search(r'^model +"small" +flag --model$', out, re.MULTILINE)
    assert re.search(r'^log.level +"debug" +env NANOLOOP_LOG__LEVEL$', out, re.MULTILINE)
    assert re.search(r"^message_buffer_limit +50 +default$", out, re.MULTILINE)


def test_config_as_json_has_every_setting(capsys):
    Path("nanoloop.toml").write_text("message_buffer_min = 7\n[agents.cook]\nprompt = 'x'\n")
    assert main(["config", "--json"]) == Exit.DONE
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == "nanoloop.toml"
    assert said["settings"]["message_buffer_min"] == {"value": 7, "origin": "nanoloop.toml:1"}
    assert said["settings"]["agents.cook.prompt"] == {"value": "x", "origin": "nanoloop.toml:3"}
    known = {key for key, _ in known_settings(Settings) if ".NAME." not in key}
    assert known <= said["settings"].keys()


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_config_masks_secrets(capsys, monkeypatch, flags):
    monkeypatch.setenv("OPENAI_API_KEY", "12345678")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:12345678@host/v1")
    assert main(["config", *flags]) == Exit.DONE
    out = capsys.readouterr().out
    assert "12345678" not in out
    assert "********" in out


def test_the_example_in_config_is_what_the_settings_say():
    shipped = (ROOT / "config" / "nanoloop.example.toml").read_text()
    assert without_what_is_gone(shipped) == example()


def test_the_example_changes_nothing(tmp_path):
    file = tmp_path / "nanoloop.toml"
    file.write_text(example())
    assert Settings.load(config=file).model_dump() == Settings().model_dump()


def test_the_example_with_every_line_taken_in_shows_each_setting(tmp_path):
    every = re.sub(r"^#(?! |$)", "", example(), flags=re.MULTILINE)
    file = tmp_path / "nanoloop.toml"
    file.write_text(every.replace("channels.NAME", f"channels.{PLATFORM}"))
    settings = Settings.load(config=file)
    keys = [key for key, _ in values(settings) if key not in OWN]
    shown = {re.sub(rf"\.(cook|files|groq|{PLATFORM})\.", ".NAME.", key) for key in keys}
    assert shown == {key for key, _ in known_settings(Settings)}
    assert all(settings.origin(key).kind == "file" for key in keys)
    optional = dict.fromkeys(
        ("summary_model", "api_key", "base_url", "context_limit", "context_tokens")
    )
    optional |= {"agents": {}, "providers": {}}
    optional["channels"] = Settings().channels  # its agent is an example
    calls = settings.provider.model_copy(update={"options": {}})
    store = settings.store.model_copy(
        update={"url": None, "encryption_key": None, "keys_file": None}
    )
    summary = settings.summary.model_copy(update={"fallback_model": None, "daily_tokens": None})
    tables = {"provider": calls, "store": store, "summary": summary, "local": Settings().local}
    tables |= {"session": Settings().session, "skills": Settings().skills}
    tables["tools"] = settings.tools.model_copy(update={"functions": {}, "servers": {}})
    plain = settings.model_copy(update=optional | tables)
    assert plain.model_dump() == Settings().model_dump()


def test_wrong_settings_end_with_2_and_a_line_each(capsys):
    Path("nanoloop.toml").write_text("modle = 'x'\nmessage_buffer_min = 60\n")
    assert main(["config"]) == Exit.USAGE
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("nanoloop: nanoloop.toml:") for line in told)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("wrong"), Exit.USAGE),
        (NoConnection("nothing answers"), Exit.FAILED),
        (SessionNotFound("x"), Exit.NOT_FOUND),
        (StoreLocked("data", "process 7"), Exit.IN_USE),
        (FileNotFoundError(2, "No such file", "x"), Exit.FAILED),
    ],
)
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: ExceptionGroup("tasks", [e])])
def test_an_error_is_one_sentence_and_a_code(capsys, command, error, code, wrap):
    assert command(raising(wrap(error))) == code
    assert capsys.readouterr().err == f"nanoloop: {error}\n"


def test_an_interrupt_ends_with_130_and_no_word(capsys, command):
    assert command(raising(KeyboardInterrupt())) == Exit.INTERRUPTED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "wrap", [lambda e: e, lambda e: ExceptionGroup("s", [NoConnection(""), e])]
)
def test_a_bug_is_one_sentence_with_an_incident_id_that_stays_the_same(capsys, command, wrap):
    for text in ("what was said", "something else"):
        assert command(raising(wrap(ZeroDivisionError(text)))) == Exit.FAILED
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    assert re.match(
        r"nanoloop: a bug ended the command \(incident [0-9a-f]{6}, ZeroDivisionError at ", first
    )
    assert "--debug" in first


def test_the_traceback_of_a_bug_is_shown_if_it_is_asked_for(capsys, command):
    assert command(raising(ZeroDivisionError("why")), "--debug") == Exit.FAILED
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert "ZeroDivisionError: why\nnanoloop: a bug ended the command (incident " in told


def test_a_commands_own_code_is_passed_on(command):
    assert command(lambda _: Exit.NOT_CONFIGURED) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["chta"], "did you mean 'chat'?"),
        (["xyzzy"], "`nanoloop --help` lists them"),
        (["--model", "x", "config"], "put the command first"),
        (["config", "--exmple"], "config has no option --exmple: did you mean --example?"),
        (["sessions", "lst"], "sessions has no action 'lst': did you mean 'list'?"),
        (
            ["sessions", "--data", "lst", "lst"],
            "sessions has no action 'lst': did you mean 'list'?",
        ),
        (["sessions", "xyzzy"], "sessions has no action 'xyzzy': choose from list, usage, show"),
        (
            ["sessions", "show", "--lst", "3", "x"],
            "sessions show has no option --lst: did you mean --last",
        ),
        (
            ["sessions", "prune", "--oldr-than=3d"],
            "prune has no option --oldr-than: did you mean --older-",
        ),
        (["sessions", "list", "--js"], "sessions list has no option --js: "),
        (
            ["chat", "-m", "hi", "--sesion", "x"],
            "chat has no option --sesion: did you mean --session?",
        ),
        (["check", "--modle", "x"], "nanoloop doctor has no option --modle: did you mean --model?"),
        (["--vresion"], "nanoloop has no option --vresion: did you mean --version?"),
        (["config", "--json", "--example"], "not allowed with"),
    ],
)
def test_a_wrong_word_is_told_and_ends_with_2(capsys, words, told):
    assert main(words) == Exit.USAGE
    assert told in capsys.readouterr().err


UNUSED = [
    *((name, "--model") for name in ("sessions list", "memory status", "store check", "status")),
    *((name, "--log-level") for name in ("sessions list", "doctor", "status", "pair list")),
    *((name, "--config") for name in ("demo", "version", "completion bash")),
    *((name, "--data") for name in ("model list", "version", "completion bash")),
]


@pytest.mark.parametrize(("command", "flag"), UNUSED)
def test_a_flag_that_a_command_does_not_use_is_refused(capsys, command, flag):
    assert main([*command.split(), flag, "info"]) == Exit.USAGE
    assert (
        f"nanoloop {command.removesuffix(' bash')} has no option {flag}: "
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version_is_one_line_for_a_report(capsys, words):
    assert main(words) == Exit.DONE
    said = capsys.readouterr().out
    assert re.fullmatch(rf"nanoloop {__version__} \(Python 3\.\d+\.\S+ on .*\)\n", said)


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == Exit.USAGE
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_every_help_has_examples(capsys, words):
    assert main([*words, "--help"]) == Exit.DONE
    assert "examples:\n  nanoloop" in capsys.readouterr().out


def test_a_reader_that_leaves_early_changes_nothing():
    code = "import sys; from nanoloop.cli import main; sys.exit(main(['config', '--example']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(10) == Exit.DONE


def test_python_m_nanoloop_is_nanoloop():
    words = [sys.executable, "-m", "nanoloop", "config", "--example"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == example()


def test_every_command_has_its_file():
    for name in COMMANDS:
        if (ROOT / "nanoloop" / "cli" / f"{name}.py").exists():
            module = import_module(f"nanoloop.cli.{name}")
            assert callable(module.add_arguments)
