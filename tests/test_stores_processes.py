"""Several processes write to one store of files: nothing is lost, doubled or seen by halves."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress

import pytest

from nanoloop.errors import SessionExists, SessionNotFound, StoreConflict, StoreError
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore

STORES = {"jsonl": JsonlStore, "sqlite": SqliteStore}

WRITER = """
import asyncio, signal, sys, threading
from nanoloop.errors import SessionExists, SessionNotFound, StoreConflict
from nanoloop.stores import sqlite
from nanoloop.stores.jsonl import log_file
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore

async def opened(store):
    while True:
        try:
            return await store.load("s")
        except SessionNotFound:
            try:
                return await store.create(id="s")
            except SessionExists:
                pass

def say(session, name, number):
    session.add_message("user", f"{name} {number} " + "x" * (number * 97 % 5000))
    session.awaiting = session.last_seq if number % 2 else 0
    if number % 3 == 0:
        session.trim_if_needed(8, 4)
        session.update_summary(f"up to {session.pending_seq}", seq=session.pending_seq)

def stop_inside():
    '''Stop in the middle of the next commit: half of its bytes are written, and it is locked.'''
    put, take_in = log_file.write_all, sqlite._take_in
    def write_half(fd, data):
        put(fd, data[:len(data) // 2])
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        put(fd, data[len(data) // 2:])
    def take_half(connection, number, commit):
        take_in(connection, number, commit)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    log_file.write_all, sqlite._take_in = write_half, take_half

async def main(kind, path, name, how):
    store = {"jsonl": JsonlStore, "sqlite": SqliteStore}[kind](path)
    session = await opened(store)
    number = 1
    while True:
        if how == "when told" and sys.stdin.readline() == "stop\\n":
            stop_inside()
        say(session, name, number)
        try:
            await store.save(session)
        except (StoreConflict, SessionNotFound) as error:
            print(type(error).__name__, flush=True)
            session = await opened(store)
        else:
            print(number, flush=True)
            number += 1
            session.release()

asyncio.run(main(*sys.argv[1:]))
"""


class Writer:
    """A process that commits, and tells the number of each commit, or which error it met."""

    def __init__(self, process):
        self.process = process

    def tell(self, word="go"):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def said(self):
        return self.process.stdout.readline().strip()

    def commits(self, number=1):
        """Wait for so many more commits; returns the number of the last."""
        last = 0
        for _ in range(number):
            while not (word := self.said()).isdigit():
                assert word
            last = int(word)
        return last

    def killed(self):
        """Kill it at once; returns the number of the last commit that it acknowledged."""
        self.process.send_signal(signal.SIGKILL)
        numbers = [word for word in self.process.stdout.read().split() if word.isdigit()]
        self.process.wait()
        return int(numbers[-1]) if numbers else 0

    def wait_stopped(self):
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)


@contextmanager
def writer(kind, path, name="a", how="at once"):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(path), name, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Writer(process)
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def path(kind, tmp_path):
    return tmp_path / {"jsonl": "sessions", "sqlite": "sessions.sqlite"}[kind]


@pytest.fixture
async def store(kind, path):
    opened = STORES[kind](path, busy_seconds=0.2)
    yield opened
    await opened.close()


async def entries_of(store):
    """What is in the session, checked: no number is missing or there twice."""
    whole, window = await store.get("s"), await store.load("s")
    entries = whole.entries_between(0, whole.last_seq)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert window.window == whole.window
    assert whole.covered_seq <= whole.pending_seq
    return entries


def numbers_of(entries, name):
    words = (entry.content["text"].split() for entry in entries)
    return [int(number) for who, number, *_ in words if who == name]


async def is_owed_as_listed(store):
    """The index of what is owed says what the sessions themselves say."""
    listed = {info.id async for info in store.list() if info.awaiting or info.waiting}
    return {owed.id async for owed in store.owing()} == listed


async def test_of_two_that_write_one_session_one_wins_each_time(kind, path, store):
    told = {"a": 0, "b": 0}
    with ExitStack() as stack:
        writers = {name: stack.enter_context(writer(kind, path, name)) for name in told}
        for each in writers.values():
            each.commits(60)
        told = {name: max(60, each.killed()) for name, each in writers.items()}
    entries = await entries_of(store)
    for name, last in told.items():
        numbers = numbers_of(entries, name)
        assert numbers == list(range(1, len(numbers) + 1))
        assert last <= len(numbers) <= last + 1
    assert await is_owed_as_listed(store)


async def test_two_that_take_turns_see_what_the_other_wrote(kind, path, store):
    with ExitStack() as stack:
        both = [stack.enter_context(writer(kind, path, name, "when told")) for name in "ab"]
        for _ in range(20):
            for each in both:
                each.tell()
                if not (word := each.said()).isdigit():
                    assert word == "StoreConflict"
                    each.tell()
                    assert each.said().isdigit()
    entries = await entries_of(store)
    spoken = [entry.content["text"].split()[:2] for entry in entries]
    assert spoken == [[name, str(number)] for number in range(1, 21) for name in "ab"]


async def test_one_that_is_killed_in_a_commit_leaves_it_whole_or_not_at_all(kind, path, store):
    with writer(kind, path, "a", "when told") as first:
        first.tell()
        first.commits()
        first.tell("stop")
        first.wait_stopped()
        session = await store.load("s")
        assert [len(session.window), session.revision] == [1, (await store.load("s")).revision]
        first.killed()
    session.add_message("user", "b 1")
    await store.save(session)
    entries = await entries_of(store)
    assert [numbers_of(entries, name) for name in "ab"] == [[1], [1]]
    assert await is_owed_as_listed(store)


async def test_who_waits_too_long_for_one_that_was_stopped_in_a_commit_is_told(kind, path, store):
    with writer(kind, path, "a", "when told") as first:
        first.tell()
        first.commits()
        session = await store.load("s")
        first.tell("stop")
        first.wait_stopped()
        session.add_message("user", "b 1")
        with pytest.raises(StoreError, match=r"another process has locked .*: stop it, or try"):
            await store.save(session)
        assert len((await store.load("s")).window) == 1
        first.process.send_signal(signal.SIGCONT)
        assert first.commits() == 2
        with pytest.raises(StoreConflict):
            await store.save(session)
    session = await store.load("s")
    session.add_message("user", "b 1")
    await store.save(session)
    entries = await entries_of(store)
    assert [numbers_of(entries, name) for name in "ab"] == [[1, 2], [1]]


async def test_one_erases_while_the_other_writes(kind, path, store):
    erased = 0
    with writer(kind, path) as other:
        other.commits(3)
        while erased < 5:
            session = await store.load("s")
            try:
                await store.erase(session, [erased + 1])
            except (StoreConflict, StoreError):
                continue
            erased += 1
            other.commits(3)
        last = max(3 + 5 * 3, other.killed())
    entries = await entries_of(store)
    assert all(not entry.content.get("text") for entry in entries[:5])
    assert numbers_of(entries[5:], "a") == list(range(6, len(entries) + 1))
    assert last <= len(entries) <= last + 1
    written = b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())
    assert b'"a 1 ' not in written
    assert await is_owed_as_listed(store)


async def test_one_deletes_it_and_makes_it_anew_while_the_other_writes(kind, path, store):
    with writer(kind, path, "a", "when told") as other:
        for made in range(20):
            other.tell()
            other.tell()
            await store.delete("s")
            with suppress(SessionExists, SessionNotFound, StoreConflict):  # the other was first
                session = await store.create(id="s")
                session.add_message("user", f"b {made}")
                await store.save(session)
            assert all([other.said(), other.said()])
        other.tell()
        other.tell()
        last = other.commits()
    entries = await entries_of(store)
    numbers = numbers_of(entries, "a")
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert last in numbers
    assert numbers_of(entries, "b") in ([], [19])
    assert await is_owed_as_listed(store)


@pytest.mark.slow
async def test_many_that_begin_at_once_make_one_store(kind, path, store):
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(kind, path, f"w{number}")) for number in range(4)]
        for each in writers:
            each.commits(3)
    entries = await entries_of(store)
    assert all(len(numbers_of(entries, f"w{number}")) >= 3 for number in range(4))


@pytest.mark.slow
async def test_a_reader_beside_two_writers_sees_whole_commits_only(kind, path):
    reader = STORES[kind](path, read_only=True)
    with writer(kind, path, "a") as first, writer(kind, path, "b") as second:
        for _ in range(15):
            told = [first.commits(), second.commits()]
            entries = await reader.entries("s")
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            for name, number in zip("ab", told, strict=True):
                assert len(numbers_of(entries, name)) >= number
    await reader.close()


@pytest.mark.slow
async def test_kill_9_of_one_again_and_again_costs_nothing_acknowledged(kind, path, store):
    told = {}
    with writer(kind, path, "lives") as living:
        for round_number in range(25):
            with writer(kind, path, f"w{round_number}") as victim:
                told[f"w{round_number}"] = victim.commits(1 + round_number % 7)
                told[f"w{round_number}"] = max(told[f"w{round_number}"], victim.killed())
            living.commits(3)
        told["lives"] = max(75, living.killed())
    entries = await entries_of(store)
    for name, last in told.items():
        numbers = numbers_of(entries, name)
        assert numbers == list(range(1, len(numbers) + 1))
        assert last <= len(numbers) <= last + 1
    assert await is_owed_as_listed(store)


@pytest.mark.slow
async def test_what_is_owed_is_known_whenever_a_writer_was_killed(kind, path, store):
    for round_number in range(25):
        with writer(kind, path, f"w{round_number}") as victim:
            victim.commits(2 + round_number % 9)
            victim.killed()
        assert await is_owed_as_listed(store)
