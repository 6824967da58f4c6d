"""Several processes on one folder, and one that is killed at any moment."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nanoloop.stores.jsonl.store import JsonlStore

WRITER = """
import asyncio, sys
from nanoloop.errors import SessionExists
from nanoloop.stores.jsonl import JsonlStore

async def main():
    store = JsonlStore(sys.argv[1])
    try:
        session = await store.create(id="s")
    except SessionExists:
        session = await store.load("s")
    while True:
        number = session.last_seq + 1
        session.add_message("user", f"{number} " + "x" * (number * 97 % 5000))
        if number % 3 == 0:
            session.trim_if_needed(8, 4)
            session.update_summary(f"up to {session.pending_seq}", seq=session.pending_seq)
        await store.save(session)
        print(number, flush=True)
        session.release()

asyncio.run(main())
"""


@contextmanager
def writer(folder):
    """A process that commits as fast as it can, and tells the number of each commit."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
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
    for _ in range(commits - 1):
        process.stdout.readline()
    last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    return int(rest[-2]) if len(rest) > 1 else last


async def test_a_reader_beside_a_writer_sees_whole_sessions(tmp_path):
    reader = JsonlStore(tmp_path, read_only=True)
    with writer(tmp_path) as process:
        for _ in range(30):
            told = int(process.stdout.readline())
            session = await reader.load("s")
            assert session.last_seq >= told
            assert session.pending_seq == 0 or len(session.window) > 1
    await reader.close()


@pytest.mark.slow
async def test_every_acknowledged_commit_survives_kill_9(tmp_path):
    for round_number in range(8):
        with writer(tmp_path) as process:
            told = killed_after(process, 5 + 13 * round_number)
            process.wait()
        store = JsonlStore(tmp_path)
        whole, window = await store.get("s"), await store.load("s")
        seqs = [entry.seq for entry in whole.entries_between(0, whole.last_seq)]
        assert seqs == list(range(1, whole.last_seq + 1))
        assert told <= whole.last_seq <= told + 1
        assert window.window == whole.window
        assert whole.covered_seq <= whole.pending_seq
        window.add_message("user", "after the kill")
        await store.save(window)
        await store.close()
    lines = (tmp_path / "s.jsonl").read_bytes().split(b"\n")[:-1]
    assert all(json.loads(line) for line in lines)
    assert not (tmp_path / "s.jsonl.corrupt").exists()
