"""The marks of what is owed: perhaps one too many, never one too few, and nearly for nothing."""

import os
import resource
from contextlib import contextmanager

import pytest

from nanoloop.errors import StoreConflict, StoreError
from nanoloop.events import FileUnreadable
from nanoloop.files import locked_file
from nanoloop.session.entry import Entry
from nanoloop.stores.jsonl.store import JsonlStore


@pytest.fixture
async def store(tmp_path):
    opened = JsonlStore(tmp_path)
    yield opened
    await opened.close()


@contextmanager
def files_up_to(size):
    """No file may grow beyond this."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


async def owed(store, *, pending=False):
    return {each.id async for each in store.owing(pending=pending)}


def marks(folder, kind="owing"):
    return {path.name for path in folder.joinpath(kind).glob("*")}


async def asked(store, name="s"):
    session = await store.create(id=name)
    session.hold(Entry.message("user", "hi"))
    await store.save(session)
    return session


def answer(session):
    for entry in session.queue.waiting:
        session.let_go_held(entry.id)


async def test_a_mark_is_there_before_the_commit_that_owes(store, tmp_path):
    session = await store.create(id="s")
    session.hold(Entry.message("user", "x" * 9000))
    with files_up_to((tmp_path / "s.jsonl").stat().st_size + 500), pytest.raises(StoreError):
        await store.save(session)
    assert marks(tmp_path) == {"s"}
    assert await owed(store) == set()
    assert marks(tmp_path) == set()
    await store.save(session)
    assert marks(tmp_path) == await owed(store) == {"s"}


async def test_it_goes_after_the_commit_that_owes_nothing(store, tmp_path):
    session = await asked(store)
    answer(session)
    session.set("k", "x" * 9000)
    with files_up_to((tmp_path / "s.jsonl").stat().st_size + 500), pytest.raises(StoreError):
        await store.save(session)
    assert marks(tmp_path) == await owed(store) == {"s"}
    await store.save(session)
    assert marks(tmp_path) == set()


async def test_where_it_can_not_be_made_nothing_is_written(store, tmp_path):
    session = await store.create(id="s")
    (tmp_path / "owing").write_text("no folder")
    session.hold(Entry.message("user", "hi"))
    before = (tmp_path / "s.jsonl").read_bytes()
    with pytest.raises(StoreError):
        await store.save(session)
    assert (tmp_path / "s.jsonl").read_bytes() == before
    (tmp_path / "owing").unlink()
    await store.save(session)
    assert await owed(store) == {"s"}


async def test_marks_are_touched_only_where_what_is_owed_changes(store, tmp_path, monkeypatch):
    session = await asked(store)
    touched = []
    linked, unlinked = os.link, os.unlink
    monkeypatch.setattr(os, "link", lambda *a: touched.append(a[1]) or linked(*a))
    monkeypatch.setattr(os, "unlink", lambda *a: touched.append(a[0]) or unlinked(*a))
    for _ in range(3):
        session.add_message("assistant", "hm")
        await store.save(session)
    assert touched == []
    answer(session)
    await store.save(session)
    assert touched == [f"{tmp_path}/owing/s"]
    session.add_message("assistant", "hm")
    await store.save(session)
    assert len(touched) == 1


async def test_a_look_reads_only_what_has_changed(store, tmp_path, monkeypatch):
    sessions = [await asked(store, f"s{number}") for number in range(5)]
    await store.create(id="idle")
    assert len(await owed(store)) == 5
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *a: read.append(a) or pread(*a))
    assert len(await owed(store)) == 5
    assert read == []
    sessions[0].claim("me")
    await store.save(sessions[0])
    found = {each.id: each.by async for each in store.owing()}
    assert found == {**dict.fromkeys(found, ""), "s0": "me"}
    assert len(read) < 5


async def test_what_another_one_wrote_is_seen(store, tmp_path):
    other = JsonlStore(tmp_path)
    session = await asked(other)
    assert await owed(store) == {"s"}
    session.claim("me")
    await other.save(session)
    assert [(each.revision, each.by) async for each in store.owing()] == [(session.revision, "me")]
    answer(session)
    await other.save(session)
    assert await owed(store) == set()
    await other.close()


async def test_a_mark_too_many_goes_unless_somebody_is_writing(store, tmp_path):
    await store.create(id="s")
    (tmp_path / "owing").mkdir()
    for name in ("s", "gone"):
        (tmp_path / "owing" / name).touch()
    with locked_file(tmp_path / "s.jsonl"), locked_file(tmp_path / ".lock" / "gone"):
        assert await owed(store) == set()
        assert marks(tmp_path) == {"s", "gone"}
    assert await owed(store) == set()
    assert marks(tmp_path) == set()


async def test_a_reader_leaves_them(store, tmp_path):
    await store.create(id="s")
    (tmp_path / "owing").mkdir()
    (tmp_path / "owing" / "s").touch()
    reader = JsonlStore(tmp_path, read_only=True)
    assert await owed(reader) == set()
    assert marks(tmp_path) == {"s"}
    await reader.close()


async def test_a_file_brought_by_hand_is_known_from_the_next_commit_on(store, tmp_path):
    session = await asked(store)
    (tmp_path / "owing" / "s").unlink()
    again = JsonlStore(tmp_path)
    session = await again.load("s")
    session.set("k", "v")
    await again.save(session)
    assert await owed(again) == {"s"}
    await again.close()


async def test_a_session_that_can_not_be_read_keeps_its_mark_and_is_told_once(
    store, tmp_path, heard
):
    await asked(store)
    file = tmp_path / "s.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"updated_at":"', b'"updated_at":"no'))
    for _ in range(3):
        assert await owed(store) == set()
    assert heard == [FileUnreadable(file="s.jsonl", error="SessionDamaged")]
    assert marks(tmp_path) == {"s"}
    file.write_bytes(whole)
    assert await owed(store) == {"s"}


async def test_one_that_lost_a_race_marks_nothing_and_unmarks_nothing(store, tmp_path):
    session = await asked(store)
    late = await store.load("s")
    session.claim("me")
    await store.save(session)
    answer(late)
    with pytest.raises(StoreConflict):
        await store.save(late)
    assert marks(tmp_path) == await owed(store) == {"s"}


async def test_an_erased_and_a_replaced_one_are_marked(store, tmp_path):
    session = await store.create(id="s")
    session.add_message("user", "secret")
    await store.save(session)
    session.hold(Entry.message("user", "hi"))
    await store.erase(session, [1])
    assert marks(tmp_path) == {"s"}
    await store.create(id="s", replace=True)
    assert await owed(store) == set()
    assert marks(tmp_path) == set()


async def test_names_that_are_too_long_for_a_file_are_known(store):
    name = "x" * 190
    await asked(store, name)
    assert await owed(store) == {name}
    await store.delete(name)
    assert await owed(store) == set()
