"""A chat's queue: in order whatever is said, and the same after a crash at any instant."""

from collections import Counter
from contextlib import suppress
from functools import partial

import anyio
import pytest

from nanoloop import Agent, Inbound, tool
from nanoloop.errors import AlreadyHeard
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from tests.test_holds import Chat, running

CHATS = 4
AGENTS = {"cook": Agent("cook", prompt="You are a cook.")}
# What the model is shown of "two", said right behind the command, after "one" was answered.
BEHIND = {
    "/new": ["two"],
    "/switch 1": ["one", "two"],
    "/undo": ["two"],
    "/forget last": ["two"],
    "/fork": ["one", "two"],
    "/rename Rome": ["one", "two"],
    "/agent cook": ["one", "two"],
    "/compact": ["one", "two"],
}


@pytest.fixture
def stores(tmp_path, request):
    return {
        "memory": InMemoryStore,
        "jsonl": lambda: JsonlStore(tmp_path / "jsonl"),
        "sqlite": lambda: SqliteStore(tmp_path / "sessions.sqlite"),
        "redis": lambda: RedisStore(request.getfixturevalue("redis_url")),
        "postgres": lambda: PostgresStore(request.getfixturevalue("postgres_url")),
    }


def said(text, chat="a", **options):
    name = f"{chat} {text}"
    return Inbound(channel="test", chat=chat, text=text, message_id=name, **options)


def asked_by(provider):
    """What users said in each request whose newest words are "two"."""
    requests = [call.messages for call in provider.calls]
    shown = [[m["content"] for m in request if m["role"] == "user"] for request in requests]
    return [words for words in shown if words[-1] == "two"]


@pytest.mark.parametrize("apart_seconds", [None, 0, 0.01])
@pytest.mark.parametrize("command", BEHIND)
@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite", "redis", "postgres"])
async def test_what_is_said_right_behind_a_command_means_what_the_command_left(
    stores, kind, command, apart_seconds
):
    store, provider = stores[kind](), ScriptedProvider()
    async with running(provider, store, agents=AGENTS) as loop:
        first = ["one", "/new", "other"] if command.startswith("/switch") else ["one"]
        for text in first:
            for number in range(CHATS):
                loop.bus.put_nowait(said(text, f"c{number}"))
        await loop.chat.until(CHATS * len(first))
        for number in range(CHATS):
            loop.bus.put_nowait(said(command, f"c{number}"))
            if apart_seconds is not None:
                await anyio.sleep(apart_seconds)
            loop.bus.put_nowait(said("two", f"c{number}"))
        await loop.chat.until(CHATS * (len(first) + 2))
    assert asked_by(provider) == [BEHIND[command]] * CHATS
    assert {item.kind for item in loop.chat.sent} == {"answer", "notice"}
    await store.close()


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def find() -> str:
    """Find."""
    return "found"


# What it costs


class Counted(InMemoryStore):
    """Counts what is asked of its database."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.database = _Counting(self.database, self.calls)


class _Counting:
    def __init__(self, database, calls):
        self._database, self._calls = database, calls

    def __getattr__(self, name):
        self._calls[name] += 1
        return getattr(self._database, name)


async def cost(*messages, steps=(), confirms=False, held=False):
    """What these cost behind a first turn, in calls of the database."""
    store, chat = Counted(), Chat()
    chat.confirms = confirms
    provider = ScriptedProvider(["first", *steps], held=held)
    async with running(provider, store, chat=chat, agent=Agent(tools=[look, find])) as loop:
        loop.bus.put_nowait(said("one"))
        provider.release(1 if held else None)
        await chat.until(1)
        await anyio.wait_all_tasks_blocked()
        store.calls.clear()
        for text in messages:
            await loop.bus.hand_in(said(text))
        provider.release()
        await chat.until(1 + len(messages))
        await anyio.wait_all_tasks_blocked()
    return {name: store.calls[name] for name in ("commit", "window", "head", "between", "bound")}


def calls(*names):
    return Reply(tool_calls=tuple(ToolCall(id=n, name=n, arguments="{}") for n in names))


NOTHING_READ = {"window": 0, "head": 0, "between": 0, "bound": 0}


@pytest.mark.parametrize(
    ("given", "commits"),
    [
        (partial(cost, "two"), 2),
        (partial(cost, "two", confirms=True), 3),
        (partial(cost, "two", steps=[calls("look")]), 4),
        (partial(cost, "two", steps=[calls("look", "find")]), 5),
        (partial(cost, "two", steps=[calls("look"), calls("find")]), 6),
        (partial(cost, "two", "three", held=True), 5),
    ],
    ids=["a turn", "that is confirmed", "a step", "two tools", "two steps", "one that waits"],
)
async def test_a_turn_costs_so_many_commits_and_no_read(given, commits):
    assert await given() == {"commit": commits, **NOTHING_READ}


# Every prefix is a crash


class Recorded:
    """A database that remembers each call that changed it, and what was acknowledged when."""

    def __init__(self, database):
        self._database = database
        self.log = []

    def __getattr__(self, name):
        method = getattr(self._database, name)
        if name not in {"insert", "commit", "delete", "bind"}:
            return method

        async def call(*args, **options):
            self.log.append((name, args, options))
            return await method(*args, **options)

        return call


async def after(log):
    """A store in which all of this was done, and no more."""
    store = InMemoryStore()
    for name, args, options in log:
        if name != "acknowledged":
            with suppress(AlreadyHeard):  # it was passed on before: nothing was written
                await getattr(store.database, name)(*args, **options)
    return store


def talk(messages, tools, model):
    newest = messages[-1]
    if newest["role"] == "user" and newest["content"].startswith("look"):
        return Reply(tool_calls=(ToolCall(id="c", name="look", arguments="{}"),))
    users = [m["content"] for m in messages if m["role"] == "user"]
    return f"You said: {users[-1]}"


def options():
    return {
        "agent": Agent(tools=[look]),
        "summarizer": Summarizer(ScriptedProvider(otherwise="What was said.")),
        "message_buffer_limit": 6,
        "message_buffer_min": 2,
    }


async def scenario():
    """A day of a chat; returns the log of all that was written and acknowledged."""
    store, provider = InMemoryStore(), ScriptedProvider(otherwise=talk, held=True)
    store.database = recorded = Recorded(store.database)

    async def hand_in(loop, message):
        await loop.bus.hand_in(message)
        recorded.log.append(("acknowledged", (message,), {}))

    async with running(provider, store, **options()) as loop:
        hear = partial(hand_in, loop)
        await hear(said("one"))
        await provider.asked()
        for text in ("two", "three", "/new", "four", "five"):
            await hear(said(text))
        await hear(said("two, really", edits="a two"))
        await hear(said("", deletes="a five"))
        await hear(said("one, really", edits="a one"))
        provider.release(99)
        await hear(said("look around"))
        for text in ("m0", "m1", "/undo", *(f"m{number}" for number in range(2, 8))):
            await hear(said(text))
        for text in ("last", "/switch 1", "back", "/fork", "forked"):
            await hear(said(text))
        while loop.lanes:  # noqa: ASYNC110 - no event tells
            await anyio.sleep(0.001)
        await loop.summarizer.drain(5)
    return recorded.log


GONE = {"five", "m1", "one", "two"}
"""What was taken back, or said otherwise."""


async def logs_of(store):
    """What was said in each session; in a copy, what was said since."""
    whole = {info.id: await store.get(info.id) async for info in store.list()}
    return [
        [
            e.content.get("text")
            for e in session.history()
            if e.id not in entries_before(session, whole)
        ]
        for session in whole.values()
    ]


def entries_before(copy, whole):
    source = whole.get(copy.metadata.get("forked_from"))
    return () if source is None else {entry.id for entry in source.history()}


@pytest.mark.slow
async def test_every_prefix_of_what_is_written_is_a_crash_that_loses_and_doubles_nothing():
    log = await scenario()
    assert len(log) > 60
    for upto in range(1, len(log) + 1):
        store = await after(log[:upto])
        heard = [args[0] for name, args, _ in log[:upto] if name == "acknowledged"]
        texts = [m.text for m in heard if m.text[:1] not in {"", "/"} and m.text not in GONE]
        async with running(
            ScriptedProvider(otherwise=talk), store, recover=True, **options()
        ) as loop:
            with anyio.fail_after(5):
                while loop.lanes:  # noqa: ASYNC110 - as above
                    await anyio.sleep(0.001)
            await loop.summarizer.drain(5)
        said_in = await logs_of(store)
        whole = [text for each in said_in for text in each]
        counts = {text: (whole.count(text), whole.count(f"You said: {text}")) for text in texts}
        assert {t: c for t, c in counts.items() if c != (1, 1)} == {}, (upto, log[upto - 1][:2])
        if "four" in texts:
            assert not [each for each in said_in if {"three", "four"} <= {*each}], upto
        async for info in store.list():
            assert (info.waiting, info.awaiting) == (0, 0), upto


async def test_a_command_that_waits_is_no_message_that_waits():
    provider = ScriptedProvider(held=True)
    async with running(provider, InMemoryStore()) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        for text in ("two", "/rename Rome"):
            await loop.bus.hand_in(said(text))
        assert loop.waiting("test:a") == 1
