"""Erasing in files: all or nothing, whatever happens, and nothing left beside them."""

import pytest

from nanoloop.errors import SessionError, StoreError
from nanoloop.sessions import Sessions
from nanoloop.stores.jsonl.store import JsonlStore


@pytest.fixture
async def store(tmp_path):
    opened = JsonlStore(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "s.jsonl"


@pytest.fixture
def full_disk(monkeypatch):
    """From now on no byte more can be written to a new file."""

    def fills():
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("nanoloop.files.write_all", fail)

    return fills


async def said(store, *texts):
    session = await store.create(id="s")
    for text in texts:
        session.add_message("user", text)
        await store.save(session)
    return session


async def test_a_failed_erasing_leaves_the_file_as_it_was(store, file, full_disk):
    session = await said(store, "one", "two")
    before = file.read_bytes()
    full_disk()
    with pytest.raises(StoreError, match="No space left"):
        await store.erase(session, [1])
    assert file.read_bytes() == before


async def test_after_a_failed_erasing_what_is_open_is_what_is_stored(store, full_disk):
    await said(store, "one", "two")
    sessions = Sessions(store)
    full_disk()
    with pytest.raises(StoreError):
        await sessions.erase("s", [1])
    assert [m["content"] for m in (await sessions.open("s")).messages] == ["one", "two"]


async def test_a_message_that_is_not_there_is_refused_and_nothing_is_written(store, file):
    await said(store, "one")
    before = file.read_bytes()
    for seq in (0, -1, 2):
        with pytest.raises(SessionError, match=f"no message #{seq}"):
            await Sessions(store).erase("s", [1, seq])
    assert file.read_bytes() == before


async def test_lines_that_can_not_be_read_stay_unless_they_may_tell_of_it(store, file, tmp_path):
    session = await said(store, "one", "two", "xyzzy", "four")
    data = file.read_bytes().replace(b'"text":"two"', b'"text":"t\xffo"')
    file.write_bytes(data.replace(b'"text":"xyzzy"', b'"text":"\xffxyzzy"'))
    await store.get("s")
    copy = tmp_path / "s.jsonl.corrupt"
    assert b"xyzzy" in copy.read_bytes()
    await store.erase(session, [3])
    for path in (file, copy):
        assert b"t\xffo" in path.read_bytes()
        assert b"xyzzy" not in path.read_bytes()
    assert [entry.seq for entry in await store.entries("s")] == [1, 4]


async def test_an_unfinished_line_at_the_end_goes_with_it(store, file):
    session = await said(store, "one", "two")
    with file.open("ab") as torn:
        torn.write(b'{"_type":"entry","seq":3,"con')
    await store.erase(session, [1])
    assert file.read_bytes().endswith(b"}\n")
    session.add_message("user", "three")
    await store.save(session)
    assert [entry.seq for entry in await store.entries("s")] == [1, 2, 3]


async def test_a_file_of_ten_thousand_entries_is_read_as_cheaply_as_before(store, file):
    session = await store.create(id="s")
    for number in range(10_000):
        session.add_message("user" if number % 2 == 0 else "assistant", f"message {number}")
    session.trim_if_needed(1, 4)
    await store.save(session)
    await store.erase(session, [5000])
    assert file.read_bytes().count(b'"_type":"head"') == 1
    loaded = await store.load("s")
    assert [entry.seq for entry in loaded.window] == [9997, 9998, 9999, 10000]
    assert [entry.seq for entry in await store.entries("s", after=4998, limit=3)] == [
        4999,
        5000,
        5001,
    ]
