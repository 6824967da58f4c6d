"""A disk that fails, a file that is damaged or held: clear words, nothing half-written."""

import resource
import sqlite3
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from nanoloop.errors import StoreError
from nanoloop.events import DatabaseSetAside, NumberMended
from nanoloop.stores.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sessions.sqlite"


@pytest.fixture
async def store(file, heard):
    store = SqliteStore(file, busy_seconds=0.05)
    yield store
    await store.close()


async def said(store, *texts, name="s"):
    session = await store.create(id=name)
    for text in texts:
        session.add_message("user", text)
    await store.save(session)
    return session


async def texts_of(store, name="s"):
    return [entry.content["text"] for entry in (await store.get(name)).window]


@contextmanager
def raw(file):
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


@contextmanager
def files_up_to(size):
    """No file may grow beyond this."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def damage(file, *, at):
    """Write something else over the middle of it."""
    data = bytearray(file.read_bytes())
    data[at : at + 4096] = b"\xaa" * 4096
    file.write_bytes(data)


class TestFullDisk:
    async def test_a_write_that_does_not_fit_is_refused_and_the_next_one_works(self, store, file):
        session = await said(store, "one")
        session.add_message("user", "x" * 3_000_000)
        with files_up_to(1_000_000), pytest.raises(StoreError, match="everything saved earlier"):
            await store.save(session)
        assert await texts_of(store) == ["one"]
        await store.save(session)
        assert [len(text) for text in await texts_of(store)] == [3, 3_000_000]

    async def test_a_database_that_may_not_grow_says_what_to_do(self, store):
        session = await said(store, "one")
        store.database._file.write(lambda c: c.execute("PRAGMA max_page_count = 1").fetchone())
        session.add_message("user", "x" * 100_000)
        with pytest.raises(StoreError, match="is full: free some space; everything saved earlier"):
            await store.save(session)
        await store.save(session)
        assert len(await texts_of(store)) == 2

    async def test_an_erase_that_can_not_clean_up_says_so_and_can_be_done_again(self, store, file):
        session = await said(store, "the secret", *("x" * 9_000 for _ in range(50)))
        await store.close()
        store = SqliteStore(file)
        session = await store.load("s")
        with files_up_to(300_000), pytest.raises(StoreError, match=r"traces .*erase again"):
            await store.erase(session, [1])
        await store.erase(await store.load("s"), [1])
        await store.close()
        assert b"secret" not in file.read_bytes()


class TestDamage:
    async def broken(self, file, *, texts=("hi",)):
        store = SqliteStore(file)
        await said(store, *texts)
        await store.close()

    @pytest.mark.parametrize("what", ["first page", "all of it", "empty of sense"])
    async def test_a_file_that_can_not_be_read_is_set_aside_and_told_of(
        self, store, file, heard, what
    ):
        await self.broken(file)
        whole = file.read_bytes()
        if what == "empty of sense":
            file.write_bytes(b"\0" * 9_000)
        else:
            file.write_bytes(whole[:100] + b"\xaa" * 3_996 + whole[4_096:])
        if what == "all of it":
            file.write_bytes(b"\xaa" * len(whole))
        bad = file.read_bytes()
        await said(store, "anew")
        (event,) = heard
        assert isinstance(event, DatabaseSetAside)
        assert event.file.startswith("sessions.sqlite.corrupt-2")
        assert f"it was renamed to {event.file}, and a new one was created" in event.reason
        assert file.with_name(event.file).read_bytes() == bad
        assert await texts_of(store) == ["anew"]

    @pytest.mark.parametrize("name", ["sessions.sqlite", "notes.txt"])
    async def test_a_file_that_is_only_read_is_left_and_what_becomes_of_it_is_said(
        self, tmp_path, name
    ):
        file = tmp_path / name
        file.write_bytes(b"\xaa" * 9_000)
        store = SqliteStore(file, read_only=True)
        said = "renames it to sessions.sqlite.corrupt-DATE" if "sql" in name else "not a database"
        with pytest.raises(StoreError, match=said) as raised:
            await store.load("s")
        assert "saved earlier" not in str(raised.value)
        assert file.read_bytes() == b"\xaa" * 9_000
        await store.close()

    async def test_its_log_goes_with_it_and_no_earlier_one_is_written_over(
        self, store, file, heard
    ):
        for number in range(2):
            file.write_bytes(b"\xaa" * 9_000)
            file.with_name("sessions.sqlite-wal").write_bytes(b"%d" % number)
            await store.bind("k", "s")
            await store.close()
            store = SqliteStore(file)
        names = {event.file for event in heard if isinstance(event, DatabaseSetAside)}
        logs = {file.with_name(f"{name}-wal").read_bytes() for name in names}
        assert logs == {b"0", b"1"}
        await store.close()

    async def test_what_never_was_a_database_is_refused_and_left_alone(self, tmp_path):
        notes = tmp_path / "notes.txt"
        notes.write_text("my notes\n" * 1_000)
        store = SqliteStore(notes)
        with pytest.raises(StoreError, match=r"notes.txt is not a database: choose another file"):
            await store.create(id="s")
        await store.close()
        assert notes.read_text() == "my notes\n" * 1_000

    async def test_a_damaged_page_says_which_file_and_spares_the_other_sessions(self, file, heard):
        await self.broken(file, texts=[f"{number} " + "x" * 2_000 for number in range(200)])
        store = SqliteStore(file)
        await said(store, "whole", name="t")
        await store.close()
        damage(file, at=4096 * 60)
        store = SqliteStore(file)
        with pytest.raises(StoreError, match=r"sessions.sqlite failed: .*`nanoloop store copy`"):
            await store.get("s")
        assert await texts_of(store, "t") == ["whole"]
        assert heard == []
        await store.close()

    async def test_a_time_that_can_not_be_read_is_that_of_the_message_before(self, store, file):
        await said(store, "one", "two")
        with raw(file) as other:
            other.execute(
                "UPDATE entry SET value = json_set(value, '$.timestamp', 'soon') WHERE seq = 2"
            )
        one, two = (await store.get("s")).window
        assert (two.content["text"], two.timestamp) == ("two", one.timestamp)

    @pytest.mark.parametrize("odd", [-3, "many", None], ids=str)
    @pytest.mark.parametrize("name", ["window", "covered", "turns", "start", "last", "awaiting"])
    async def test_a_number_that_makes_no_sense_costs_no_message(
        self, store, file, name, odd, heard
    ):
        session = await said(store, "one")
        session.add_message("assistant", "two")
        session.add_message("user", "three")
        session.trim_if_needed(1, 1)
        await store.save(session)
        change = f"UPDATE session SET head = json_set(head, '$.{name}', ?)"
        with raw(file) as other:
            other.execute(change, (odd,))
        for read in (store.load, store.get):
            back = await read("s")
            assert [e.content["text"] for e in back.window][-1] == "three"
            assert not back.log.is_whole or len(back.log.entries) == 3
            assert back.turns == (0 if name == "turns" else 1)
            assert [e.content["text"] for e in await store.entries("s")] == ["one", "two", "three"]
        assert set(heard) == {NumberMended(session_id="s", number=name)}
        back.add_message("user", "four")
        await store.save(back)
        heard.clear()
        assert (await store.get("s")).last_seq == 4
        assert heard == []

    async def test_a_history_begins_at_the_first_message_at_the_earliest(self, store, file):
        await said(store, "one")
        with raw(file) as other:
            other.execute("UPDATE session SET head = json_set(head, '$.start', 0)")
        assert (await store.get("s")).log.is_whole

    async def test_nor_do_those_of_the_last_resize(self, store, file, heard):
        await said(store, "one")
        odd = '{"turns": "many", "resized": {"type": "lite", "turn": 7, "seq": -4}}'
        with raw(file) as other:
            other.execute("UPDATE session SET head = json_patch(head, ?)", (odd,))
        back = await store.get("s")
        assert (back.turns, back.last_resize_turn, back.resized["seq"]) == (0, 0, 0)
        assert [event.number for event in heard] == ["turns", "resized.seq"]

    @pytest.mark.parametrize("odd", [-3, "many", None], ids=str)
    async def test_nor_does_one_of_the_summary(self, store, file, odd, heard):
        session = await said(store, "one", "two", "three")
        session.update_summary("so far")
        session.trim_if_needed(1, 1)
        await store.save(session)
        with raw(file) as other:
            other.execute(
                "UPDATE section SET value = json_set(value, '$.seq', ?) WHERE name = 'summary'",
                (odd,),
            )
        back = await store.get("s")
        assert (back.summary, back.covered_seq, back.has_pending) == ("so far", 0, True)
        assert heard == [NumberMended(session_id="s", number="summary.seq")]

    async def test_a_row_that_makes_no_sense_is_told_of_in_words(self, store, file):
        await said(store, "hi")
        with raw(file) as other:
            other.execute("UPDATE entry SET value = '{'")
        with pytest.raises(StoreError, match=r"'s' is damaged .*`nanoloop store check`"):
            await store.get("s")


class TestHeld:
    async def test_a_file_that_another_holds_for_long_is_a_clear_error(self, store, file):
        session = await said(store, "one")
        with raw(file) as other:
            other.execute("BEGIN IMMEDIATE")
            session.add_message("user", "two")
            with pytest.raises(StoreError, match="locked: another process has locked it: stop it"):
                await store.save(session)
            assert await texts_of(store) == ["one"]
            other.execute("ROLLBACK")
        await store.save(session)
        assert await texts_of(store) == ["one", "two"]

    async def test_a_path_that_is_a_folder_or_below_a_file_is_a_clear_error(self, tmp_path):
        (tmp_path / "file").write_text("")
        wrong = {
            tmp_path: "is a folder: choose a file in it",
            tmp_path / "file" / "sessions.sqlite": "there is a file in place of a folder",
        }
        for path, words in wrong.items():
            store = SqliteStore(path)
            with pytest.raises(StoreError, match=words):
                await store.create(id="s")
            await store.close()


AS_NOBODY = """
import anyio, os, sys
from nanoloop.errors import StoreError
from nanoloop.stores.sqlite import SqliteStore

async def main(file, read_only):
    store = SqliteStore(file, read_only=read_only)
    try:
        session = await store.get("s")
        print([entry.content["text"] for entry in session.window])
        session.add_message("user", "more")
        await store.save(session)
    except StoreError as error:
        print(error)
    await store.close()

anyio.run(main, sys.argv[1], True) # all is imported now, which nobody could
if not os.getuid():
    os.seteuid(65534)
for read_only in (True, False):
    anyio.run(main, sys.argv[1], read_only)
"""


@pytest.fixture
def open_folder():
    """One that any user may look into, as pytest's may not be."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "data"
        (Path(folder) / "data").chmod(0o755)


async def test_a_folder_that_may_not_be_written_in_can_be_read_and_nothing_else(open_folder):
    file = open_folder / "sessions.sqlite"
    store = SqliteStore(file)
    await said(store, "hi")
    await store.close()
    file.chmod(0o444)
    open_folder.chmod(0o555)
    done = await anyio.run_process([sys.executable, "-c", AS_NOBODY, str(file)])
    *_, looked, refused, written = done.stdout.decode().splitlines()
    assert looked == "['hi']"
    assert "open read-only" in refused
    assert "belongs to root: run this as root" in written
