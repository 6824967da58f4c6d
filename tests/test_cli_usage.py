"""Sessions chosen by options, and what they take, added up."""

import json

import anyio
import pytest

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import main
from nanoloop.protocols import Reply, Usage
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.sqlite import SqliteStore


@pytest.fixture
def data(tmp_path):
    anyio.run(begun, tmp_path)
    return tmp_path


async def begun(folder):
    """Two chats, of which one had two answers."""
    usage = Usage(tokens_in=10, tokens_out=2, tokens_cached=4)
    store = SqliteStore(folder / "sessions.sqlite")
    loop = AgentLoop(
        provider=ScriptedProvider(otherwise=Reply(text="yes", usage=usage)), store=store
    )
    chat = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        for name in ("ada", "ada", "bob"):
            await chat.ask("hello", chat=name)
        loop.bus.close()
    session = await store.load("direct:bob")
    session.agent = "cook"
    await store.save(session)
    await store.close()


async def freed(folder):
    """One of the chats has no agent."""
    store = SqliteStore(folder / "sessions.sqlite")
    session = await store.load("direct:ada")
    session.agent = None
    await store.save(session)
    await store.close()


def listed(data, *words):
    return main(["sessions", *words, "--json", "--data", str(data)])


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--agent", "cook"], ["direct:bob"]),
        (["--larger-than", "1MB"], []),
        (["--larger-than", "0.01 kB", "--search", "direct:ada"], ["direct:ada"]),
        (["--older-than", "1d"], []),
        (["--older-than", "0m", "--agent", "assistant"], ["direct:ada"]),
    ],
)
def test_those_are_listed_that_all_options_fit(data, flags, names, capsys):
    assert listed(data, "list", *flags) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == names


def test_what_is_no_size_is_refused_with_the_way_to_write_it(data, capsys):
    assert listed(data, "list", "--larger-than", "1 mile") == 2
    assert "write 1200, 20kB, 1.5MB or 1GB" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["list", "usage"])
def test_a_condition_of_before_is_refused_with_the_options_to_take(data, action, capsys):
    assert listed(data, action, "--where", "entries>100") == 2
    said = capsys.readouterr().err
    assert "conditions such as 'entries>100' are no longer supported" in said
    assert "--agent, --search, --older-than or --larger-than" in said


@pytest.mark.parametrize("limit", ["-3", "0", "x"])
def test_a_list_of_less_than_one_is_refused(data, limit, capsys):
    assert listed(data, "list", "--limit", limit) == 2
    assert f"{limit!r} is not a whole number of at least 1" in capsys.readouterr().err


def test_what_they_take_is_added_up(data, capsys):
    assert listed(data, "usage", "--by", "agent") == 0
    totals = json.loads(capsys.readouterr().out)
    assert list(totals["groups"]) == ["assistant", "cook"]
    assert totals["groups"]["assistant"]["tokens_in"] == 20
    everything = totals["all"]
    assert (everything["sessions"], everything["entries"], everything["tokens_out"]) == (2, 6, 6)
    assert main(["sessions", "usage", "--by", "channel", "--data", str(data)]) == 0
    head, direct, last = capsys.readouterr().out.splitlines()
    assert (head.split()[0], direct.split()[0], last.split()[0]) == ("CHANNEL", "direct", "TOTAL")


def test_those_without_an_agent_are_named_so(data, capsys):
    anyio.run(freed, data)
    assert listed(data, "usage") == 0
    assert list(json.loads(capsys.readouterr().out)["groups"]) == ["cook", "no agent"]
