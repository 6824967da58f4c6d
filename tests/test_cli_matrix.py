"""Every command in every kind of terminal and pipe: no traceback, no hang, the same exit code."""

import io
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from nanoloop.channels.kit.access import Pairing, Person
from nanoloop.cli import Exit, actions_of, main, whole_parser
from nanoloop.stores.place import FILE
from nanoloop.stores.sqlite import SqliteStore
from tests.openai_server import OpenAIServer
from tests.test_cli_output import TITLES

ODD = "茶 ☕ شاي"
LINES = {
    "setup": "setup --model openai:a --unverified",
    "chat": f"chat -m '{ODD}'",
    "run": "run",
    "serve": "serve --host 0.0.0.0",
    "status": "status",
    "doctor": "doctor",
    "check": "check --json",
    "connect discord": "connect discord",
    "connect matrix": "connect matrix",
    "connect slack": "connect slack",
    "connect telegram": "connect telegram",
    "service install": "service install",
    "service status": "service status",
    "service restart": "service restart",
    "service logs": "service logs",
    "service uninstall": "service uninstall",
    "pair list": "pair list",
    "pair approve": "pair approve CODE",
    "pair revoke": "pair revoke telegram 1",
    "pair logins": "pair logins",
    "pair logout": "pair logout 0c6fb1a29d17",
    "sessions list": "sessions list",
    "sessions usage": "sessions usage",
    "sessions show": "sessions show s1",
    "sessions stats": "sessions stats s2",
    "sessions export": "sessions export s3 --format md",
    "sessions rename": f"sessions rename s1 '{ODD}'",
    "sessions fork": "sessions fork s1",
    "sessions undo": "sessions undo s2",
    "sessions archive": "sessions archive s0",
    "sessions unarchive": "sessions unarchive s0",
    "sessions delete": "sessions delete s4 --yes",
    "sessions forget": "sessions forget s1 1 --yes",
    "sessions import": "sessions import odd.json --as odd",
    "sessions prune": "sessions prune --older-than 1d --yes",
    "store copy": "store copy sqlite:data/sessions.sqlite jsonl:data/copy",
    "store check": "store check",
    "store migrate": "store migrate",
    "store seal": "store seal",
    "store adopt": "store adopt",
    "memory show": "memory show s0",
    "memory edit": f"memory edit s1 --text '{ODD}'",
    "memory status": "memory status",
    "model list": "model list",
    "model get": f"model get '{ODD}'",
    "model path": "model path tiny",
    "model remove": "model remove tiny --yes",
    "tools call": f"tools call '{ODD}'",
    "demo": "demo --fast",
    "tools accept": "tools accept files",
    "tools login": "tools login files",
    "tools logout": "tools logout files",
    "approvals list": "approvals list",
    "approvals yes": "approvals yes s0 7",
    "approvals no": f"approvals no s0 7 '{ODD}'",
    "debug-report": "debug-report s3 --output report.json",
    "docs": "docs faq",
    "config": "config",
    "completion": "completion zsh",
    "version": "version",
}
"""One that ends by itself, of each command and action."""
ENDS = {
    "run": Exit.NOT_CONFIGURED,
    "serve": Exit.USAGE,
    "status": Exit.FAILED,
    "doctor": Exit.NOT_CONFIGURED,
    "check": Exit.NOT_CONFIGURED,
    "connect discord": Exit.USAGE,
    "connect matrix": Exit.USAGE,
    "connect slack": Exit.USAGE,
    "connect telegram": Exit.USAGE,
    "pair approve": Exit.NOT_FOUND,
    "pair logout": Exit.NOT_FOUND,
    "model get": Exit.NOT_FOUND,
    "model path": Exit.NOT_FOUND,
    "model remove": Exit.NOT_FOUND,
    "tools call": Exit.NOT_FOUND,
    "tools accept": Exit.NOT_FOUND,
    "tools login": Exit.NOT_FOUND,
    "tools logout": Exit.NOT_FOUND,
    "approvals yes": Exit.NOT_FOUND,
    "approvals no": Exit.NOT_FOUND,
}
"""How those end that lack something here; the others do what they are for."""
MORE = (
    "sessions list --json",
    "sessions export s1",
    "sessions stats s1 --json",
    "memory show s2 --json",
    "tools",
    "approvals list --json",
    "config --json",
    "doctor --json",
    "chat --json -m hi",
    "--help",
    "sessions --help",
    f"'{ODD}'",
    f"sessions show '{ODD}'",
    f"run --config '{ODD}.toml'",
)
SHORT = [
    "pair list",
    "sessions list",
    "sessions show",
    "sessions export",
    "sessions rename",
    "memory show",
    "debug-report",
    "docs",
]
C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
WAYS = {
    "utf-8": ({}, "{}"),
    "ascii": ({"PYTHONIOENCODING": "ascii"}, "{}"),
    "latin-1": ({"PYTHONIOENCODING": "latin-1"}, "{}"),
    "cp1252": ({"PYTHONIOENCODING": "cp1252"}, "{}"),
    "C": (C, "{}"),
    "dumb": ({"TERM": "dumb"}, "{}"),
    "narrow": ({"TERM": "xterm", "COLUMNS": "40"}, "{}"),
    "closed": ({}, "{} >&-"),
    "all closed": ({}, "{} <&- >&- 2>&-"),
    "head": ({}, "{} | head -1"),
}
"""What is in the environment, and what the shell does with it. The first is how it ought to be."""
ON_A_TERMINAL = {"dumb", "narrow"}
SETTINGS = """\
data = "data"
model = "openai:a"
[channels.terminal]
enabled = false
[agents.odd]
prompt = "茶 ☕ شاي"
"""


@pytest.fixture(scope="module")
def url():
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(otherwise=f"{ODD} “ok” …")) as server,
    ):
        yield server.url


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with settings, conversations with odd titles, and people with odd names."""
    folder = tmp_path_factory.mktemp("matrix") / "world"
    data = folder / "data"
    data.mkdir(parents=True)
    (folder / "nanoloop.toml").write_text(SETTINGS, encoding="utf-8")
    anyio.run(fill, data / FILE, folder / "odd.json")
    pairing = Pairing(data)
    for number, name in enumerate(TITLES):
        person = Person(channel="telegram", id=str(number), name=name, chat="1", time=0)
        if code := pairing.code_for(person):
            pairing.approve(code)
    pairing.close()
    unit = folder / ".config" / "systemd" / "user" / "nanoloop.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    tools = folder / "bin"
    tools.mkdir()
    for name in ("systemctl", "loginctl", "journalctl", "launchctl"):
        (tools / name).write_text("#!/bin/sh\necho '茶 ☕'\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    return folder


async def fill(file, exported):
    store = SqliteStore(file)
    for number, title in enumerate(TITLES):
        session = await store.create(id=f"s{number}", key=f"terminal:{number}")
        session.title = title
        for text in (title, f"you said {title}") * 3:
            session.add_message("user" if text == title else "assistant", text)
        session.trim_if_needed(2, 2)
        session.update_summary(f"about {title}", seq=session.pending_seq)
        await store.save(session)
        exported.write_text(json.dumps(json.loads(session.dump_json())))
    await store.close()


def variables(folder, url):
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    model = {"OPENAI_API_KEY": "sk-x", "OPENAI_BASE_URL": url}
    model["NANOLOOP_CONFIG"] = "nanoloop.toml"
    return {**kept, "PATH": path, "HOME": str(folder), "TERM": "xterm", **model}


def every_leaf(parser, *before):
    """The words of each command that does something, without those that have actions."""
    inner = actions_of(parser)
    for name, action in inner.items():
        yield from every_leaf(action, *before, name)
    if not inner:
        yield " ".join(before)


def test_each_command_and_action_is_in_the_matrix():
    assert {*LINES} == {*every_leaf(whole_parser())}


# In this process, so that it is quick


def said(words, encoding, *, folder, monkeypatch):
    """How it ends, and what it prints on streams that take nothing which they can't encode."""
    monkeypatch.chdir(folder)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    code = main(shlex.split(words))
    return code, [stream.buffer.getvalue().decode(encoding) for stream in streams]


@pytest.mark.parametrize("command", SHORT)
def test_a_command_that_shows_what_people_wrote_does_so_in_ascii_too(
    command, template, tmp_path, url, monkeypatch
):
    for name in [name for name in os.environ if name.startswith(("NANOLOOP_", "OPENAI_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name, value in variables(tmp_path, url).items():
        monkeypatch.setenv(name, value)
    ended = {}
    for encoding in ("utf-8", "ascii"):
        folder = shutil.copytree(template, tmp_path / encoding)
        ended[encoding] = said(LINES[command], encoding, folder=folder, monkeypatch=monkeypatch)
    assert ended["ascii"][0] == ended["utf-8"][0] == Exit.DONE
    assert all("a bug" not in text for _, texts in ended.values() for text in texts)


def test_a_name_that_is_no_text_is_one_that_nothing_has(template, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(template, tmp_path / "world"))
    monkeypatch.setenv("NANOLOOP_CONFIG", "nanoloop.toml")
    assert main(["sessions", "show", "\udcff"]) == Exit.NOT_FOUND
    assert "no session" in capsys.readouterr().err
    assert (
        main(["sessions", "rename", "s1", os.fsencode("茶").decode("ascii", "surrogateescape")])
        == 0
    )
    assert "now called '茶'" in capsys.readouterr().err


# In real processes


def run(words, way, *, folder, url):
    """What one of them printed, and how it ended."""
    env, shell = WAYS[way]
    command = shell.format(f"{shlex.quote(sys.executable)} -m nanoloop {words}")
    here, there = pty.openpty() if way in ON_A_TERMINAL else os.pipe()
    log = folder / "shown"
    with log.open("wb") as shown:
        reading = subprocess.Popen(["cat"], stdin=here, stdout=shown, stderr=subprocess.DEVNULL)
    os.close(here)
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=there,
            stderr=there,
            check=False,
            cwd=folder,
            env={**variables(folder, url), **env},
            timeout=60,
        )
    finally:
        os.close(there)
        reading.wait(10)
    return done.returncode, log.read_bytes().decode("utf-8", "replace")


def in_every_way(words, *, template, tmp_path, url):
    """How it ends, which is the same in each way."""

    def one(way):
        return run(words, way, folder=shutil.copytree(template, tmp_path / way), url=url)

    with ThreadPoolExecutor(4) as pool:
        ended = dict(zip(WAYS, pool.map(one, WAYS), strict=True))
    code, _ = ended["utf-8"]
    assert {way: code for way, (code, _) in ended.items()} == dict.fromkeys(WAYS, code)
    for _, shown in ended.values():
        assert "Traceback" not in shown
        assert "a bug ended the command" not in shown
    return code


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.long if number % 4 else pytest.mark.slow)
        for number, command in enumerate(LINES)
    ],
)
def test_a_command_does_the_same_wherever_it_is_shown(command, template, tmp_path, url):
    code = in_every_way(LINES[command], template=template, tmp_path=tmp_path, url=url)
    assert code == ENDS.get(command, Exit.DONE)


@pytest.mark.slow
@pytest.mark.parametrize("words", MORE)
def test_so_does_one_that_is_for_scripts_or_was_mistyped(words, template, tmp_path, url):
    in_every_way(words, template=template, tmp_path=tmp_path, url=url)


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words in MORE if "--json" in words])
def test_json_is_whole_in_each_encoding(words, template, tmp_path, url):
    found = {}
    for way in ("utf-8", "ascii", "cp1252", "C"):
        folder = shutil.copytree(template, tmp_path / way)
        _, shown = run(f"{words} 2>/dev/null", way, folder=folder, url=url)
        found[way] = json.loads(shown.replace(str(folder), ""))
    assert all(
        value.keys() == found["utf-8"].keys() for value in found.values() if isinstance(value, dict)
    )
    if words != "doctor --json":  # of the machine's state
        assert all(value == found["utf-8"] for value in found.values())
