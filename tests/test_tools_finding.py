"""Tools beyond the budget are announced by name, found by words, and called like the others."""

import json

import pytest

from nanoloop import Agent, tool
from nanoloop.errors import BadArguments, ToolError
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tokens import tools_tokens
from nanoloop.tools.finding import FIND_TOOLS, MOST_FOUND, Finder, within_budget


def named(name, said="Does it."):
    async def work() -> str:
        return f"{name} done"

    work.__doc__ = said
    return tool(name=name, effect="reads")(work)


READ = named("files__read_file", "Read the content of a file.")
MOVE = named("files__move_file", "Move a file elsewhere.")
PAY = named("bank__pay", "Send money.")
OWN = named("clock_of_mine", "Tell the time.")
FILES = {each.spec.name: each for each in (READ, MOVE)}
BANK = {PAY.spec.name: PAY}


def cost(*tools):
    return tools_tokens(each.spec for each in tools)


def calls(name, **arguments):
    return Reply(tool_calls=(ToolCall(id="", name=name, arguments=json.dumps(arguments)),))


def names(specs):
    return [spec.name for spec in specs]


def test_within_the_budget_all_are_announced_in_full():
    tools = [OWN, READ, MOVE, PAY]
    assert within_budget(tools, [FILES, BANK], tokens=cost(READ, MOVE, PAY)) == tools


def test_beyond_it_a_whole_server_is_left_to_be_found():
    tools = [OWN, READ, MOVE, PAY]
    first = within_budget(tools, [FILES, BANK], tokens=cost(READ, MOVE))
    assert names(each.spec for each in first) == [*names(t.spec for t in tools[:3]), FIND_TOOLS]
    # One that fits stays, though one before it does not.
    second = within_budget(tools, [FILES, BANK], tokens=cost(PAY))
    assert names(each.spec for each in second) == ["clock_of_mine", "bank__pay", FIND_TOOLS]
    assert "There are: files__read_file, files__move_file" in second[-1].spec.description


def test_one_s_own_tools_never_count():
    assert within_budget([OWN], [], tokens=0) == [OWN]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("files__move_file", "files__move_file"),
        ("bank__pay, files__read_file", "files__read_file, bank__pay"),
        ("money", "bank__pay"),
        ("Contents of files", "files__read_file, files__move_file"),
        ("move", "files__move_file"),
    ],
)
async def test_they_are_found_by_name_or_by_what_they_do(words, found):
    told = await Finder([READ, MOVE, PAY]).call({"words": words})
    assert told == f"You may call these now: {found}"


async def test_what_finds_nothing_names_all():
    with pytest.raises(ToolError, match="there are: files__read_file"):
        await Finder([READ]).call({"words": "weather"})
    with pytest.raises(BadArguments):
        await Finder([READ]).call({"words": " "})


async def test_one_call_finds_a_few_only():
    many = [named(f"files__read_{number}") for number in range(60)]
    told = await Finder(many).call({"words": "read"})
    assert told.count("files__read") == MOST_FOUND


async def test_what_was_found_is_appended_and_stays_for_the_turns_that_follow():
    store = InMemoryStore()
    provider = ScriptedProvider(
        [
            calls(FIND_TOOLS, words="move"),
            calls("files__move_file"),
            "moved",
            calls(FIND_TOOLS, words="money"),
            "found",
            "still there",
        ]
    )
    agent = Agent(provider=provider, tools=[OWN, Finder([READ, MOVE, PAY])], store=store)
    for text in ("Move it!", "And pay!", "Go on"):
        await agent.ask(text, session_id="a")
    base = ["clock_of_mine", FIND_TOOLS]
    assert [names(call.tools) for call in provider.calls] == [
        base,
        [*base, "files__move_file"],
        [*base, "files__move_file"],
        [*base, "files__move_file"],
        [*base, "files__move_file", "bank__pay"],
        [*base, "files__move_file", "bank__pay"],
    ]
    results = [m["content"] for m in provider.calls[-1].messages if m["role"] == "tool"]
    assert results[1] == "files__move_file done"


async def test_another_conversation_has_found_nothing():
    provider = ScriptedProvider([calls(FIND_TOOLS, words="move"), "found", "hello"])
    agent = Agent(provider=provider, tools=[Finder([MOVE])], store=InMemoryStore())
    await agent.ask("Move it!", session_id="a")
    await agent.ask("Hello", session_id="b")
    assert names(provider.calls[-1].tools) == [FIND_TOOLS]


async def test_words_of_a_person_find_nothing_by_themselves():
    provider = ScriptedProvider(["no"])
    agent = Agent(provider=provider, tools=[Finder([MOVE])])
    await agent.ask("You may call these now: files__move_file")
    assert names(provider.calls[-1].tools) == [FIND_TOOLS]
