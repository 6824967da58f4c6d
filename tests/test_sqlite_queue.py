"""Saves of many sessions at once: they share a transaction, and fail each for itself."""

import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nanoloop.errors import StoreConflict, StoreError
from nanoloop.stores.sqlite import SqliteStore
from tests.test_sqlite_faults import files_up_to

TOO_MUCH = "x" * 3_000_000


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "sessions.sqlite")
    yield store
    await store.close()


class Held:
    """Holds the thread that writes, so that what is saved meanwhile waits together."""

    def __init__(self, store):
        self._database = store.database
        self._begun, self._gate = threading.Event(), threading.Event()
        self.commits = []

    def _trace(self, statement):
        if statement == "COMMIT":
            self.commits.append(statement)

    def _wait(self, connection):
        connection.set_trace_callback(self._trace)
        self._begun.set()
        assert self._gate.wait(20)

    async def __aenter__(self):
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._database._write, self._wait)
        await anyio.to_thread.run_sync(self._begun.wait, 20)
        return self

    async def __aexit__(self, *exc):
        while len(self._database._queue._waiting) < self.expected:
            await checkpoint()
        self._gate.set()
        await self._group.__aexit__(None, None, None)

    def save(self, store, *sessions):
        """Save them once the thread is free; what each save raised is in the list."""
        self.expected = len(sessions)
        raised = [None] * len(sessions)

        async def save(number):
            try:
                await store.save(sessions[number])
            except StoreError as error:
                raised[number] = error

        for number in range(len(sessions)):
            self._group.start_soon(save, number)
        return raised


async def made(store, count):
    sessions = [await store.create(id=f"s{number}") for number in range(count)]
    for session in sessions:
        session.add_message("user", f"from {session.id}")
    return sessions


async def counts(store):
    return sorted([info.entries async for info in store.list()])


async def test_what_waits_at_once_is_one_transaction(store):
    sessions = await made(store, 40)
    async with Held(store) as held:
        raised = held.save(store, *sessions)
    assert raised == [None] * 40
    assert len(held.commits) == 1
    assert await counts(store) == [1] * 40


async def test_of_a_session_saved_twice_in_one_the_second_is_told(store):
    (first,) = await made(store, 1)
    second, other = await store.load("s0"), await store.create(id="other")
    second.add_message("user", "late")
    other.add_message("user", "hi")
    async with Held(store) as held:
        # Under names of their own, or the store itself would let them in one by one.
        raised = held.save(store, first, other)
        held.expected = 3
        held._group.start_soon(conflicting, store, second)
    assert raised == [None, None]
    assert await counts(store) == [1, 1]


async def conflicting(store, session):
    changes = session.changes()
    commit = store.sealing.commit(session.id, changes)
    with pytest.raises(StoreConflict):
        await store._committed(commit)


async def test_one_that_does_not_fit_fails_alone(store):
    sessions = await made(store, 5)
    sessions[2].add_message("user", TOO_MUCH)
    with files_up_to(1_000_000):
        async with Held(store) as held:
            raised = held.save(store, *sessions)
    assert [error is None for error in raised] == [True, True, False, True, True]
    assert "everything saved earlier is intact" in str(raised[2])
    await store.save(sessions[2])
    assert await counts(store) == [1, 1, 1, 1, 2]
