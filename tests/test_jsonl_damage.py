"""Whatever happens to a file, what was acknowledged is there and the next message can be stored."""

import errno
import json
import os
import re
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanoloop.errors import SessionExists, StoreError
from nanoloop.events import FileUnreadable, LineSetAside, LogRepaired, NumberMended
from nanoloop.session.entry import rfc3339
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path, heard):
    opened = JsonlStore(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "s.jsonl"


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
async def later(request, store, tmp_path, heard):
    """The store after the damage: the same one, or one that knows nothing yet."""
    opened = []

    async def now():
        if not request.param:
            return store
        await store.close()
        opened.append(JsonlStore(tmp_path))
        return opened[0]

    yield now
    for each in opened:
        await each.close()


async def said(store, *texts):
    session = await store.create(id="s")
    for text in texts:
        session.add_message("user", text)
        await store.save(session)
    return session


async def goes_on(store, expected, text="next"):
    """Load, add, get: all expected texts and the new one are there, each line is whole."""
    session = await store.load("s")
    session.add_message("user", text)
    await store.save(session)
    whole = await store.get("s")
    assert [entry.content["text"] for entry in whole.window] == [*expected, text]


def lines(file):
    return file.read_bytes().split(b"\n")


@contextmanager
def files_up_to(size):
    """No file may grow beyond this; what doesn't fit is half written, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


async def test_a_commit_torn_at_any_byte_takes_nothing_with_it(store, file):
    session = await said(store, "one", "two")
    before = file.stat().st_size
    session.add_message("user", "three ✓")
    session.update_summary("about one", seq=0)
    await store.save(session)
    whole = file.read_bytes()
    for cut in range(before, len(whole)):
        file.unlink()
        file.write_bytes(whole[:cut])
        lacks_its_newline_only = cut == len(whole) - 1
        await goes_on(store, ["one", "two", *["three ✓"] * lacks_its_newline_only])
        assert all(json.loads(line) for line in lines(file)[:-1])


async def test_a_torn_line_is_set_aside_cut_off_and_told(store, file, heard):
    await said(store, "one")
    with file.open("ab") as torn:
        torn.write(b'{"_type":"entry","se')
    await goes_on(store, ["one"])
    copy = file.with_name("s.jsonl.corrupt")
    assert heard == [LogRepaired(session_id="s", bytes_cut=20, file=copy.name)]
    assert copy.read_bytes() == b'{"_type":"entry","se\n'
    assert copy.stat().st_mode & 0o777 == 0o600


async def test_a_torn_line_that_can_not_be_set_aside_is_not_cut_off(store, file):
    session = await said(store, "one")
    with file.open("ab") as torn:
        torn.write(b"half a line")
    file.with_name("s.jsonl.corrupt").mkdir()
    session.add_message("user", "two")
    with pytest.raises(StoreError, match="Is a directory"):
        await store.save(session)
    assert file.read_bytes().endswith(b"half a line")


async def test_an_erasure_sets_a_torn_line_aside_unless_it_tells_of_what_is_erased(store, file):
    copy = file.with_name("s.jsonl.corrupt")
    for seq, kept in ((1, b""), (7, b'{"_type":"entry","seq":7,"id"\n')):
        session = await store.create(id="s", replace=True)
        session.add_message("user", "one")
        await store.save(session)
        with file.open("ab") as torn:
            torn.write(b'{"_type":"entry","seq":%d,"id"' % seq)
        await store.erase(session, [1])
        assert copy.read_bytes() == kept


async def test_a_torn_line_longer_than_a_chunk_is_cut_off(store, file):
    await said(store, "one")
    with file.open("ab") as torn:
        torn.write(b'{"_type":"entry","seq":2,"content":"' + b"x" * 300_000)
    await goes_on(store, ["one"])


async def test_an_end_full_of_zeros_is_cut_off(store, file):
    await said(store, "one")
    with file.open("ab") as torn:
        torn.write(b"\0" * 10_000)
    await goes_on(store, ["one"])
    assert b"\0" not in file.read_bytes()
    assert b"\0" * 10_000 in file.with_name("s.jsonl.corrupt").read_bytes()


async def test_a_last_line_without_its_newline_is_kept(store, file):
    await said(store, "one")
    os.truncate(file, file.stat().st_size - 1)
    await goes_on(store, ["one"])
    assert all(json.loads(line) for line in lines(file)[:-1])


@pytest.mark.parametrize("long", [1, 300_000])
async def test_what_stands_behind_the_last_head_was_never_acknowledged(
    store, file, later, long, heard
):
    session = await said(store, "one")
    before = file.stat().st_size
    session.add_message("user", "x" * long)
    session.update_summary("words", seq=0)
    await store.save(session)
    os.truncate(file, file.stat().st_size - len(lines(file)[-2]) - 1)
    unfinished = file.read_bytes()[before:]
    store = await later()
    for read in (store.load, store.get):
        back = await read("s")
        assert ([e.content["text"] for e in back.window], back.summary) == (["one"], "")
    assert back.revision == session.revision - 1
    assert [info.entries async for info in store.list()] == [1]
    await goes_on(store, ["one"])
    assert file.with_name("s.jsonl.corrupt").read_bytes() == unfinished + b"\n"
    assert [type(event) for event in heard] == [LogRepaired]


@pytest.mark.parametrize("long", [1, 300_000])
async def test_a_commit_whose_head_can_not_be_read_any_more_is_taken_in(store, file, later, long):
    session = await said(store, "one")
    session.add_message("user", "x" * long)
    session.update_summary("words", seq=0)
    await store.save(session)
    data = file.read_bytes()
    place = data.rindex(b'"_type":"head"')
    file.write_bytes(data[:place] + b"#" + data[place + 1 :])
    store = await later()
    back = await store.load("s")
    assert ([e.content["text"] for e in back.window], back.summary) == (
        ["one", "x" * long],
        "words",
    )
    assert back.revision == session.revision
    assert [info.entries async for info in store.list()] == [2]
    await goes_on(store, ["one", "x" * long])


@pytest.mark.parametrize(("seq", "like"), [(1, 2), (2, 1), (3, 2)])
async def test_a_time_that_can_not_be_read_is_that_of_the_message_before(store, file, seq, like):
    session = await said(store, "one", "two", "three")
    lasting = [entry.timestamp for entry in session.window]
    moment = rfc3339(lasting[seq - 1]).encode()
    place = file.read_bytes().index(b'"seq":%d,' % seq)
    before, after = file.read_bytes()[:place], file.read_bytes()[place:]
    file.write_bytes(before + after.replace(moment, b"soon".ljust(len(moment)), 1))
    for read in (store.load, store.get):
        back = (await read("s")).window
        assert [entry.content["text"] for entry in back] == ["one", "two", "three"]
        assert back[seq - 1].timestamp == lasting[like - 1]
    assert not file.with_name("s.jsonl.corrupt").exists()


async def test_a_corrupt_line_is_set_aside_once_and_left_where_it_is(store, file, heard, tmp_path):
    await said(store, "one", "two", "three")
    data = file.read_bytes().replace(b'"text":"two"', b'"text":"t\xffo"')
    file.write_bytes(data)
    for read in (store.load, store.get, store.get):
        assert [e.content["text"] for e in (await read("s")).window] == ["one", "three"]
    bad = next(line for line in data.split(b"\n") if b"\xff" in line)
    assert heard == [LineSetAside(session_id="s", line=7, file="s.jsonl.corrupt")]
    assert (tmp_path / "s.jsonl.corrupt").read_bytes() == bad + b"\n"
    await goes_on(store, ["one", "three"])
    assert bad in lines(file)
    assert [entry.seq for entry in await store.entries("s")] == [1, 3, 4]


async def test_a_corrupt_line_is_told_once_over_restarts_too(store, file, heard, tmp_path):
    await said(store, "one", "two")
    file.write_bytes(file.read_bytes().replace(b'"text":"one"', b'"text":one"'))
    await store.get("s")
    await store.close()
    again = JsonlStore(tmp_path)
    await again.get("s")
    await again.close()
    assert len(heard) == 1


async def test_a_corrupt_line_is_told_once_where_nothing_may_be_written(
    store, file, heard, tmp_path
):
    await said(store, "one")
    file.write_bytes(file.read_bytes().replace(b'"text":"one"', b'"text":one"'))
    reader = JsonlStore(tmp_path, read_only=True)
    for _ in range(3):
        await reader.load("s")
    assert len(heard) == 1
    assert not (tmp_path / "s.jsonl.corrupt").exists()
    await reader.close()


@pytest.mark.parametrize("garbage", [b"", b"[]", b"12", b'{"_type":7}', b"{" * 5000, b'{"a":1}'])
async def test_garbage_between_lines_does_no_harm(store, file, later, garbage):
    await said(store, "one", "two")
    with file.open("ab") as grown:
        grown.write(garbage + b"\n")
    await goes_on(await later(), ["one", "two"])


NUMBERS = ("window", "covered", "turns", "start", "last", "count")
ODD = [f'"{name}":{value}' for name in NUMBERS for value in ("-3", '"many"')]


@pytest.mark.parametrize("odd", ODD)
async def test_a_number_that_makes_no_sense_costs_no_message(store, file, later, odd, heard):
    session = await said(store, "one", "two")
    session.trim_if_needed(1, 1)
    await store.save(session)
    data = file.read_bytes()
    place = data.rindex(b'"_type":"head"')
    name = odd.partition(":")[0].encode()
    odd_head = re.sub(name + rb":\d+", odd.encode(), data[place:], count=1)
    file.write_bytes(data[:place] + odd_head)
    store = await later()
    assert [e.content["text"] for e in (await store.load("s")).window][-1] == "two"
    assert {type(event) for event in heard} <= {NumberMended, LineSetAside}
    assert heard
    back = await store.get("s")
    back.add_message("user", "three")
    await store.save(back)
    assert [e.content["text"] for e in await store.entries("s")] == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["about", "window", "pending"])
@pytest.mark.parametrize("odd", [b"-3", b'"many"', b"null"])
async def test_a_place_in_the_file_that_makes_no_sense_costs_nothing(store, file, name, odd, heard):
    session = await said(store, "one", "two")
    session.trim_if_needed(1, 1)
    await store.save(session)
    data = file.read_bytes()
    place = data.rindex(b'"at":')
    odd_places = re.sub(
        b'"%s":\\d+' % name.encode(), b'"%s":%s' % (name.encode(), odd), data[place:]
    )
    file.write_bytes(data[:place] + odd_places)
    again = JsonlStore(file.parent, read_only=True)
    back = await again.load("s")
    assert ([e.content["text"] for e in back.window], back.title) == (["two"], "one")
    assert [e.seq for e in await again.entries("s", after=1)] == [2]
    assert heard == []
    await again.close()
    await goes_on(store, ["one", "two"][1:])


async def test_a_corrupt_head_falls_back_on_the_one_before(store, file, later):
    await said(store, "one", "two")
    data = file.read_bytes()
    place = data.rindex(b'"_type":"head"')
    file.write_bytes(data[:place] + b"#" + data[place + 1 :])
    await goes_on(await later(), ["one", "two"])


async def test_without_any_head_everything_else_is_there(store, file, later):
    session = await said(store, "one", "two")
    session.set("k", "v")
    session.update_summary("words")
    await store.save(session)
    file.write_bytes(file.read_bytes().replace(b'"_type":"head"', b'"_type:"head"'))
    now = await later()
    back = await now.load("s")
    assert (back.state, back.summary) == ({"k": "v"}, "words")
    await goes_on(now, ["one", "two"])


@pytest.mark.parametrize("first", [b"", b"x" * 9000, b"{}", b"\0" * 4095], ids=ascii)
async def test_without_its_first_line_a_session_is_the_same(store, file, later, first):
    session = await store.create(id="s", metadata={"a": 1}, key="k")
    file.write_bytes(first + file.read_bytes()[4095:])
    store = await later()
    back = await store.load("s")
    assert (back.metadata, back.key, back.created_at) == ({"a": 1}, "k", session.created_at)
    assert [info.id async for info in store.list()] == ["s"]
    await goes_on(store, [])
    assert file.read_bytes().startswith(first)


@pytest.mark.parametrize("edit", ["longer", "shorter", "one commit less", "a state"])
async def test_a_file_that_was_edited_by_hand_is_read_anew(store, file, later, heard, edit):
    texts = [f"m{number} {'x' * 50_000}" for number in range(9)]
    session = await said(store, *texts)
    if edit == "a state":
        session.set("k", "v")
    session.trim_if_needed(2, 2)
    await store.save(session)
    file.write_bytes(edited(file.read_bytes(), edit))
    back = await (await later()).load("s")
    assert [entry.content["text"] for entry in back.window] == texts[7:]
    assert (back.state, back.title[:2]) == ({"k": "v"} if edit == "a state" else {}, "m0")
    assert heard == []


def edited(data, edit):
    if edit == "one commit less":  # what comes after it stands exactly one commit earlier
        parts = data.split(b"\n")
        place = next(i for i, line in enumerate(parts) if b'"text":"m3 ' in line)
        return b"\n".join(parts[:place] + parts[place + 2 :])
    return data.replace(b'"text":"m1 ', b'"text":"' if edit == "shorter" else b'"text":"m1 longer')


async def test_an_empty_file_is_an_empty_session(store, file):
    file.touch()
    assert [info.id async for info in store.list()] == ["s"]
    with pytest.raises(SessionExists):
        await store.create(id="s")
    await goes_on(store, [])


async def test_a_file_that_can_not_be_read_stops_no_list(store, tmp_path, heard):
    await said(store, "one")
    (tmp_path / "folder.jsonl").mkdir()
    assert [info.id async for info in store.list()] == ["s"]
    assert heard == [FileUnreadable(file="folder.jsonl", error="IsADirectoryError")]


async def test_a_full_disk_leaves_nothing_half_written(store, file):
    session = await said(store, "one")
    size = file.stat().st_size
    session.add_message("user", "x" * 1000)
    with files_up_to(size + 500), pytest.raises(StoreError, match="failed"):
        await store.save(session)
    assert file.stat().st_size == size
    await store.save(session)
    await goes_on(store, ["one", "x" * 1000])


async def test_a_full_disk_at_creation_leaves_no_session(store, file):
    with files_up_to(100), pytest.raises(StoreError):
        await store.create(id="s")
    assert not file.exists()
    await said(store, "one")


async def test_what_a_failed_write_left_is_cut_off_before_the_next(store, file, monkeypatch):
    session = await said(store, "one")
    real = os.ftruncate
    monkeypatch.setattr(os, "ftruncate", _fails)
    session.add_message("user", "two")
    session.set("k", "x" * 1000)
    with files_up_to(file.stat().st_size + 500), pytest.raises(StoreError):
        await store.save(session)
    assert b'"two"' in file.read_bytes()
    assert [e.content["text"] for e in (await store.get("s")).window] == ["one"]
    monkeypatch.setattr(os, "ftruncate", real)
    await store.save(session)
    await goes_on(store, ["one", "two"])
    assert all(json.loads(line) for line in lines(file)[:-1])


async def test_a_failed_sync_is_a_failed_save(tmp_path, monkeypatch):
    store = JsonlStore(tmp_path, durability="fsync")
    session = await said(store, "one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _fails)
        session.add_message("user", "two")
        with pytest.raises(StoreError):
            await store.save(session)
    await store.save(session)
    await goes_on(store, ["one", "two"])
    await store.close()


async def test_a_first_line_that_can_not_be_renewed_fails_no_save(store, file, monkeypatch):
    session = await said(store, "one")
    session.title = "new"
    monkeypatch.setattr(os, "pwrite", _fails)
    await store.save(session)
    assert (await store.load("s")).title == "new"


@pytest.mark.parametrize("failure", ["full", "no json"])
async def test_a_failed_save_leaves_no_trace_in_what_is_known_of_places(store, file, failure):
    session, other = await said(store, "one"), await store.load("s")
    for text in ("x" * 9000, "y"):
        session.add_message("user", text)
    if failure == "no json":
        session.set("k", {("no", "key"): 1})
    with files_up_to(file.stat().st_size + 9500), pytest.raises(StoreError):
        await store.save(session)
    for text in ("two", "three"):
        other.add_message("user", text)
        await store.save(other)
    assert [e.content["text"] for e in await store.entries("s", after=2)] == ["three"]


async def test_a_value_that_is_no_json_is_refused_and_the_next_save_works(store):
    session = await said(store, "one")
    session.set("k", {("no", "key"): 1})
    with pytest.raises(StoreError, match="JSON"):
        await store.save(session)
    session.delete("k")
    await store.save(session)
    await goes_on(store, ["one"])


async def test_a_file_that_makes_no_sense_is_a_store_error(store, file):
    await said(store, "one")
    file.write_bytes(file.read_bytes().replace(b'"created_at":"', b'"created_at":"no'))
    with pytest.raises(StoreError, match="is damaged"):
        await store.load("s")


def _fails(*_):
    raise OSError(5, "Input/output error")


async def test_entries_are_found_in_a_file_whose_places_no_longer_hold(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    for number in range(6):
        session.add_message("user", f"m{number}")
    await store.save(session)
    await store.close()
    (path,) = tmp_path.glob("*.jsonl")
    first, _, rest = path.read_bytes().partition(b"\n")
    for damaged in (first.rstrip() + b"\n" + rest, rest):
        path.write_bytes(damaged)
        store = JsonlStore(tmp_path)
        found = await store.entries("s", after=2)
        await store.close()
        assert [entry.content["text"] for entry in found] == ["m2", "m3", "m4", "m5"]


async def test_a_file_of_a_newer_format_is_refused_and_left_alone(store, file):
    await said(store, "one")
    await store.close()
    file.write_bytes(file.read_bytes().replace(b'"format":2,', b'"format":99,', 1))
    before = file.read_bytes()
    later = JsonlStore(file.parent)
    with pytest.raises(StoreError, match=r"s.jsonl has format 99.*newer nanoloop"):
        await later.load("s")
    with pytest.raises(StoreError, match="format 99"):
        await later.create(id="s", replace=True)
    assert file.read_bytes() == before
    await later.close()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "Read-only file system: check the permissions, or choose another place"),
        (errno.ENOSPC, "No space left on device: free some space"),
        (errno.EEXIST, "there is a file in place of a folder"),
        (errno.ENOENT, "the folder can't be created"),
        (errno.EIO, "check the disk"),
    ],
)
@pytest.mark.parametrize("kind", [JsonlStore, SqliteStore])
async def test_a_disk_that_refuses_is_told_with_the_step_that_helps(
    kind, number, advice, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    opened = kind(tmp_path / "new" / "there")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(StoreError, match=advice):
            await opened.create(id="s")
    await opened.close()
