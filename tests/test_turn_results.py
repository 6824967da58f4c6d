"""Each tool's result is durable as soon as the tool returns."""

from collections import deque

import anyio
import anyio.lowlevel
import pytest

from nanoloop import Agent, Inbound, tool
from nanoloop.errors import SessionNotFound
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.testing.faults import FaultyStore, Gate
from tests.test_holds import running, said

KEY = "test:a"
STORES = {
    "memory": lambda _: InMemoryStore(),
    "files": JsonlStore,
    "sqlite": lambda folder: SqliteStore(folder / "sessions.sqlite"),
}


@pytest.fixture(params=STORES.values(), ids=STORES)
async def store(request, tmp_path):
    store = request.param(tmp_path)
    yield store
    await store.close()


def asking(*names):
    """Asks for all of them side by side, then answers."""
    calls = (
        ToolCall(id=f"c-{name}", name="work", arguments=f'{{"name": "{name}"}}') for name in names
    )
    return ScriptedProvider([Reply(tool_calls=tuple(calls)), "done"])


def working(*held):
    """An agent whose tool waits at a gate for these names, and at once returns any other."""
    gates = {name: Gate() for name in held}

    @tool
    async def work(name: str) -> str:
        """Do it."""
        if name in gates:
            await gates[name].passes()
        return f"{name} done"

    return Agent(tools=[work]), gates


async def kept(store):
    try:
        found = await store.entries(KEY)
    except SessionNotFound:  # not begun yet
        return []
    results = (entry.content for entry in found if entry.type == "tool_result")
    return [content["result"] or content["error"] for content in results]


async def until_kept(store, count):
    with anyio.fail_after(5):
        while len(await kept(store)) < count:
            await anyio.lowlevel.checkpoint()
    return await kept(store)


async def test_a_result_is_kept_while_another_tool_still_runs(store):
    agent, gates = working("slow", "slower")
    async with running(asking("slow", "quick", "slower"), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        assert await until_kept(store, 1) == ["quick done"]
        gates["slow"].open()
        assert await until_kept(store, 2) == ["quick done", "slow done"]
        gates["slower"].open()
        assert await loop.chat.until(1) == ["done"]


async def test_what_had_returned_before_a_kill_is_known_and_the_rest_is_not(store):
    agent, _ = working("slow")
    async with running(asking("slow", "quick"), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        await until_kept(store, 1)
    # It is killed here.
    provider = ScriptedProvider(["done"])
    async with running(provider, store, agent=agent, recover=True) as loop:
        assert await loop.chat.until(1) == ["done"]
    slow, quick = (message["content"] for message in provider.calls[0].messages[-2:])
    assert "unknown whether it took effect" in slow
    assert quick == "quick done"


async def test_a_turn_that_is_stopped_keeps_what_returned_and_closes_the_rest(store):
    agent, _ = working("slow")
    async with running(asking("slow", "quick"), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        await until_kept(store, 1)
        loop.bus.put_nowait(said("/stop"))
        results = await until_kept(store, 2)
    assert results == ["quick done", "stopped by the user before it finished"]


class Counting(FaultyStore):
    """Counts what is written."""

    def __init__(self, store=None):
        self.faults = deque()
        super().__init__(store or InMemoryStore(), iter(self._next, None))

    def _next(self):
        return self.faults.popleft() if self.faults else "fine"


async def commits_of(*names, held=()):
    """What a turn writes that asks for all of these, the held ones one after the other."""
    store = Counting()
    agent, gates = working(*held)
    async with running(asking(*names), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        for number, gate in enumerate(gates.values()):
            await until_kept(store, len(names) - len(held) + number)
            await gate.reached()
            gate.open()
        await loop.chat.until(1)
        return len(store.saves)


async def test_a_step_costs_a_commit_for_its_calls_and_at_most_one_for_each_result():
    none = await commits_of("a") - 2
    assert await commits_of("a", "b", "c", held="abc") == none + 1 + 3


async def test_results_that_are_there_together_share_a_commit():
    none = await commits_of("a") - 2
    assert await commits_of(*"abcdefgh") <= none + 1 + 2


async def test_a_result_that_could_not_be_kept_breaks_off_no_other_tool_and_comes_with_the_next():
    store = Counting()
    agent, gates = working("slow")
    async with running(asking("slow", "quick"), store, agent=agent) as loop:
        store.faults.extend(["fine", "fine", "before"])  # message, calls, first result
        loop.bus.put_nowait(said("go"))
        await gates["slow"].reached()
        while "before" not in store.saves:
            await anyio.lowlevel.checkpoint()
        gates["slow"].open()
        assert await loop.chat.until(1) == ["done"]
    assert await kept(store) == ["quick done", "slow done"]


async def test_what_steers_a_turn_comes_behind_the_last_result(store):
    agent, gates = working("slow")
    async with running(asking("slow", "quick"), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        await until_kept(store, 1)
        await loop.bus.hand_in(
            Inbound(channel="test", chat="a", text="Faster!", message_id="2", steers=True)
        )
        gates["slow"].open()
        assert await loop.chat.until(1) == ["done"]
    entries = await store.entries(KEY)
    assert [e.content.get("text") or e.content["result"] for e in entries[3:]] == [
        "quick done",
        "slow done",
        "Faster!",
        "done",
    ]
