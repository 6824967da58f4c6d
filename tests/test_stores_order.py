"""Writes of one session while another is under way: whole, each once, whoever stops waiting."""

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nanoloop import Agent
from nanoloop import loop as taking
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.session import Session
from nanoloop.stores import sqlite
from nanoloop.stores.jsonl import journal, log_file
from nanoloop.stores.jsonl.journal import Journal
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.stores.store import WriteOrder
from nanoloop.testing.faults import Gate
from tests.test_holds import running, said

STORES = {"jsonl": JsonlStore, "sqlite": lambda folder: SqliteStore(folder / "sessions.sqlite")}
WAIT_SECONDS = 5


class ThreadGate:
    """The next write that comes in a worker thread waits before it."""

    def __init__(self):
        self.is_armed = False
        self._reached, self._open, self._done = (threading.Event() for _ in range(3))

    def before(self, write):
        """The same, but for that one."""

        def held(*args, **kwargs):
            if not self.is_armed:
                return write(*args, **kwargs)
            self.is_armed = False
            self._reached.set()
            assert self._open.wait(WAIT_SECONDS)
            try:
                return write(*args, **kwargs)
            finally:
                self._done.set()

        return held

    async def reached(self):
        assert await anyio.to_thread.run_sync(self._reached.wait, WAIT_SECONDS)

    def open(self):
        """Let it through, in the middle of whatever the event loop does."""
        self._open.set()

    def through(self):
        """Let it through and wait for its end, while the event loop does nothing else."""
        self.open()
        assert self._done.wait(WAIT_SECONDS)


OUTSIDE = (
    (log_file.LogFile, "write"),
    (Journal, "insert"),
    (sqlite, "write_commit"),
    (sqlite, "write_insert"),
)
INSIDE = ((log_file, "write_all"), (journal, "replace_file"), *OUTSIDE[2:])
"""Where no other thread writes to that file."""
wherever = pytest.mark.parametrize("gate", [OUTSIDE, INSIDE], indirect=True, ids=["out", "in"])


@pytest.fixture
def gate(request, monkeypatch):
    gate = ThreadGate()
    for place, name in getattr(request, "param", OUTSIDE):
        monkeypatch.setattr(place, name, gate.before(getattr(place, name)))
    return gate


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
async def store(request, tmp_path):
    opened = request.param(tmp_path / "store")
    opened.another = request.param
    yield opened
    await opened.close()


async def texts(store, session_id="s"):
    return [entry.content["text"] for entry in await store.entries(session_id)]


async def begun(store, gate):
    """A session, and a task that has begun to save it and waits at the gate."""
    session = await store.create(id="s")
    session.add_message("user", "one")
    gate.is_armed = True
    saving = asyncio.get_running_loop().create_task(store.save(session))
    await gate.reached()
    return session, saving


async def cancelled(task):
    """The task ends as `asyncio.timeout` ends one: no shield keeps it."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Witness(Session):
    """Notes the state of each commit that it hears of."""

    def __init__(self, **given):
        super().__init__(**given)
        self.stored = []

    def committed(self, changes):
        self.stored.append(set(changes.sections.get("state", ())))
        super().committed(changes)


# The order


async def test_they_come_one_after_the_other_and_those_of_others_beside_them():
    order, gate, done = WriteOrder(), Gate(), []

    async def write(name):
        await gate.passes()
        done.append(name)

    async with anyio.create_task_group() as group:
        for session_id, name in (("s", "one"), ("s", "two"), ("t", "another")):
            group.start_soon(order.write, session_id, partial(write, name))
        await anyio.wait_all_tasks_blocked()
        assert gate.waiting == 2
        gate.open()
    assert done == ["one", "another", "two"]


async def test_what_has_begun_is_finished_and_what_waits_may_be_cancelled():
    order, gate, done = WriteOrder(), Gate(), []

    async def write(name):
        await gate.passes()
        done.append(name)

    async with anyio.create_task_group() as group:
        for name in ("one", "two"):
            group.start_soon(order.write, "s", partial(write, name))
        await gate.reached()
        group.cancel_scope.cancel()
        await anyio.lowlevel.cancel_shielded_checkpoint()
        gate.open()
    await order.write("s", partial(write, "three"))
    assert done == ["one", "three"]


async def test_one_that_is_cancelled_as_its_turn_comes_passes_it_on():
    order, gate, done = WriteOrder(), Gate(), []
    start = asyncio.get_running_loop().create_task
    first = start(order.write("s", gate.passes))
    await gate.reached()
    second = start(order.write("s", partial(done.append, "two")))
    third = start(order.write("s", gate.passes))
    await anyio.wait_all_tasks_blocked()
    first.cancel()
    await anyio.lowlevel.cancel_shielded_checkpoint()
    second.cancel()
    gate.open()
    await third
    assert (second.cancelled(), done, order._waiting) == (True, [], {})


# What belongs together


async def test_what_is_changed_in_one_step_is_in_one_commit_or_in_none(store, gate):
    session = Witness(id="s")
    await store.add(session)
    session.set("zero", 0)
    gate.is_armed = True
    async with anyio.create_task_group() as group:
        group.start_soon(store.save, session)
        await gate.reached()
        session.set("one", 1)
        gate.through()
        session.set("two", 2)
    await store.save(session)
    assert session.stored == [set(), {"zero"}, {"zero", "one", "two"}]
    assert (await store.get("s")).state == {"zero": 0, "one": 1, "two": 2}


async def test_a_kill_while_a_question_changes_does_not_lose_it(store, gate, tmp_path, monkeypatch):
    reworded, killed = taking.reworded, tmp_path / "killed"

    def slowly(*args):  # the question is taken back, and not asked anew yet
        shutil.copytree(tmp_path / "store", killed)
        return reworded(*args)

    monkeypatch.setattr(taking, "reworded", slowly)
    provider = ScriptedProvider(["never", "1"], held=True)
    async with running(provider, store) as loop, anyio.create_task_group() as group:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        session = await loop.sessions.open("test:a")
        session.set("k", "of another task")
        gate.is_armed = True
        group.start_soon(store.save, session)
        await gate.reached()
        group.start_soon(loop.bus.hand_in, said("one, really", "e1", edits="one"))
        await anyio.wait_all_tasks_blocked()
        gate.through()
        await provider.asked(2)
        provider.release()
        await loop.chat.until(1)
    survivor = store.another(killed)
    assert [m["content"] for m in (await survivor.load("test:a")).messages] == ["one"]
    await survivor.close()
    assert [m["content"] for m in (await store.load("test:a")).messages] == ["one, really", "1"]


# A task that is cancelled by asyncio itself


@wherever
async def test_what_a_cancelled_save_still_writes_is_written_once(store, gate):
    session, saving = await begun(store, gate)
    await cancelled(saving)
    session.add_message("user", "two")
    async with anyio.create_task_group() as group:
        group.start_soon(store.save, session)
        await anyio.wait_all_tasks_blocked()
        gate.open()
    session.add_message("user", "three")
    await store.save(session)
    assert await texts(store) == ["one", "two", "three"]
    assert (await store.get("s")).revision == session.revision


async def test_what_a_cancelled_save_wrote_unheard_is_known_at_the_next(store, gate):
    session, saving = await begun(store, gate)
    await cancelled(saving)
    gate.through()
    await store.save(session)
    assert await texts(store) == ["one"]


@wherever
async def test_a_cancelled_add_is_no_stranger_to_the_next(store, gate):
    session = Session(id="s")
    gate.is_armed = True
    adding = asyncio.get_running_loop().create_task(store.add(session))
    await gate.reached()
    await cancelled(adding)
    session.add_message("user", "one")
    async with anyio.create_task_group() as group:
        group.start_soon(store.add, session)
        await anyio.wait_all_tasks_blocked()
        gate.open()
    assert await texts(store) == ["one"]


@wherever
async def test_an_agent_goes_on_after_a_question_that_asyncio_cancelled(store, gate):
    agent = Agent(provider=ScriptedProvider(["zero", "one", "two"]), store=store)
    await agent.ask("0", session_id="s")
    gate.is_armed = True
    asking = asyncio.get_running_loop().create_task(agent.ask("1", session_id="s"))
    await gate.reached()
    await cancelled(asking)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(agent.ask, "2", session_id="s"))
        await anyio.wait_all_tasks_blocked()
        gate.open()
    assert await texts(store) == ["0", "zero", "1", "2", "one"]


# Several event loops


def save_elsewhere(store, session):
    """Save it in an event loop of another thread, while this one does nothing."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(store.save(session))).result(WAIT_SECONDS)


@wherever
async def test_no_event_loop_waits_for_another_to_save(store, gate):
    session, saving = await begun(store, gate)
    session.add_message("user", "two")
    gate.open()
    save_elsewhere(store, session)  # what was begun here is not heard of before this returns
    await saving
    session.add_message("user", "three")
    await store.save(session)
    assert await texts(store) == ["one", "two", "three"]


async def test_one_session_may_be_saved_in_two_event_loops_at_once(store):
    session = await store.create(id="s")

    async def talk(name):
        for number in range(10):
            session.add_message("user", f"{name} {number}")
            await store.save(session)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, lambda: asyncio.run(talk("there")))
        group.start_soon(talk, "here")
    assert len(await texts(store)) == len(set(await texts(store))) == 20


# Erasing


class Erased(Session):
    """Lets a write through as soon as it has erased."""

    def erase(self, seqs, **given):
        super().erase(seqs, **given)
        self.gate.through()
        self.gate.through = lambda: None


@pytest.mark.parametrize("store", [JsonlStore], indirect=True, ids=["jsonl"])
@pytest.mark.parametrize("kind", [Session, Erased])
async def test_what_a_cancelled_save_still_writes_is_erased_too(store, gate, tmp_path, kind):
    session = kind(id="s")
    session.gate = gate
    await store.add(session)
    session.add_message("user", "xyzzy")
    gate.is_armed = True
    saving = asyncio.get_running_loop().create_task(store.save(session))
    await gate.reached()
    await cancelled(saving)
    if kind is Session:
        gate.through()
    session.add_message("user", "two")
    await store.erase(session, [1])
    assert b"xyzzy" not in (tmp_path / "store" / "s.jsonl").read_bytes()
    assert [entry.content.get("text") for entry in await store.entries("s")] == [None, "two"]
