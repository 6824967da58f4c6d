"""Several processes on one session in one database, and one that is killed at any moment."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from nanoloop.stores.postgres import PostgresStore

WRITER = """
import asyncio, sys
from nanoloop.errors import SessionExists, StoreConflict
from nanoloop.stores.postgres import PostgresStore

async def main(url, name, count):
    store = PostgresStore(url)
    try:
        await store.create(id="s")
    except SessionExists:
        pass
    session = await store.load("s")
    print("ready", flush=True)
    sys.stdin.readline()
    number = conflicts = 0
    while number < count:
        session.add_message("user", f"{name} {number}")
        if number % 5 == 0:
            session.trim_if_needed(8, 4)
        try:
            await store.save(session)
        except StoreConflict:
            conflicts += 1
            session = await store.load("s")
        else:
            print(number, flush=True)
            number += 1
    print("conflicts", conflicts, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@contextmanager
def writer(url, name, count):
    """A process that has the session, and `begin`s to commit so many messages, telling of each."""
    command = [sys.executable, "-c", WRITER, url, name, str(count)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def begin(*processes):
    for process in processes:
        process.stdin.write("go\n")


@pytest.fixture
async def store(postgres_url):
    opened = PostgresStore(postgres_url)
    yield opened
    await opened.close()


async def said(store):
    session = await store.get("s")
    entries = session.entries_between(0, session.last_seq)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [entry.content["text"] for entry in entries]


async def test_of_two_processes_one_wins_each_time_and_nothing_is_lost_or_doubled(
    postgres_url, store
):
    with writer(postgres_url, "a", 150) as one, writer(postgres_url, "b", 150) as other:
        begin(one, other)
        conflicts = [int(process.stdout.read().split()[-1]) for process in (one, other)]
    texts = await said(store)
    for name in "ab":
        assert [text for text in texts if text[0] == name] == [f"{name} {n}" for n in range(150)]
    assert len(texts) == 300
    assert sum(conflicts) > 0


@pytest.mark.slow
async def test_every_acknowledged_commit_survives_kill_9(postgres_url, store):
    told = []
    for number in range(5):
        commits = 5 + 17 * number
        with writer(postgres_url, f"r{number}", 10_000) as process:
            begin(process)
            for _ in range(commits):
                process.stdout.readline()
            process.kill()
            told.append(commits + process.stdout.read().count("\n"))
    texts = await said(store)
    for number, commits in enumerate(told):
        kept = [text for text in texts if text.startswith(f"r{number} ")]
        assert commits <= len(kept) <= commits + 1
        assert kept == [f"r{number} {n}" for n in range(len(kept))]
