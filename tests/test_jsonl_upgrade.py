"""A folder of an earlier version becomes one of this version, and is closed to that one."""

import json
import os
import shutil
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Event

import anyio
import pytest
from aiofiles.os import wrap

from nanoloop.errors import NotReadable, StoreConflict, StoreLocked
from nanoloop.files import ProcessLock, lock
from nanoloop.stores.jsonl import store as stores
from nanoloop.stores.jsonl.store import FolderUpgrade, JsonlStore

BEFORE = Path(__file__).parent / "formats" / "jsonl_1"
"""Written by the version before: with messages that wait, unsent answers, a turn cut off."""
CHATS = {"Room", "asked", "cut", "unsent", "waiting"}
BEHIND = {"behind"}


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(BEFORE, tmp_path / "sessions")


@pytest.fixture
async def store(folder):
    opened = JsonlStore(folder)
    yield opened
    await opened.close()


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def earlier_version(folder):
    """What the version before did first of all."""
    clock = lambda: datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: E731
    return ProcessLock(folder / ".lock", of=folder, clock=clock)


async def owed(store, *, pending=False):
    return {each.id async for each in store.owing(pending=pending)}


async def texts(store, name):
    return [entry.content["text"] for entry in await store.entries(name)]


async def test_what_was_owed_is_owed(store):
    assert await owed(store) == CHATS
    assert await owed(store, pending=True) == CHATS | BEHIND


async def test_what_was_said_waits_or_is_unsent_is_there(store):
    waiting, unsent, cut = [await store.load(name) for name in ("waiting", "unsent", "cut")]
    assert [entry.content["text"] for entry in waiting.queue.waiting] == ["two"]
    assert (unsent.unsent, await texts(store, "unsent")) == ((2,), ["one", "answer"])
    assert (cut.awaiting, await texts(store, "cut")) == (1, ["cut?"])
    assert await texts(store, "Room") == ["hello"]
    assert await store.bound("Room") == "Room"


async def test_a_reader_knows_what_is_owed_before_anybody_wrote_and_changes_nothing(folder):
    before = contents(folder)
    reader = JsonlStore(folder, read_only=True)
    assert await owed(reader) == CHATS
    assert await owed(reader, pending=True) == CHATS | BEHIND
    await reader.close()
    assert contents(folder) == before


async def test_the_version_before_can_not_open_it_any_more(store, folder):
    await store.delete_expired()
    await store.close()
    with pytest.raises(IsADirectoryError):
        earlier_version(folder).take()
    for file in folder.glob("*.jsonl"):
        assert json.loads(file.read_bytes().partition(b"\n")[0])["format"] == 2


async def test_while_the_version_before_runs_this_one_is_refused_and_changes_nothing(
    folder, monkeypatch
):
    monkeypatch.setattr("nanoloop.files.UPGRADE_SECONDS", 0.05)
    earlier = earlier_version(folder)
    earlier.take()
    before = contents(folder)
    store = JsonlStore(folder)
    for use in (store.create(id="new"), owed(store)):
        with pytest.raises(StoreLocked, match=rf"in use by process {os.getpid()} on .* since 2026"):
            await use
    assert contents(folder) == before
    earlier.release()
    await store.create(id="new")
    await store.close()


async def test_one_that_had_opened_the_lock_already_is_refused(store, folder):
    early = os.open(folder / ".lock", os.O_RDWR)
    await store.delete_expired()
    with pytest.raises(BlockingIOError):
        lock(early)
    os.close(early)


async def test_however_many_begin_at_once_it_is_done_once(tmp_path):
    for number in range(10):
        folder = shutil.copytree(BEFORE, tmp_path / str(number))
        stores = [JsonlStore(folder) for _ in range(4)]
        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(said_in, store, "Room")
        assert (await texts(stores[0], "Room"))[1:] == ["more"] * 4
        assert {path.name for path in folder.iterdir() if "oom" in path.name} == {"%52oom.jsonl"}
        assert await owed(stores[0]) == CHATS
        for store in stores:
            await store.close()


async def said_in(store, name):
    while True:
        session = await store.load(name)
        session.add_message("assistant", "more")
        with suppress(StoreConflict):
            return await store.save(session)


async def test_one_that_begins_later_may_be_done_sooner(folder, monkeypatch):
    is_inside, gate = Event(), Event()
    mark = FolderUpgrade._mark

    def slow(self, path):
        if not is_inside.is_set():
            is_inside.set()
            assert gate.wait(10)
        return mark(self, path)

    monkeypatch.setattr(FolderUpgrade, "_mark", slow)
    first, second = JsonlStore(folder), JsonlStore(folder)
    async with anyio.create_task_group() as group:
        group.start_soon(first.delete_expired)
        await wrap(is_inside.wait)(10)
        session = await second.load("asked")
        session.awaiting = 0
        session.owe(1)
        await second.save(session)
        session.arrived(1)
        await second.save(session)
        await second.delete("waiting")
        assert await owed(second) == CHATS - {"asked", "waiting"}
        gate.set()
    assert await owed(first) == await owed(second) == CHATS - {"asked", "waiting"}
    for store in (first, second):
        await store.close()


async def test_a_copy_of_a_folder_is_marked_anew(store, folder, tmp_path):
    assert await owed(store) == CHATS
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("owing"))
    again = JsonlStore(copy)
    assert await owed(again) == CHATS
    await again.close()


async def test_a_folder_is_marked_anew_after_the_machine_was_started_again(
    store, folder, monkeypatch
):
    assert await owed(store) == CHATS
    await store.close()
    shutil.rmtree(folder / "owing")
    monkeypatch.setattr(stores, "machine_start", lambda: "another")
    again = JsonlStore(folder)
    assert await owed(again) == CHATS
    await again.close()


async def test_a_folder_of_a_newer_version_is_refused(store, folder):
    await store.delete_expired()
    await store.close()
    note = folder / ".lock" / ".index"
    note.write_text(json.dumps({**json.loads(note.read_text()), "format": 99}))
    later = JsonlStore(folder)
    with pytest.raises(NotReadable, match=r"has format 99.*install a newer nanoloop"):
        await later.create(id="new")
    await later.close()


async def test_a_file_that_can_not_be_read_stops_no_upgrade(folder):
    (folder / "broken.jsonl").write_bytes(b'{"_type":"head","rev":1,"last":"x","at":{}}\n' * 3)
    (folder / "folder.jsonl").mkdir()
    store = JsonlStore(folder)
    assert await owed(store) >= CHATS
    await store.close()
