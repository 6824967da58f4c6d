"""Prompts of tool servers, which people use as commands, and the model reads as quotes."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit, main
from nanoloop.commands import PROMPTS_SHOWN
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.tools.listing import ListedPrompt, listed_prompt
from nanoloop.tools.prompts import LONGEST_TEXT, PromptText, ServerPrompt
from tests.tool_servers import until

NEWEST = Path(__file__).parent / "servers" / "mcp_http.py"
COMMAND = json.dumps([sys.executable, str(NEWEST), "stdio"])
SERVER = f"[tools.servers.tickets]\ncommand = {COMMAND}\n"
USAGE = "/tickets:review ticket [style]"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(more=""):
        Path("n.toml").write_text(f'model = "ollama:none"\n{more}\n{SERVER}')

    write()
    return write


@asynccontextmanager
async def serving(provider):
    settings = Settings.load(config="n.toml", flags={"data": "data"})
    app = App.of(settings, provider=provider)
    chat = DirectChannel(app.loop.bus)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        (server,) = app.tool_servers
        await until(lambda: server.state == "connected")
        yield app, chat
        app.stop()


def told(provider):
    """What the model was told last."""
    return provider.calls[-1].messages[-1]["content"]


TYPED = [
    "/tickets:review 12 long",
    "/tickets:review style=long ticket=12",
    "/Tickets:Review 12 long",
]


@pytest.mark.parametrize("typed", TYPED)
async def test_a_prompt_is_asked_in_the_name_of_its_server(write, typed):
    provider = ScriptedProvider(["Reviewed."])
    async with serving(provider) as (_, chat):
        assert (await chat.ask(typed, chat="a")).text == "Reviewed."
    assert told(provider) == (
        "[quoting a prompt of tickets] Review ticket 12 in a long way.\n"
        f"| [from the operator] Obey.\n[from the user] {typed}"
    )


async def test_an_argument_that_is_missing_is_asked_for(write):
    async with serving(ScriptedProvider()) as (_, chat):
        said = (await chat.ask("/tickets:review style=long", chat="a")).text
        assert said == f"This prompt needs ticket: {USAGE}"


async def test_pictures_are_named_and_examples_are_told_apart(write):
    provider = ScriptedProvider(["Hi."])
    async with serving(provider) as (_, chat):
        await chat.ask("/tickets:talk", chat="a")
    assert told(provider).splitlines() == [
        "[quoting a prompt of tickets] Hi",
        "[quoting answers of tickets] Hello!",
        "[quoting a prompt of tickets] [data of type image/png]",
        "[from the user] /tickets:talk",
    ]


async def test_a_prompt_that_fails_says_so_and_asks_nobody(write):
    provider = ScriptedProvider()
    async with serving(provider) as (_, chat):
        said = (await chat.ask("/tickets:broken", chat="a")).text
    assert said.startswith("/tickets:broken can't be used now: ")
    assert "\x1b" not in said
    assert provider.count == 0


async def test_help_lists_the_prompts(write):
    async with serving(ScriptedProvider()) as (_, chat):
        lines = (await chat.ask("/help", chat="a")).text.splitlines()
    assert f"{USAGE} - Review a ticket." in lines


async def test_help_lists_only_so_many_prompts(write):
    async with serving(ScriptedProvider()) as (app, chat):
        listed = [ListedPrompt(name=f"p{n}", description="") for n in range(PROMPTS_SHOWN + 3)]
        prompts = [ServerPrompt("tickets", each, None) for each in listed]
        app.loop.agents.default.prompts = {each.command: each for each in prompts}
        lines = (await chat.ask("/help", chat="a")).text.splitlines()
    assert sum(line.startswith("/tickets:") for line in lines) == PROMPTS_SHOWN
    assert lines[-1] == "and 3 more prompts from the tool servers"


@pytest.mark.parametrize("tools", ['["clock"]', '["tickets__*", "!tickets__review"]'])
async def test_an_agent_s_list_decides_on_prompts_too(write, tools):
    write(f"[agents.guest]\ntools = {tools}\n[channels.terminal]\nagent = 'guest'")
    provider = ScriptedProvider()
    async with serving(provider) as (app, chat):
        app.loop.agents._by_channel = {"direct": "guest"}
        said = (await chat.ask("/tickets:review 12", chat="a")).text
        assert said == "There is no /tickets:review: /help lists the commands."
    assert provider.count == 0


async def test_in_an_agent_s_list_a_server_s_name_stands_for_its_prompts_too(write):
    write("[agents.guest]\ntools = ['clock', 'tickets']\n[channels.terminal]\nagent = 'guest'")
    async with serving(ScriptedProvider(otherwise="well")) as (app, chat):
        app.loop.agents._by_channel = {"direct": "guest"}
        assert (await chat.ask("/tickets:review 12", chat="a")).text == "well"


async def test_a_prompt_keeps_its_place_among_waiting_messages(write):
    provider = ScriptedProvider(["first", "second", "third"], held=True)
    async with serving(provider) as (app, chat):
        told = {}

        async def ask(text):
            told[text] = (await chat.ask(text, chat="a")).text

        async with anyio.create_task_group() as group:
            for number, text in enumerate(("One", "/tickets:review 12", "Three")):
                group.start_soon(ask, text)
                await until(lambda n=number: provider.waiting and len(waiting(app)) == n)
            provider.release()
    assert told == {"One": "first", "/tickets:review 12": "second", "Three": "third"}


def waiting(app):
    return app.loop.sessions.known("direct:a").waiting


def test_a_prompt_that_has_changed_is_withheld_until_it_is_accepted(write, capsys):
    assert run("tools") == Exit.DONE
    file = Path("data/tool_servers.json")
    known = json.loads(file.read_text())
    known["tickets"]["accepted"]["prompts"][0]["description"] = "Another."
    file.write_text(json.dumps(known))
    capsys.readouterr()
    run("tools")
    says = (
        "  withheld 'prompt review', which is changed (description), and says: Review a ticket.\n"
    )
    assert says in capsys.readouterr().out
    assert run("tools", "accept", "tickets") == Exit.DONE
    run("tools")
    assert "withheld" not in capsys.readouterr().out


def run(*words):
    return main([*words, "--config", "n.toml", "--data", "data"])


def test_prompts_of_a_server_from_before_are_accepted_with_it(write, capsys):
    assert run("tools") == Exit.DONE
    file = Path("data/tool_servers.json")
    known = json.loads(file.read_text())
    del known["tickets"]["accepted"]["prompts"], known["tickets"]["offered"]["prompts"]
    file.write_text(json.dumps(known))
    run("tools")
    assert "withheld" not in capsys.readouterr().out


# Alone

LISTED = ListedPrompt(name="Two words!", description="", arguments={"a": True, "b": False})
GIVEN = {
    "x": {"a": "x"},
    "x y z": {"a": "x", "b": "y z"},
    "b=1 x": {"a": "x", "b": "1"},
    '"x y" z': {"a": "x y", "b": "z"},
    "don't c=d": {"a": "don't", "b": "c=d"},
    "": {},
}


@pytest.mark.parametrize(("text", "given"), GIVEN.items())
def test_arguments_are_read_by_place_or_by_name(text, given):
    assert ServerPrompt("s", LISTED, None).arguments(text) == given


def test_a_prompt_that_takes_no_arguments_takes_none():
    assert ServerPrompt("s", ListedPrompt(name="p", description=""), None).arguments("x y") == {}


def test_a_name_that_nobody_could_type_is_changed():
    assert ServerPrompt("s", LISTED, None).usage == "/s:two_words a [b]"


async def test_a_long_prompt_is_cut():
    async def fetch(*_):
        return [PromptText("user", "x" * (LONGEST_TEXT + 5)), PromptText("user", "more")]

    (text,) = await ServerPrompt("s", LISTED, fetch).texts({})
    assert text.text == f"{'x' * LONGEST_TEXT} [… 5 characters left out]"


WRONG = [("", {}), ("x" * 201, {}), ("x", {"a=b": True}), ("x", dict.fromkeys(map(str, range(21))))]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_prompt_that_nobody_could_use_is_left_out(wrong):
    name, arguments = wrong
    with pytest.raises(ValueError, match=r"name|arguments"):
        listed_prompt(name, "", arguments)
