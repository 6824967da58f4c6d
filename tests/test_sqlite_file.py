"""What the SQLite store leaves on the disk, and how it shares it."""

import os
import random
import sqlite3
import threading
from contextlib import closing, contextmanager

import anyio
import pytest

from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.protocols import Node
from nanoloop.session.entry import Entry
from nanoloop.stores import sqlite, sqlite_file
from nanoloop.stores.sqlite import SqliteStore

READERS_AT_ONCE = 50


@pytest.fixture
def file(tmp_path):
    return tmp_path / "data" / "sessions.sqlite"


@pytest.fixture
async def store(file):
    store = SqliteStore(file, busy_seconds=0.2)
    yield store
    await store.close()


async def said(store, *texts, name="s"):
    session = await store.create(id=name)
    for text in texts:
        session.add_entry(Entry.message("user", text, metadata={"message_id": text[:9]}))
    await store.save(session)
    return session


async def texts_of(store, name="s"):
    return [entry.content["text"] for entry in await store.entries(name)]


@contextmanager
def raw(file):
    """The file as any other program has it."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def asked(file, question):
    with raw(file) as connection:
        return connection.execute(question).fetchall()


def beside(file):
    return sorted(path.name for path in file.parent.iterdir())


async def test_reading_makes_no_file_and_the_first_save_does(store, file):
    assert [info async for info in store.list()] == []
    with pytest.raises(SessionNotFound):
        await store.load("s")
    assert await store.bound("k") is None
    assert not file.parent.exists()
    await said(store, "hi")
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_closed_store_is_one_file(store, file):
    await said(store, "hi")
    await store.load("s")
    await store.close()
    assert beside(file) == ["sessions.sqlite"]


async def test_people_can_ask_it_in_sql(store, file):
    await said(store, "hello there")
    text = "json_extract(value, '$.content.text')"
    found = asked(file, f"SELECT id, seq, {text} FROM session JOIN entry ON number = session")
    assert found == [("s", 1, "hello there")]


async def test_the_rows_of_a_session_are_never_written_again(store, file):
    session = await said(store, "one", "two")
    written = []
    with raw(file) as other:
        other.execute(
            "CREATE TRIGGER no_update BEFORE UPDATE ON entry BEGIN SELECT RAISE(FAIL, 'again'); END"
        )
        other.execute(
            "CREATE TRIGGER no_delete BEFORE DELETE ON entry BEGIN SELECT RAISE(FAIL, 'gone'); END"
        )
    for text in ("three", "four"):
        session.add_message("user", text)
        session.trim_if_needed(2, 1)
        session.update_summary(f"up to {text}", seq=session.pending_seq)
        session.undo()
        await store.save(session)
        written += asked(file, "SELECT count(*) FROM entry")
    assert written == [(3,), (4,)]


@pytest.mark.parametrize(("durability", "expected"), [("flush", 1), ("fsync", 2)])
async def test_only_fsync_waits_for_the_disk_at_each_commit(file, durability, expected):
    store = SqliteStore(file, durability=durability)
    await said(store, "hi")
    found = store.database._file.write(lambda c: c.execute("PRAGMA synchronous").fetchone()[0])
    await store.close()
    assert found == expected


async def steps_of_a_load(store, name):
    """How much SQLite does for it, in its own small steps."""
    taken = []

    def counted(connection):
        connection.set_progress_handler(lambda: taken.append(1), 1)
        try:
            return sqlite.read_window(connection, name)
        finally:
            connection.set_progress_handler(None, 0)

    store.database._file.read(counted)
    return len(taken)


async def test_a_load_does_not_more_for_a_longer_history(store):
    counts = []
    for size in (1_000, 4_000):
        session = await said(store, *(f"{n} text" for n in range(size)), name=f"s{size}")
        session.trim_if_needed(50, 10)
        await store.save(session)
        counts.append(await steps_of_a_load(store, session.id))
    assert counts[1] <= counts[0] * 1.02


async def test_a_commit_writes_a_few_small_pages(store, file):
    sessions = [
        await said(store, *(f"{n} text" for n in range(60)), name=f"s{k}") for k in range(9)
    ]
    log = file.with_name(file.name + "-wal")
    before = log.stat().st_size
    for session in sessions:
        session.add_message("user", "one more")
        await store.save(session)
    assert 0 < log.stat().st_size - before < 10_000 * len(sessions)


async def test_a_save_waits_for_no_number_of_long_reads(store, monkeypatch):
    session = await said(store, "hi")
    gate, begun = threading.Event(), threading.Semaphore(0)
    whole = sqlite.read_whole

    def held(connection, session_id):
        begun.release()
        assert gate.wait(30)
        return whole(connection, session_id)

    monkeypatch.setattr(sqlite, "read_whole", held)
    async with anyio.create_task_group() as group:
        for _ in range(READERS_AT_ONCE):
            group.start_soon(store.get, "s")
        await anyio.to_thread.run_sync(begun.acquire)
        session.add_message("user", "more")
        with anyio.fail_after(5):
            await store.save(session)
        gate.set()
    assert await texts_of(store) == ["hi", "more"]


def everything_in(file):
    return b"".join(path.read_bytes() for path in file.parent.iterdir())


async def test_erased_words_are_nowhere_whatever_moved_before(store, file):
    chance = random.Random(40)  # this one leaves a copy where SQLite only overwrites what it frees
    names = [f"s{number}" for number in range(6)]
    sessions = {name: await store.create(id=name) for name in names}
    for number in range(60):
        name = chance.choice(names)
        if number % 7 == 6:
            await store.delete(name)
            sessions[name] = await store.create(id=name)
            continue
        filling = "x" * chance.choice([5, 50, 300, 1500])
        sessions[name].add_message("user", f"word{number}, {filling} word{number}.")
        await store.save(sessions[name])
        if number % 5 == 4:
            left = [e for e in await store.entries(name) if e.type == "message"]
            entry = chance.choice(left)
            first, *_, last = entry.content["text"].split()
            await store.erase(sessions[name], [entry.seq])
            assert first.encode() not in everything_in(file)
            assert last.encode() not in everything_in(file)


async def test_an_erase_that_a_reader_is_in_the_way_of_says_so(store, file):
    session = await said(store, "the secret", "other")
    with raw(file) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM entry").fetchone()
        with pytest.raises(
            StoreError, match=r"traces, which another process is reading: .*erase again"
        ):
            await store.erase(session, [1])
        other.execute("COMMIT")
    await store.erase(await store.load("s"), [1])
    assert b"secret" not in everything_in(file)


async def test_a_deleted_session_leaves_nothing_in_the_log(store, file):
    await said(store, "the secret")
    await store.delete("s")
    assert b"secret" not in everything_in(file)


async def test_a_file_that_was_moved_away_gets_not_a_word_more(store, file, tmp_path):
    session = await said(store, "hi")
    file.rename(tmp_path / "elsewhere.sqlite")
    session.add_message("user", "more")
    with pytest.raises(SessionNotFound):
        await store.save(session)
    with pytest.raises(SessionNotFound):
        await store.load("s")
    await said(store, "anew")
    assert await texts_of(store) == ["anew"]


class TestReadOnly:
    async def test_a_missing_file_is_an_empty_store(self, file):
        store = SqliteStore(file, read_only=True)
        assert [info async for info in store.list()] == []
        with pytest.raises(SessionNotFound):
            await store.load("s")
        with pytest.raises(StoreError, match="open read-only"):
            await store.create(id="s")
        await store.close()
        assert not file.parent.exists()

    async def test_it_leaves_nothing_beside_a_file_that_nobody_has_open(self, store, file):
        await said(store, "hi")
        await store.close()
        reader = SqliteStore(file, read_only=True)
        assert await texts_of(reader) == ["hi"]
        assert beside(file) == ["sessions.sqlite"]
        await reader.close()

    async def test_it_sees_what_is_committed_while_another_writes(self, store, file):
        reader = SqliteStore(file, read_only=True)
        session = await said(store, "one")
        assert await texts_of(reader) == ["one"]
        session.add_message("user", "two")
        await store.save(session)
        assert await texts_of(reader) == ["one", "two"]
        assert [info.entries async for info in reader.list()] == [2]
        await reader.close()

    async def test_what_changes_under_its_eyes_is_read_again(self, store, file, monkeypatch):
        await said(store, "one")
        await store.close()
        reader, looks = SqliteStore(file, read_only=True), []
        head = sqlite.read_head

        def during(connection, session_id):
            looks.append(1)
            if len(looks) == 1:
                os.utime(file, ns=(1, 1))
            return head(connection, session_id)

        monkeypatch.setattr(sqlite, "read_head", during)
        await reader.revision("s")
        assert len(looks) == 2
        await reader.close()


class TestNodes:
    async def test_processes_see_each_other_whatever_name_they_have_for_the_file(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        (tmp_path / "file").symlink_to(tmp_path / "real" / "s.sqlite")
        places = (tmp_path / "real" / "s.sqlite", tmp_path / "link" / "s.sqlite", tmp_path / "file")
        stores = [SqliteStore(place) for place in places]
        for number, store in enumerate(stores):
            seen = await store.beat(Node(id=f"n{number}"))
            assert len(seen) == number + 1
        for store in stores:
            await store.close()

    async def test_one_that_only_reads_says_nothing_of_itself(self, file):
        store = SqliteStore(file, read_only=True)
        for call in (store.beat(Node(id="n")), store.leave("n")):
            with pytest.raises(StoreError, match="open read-only: nothing was written"):
                await call
        await store.close()
        assert not file.parent.exists()


class TestFormats:
    def make(self, file, version, *, application=sqlite_file.APPLICATION):
        file.parent.mkdir()
        with raw(file) as made:
            made.execute(f"PRAGMA application_id = {application}")
            made.execute(f"PRAGMA user_version = {version}")

    async def test_the_file_says_whose_it_is_and_in_which_format(self, store, file):
        await store.create(id="s")
        assert asked(file, "PRAGMA user_version") == [(len(sqlite_file.UPGRADES),)]
        assert asked(file, "PRAGMA application_id") == [(sqlite_file.APPLICATION,)]

    @pytest.mark.parametrize("read_only", [False, True])
    async def test_a_newer_one_is_refused_with_a_sentence(self, file, read_only):
        self.make(file, len(sqlite_file.UPGRADES) + 1)
        before = file.read_bytes()
        store = SqliteStore(file, read_only=read_only)
        with pytest.raises(StoreError, match=r"format 3, but .* up to 2: use the newer version"):
            await store.load("s")
        await store.close()
        assert file.read_bytes() == before

    async def test_format_0_has_nothing_and_gets_all(self, store, file):
        self.make(file, 0)
        reader = SqliteStore(file, read_only=True)
        assert [info async for info in reader.list()] == []
        await reader.close()
        await said(store, "hi")
        assert await texts_of(store) == ["hi"]

    async def test_an_older_one_is_renewed_with_all_that_is_in_it(self, store, file, monkeypatch):
        await said(store, "hi")
        await store.close()
        added = ("ALTER TABLE session ADD COLUMN colour TEXT DEFAULT 'blue'",)
        monkeypatch.setattr(sqlite_file, "UPGRADES", (*sqlite_file.UPGRADES, added))
        with pytest.raises(StoreError, match="older format: open it once with write access"):
            await SqliteStore(file, read_only=True).load("s")
        newer = SqliteStore(file)
        assert await texts_of(newer) == ["hi"]
        await newer.close()
        assert asked(file, "SELECT colour FROM session") == [("blue",)]

    async def test_a_renewal_that_fails_leaves_all_as_it_was(self, store, file, monkeypatch):
        await said(store, "hi")
        await store.close()
        broken = ("ALTER TABLE session ADD COLUMN colour TEXT", "ALTER TABLE missing ADD COLUMN x")
        monkeypatch.setattr(sqlite_file, "UPGRADES", (*sqlite_file.UPGRADES, broken))
        with pytest.raises(StoreError, match="no such table"):
            await SqliteStore(file).load("s")
        monkeypatch.undo()
        again = SqliteStore(file)
        assert await texts_of(again) == ["hi"]
        await again.close()

    async def test_another_programs_database_is_left_alone(self, store, file):
        self.make(file, 3, application=7)
        with pytest.raises(StoreError, match="another program's database: choose another file"):
            await store.create(id="s")
