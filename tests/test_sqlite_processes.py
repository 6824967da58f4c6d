"""Several processes on one SQLite file, and some that are killed at any moment."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager

import anyio
import pytest

from nanoloop.stores.sqlite import SqliteStore

WRITER = """
import asyncio, sys
from nanoloop.errors import SessionExists, StoreConflict
from nanoloop.stores.sqlite import SqliteStore

async def main(path, name):
    store = SqliteStore(path)
    try:
        session = await store.create(id="s")
    except SessionExists:
        session = await store.load("s")
    number = 1
    while True:
        session.add_message("user", f"{name} {number} " + "x" * (number * 97 % 5000))
        if number % 3 == 0:
            session.trim_if_needed(8, 4)
            session.update_summary(f"up to {session.pending_seq}", seq=session.pending_seq)
        try:
            await store.save(session)
        except StoreConflict:
            print("conflict", flush=True)
            session = await store.load("s")
        else:
            print(number, flush=True)
            number += 1
            session.release()

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def writer(file, name="a"):
    """A process that commits as fast as it can, and tells the number of each commit."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file), name],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.stdout.read()
        process.stdout.close()
        process.wait()


def killed_after(process, commits):
    """The last commit that was acknowledged before the kill."""
    last = 0
    while last < commits:
        line = process.stdout.readline()
        last = last if line == "conflict\n" else int(line)
    process.send_signal(signal.SIGKILL)
    rest = [line for line in process.stdout.read().split("\n")[:-1] if line != "conflict"]
    return int(rest[-1]) if rest else last


def said_by(entries, name):
    words = (entry.content["text"].split() for entry in entries)
    return [int(number) for who, number, *_ in words if who == name]


def is_sound(file):
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
async def test_every_acknowledged_commit_survives_kill_9(tmp_path):
    file = tmp_path / "sessions.sqlite"
    for round_number in range(6):
        name = f"w{round_number}"
        with writer(file, name) as process:
            told = killed_after(process, 5 + 23 * round_number)
            process.wait()
        store = SqliteStore(file)
        whole, window = await store.get("s"), await store.load("s")
        seqs = [entry.seq for entry in whole.entries_between(0, whole.last_seq)]
        assert seqs == list(range(1, whole.last_seq + 1))
        assert told <= len(said_by(whole.entries_between(0, whole.last_seq), name)) <= told + 1
        assert window.window == whole.window
        await store.close()
    assert is_sound(file)


async def test_of_two_that_write_one_session_one_wins_each_time(tmp_path):
    file = tmp_path / "sessions.sqlite"
    with ExitStack() as stack:
        writers = {name: stack.enter_context(writer(file, name)) for name in "ab"}
        told = {name: killed_after(process, 60) for name, process in writers.items()}
    store = SqliteStore(file)
    entries = await store.entries("s")
    await store.close()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    for name, last in told.items():
        numbers = said_by(entries, name)
        assert numbers == list(range(1, len(numbers) + 1))
        assert last <= len(numbers) <= last + 1


async def test_many_that_begin_at_once_all_get_the_same_file(tmp_path):
    file = tmp_path / "sessions.sqlite"
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(file, f"w{number}")) for number in range(4)]
        for process in writers:
            killed_after(process, 3)
    store = SqliteStore(file)
    entries = await store.entries("s")
    assert all(len(said_by(entries, f"w{number}")) >= 3 for number in range(4))
    await store.close()


async def test_a_file_is_made_once_by_however_many_begin_at_the_same_moment(tmp_path):
    for round_number in range(25):
        stores = [SqliteStore(tmp_path / f"{round_number}.sqlite") for _ in range(4)]
        async with anyio.create_task_group() as group:
            for number, store in enumerate(stores):
                group.start_soon(lambda store, name: store.create(id=name), store, f"s{number}")
        assert len([info async for info in stores[0].list()]) == 4
        for store in stores:
            await store.close()


async def test_a_reader_beside_a_writer_sees_whole_sessions(tmp_path):
    file = tmp_path / "sessions.sqlite"
    reader = SqliteStore(file, read_only=True)
    with writer(file) as process:
        for _ in range(30):
            told = int(process.stdout.readline())
            session = await reader.load("s")
            assert session.last_seq >= told
            assert session.pending_seq == 0 or len(session.window) > 1
    await reader.close()
