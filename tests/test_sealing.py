"""What a sealed store refuses, what `nanoloop store seal` does, and what earlier versions left."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace as changed
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from cryptography.fernet import Fernet

from nanoloop.attachments import Attachments
from nanoloop.cli import main
from nanoloop.errors import NotReadable, SessionDamaged, StoreConflict
from nanoloop.events import FileUnreadable
from nanoloop.protocols import Node
from nanoloop.session.entry import Entry
from nanoloop.stores.copying import check, copy, seal_all
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.reading import newest_at
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.layered import LayeredStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.seal_record import RECORD
from nanoloop.stores.sealed_files import FolderSealing
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.stores.store import DatabaseStore
from tests.test_stores import fresh_schema

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


def seal(keys):
    return KeySeal(keys) if keys else None


def jsonl(test):
    folder = test.getfixturevalue("tmp_path") / "sessions"
    return lambda keys=None: JsonlStore(folder, seal=seal(keys))


def sqlite(test):
    file = test.getfixturevalue("tmp_path") / "sessions.sqlite"
    return lambda keys=None: SqliteStore(file, seal=seal(keys))


def postgres(test):
    place = fresh_schema(test)
    return lambda keys=None: PostgresStore(**place, seal=seal(keys))


def redis(test):
    url = test.getfixturevalue("redis_url")
    return lambda keys=None: RedisStore(url, seal=seal(keys))


STORES = [jsonl, sqlite, postgres, redis]


@pytest.fixture(params=STORES, ids=lambda make: make.__name__)
async def opened(request):
    """Open the one place with these keys, or with none; the store opened before is closed."""
    made = request.param(request)
    last = []

    async def again(keys=None):
        while last:
            await last.pop().close()
        last.append(made(keys))
        return last[0]

    yield again
    while last:
        await last.pop().close()


async def talk(store, name="s", words="a secret"):
    session = await store.create(id=name, key=f"tg:{name}", metadata={"who": words})
    await store.bind(f"tg:{name}", name)
    for number in range(6):
        session.add_message("assistant" if number % 2 else "user", f"{words} {number}")
    session.title = session.memo = words
    session.trim_if_needed(4, 2)
    session.update_summary(words, seq=3)
    await store.save(session)
    session.set("told", words)
    await store.save(session)
    return session


async def texts(store, name="s"):
    return [entry.content.get("text") for entry in await store.entries(name)]


SAID = [f"a secret {number}" for number in range(6)]


# No key, no start


async def test_a_sealed_store_opens_with_its_key_only(opened):
    await talk(await opened(OLD))
    for keys, says in [
        (None, "is not set"),
        (NEW, "lacks"),
        (f"{NEW},{Fernet.generate_key().decode()}", "lacks"),
    ]:
        store = await opened(keys)
        for call in (store.load("s"), store.create(id="t"), store.bind("k", "s"), store.bound("k")):
            with pytest.raises(NotReadable, match=says):
                await call
        with pytest.raises(NotReadable, match="nothing was written"):
            await copy(store, store)
    assert await texts(await opened(OLD)) == SAID


async def test_a_key_is_dropped_only_once_nothing_is_sealed_with_it(opened):
    await talk(await opened(OLD))
    store = await opened(f"{NEW},{OLD}")
    await talk(store, "t")
    with pytest.raises(NotReadable, match="append that key"):
        await (await opened(NEW)).load("t")
    store = await opened(f"{NEW},{OLD}")
    done = await seal_all(store)
    assert (done.copied, done.same, done.left_out) == (1, 1, 0)
    store = await opened(NEW)
    assert (await texts(store), await store.bound("tg:s")) == (SAID, "s")
    with pytest.raises(NotReadable):
        await (await opened(OLD)).load("s")


async def test_two_that_seal_a_store_first_agree_on_one_record(request):
    made = sqlite(request)
    one, other = made(OLD), made(OLD)
    await one.bound("nobody")
    await other.bound("nobody")
    await talk(one, "s")
    assert await texts(other, "s") == SAID
    await talk(other, "t")
    assert [one.sealing.record] == [other.sealing.record]
    assert (await texts(one, "t"), await texts(other, "s")) == (SAID, SAID)
    for store in (one, other):
        await store.close()


async def test_a_copy_is_sealed_for_its_own_place(request, tmp_path):
    source, target = sqlite(request)(OLD), JsonlStore(tmp_path / "copy", seal=seal(OLD))
    await talk(source)
    await copy(source, target)
    assert await texts(target) == SAID
    assert await target.bound("tg:s") == "s"
    assert source.sealing.record.id != target.sealing.record.id
    assert (await copy(source, target)).same == 1
    await source.close()
    await target.close()


async def test_a_copy_gives_the_names_in_its_keys_the_same_digests(request, tmp_path):
    source, target = sqlite(request)(OLD), JsonlStore(tmp_path / "copy", seal=seal(NEW))
    await talk(source)
    await copy(source, target)
    assert await target.secret() == await source.secret()
    await source.close()
    await target.close()


async def test_a_stores_secret_is_one_for_all_and_outlives_a_key(opened):
    known = await (await opened(OLD)).secret()
    assert len(known) == 32
    assert await (await opened(f"{OLD},{NEW}")).secret() == known
    store = await opened(f"{NEW},{OLD}")
    await talk(store)
    assert await store.secret() == known
    await seal_all(store)
    store = await opened(NEW)
    assert await store.secret() == known
    assert known.hex() not in str(await store.database.bound(RECORD))


async def test_a_record_from_before_there_was_a_secret_gets_one(opened):
    store = await opened(OLD)
    await talk(store)
    former = changed(store.sealing.record, secret=b"").text(store.sealing.seal)
    await store.database.bind(RECORD, former)
    secrets = [await (await opened(OLD)).secret() for _ in range(2)]
    assert secrets[0] == secrets[1] != b""
    store = await opened(OLD)
    assert await texts(store) == SAID
    assert store.sealing.record.keys == seal(OLD).names


# Plain to sealed


async def test_what_is_plain_stays_readable_until_everything_is_sealed(opened):
    await talk(await opened())
    store = await opened(OLD)
    session = await store.load("s")
    session.add_message("user", "later")
    session.title = "new"
    await store.save(session)
    back = await store.get("s")
    assert (await texts(store), back.title, back.memo) == ([*SAID, "later"], "new", "a secret")
    await store.erase(session, [1])
    done = await seal_all(store)
    assert (done.copied, done.same) == (1, 0)
    assert (await seal_all(store)).same == 1
    store = await opened(OLD)
    back = await store.load("s")
    assert (await texts(store))[-2:] == [SAID[-1], "later"]
    assert (back.title, back.memo, back.summary) == ("new", "a secret", "")
    assert await store.bound("tg:s") == "s"
    assert [found.problems async for found in check(store)] == [()]


async def test_sealing_goes_on_where_it_was_killed(opened, monkeypatch):
    plain = await opened()
    for name in "abcde":
        await talk(plain, name)
    store = await opened(OLD)
    insert, done = store.database.insert, []

    async def killed(commit, *, over):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(commit.id)
        return await insert(commit, over=over)

    monkeypatch.setattr(store.database, "insert", killed)
    with pytest.raises(KeyboardInterrupt):
        await seal_all(store)
    store = await opened(OLD)
    assert [await texts(store, name) for name in "abcde"] == [SAID] * 5
    assert not store.sealing.is_strict
    again = await seal_all(store)
    assert (again.copied, again.same) == (3, 2)
    assert store.sealing.is_strict
    assert [await texts(store, name) for name in "abcde"] == [SAID] * 5


async def test_who_had_a_session_open_while_it_was_sealed_reads_it_anew(request):
    made = sqlite(request)
    plain = made()
    await talk(plain)
    await plain.close()
    one, other = made(OLD), made(OLD)
    session = await one.load("s")
    await seal_all(other)
    session.add_message("user", "later")
    with pytest.raises(StoreConflict):
        await one.save(session)
    session = await one.load("s")
    session.add_message("user", "later")
    await one.save(session)
    assert await texts(other) == [*SAID, "later"]
    for store in (one, other):
        await store.close()


async def test_a_commit_needs_no_look_at_the_head_before_it(request, monkeypatch):
    store = sqlite(request)(OLD)
    await talk(store)
    session = await store.load("s")
    asked = []
    monkeypatch.setattr(store.database, "head", asked.append)
    for number in range(3):
        session.add_message("user", str(number))
        await store.save(session)
    assert asked == []
    await store.close()


# In a sealed store


async def test_a_plain_row_in_a_sealed_store_is_damage(request, tmp_path):
    made = sqlite(request)
    store = made(OLD)
    await talk(store)
    await store.close()
    plain = json.dumps(Entry.message("user", "I never said that").to_dict())
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("UPDATE entry SET value = ? WHERE seq = 5", (plain,))
    store = made(OLD)
    for read in (store.get, store.load, store.entries):
        with pytest.raises(SessionDamaged, match="entry 5 is not sealed"):
            await read("s")
    assert [found.problems async for found in check(store)] == [("entry 5 is not sealed",)]
    await store.close()


MOVES = {
    "an_entry_to_another_number": (
        "UPDATE entry SET value = (SELECT value FROM entry WHERE session = 1 AND seq = 5) "
        "WHERE session = 1 AND seq = 6"
    ),
    "an_entry_to_another_session": (
        "UPDATE entry SET value = (SELECT value FROM entry WHERE session = 2 AND seq = 5) "
        "WHERE session = 1 AND seq = 5"
    ),
    "an_entry_of_another_store": (
        "UPDATE entry SET value = (SELECT value FROM other.entry WHERE session = 1 AND seq = 5) "
        "WHERE session = 1 AND seq = 5"
    ),
    "a_part_to_another_session": (
        "UPDATE section SET value = (SELECT value FROM section WHERE session = 2 "
        "AND name = 'memo') WHERE session = 1 AND name = 'memo'"
    ),
    "a_part_to_another_name": (
        "UPDATE section SET value = (SELECT value FROM section WHERE session = 1 "
        "AND name = 'memo') WHERE session = 1 AND name = 'summary'"
    ),
    "a_part_as_it_was": (
        "UPDATE section SET value = (SELECT value FROM former.section WHERE session = 1 "
        "AND name = 'state') WHERE session = 1 AND name = 'state'"
    ),
    "a_head_as_it_was": (
        "UPDATE session SET (rev, updated_at, head) = (SELECT rev, updated_at, head "
        "FROM former.session WHERE number = 1) WHERE number = 1"
    ),
    "a_number_of_the_head": (
        """UPDATE session SET head = replace(head, '"covered":3', '"covered":2')"""
    ),
    "an_entry_that_is_dropped": "DELETE FROM entry WHERE session = 1 AND seq = 5",
    "a_part_that_is_dropped": "DELETE FROM section WHERE session = 1 AND name = 'memo'",
    "an_entry_that_is_anothers": (
        "UPDATE entry SET value = replace(value, '\"message\"', '\"thinking\"') "
        "WHERE session = 1 AND seq = 5"
    ),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
async def test_a_row_opens_in_its_own_place_only(request, tmp_path, move):
    made = sqlite(request)
    store, other = made(OLD), SqliteStore(tmp_path / "other.sqlite", seal=seal(OLD))
    for each in (store, other):
        session = await talk(each)
        await talk(each, "t", "another")
    await store.close()
    await other.close()
    (tmp_path / "former.sqlite").write_bytes((tmp_path / "sessions.sqlite").read_bytes())
    store = made(OLD)
    session = await store.load("s")
    session.set("told", "later")
    session.add_message("user", "later")
    await store.save(session)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        for name in ("other", "former"):
            file.execute(f"ATTACH '{tmp_path / name}.sqlite' AS {name}")
        assert file.execute(move).rowcount
    store = made(OLD)
    with pytest.raises(SessionDamaged):
        await store.get("s")
    assert [found.problems async for found in check(store) if found.id == "s"] != [()]
    await store.close()


async def test_a_chats_key_leads_where_it_was_bound_and_nowhere_else(request, tmp_path):
    made = sqlite(request)
    store = made(OLD)
    for name in "st":
        await talk(store, name)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        theirs = "SELECT session FROM binding WHERE key = 'tg:t'"
        file.execute(f"UPDATE binding SET session = ({theirs}) WHERE key = 'tg:s'")
    store = made(OLD)
    assert (await store.bound("tg:s"), await store.bound("tg:t")) == (None, "t")
    assert [key async for key, _ in store.bindings()] == ["tg:t"]
    await store.bind("tg:s", "s")
    assert await store.bound("tg:s") == "s"
    await store.close()


async def test_a_session_made_with_the_key_is_strict_before_all_others_are(request, tmp_path):
    made = sqlite(request)
    store = made()
    await talk(store, "old")
    await store.close()
    store = made(OLD)
    await talk(store)
    await store.close()
    plain = json.dumps(Entry.message("user", "I never said that").to_dict())
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("UPDATE entry SET value = ? WHERE seq = 5", (plain,))
    store = made(OLD)
    assert (await texts(store, "old"))[4] == "I never said that"
    assert not store.sealing.is_strict
    with pytest.raises(SessionDamaged, match="entry 5 is not sealed"):
        await store.get("s")
    await store.close()


async def test_a_database_of_another_package_needs_nothing_new_to_be_sealed():
    class Plain:
        """One that knows nothing of `rebind`."""

        def __init__(self, behind):
            self._behind = behind

        def __getattr__(self, name):
            if name == "rebind":
                raise AttributeError(name)
            return getattr(self._behind, name)

    database = Plain(InMemoryStore().database)
    store = DatabaseStore(database, seal=seal(OLD))
    await talk(store)
    assert (await texts(store), await store.bound("tg:s")) == (SAID, "s")
    assert (await seal_all(store)).same == 1
    with pytest.raises(NotReadable):
        await DatabaseStore(database).load("s")


async def test_windows_in_memory_are_those_of_the_sealed_store_behind(request):
    store = LayeredStore(sqlite(request)(OLD))
    session = await talk(store)
    session.add_message("user", "later")
    await store.save(session)
    assert await texts(store) == [*SAID, "later"]
    assert (await store.load("s")).memo == "a secret"
    await store.close()


async def test_an_erased_entry_does_not_come_back_from_a_backup(request, tmp_path):
    made = sqlite(request)
    store = made(OLD)
    session = await talk(store)
    await store.close()
    rows = "SELECT seq, value FROM entry WHERE seq = 5"
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file:
        [(_, former)] = file.execute(rows).fetchall()
    store = made(OLD)
    session = await store.load("s")
    await store.erase(session, [5])
    assert (await store.get("s")).window
    await store.close()
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("UPDATE entry SET value = ? WHERE seq = 5", (former,))
    store = made(OLD)
    with pytest.raises(SessionDamaged, match="entry 5 was erased"):
        await store.get("s")
    await store.close()


async def test_a_session_of_the_same_name_takes_none_of_the_former_ones_entries(request, tmp_path):
    made = sqlite(request)
    rows = "SELECT value FROM entry WHERE seq = 1"
    store = made(OLD)
    await talk(store)
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file:
        [former] = file.execute(rows).fetchone()
    await store.delete("s")
    await talk(store, words="another")
    await store.close()
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("UPDATE entry SET value = ? WHERE seq = 1", (former,))
    store = made(OLD)
    with pytest.raises(SessionDamaged):
        await store.get("s")
    await store.close()


async def test_a_record_that_something_else_wrote_opens_nothing(request):
    made = sqlite(request)
    store = made(OLD)
    await talk(store)
    record = json.loads(await store.database.bound(RECORD))
    await store.database.bind(RECORD, json.dumps({**record, "whole": False}))
    await store.close()
    store = made(OLD)
    with pytest.raises(NotReadable, match="was changed by something else"):
        await store.load("s")
    await store.close()


@pytest.mark.parametrize("keys", [None, OLD], ids=["no key", "a key"])
async def test_a_sealed_store_without_its_record_does_not_start(request, tmp_path, keys):
    made = sqlite(request)
    store = made(OLD)
    await talk(store)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("DELETE FROM binding WHERE key = ?", (RECORD,))
    store = made(keys)
    with pytest.raises(NotReadable, match="the record of its keys is missing"):
        await store.check_seal()
    await store.close()


async def test_what_a_process_with_a_newer_key_writes_is_no_damage_for_others(opened, tmp_path):
    await talk(await opened(OLD))
    store = await opened(f"{OLD},{NEW}")
    await talk(store, "t")
    store.sealing.seal = seal(f"{NEW},{OLD}")  # as another process would
    await talk(store, "u")
    store.sealing.seal = seal(OLD)
    with pytest.raises(NotReadable, match="none of the keys"):
        await store.load("u")
    store.sealing.seal = seal(f"{OLD},{NEW}")
    assert await texts(store, "u") == SAID


async def test_the_newest_of_a_long_session_can_be_read_alone(tmp_path):
    store = JsonlStore(tmp_path, seal=seal(OLD))
    session = await store.create(id="s")
    for number in range(300):
        session.add_message("user", str(number))
    session.trim_if_needed(4, 2)
    await store.save(session)
    newest = store.sealing.opened(newest_at(tmp_path / "s.jsonl"))
    assert [entry.content["text"] for entry in newest.entries][-2:] == ["298", "299"]
    await store.close()


# What an earlier version sealed


def as_formerly(file: Path, key: str) -> None:
    """Seal what is in a plain store as the version before this one did."""
    fernet = Fernet(key)

    def token(value):
        return fernet.encrypt(json.dumps(value).encode()).decode()

    with closing(sqlite3.connect(file)) as made, made:
        for session, seq, value in made.execute("SELECT session, seq, value FROM entry").fetchall():
            entry = json.loads(value)
            said = token({name: entry[name] for name in ("content", "metadata")})
            entry |= {"content": {"_sealed": said}, "metadata": {}}
            place = (json.dumps(entry), session, seq)
            made.execute("UPDATE entry SET value = ? WHERE session = ? AND seq = ?", place)
        for session, name, value in made.execute("SELECT * FROM section").fetchall():
            readable = {
                k: v for k, v in json.loads(value).items() if k in {"id", "key", "created_at"}
            }
            part = (readable if name == "about" else {}) | {"_sealed": token(json.loads(value))}
            place = (json.dumps(part), session, name)
            made.execute("UPDATE section SET value = ? WHERE session = ? AND name = ?", place)


@pytest.fixture
async def former(request, tmp_path):
    made = sqlite(request)
    store = made()
    await talk(store)
    await store.close()
    as_formerly(tmp_path / "sessions.sqlite", OLD)
    return made


async def test_what_an_earlier_version_sealed_is_read_and_then_sealed_anew(former):
    store = former(OLD)
    session = await store.load("s")
    assert (session.title, await texts(store)) == ("a secret", SAID)
    session.add_message("user", "later")
    await store.save(session)
    assert await texts(store) == [*SAID, "later"]
    assert (await seal_all(store)).copied == 1
    stored = await store.database.whole("s")
    assert store.sealing.is_current(stored)
    assert (await store.load("s")).memo == "a secret"
    await store.close()


@pytest.mark.parametrize(
    ("keys", "says"),
    [(None, "is not set"), (NEW, "none of the keys")],
    ids=["no key", "another"],
)
async def test_what_an_earlier_version_sealed_does_not_start_without_its_key(former, keys, says):
    store = former(keys)
    with pytest.raises(NotReadable, match=says):
        await store.check_seal()
    if keys:
        with pytest.raises(NotReadable, match=says):
            await store.create(id="t")
    await store.close()


# Uploads


def uploads(folder, keys=None):
    return Attachments(folder, limit_bytes=10**6, sealing=FolderSealing(folder, seal(keys)))


def former_files(folder, key):
    for file in folder.glob("*.*"):
        file.write_bytes(Fernet(key).encrypt(file.read_bytes()))


async def kept(attachments, data=b"a recipe", name="a.txt"):
    return await attachments.keep(data, owner="me:", name=name, mime_type="text/plain")


@pytest.mark.parametrize("before", [lambda *_: None, former_files], ids=["plain", "formerly"])
async def test_uploads_from_before_are_there_and_are_sealed(tmp_path, before):
    file = await kept(uploads(tmp_path))
    before(tmp_path, OLD)
    for sealed in (uploads(tmp_path, OLD), uploads(tmp_path, f"{NEW},{OLD}")):
        assert await sealed.about(file.id) == file
        assert await sealed.data(file.id) == b"a recipe"
        await kept(sealed, b"another", "b.txt")
    assert all(is_well for _, is_well in FolderSealing(tmp_path, seal(f"{NEW},{OLD}")).reseal())
    sealed = uploads(tmp_path, NEW)
    assert await sealed.data(file.id) == b"a recipe"
    assert not any(b"recipe" in each.read_bytes() for each in tmp_path.iterdir())
    for keys in (None, OLD):
        with pytest.raises(NotReadable):
            uploads(tmp_path, keys)


async def test_two_that_keep_uploads_read_each_others(tmp_path):
    one, other = uploads(tmp_path, OLD), uploads(tmp_path, OLD)
    file = await kept(one)
    assert await other.about(file.id) == file
    assert await other.data(file.id) == b"a recipe"


async def test_a_sealed_upload_opens_under_its_own_name_only(tmp_path, heard):
    sealed = uploads(tmp_path, OLD)
    mine, theirs = await kept(sealed), await kept(sealed, b"another")
    (tmp_path / f"{mine.id}.data").write_bytes((tmp_path / f"{theirs.id}.data").read_bytes())
    (tmp_path / f"{theirs.id}.data").write_bytes(b"plain")
    assert [await sealed.data(file.id) for file in (mine, theirs)] == [None, None]
    assert len([event for event in heard if isinstance(event, FileUnreadable)]) == 2


@pytest.mark.parametrize("keys", [None, OLD], ids=["no key", "a key"])
def test_where_no_folder_can_be_others_say_so(tmp_path, keys):
    (tmp_path / "data").write_text("a file")
    assert list(FolderSealing(tmp_path / "data" / "attachments", seal(keys)).reseal()) == []


# The command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line, on a data folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOLOOP_DATA", str(tmp_path))

    def command(*words, keys=None):
        if keys:
            monkeypatch.setenv("NANOLOOP_STORE__ENCRYPTION_KEY", keys)
        else:
            monkeypatch.delenv("NANOLOOP_STORE__ENCRYPTION_KEY", raising=False)
        code = main([*words])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return command


@pytest.fixture
def portal():
    """For what is asked of a store beside the command line, which has an event loop of its own."""
    with start_blocking_portal() as opened:
        yield opened


def test_the_command_seals_sessions_and_uploads_and_removes_the_index(
    request, run, tmp_path, portal
):
    made = sqlite(request)

    async def before():
        store = made()
        await talk(store)
        await store.close()
        await kept(uploads(tmp_path / "attachments"))

    portal.call(before)
    (tmp_path / "channels").mkdir()
    for name in (
        *("recall.sqlite", "recall.sqlite-wal", "recall.sqlite.damaged", "input_history"),
        *("input_history.new", "channels/telegram.jsonl.new", "attachments/.0123456789abcdef"),
    ):
        (tmp_path / name).write_bytes(b"a secret")
    notes = tmp_path / "channels" / "telegram.jsonl"
    notes.write_text('{"begun": "a secret", "name": "a1"}\n')
    code, said = run("store", "seal", keys=OLD)
    assert (code, "sealed 1 sessions; 0 were sealed already" in said) == (0, True)
    there = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert (b"secret" in there, b"recipe" in there) == (False, False)
    assert '"name": "a1"' in notes.read_text()
    assert run("store", "seal", keys=OLD)[0] == 0
    assert "a secret 5" in run("sessions", "show", "s", keys=OLD)[1]
    assert "1 sessions in" in run("doctor", keys=OLD)[1]
    assert ", encrypted" in run("doctor", keys=OLD)[1]


def test_the_command_names_notes_that_keep_their_texts(request, run, tmp_path, portal):
    made = sqlite(request)

    async def before():
        store = made()
        await talk(store)
        await store.close()

    portal.call(before)
    (tmp_path / "channels").mkdir()
    (tmp_path / "notes").write_text("a secret")
    (tmp_path / "channels" / "telegram.jsonl").symlink_to(tmp_path / "notes")
    code, said = run("store", "seal", keys=OLD)
    assert (code, "telegram.jsonl can't be removed" in said) == (1, True)


def test_the_command_refuses_while_a_process_serves_the_store(request, run, portal):
    made = sqlite(request)

    async def before():
        store = made()
        await talk(store)
        await store.beat(Node(id="x", place="elsewhere", pid=77))
        await store.close()

    portal.call(before)
    code, said = run("store", "seal", keys=OLD)
    assert (code != 0, "in use by process 77" in said) == (True, True)


def test_the_command_needs_a_key(run):
    code, said = run("store", "seal")
    assert (code, "store.encryption_key is not set" in said) == (2, True)


def test_what_can_not_be_read_stays_and_keeps_the_old_key_needed(request, run, tmp_path, portal):
    made = sqlite(request)

    async def before():
        store = made(OLD)
        await talk(store, "s")
        await talk(store, "t")
        await store.close()

    portal.call(before)
    with closing(sqlite3.connect(tmp_path / "sessions.sqlite")) as file, file:
        file.execute("DELETE FROM section WHERE name = 'memo' AND session = 1")
    code, said = run("store", "seal", keys=f"{NEW},{OLD}")
    assert (code, "part 'memo' is missing" in said, "1 items" in said) == (1, True, True)
    with pytest.raises(NotReadable):
        portal.call(made(NEW).load, "t")
