"""What a turn costs does not grow with the history: bytes are counted, not seconds."""

import os
import shutil

import anyio
import pytest

from nanoloop.session.entry import Entry
from nanoloop.stores.jsonl.reading import CHUNK
from nanoloop.stores.jsonl.store import JsonlStore

TEXT = "What was said is about as long as this line, give or take a few words. " * 2
SUMMARY = "They spoke of many things. " * 40


class Counted:
    """Bytes that went through the system calls."""

    def __init__(self, monkeypatch):
        self.read = self.written = self.writes = 0
        self._pread, self._write, self._pwrite = os.pread, os.write, os.pwrite
        for name in ("pread", "write", "pwrite"):
            monkeypatch.setattr(os, name, getattr(self, name))

    def pread(self, fd, count, offset):
        data = self._pread(fd, count, offset)
        self.read += len(data)
        return data

    def write(self, fd, data):
        self.writes += 1
        self.written += len(data)
        return self._write(fd, data)

    def pwrite(self, fd, data, offset):
        self.writes += 1
        self.written += len(data)
        return self._pwrite(fd, data, offset)

    def reset(self):
        self.read = self.written = self.writes = 0


@pytest.fixture(scope="module", params=[10, 1_000, 10_000, 100_000])
def template(request, tmp_path_factory):
    """A file with so many messages, all but the newest summarised."""
    folder = tmp_path_factory.mktemp("cost")
    anyio.run(grow, folder, request.param)
    return folder / "s.jsonl"


async def grow(folder, count):
    store = JsonlStore(folder)
    session = await store.create(id="s")
    for start in range(0, count, 500):
        for number in range(start, min(start + 500, count)):
            session.add_entry(Entry.message("assistant" if number % 2 else "user", TEXT))
        session.trim_if_needed(50, 10)
        session.update_summary(SUMMARY, seq=session.pending_seq)
        await store.save(session)
        session.release()
    await store.close()


@pytest.fixture
def grown(template, tmp_path):
    shutil.copy(template, tmp_path)
    return tmp_path


@pytest.fixture
async def store(grown):
    opened = JsonlStore(grown)
    yield opened
    await opened.close()


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


async def test_a_load_reads_the_end_of_the_file(store, counted):
    session = await store.load("s")
    assert len(session.window) >= 10
    assert counted.read < 1.2 * (CHUNK + 3 * 4096)
    assert counted.written <= 150  # the lock says whose it is


async def test_a_turn_writes_what_was_said_and_two_small_heads(store, counted):
    session = await store.load("s")
    for _ in range(3):
        counted.reset()
        for role in ("user", "assistant"):
            session.add_message(role, TEXT)
            await store.save(session)
        session.trim_if_needed(50, 10)
        lines = sum(len(entry.to_json()) + 40 for entry in session.window[-2:])
    assert counted.writes == 2
    assert counted.written < lines + 2 * 400
    assert counted.read == 0


async def test_a_trim_and_a_summary_read_what_is_pending(store, counted):
    session = await store.load("s")
    for _ in range(60):
        session.add_message("user", TEXT)
        await store.save(session)
    session.trim_if_needed(50, 10)
    await store.save(session)
    counted.reset()
    pending = await store.entries("s", after=session.covered_seq, upto=session.pending_seq)
    assert [entry.seq for entry in pending] == list(
        range(session.covered_seq + 1, session.pending_seq + 1)
    )
    assert counted.read < 1.2 * CHUNK


async def test_after_a_restart_what_is_pending_is_found_at_once(store, grown, counted):
    session = await store.load("s")
    for _ in range(60):
        session.add_message("user", TEXT)
    session.trim_if_needed(50, 10)
    await store.save(session)
    await store.close()
    again = JsonlStore(grown)
    counted.reset()
    pending = await again.entries("s", after=session.covered_seq, upto=session.pending_seq)
    assert pending[0].seq == session.covered_seq + 1
    assert counted.read < 1.2 * CHUNK
    await again.close()


async def test_pages_of_old_entries_cost_a_page(store, counted):
    last = (await store.load("s")).last_seq
    for after in (last // 2, last // 3, 0):
        counted.reset()
        page = await store.entries("s", after=after, limit=20)
        assert [entry.seq for entry in page][:1] == [after + 1]
        assert counted.read < 6 * CHUNK


@pytest.mark.slow
async def test_paging_through_reads_each_byte_a_few_times_at_most(store, counted, grown):
    size = (grown / "s.jsonl").stat().st_size
    after = 0
    while page := await store.entries("s", after=after, limit=200):
        after = page[-1].seq
    assert counted.read < 3 * size + 4 * CHUNK


async def test_a_glance_reads_both_ends(store, counted):
    infos = [info async for info in store.list()]
    assert infos[0].id == "s"
    assert counted.read < 5 * 4096
