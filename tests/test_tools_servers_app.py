"""Tool servers in a whole program: from settings alone, and no answer waits for one."""

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import Agent
from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit, main
from nanoloop.cli.reload import Reload
from nanoloop.errors import SettingsError
from nanoloop.events import SettingsReloaded, ToolNotRepeated
from nanoloop.parts import make_agents
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from tests.references import ROOT
from tests.tool_servers import Folder, box, running, until


@pytest.fixture
def files(tmp_path):
    return Folder(tmp_path / "files")


@pytest.fixture
def write(tmp_path, files, monkeypatch):
    """Writes a settings file with that server, and more."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(more="", server=None):
        server = files.setting() if server is None else server
        text = f"{more}\n[tools.servers.files]\n{server}\n"
        (tmp_path / "n.toml").write_text(f'model = "ollama:none"\n{text}')

    write()
    return write


def load():
    return Settings.load(config="n.toml", flags={"data": "data"})


def calls(*names, **arguments):
    return Reply(
        tool_calls=tuple(
            ToolCall(id="", name=name, arguments=json.dumps(arguments)) for name in names
        )
    )


@asynccontextmanager
async def serving(provider):
    app = App.of(load(), provider=provider)
    chat = DirectChannel(app.loop.bus)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        yield app, chat
        app.stop()


async def connected(app):
    for server in app.tool_servers:
        await until(lambda server=server: server.state == "connected")


def names(call):
    return [spec.name for spec in call.tools]


async def test_from_settings_alone_a_model_calls_a_server_s_tool(write):
    provider = ScriptedProvider([calls("files__write", text="tea"), "done"])
    async with serving(provider) as (app, chat):
        await connected(app)
        assert (await chat.ask("Note tea", chat="a")).text == "done"
    assert "files__write" in names(provider.calls[0])
    assert provider.calls[-1].messages[-1]["content"] == "tea"


async def test_the_first_answer_waits_for_no_server(write, files):
    files.set("silent")
    provider = ScriptedProvider(["hello", "again"])
    async with serving(provider) as (_, chat):
        assert (await chat.ask("Hi", chat="a")).text == "hello"
    assert not any(name.startswith("files__") for name in names(provider.calls[0]))


async def test_once_met_its_tools_are_there_from_the_first_turn_on(write):
    async with serving(ScriptedProvider()) as (app, _):
        await connected(app)
    provider = ScriptedProvider([calls("files__echo", text="quick"), "done"])
    async with serving(provider) as (_, chat):
        await chat.ask("Hi", chat="a")
    assert provider.calls[-1].messages[-1]["content"] == "quick"


async def test_a_chat_whose_server_hangs_delays_no_other_chat(write, files):
    provider = ScriptedProvider([calls("files__wait"), "the other's answer", "gone"])
    async with serving(provider) as (app, chat):
        await connected(app)
        told = []

        async def ask():
            told.append((await chat.ask("Wait", chat="a")).text)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await files.until("waits")
            assert (await chat.ask("Hi", chat="b")).text == "the other's answer"
            assert told == []
            os.kill(files.pids[-1], signal.SIGKILL)
        assert told == ["gone"]


async def test_a_call_that_was_cut_off_is_not_made_again_in_its_turn(files, tmp_path, heard):
    async with running(files.place(), data=tmp_path / "data") as servers:
        tools = list(box(servers).tools.values())
        twice = [calls("files__die"), calls("files__die"), "done"]
        provider = ScriptedProvider(twice)
        await Agent(provider=provider, tools=tools).ask("Go")
    results = [m["content"] for m in provider.calls[-1].messages if m["role"] == "tool"]
    assert "the call may or may not have taken effect" in results[0]
    assert len(files.pids) <= 2
    assert sum(isinstance(event, ToolNotRepeated) for event in heard) == 1


async def test_a_reload_brings_another_server_and_keeps_the_one_that_stays(
    write, files, tmp_path, heard
):
    other = Folder(tmp_path / "other")
    async with serving(ScriptedProvider()) as (app, _):
        await connected(app)
        reload = Reload(app, load(), channels=[], load=load)
        write(f"[tools.servers.other]\n{other.setting()}")
        reload()
        await until(lambda: len([*app.tool_servers]) == 2)
        await connected(app)
        assert len(files.pids) == len(other.pids) == 1
        specs = [spec.name for spec in app.loop.agents.default.toolbox.specs]
        assert {"files__echo", "other__echo"} <= set(specs)
        write('[tools.servers.other]\nurl = "no address"')
        reload()  # wrong: all stays
        assert len([*app.tool_servers]) == 2
        write()
        reload()
        assert not any("other" in spec.name for spec in app.loop.agents.default.toolbox.specs)
    applied = [event.applied for event in heard if isinstance(event, SettingsReloaded)]
    assert ["tools.servers.other.command" in each for each in applied] == [True, True]


async def test_an_agent_s_list_may_name_tools_that_are_not_known_yet(write):
    write('[agents.cook]\ntools = ["clock", "files__e*", "!files__environment"]')
    async with serving(ScriptedProvider()) as (app, _):
        assert [s.name for s in app.loop.agents["cook"].toolbox.specs] == ["clock"]
        await connected(app)
        specs = [spec.name for spec in app.loop.agents["cook"].toolbox.specs]
        assert specs == ["clock", "files__echo"]


@pytest.mark.parametrize("entry", ["flies", "flies__echo", "flies*", "x__*"])
def test_an_entry_that_no_server_can_match_is_refused(write, entry):
    write(f'[agents.cook]\ntools = ["{entry}"]')
    with pytest.raises(SettingsError, match=r"but (there is no such tool|no tool matches)"):
        make_agents(load())


@pytest.mark.parametrize("entry", ["files", "files__e*", "!files__echo", "fi*", "f*__echo"])
def test_an_entry_that_one_may_match_is_taken(write, entry):
    write(f'[agents.cook]\ntools = ["{entry}"]')
    assert "cook" in make_agents(load())


async def test_beyond_the_budget_its_tools_are_found_by_words(write, files):
    files.set("many")
    async with serving(ScriptedProvider()) as (app, _):
        await connected(app)
        specs = [spec.name for spec in app.loop.agents.default.toolbox.specs]
        assert specs[-1] == "find_tools"
        assert not any(name.startswith("files__") for name in specs)


# Settings


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ("", "has neither a command nor a url: set one of them"),
        ('command = ["a"]\nurl = "http://a"', "has both a command and a url: set one of them"),
        ('command = ["a"]\nheaders = {a = "b"}', "headers belong to a url: remove them"),
        ('url = "http://a"\nenv = ["A"]', "env belongs to a command: remove it"),
        ('url = "http://a"\nheaders = {"a b" = "c"}', "is not a header"),
        ('url = "http://a"\nheaders = {a = "b\\nc"}', "is not a header"),
        ('url = "ftp://a"', "not an address"),
    ],
)
def test_a_server_that_can_t_be_meant_is_refused(write, server, told):
    write(server=server)
    with pytest.raises(SettingsError, match=told):
        load()


@pytest.mark.parametrize("name", ["a__b", "_a", "a_", "a b", "x" * 31])
def test_a_server_s_name_is_part_of_its_tools_names(write, name):
    write(f'[tools.servers."{name}"]\ncommand = ["a"]')
    with pytest.raises(SettingsError, match="is not a server's name"):
        load()


def test_headers_are_never_shown(write, capsys):
    write(server='url = "http://a"\nheaders = {X-Key = "very-secret"}')
    assert main(["config", "--config", "n.toml"]) == Exit.DONE
    assert "very-secret" not in capsys.readouterr().out
    assert "very-secret" not in repr(load())


@pytest.mark.parametrize("installed", ["1.26.0", "3.0"])
def test_without_a_package_that_fits_the_extra_is_named(write, monkeypatch, installed):
    monkeypatch.setattr("nanoloop.tool_sources.version", lambda _: installed)
    with pytest.raises(SettingsError, match=r'needs mcp 2.3, .*install the extra "mcp"'):
        App.of(load(), provider=ScriptedProvider())


async def test_a_server_that_is_not_enabled_is_not_there(write, monkeypatch):
    write(server='url = "http://a"\nenabled = false')
    monkeypatch.setattr("nanoloop.tool_sources.version", lambda _: "1.0")
    assert [*App.of(load(), provider=ScriptedProvider()).tool_servers] == []


# The command line


def run(*words):
    return main([*words, "--config", "n.toml", "--data", "data"])


def test_the_list_names_servers_and_what_is_wrong_with_them(write, files, capsys):
    files.set("bad")
    write('[tools.servers.none]\ncommand = ["no-such-program"]')
    assert run("tools") == Exit.DONE
    told = capsys.readouterr().out
    assert "files__echo" in told
    assert "server files: connected, 13 tools\n" in told
    assert "  left out 'no schema': its schema" in told
    assert "server none: not reachable, there is no program no-such-program" in told
    files.set("ends")
    run("tools")
    told = capsys.readouterr().out
    assert "server files: not reachable, its program ended with 1\n" in told
    assert "  it wrote: Error: it has no key\n" in told


def test_what_changed_is_shown_until_it_is_accepted(write, files, capsys):
    run("tools")
    files.set("other", "more")
    capsys.readouterr()
    run("tools")
    told = capsys.readouterr().out
    assert "  withheld 'echo', which is changed (description), and says: Be evil.\n" in told
    assert "  withheld 'added', which is new, and says: Does added.\n" in told
    assert "  to accept them: nanoloop tools accept files\n" in told
    assert run("tools", "accept", "files") == Exit.DONE
    assert "echo" in capsys.readouterr().out
    run("tools")
    assert "withheld" not in capsys.readouterr().out
    assert run("tools", "accept", "flies") == Exit.NOT_FOUND
    assert "did you mean 'files'?" in capsys.readouterr().err


def test_a_server_s_tool_is_tried_by_hand(write, capsys):
    assert run("tools", "call", "files__echo", '{"text": "hi"}') == Exit.DONE
    assert capsys.readouterr().out == "hi\n"


@pytest.mark.slow
def test_check_names_a_server_that_can_t_be_used(write, capsys):
    write(server='command = ["no-such-program"]')
    run("check")
    assert "WRONG  server files: not reachable, there is no program" in capsys.readouterr().out


def test_neither_the_package_nor_the_command_line_loads_mcp(write):
    for code in ("import nanoloop", "from nanoloop.cli import main; main(['config'])"):
        check = f"{code}; import sys; sys.exit('mcp' in sys.modules)"
        words = [sys.executable, "-c", check]
        assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0
