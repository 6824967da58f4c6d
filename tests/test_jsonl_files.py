"""What the files look like, how they are named, and that reading alone changes none."""

import json
import threading
from dataclasses import replace
from datetime import datetime, timezone
from string import printable

import anyio
import pytest
from aiofiles.os import wrap
from hypothesis import example, given
from hypothesis import strategies as st

from nanoloop.errors import SessionExists, StoreError
from nanoloop.files import NAME_LIMIT, file_name, former_file_name, name_of
from nanoloop.session.entry import Entry
from nanoloop.stores.database import Commit
from nanoloop.stores.jsonl import journal
from nanoloop.stores.jsonl.store import JsonlStore


@pytest.fixture
async def store(tmp_path):
    opened = JsonlStore(tmp_path)
    yield opened
    await opened.close()


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def records(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_the_first_line_tells_who_it_is_and_the_summary(store, tmp_path):
    session = await store.create(id="a:b", key="k", agent="poet")
    session.add_message("user", "hello")
    session.update_summary("so far")
    await store.save(session)
    first = records(tmp_path / "a%3Ab.jsonl")[0]
    assert (first["_type"], first["id"], first["summary"]) == ("metadata", "a:b", "so far")
    assert (first["title"], first["agent"], first["format"]) == ("hello", "poet", 2)
    assert first["created_at"]


async def test_each_entry_is_one_line_with_its_five_fields(store, tmp_path):
    session = await store.create(id="s")
    session.add_message("user", "hello")
    await store.save(session)
    entry = next(r for r in records(tmp_path / "s.jsonl") if r["_type"] == "entry")
    assert {k: v for k, v in entry.items() if k not in {"_type", "seq"}} == session.window[
        0
    ].to_dict()
    assert entry["seq"] == 1


async def test_a_summary_that_is_too_long_is_cut_in_the_first_line_only(store, tmp_path):
    session = await store.create(id="s")
    for text in ("short", "żółw 🙂" * 3000, "short again"):
        session.update_summary(text)
        await store.save(session)
        first = records(tmp_path / "s.jsonl")[0]
        assert text.startswith(first["summary"].rstrip("…"))
        assert (await store.load("s")).summary == text
    assert first["summary"] == "short again"


async def test_much_metadata_gets_more_room(store, tmp_path):
    session = await store.create(id="s", metadata={"note": "x" * 20_000})
    session.update_summary("words")
    session.title = "y" * 40_000
    await store.save(session)
    first = records(tmp_path / "s.jsonl")[0]
    assert first["id"] == "s"
    back = await store.load("s")
    assert (back.title, len(back.metadata["note"])) == ("y" * 40_000, 20_000)


async def test_only_what_is_new_is_written(store, tmp_path):
    session = await store.create(id="s")
    session.add_message("user", "x" * 100_000)
    await store.save(session)
    size = (tmp_path / "s.jsonl").stat().st_size
    session.add_message("assistant", "ok")
    await store.save(session)
    assert (tmp_path / "s.jsonl").stat().st_size - size < 650


async def test_a_commit_made_for_a_place_that_is_taken_is_not_written(store, tmp_path):
    session = await store.create(id="s")
    session.add_message("user", "one")
    await store.save(session)
    commit = Commit.of("s", (await store.snapshot("s")).to_changes())
    file = store.database.files.journal("s")._file
    first, late = file.placed(commit), file.placed(commit)
    before = (tmp_path / "s.jsonl").read_bytes()
    assert (file.write(first), file.write(late)) == (len(first), 0)
    assert (tmp_path / "s.jsonl").read_bytes()[len(before) :] == first


async def test_files_stay_private(store, tmp_path):
    await store.create(id="s")
    assert (tmp_path / "s.jsonl").stat().st_mode & 0o077 == 0


async def test_no_number_of_long_reads_keeps_a_save_waiting(tmp_path):
    store, over = JsonlStore(tmp_path), threading.Event()
    session = await store.create(id="s")
    session.add_message("user", "hi")
    async with anyio.create_task_group() as group:
        for _ in range(50):  # more than there are threads for all
            group.start_soon(wrap(over.wait))
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(10):
                await store.save(session)
        finally:
            over.set()
    await store.close()


async def test_below_the_bound_every_file_stays_open(tmp_path):
    store = JsonlStore(tmp_path, open_files=8)
    for number in range(6):
        session = await store.create(id=f"s{number}")
        session.add_message("user", "hi")
        await store.save(session)
    open_now = [journal._file for journal in store.database.files._recent.values()]
    assert len(open_now) == 6
    assert None not in open_now
    await store.close()


async def test_open_files_are_bounded(tmp_path):
    async with anyio.create_task_group() as group:
        store = JsonlStore(tmp_path, open_files=3)

        async def write(number):
            session = await store.create(id=f"s{number}")
            for _ in range(3):
                session.add_message("user", "hi")
                await store.save(session)

        for number in range(40):
            group.start_soon(write, number)
    assert len(store.database.files) <= 3
    assert len(store.database.files._known) <= 3
    assert [info.entries async for info in store.list()] == [3] * 40
    await store.close()


async def test_reading_only_needs_no_lock_and_changes_nothing(store, tmp_path):
    session = await store.create(id="s")
    session.add_message("user", "hello")
    await store.save(session)
    with (tmp_path / "s.jsonl").open("ab") as torn:
        torn.write(b'broken\n{"_type":"en')
    before = contents(tmp_path)
    reader = JsonlStore(tmp_path, read_only=True)
    back = await reader.load("s")
    assert [info.id async for info in reader.list()] == ["s"]
    back.add_message("user", "no")
    for call in (reader.save(back), reader.create(), reader.delete("s"), reader.bind("k", "s")):
        with pytest.raises(StoreError, match="open read-only"):
            await call
    await reader.close()
    assert contents(tmp_path) == before


async def test_a_reader_sees_what_a_writer_adds(store, tmp_path):
    session = await store.create(id="s")
    reader = JsonlStore(tmp_path, read_only=True)
    for count in range(1, 4):
        session.add_message("user", "hi")
        await store.save(session)
        assert (await reader.load("s")).entry_count == count
        assert len(await reader.entries("s")) == count
    await reader.close()


async def test_a_folder_that_is_not_there_is_an_empty_one(tmp_path):
    reader = JsonlStore(tmp_path / "none", read_only=True)
    assert [info async for info in reader.list()] == []
    assert not (tmp_path / "none").exists()
    await reader.close()


async def test_two_names_that_the_file_system_takes_for_one_are_told_apart(store, tmp_path):
    await store.create(id="Chat")
    (tmp_path / "%43hat.jsonl").rename(tmp_path / "chat.jsonl")
    with pytest.raises(StoreError, match="treats both names as one"):
        await store.load("chat")
    with pytest.raises(StoreError, match="treats both names as one"):
        await store.create(id="chat")


async def test_a_file_removed_by_hand_is_not_revived(store, tmp_path):
    session = await store.create(id="s")
    (tmp_path / "s.jsonl").unlink()
    session.add_message("user", "late")
    with pytest.raises(KeyError):
        await store.save(session)
    assert not (tmp_path / "s.jsonl").exists()


async def test_a_save_that_has_begun_is_finished(store):
    session = await store.create(id="s")
    session.add_message("user", "hi")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.save(session)
    assert not scope.cancelled_caught
    assert (await store.get("s")).entry_count == 1
    session.add_message("user", "there")
    await store.save(session)
    assert (await store.get("s")).entry_count == 2


async def test_every_place_is_found_by_a_store_that_knows_none(store, tmp_path):
    session = await store.create(id="s")
    for number in range(2000):
        session.add_message("user", "x" * (number * 37 % 900))
        if number % 50 == 0:
            session.set("k", "y" * (number * 7))
            await store.save(session)
    await store.save(session)
    for after in range(0, 2000, 7):
        reader = JsonlStore(tmp_path, read_only=True)
        assert [e.seq for e in await reader.entries("s", after=after, limit=1)] == [after + 1]
        await reader.close()


@example("..")
@given(st.text(printable + "é漢\ud800🙂", max_size=400))
def test_a_file_name_is_safe_and_tells_its_id(name):
    made = file_name(name)
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%._@-")
    assert not made.startswith(".")
    assert len(made) <= NAME_LIMIT
    assert name_of(made) in {name, None}


@given(st.text(":aAB/%5", max_size=80), st.text(":aAB/%5", max_size=80))
def test_two_ids_never_share_a_file_name_where_case_is_ignored_either(one, two):
    assert (file_name(one).lower() == file_name(two).lower()) == (one == two)


def made_before(folder, name, *, key):
    """A session as a version made it that kept capitals in the names of files."""
    path = folder / f"{file_name(name)}.jsonl"
    path.rename(folder / f"{former_file_name(name)}.jsonl")
    path = folder / "keys" / f"{file_name(key)}.json"
    path.rename(folder / "keys" / f"{former_file_name(key)}.json")


@pytest.mark.parametrize("name", ["Room", "slack:C0AB", "A" * 100, "x" * 180 + "X"])
async def test_a_file_with_its_name_of_before_is_found_and_renamed(store, tmp_path, name):
    session = await store.create(id=name, key=name)
    session.add_message("user", "hello")
    await store.save(session)
    await store.bind(name, name)
    await store.close()
    made_before(tmp_path, name, key=name)
    (tmp_path / f"{former_file_name(name)}.jsonl.corrupt").write_bytes(b"torn\n")
    reader = JsonlStore(tmp_path, read_only=True)
    assert (await reader.get(name)).entry_count == (await reader.load(name)).entry_count == 1
    assert await reader.bound(name) == name
    again = JsonlStore(tmp_path)
    assert (await again.load(name)).entry_count == 1
    await again.create(id=name.lower() + "-other")
    assert {path.name for path in tmp_path.glob(f"{file_name(name)}.*")} == {
        f"{file_name(name)}.jsonl",
        f"{file_name(name)}.jsonl.corrupt",
    }
    session = await again.load(name)
    session.add_message("user", "again")
    await again.save(session)
    assert [info.id async for info in again.list()].count(name) == 1
    assert await again.bound(name) == name
    assert (await reader.get(name)).entry_count == 2
    await again.bind(name, "other")
    assert [each async for each in again.bindings()] == [(name, "other")]
    await again.close()
    await reader.close()


@pytest.mark.parametrize("act", ["create", "delete"])
async def test_while_one_is_made_no_other_process_makes_or_deletes_it(
    store, tmp_path, monkeypatch, act
):
    is_inside, gate, put = threading.Event(), threading.Event(), journal.replace_file

    def slow(*args, **kwargs):
        is_inside.set()
        assert gate.wait(10)
        put(*args, **kwargs)

    monkeypatch.setattr(journal, "replace_file", slow)
    other = JsonlStore(tmp_path, busy_seconds=0.02)
    await other.delete("unknown")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: store.create(id="s"))
        await wrap(is_inside.wait)(10)
        with pytest.raises(StoreError, match="another process has locked session 's': stop it"):
            await (other.create(id="s") if act == "create" else other.delete("s"))
        gate.set()
    with pytest.raises(SessionExists):
        await other.create(id="s")
    await other.close()


async def test_a_commit_as_long_as_what_was_torn_there_is_seen(tmp_path):
    now, file = datetime(2026, 1, 1, tzinfo=timezone.utc), tmp_path / "s.jsonl"

    async def goes_on():
        other = JsonlStore(tmp_path, clock=lambda: now)
        session = await other.load("s")
        session.add_entry(replace(Entry.message("user", "two"), timestamp=now))
        await other.save(session)
        await other.close()

    store = JsonlStore(tmp_path, clock=lambda: now)
    await store.create(id="s")
    before = file.read_bytes()
    await goes_on()
    size = file.stat().st_size
    file.write_bytes(before.ljust(size, b"x"))
    assert len((await store.load("s")).window) == 0
    await goes_on()
    assert file.stat().st_size == size
    assert len((await store.load("s")).window) == 1
    await store.close()
