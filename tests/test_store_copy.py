"""Sessions move from any store to any other, and are the same there."""

import signal
import sqlite3
from contextlib import closing

import anyio
import pytest
from cryptography.fernet import Fernet
from redis.asyncio import Redis

from nanoloop.channels.logins import Logins
from nanoloop.cli import main
from nanoloop.errors import SessionDamaged, SessionDiffers, StoreError
from nanoloop.session.entry import utc_now
from nanoloop.sessions import Sessions
from nanoloop.stores.copying import Copied, check, copy, digest, problems_of
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from tests.test_stores import STORES


async def lived(store, name, *, words=30):
    """A session with everything in it."""
    session = await store.create(id=name, key=f"tg:{name}", metadata={"a": [1]}, ttl=9999)
    for number in range(words):
        text = f"{name} {number} \ud800 nul\x00"
        session.add_message("assistant" if number % 2 else "user", text)
        await store.save(session)
    session.trim_if_needed(8, 4)
    session.update_summary("they talked", seq=10)
    session.set("k", {"deep": [None]})
    session.pin(session.window[0])
    session.awaiting = words
    await store.save(session)
    session.undo()
    await store.save(session)
    await store.erase(session, [3])
    await store.bind(f"tg:{name}", name)
    return await store.get(name)


PAIRS = [
    pair
    for name in STORES
    for pair in (("in_memory", name), (name, "in_memory"))
    if name not in {"in_memory", "layered"}
] + [("jsonl", "sqlite"), ("redis", "postgres")]


@pytest.fixture(params=PAIRS, ids=" to ".join)
async def stores(request):
    pair = [STORES[name](request, utc_now) for name in request.param]
    yield pair
    for store in pair:
        await store.close()


async def test_all_of_it_is_there_and_the_same(stores):
    source, target = stores
    said = [await lived(source, name) for name in ("a", "b")]
    done = await copy(source, target)
    assert done == Copied(copied=2, same=0, entries=60, keys=2)
    for session in said:
        back = await target.get(session.id)
        assert back.dump() == session.dump()
        assert (back.revision, back.awaiting) == (session.revision, session.awaiting)
        assert await target.bound(session.key) == session.id
    assert [info.id async for info in target.list()] == [info.id async for info in source.list()]


async def test_a_copied_session_goes_on(stores):
    source, target = stores
    await lived(source, "a")
    await copy(source, target)
    session = await target.load("a")
    session.add_message("user", "still here")
    await target.save(session)
    assert (await target.load("a")).window[-1].content["text"] == "still here"


async def test_an_interrupted_copy_goes_on_where_it_was(stores):
    source, target = stores
    for name in "abc":
        await lived(source, name)

    class Interrupted(Exception):
        pass

    def after_two(_, done):
        if done.copied == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        await copy(source, target, tell=after_two)
    done = await copy(source, target)
    assert (done.copied, done.same, done.entries) == (1, 2, 90)


async def test_one_that_differs_is_refused_and_left_alone(stores):
    source, target = stores
    await lived(source, "a")
    other = await target.create(id="a")
    other.add_message("user", "mine")
    await target.save(other)
    with pytest.raises(SessionDiffers, match="--replace"):
        await copy(source, target)
    assert [e.content["text"] for e in (await target.get("a")).window] == ["mine"]
    await copy(source, target, replace=True)
    assert digest(await target.snapshot("a")) == digest(await source.snapshot("a"))


async def test_what_is_not_the_same_afterwards_is_told(stores):
    source, target = stores
    await lived(source, "a")
    read = target.snapshot

    async def read_wrong(name):
        told = await read(name)
        told.head["covered"] = 1
        return told

    target.snapshot = read_wrong
    with pytest.raises(StoreError, match="different after copying"):
        await copy(source, target)


async def test_a_whole_session_has_no_problems(stores):
    source, _ = stores
    await lived(source, "a")
    assert [found.problems async for found in check(source)] == [()]


async def test_what_does_not_fit_is_found():
    store = InMemoryStore()
    await lived(store, "a")
    snapshot = await store.snapshot("a")
    del snapshot.entries[4]
    snapshot.head.update(covered=99, awaiting=98)
    assert list(problems_of(snapshot)) == [
        "entries 5 to 5 are missing",
        "the summary covers entries up to 99, but there are only 30",
        "entry 98 awaits an answer, but there are only 30 entries",
    ]


async def begun(data):
    """A data folder with one session."""
    store = JsonlStore(data / "sessions")
    await lived(store, "a")
    await store.close()


def test_the_command_copies_checks_and_says_so(tmp_path, capsys):
    there = f"jsonl:{tmp_path / 'there'}"
    flags = ["--data", str(tmp_path)]
    anyio.run(begun, tmp_path)
    assert main(["store", "copy", "jsonl:", there, *flags]) == 0
    assert main(["store", "copy", "jsonl:", there, *flags]) == 0
    assert main(["store", "check", there, "--json", *flags]) == 0
    said = capsys.readouterr()
    assert "copied 1 sessions; 0 were" in said.err
    assert "copied 0 sessions; 1 were" in said.err
    assert '"problems": []' in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["copy", "jsonl:", "jsonl:"], "can't be copied to itself"),
        (["copy", "jsonl:", "mysql://x"], "not a store: write memory:"),
        (["check", "nowhere"], "not a store"),
    ],
)
def test_a_wrong_place_is_refused(words, said, tmp_path, capsys):
    assert main(["store", *words, "--data", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_broken_session_is_named_and_the_exit_code_tells(tmp_path, capsys):
    anyio.run(begun, tmp_path)
    file = tmp_path / "sessions" / "a.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    broken = next(n for n, line in enumerate(lines) if b'"seq":7' in line)
    file.write_bytes(b"".join(lines[:broken] + lines[broken + 1 :]))
    assert main(["store", "check", "--data", str(tmp_path)]) == 1
    assert "a: entries 7 to 7 are missing" in capsys.readouterr().out


def test_a_database_is_brought_up_to_date(postgres_url, tmp_path, capsys):
    for said in ("the tables were created", "already"):
        assert main(["store", "migrate", postgres_url, "--data", str(tmp_path)]) == 0
        assert said in capsys.readouterr().err
    assert main(["store", "migrate", "sqlite:", "--data", str(tmp_path)]) == 0


async def filled(file):
    """A database with three sessions."""
    store = SqliteStore(file)
    for name in "abc":
        await lived(store, name)
    await store.close()


def hurt(file, statement):
    """Change a database behind the store's back."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement)
        connection.commit()


_OF_B = "(SELECT number FROM session WHERE id = 'b')"
HURTS = {
    "an entry that is a number": f"UPDATE entry SET value = '5' WHERE session = {_OF_B}",
    "an entry that is a list": f"UPDATE entry SET value = '[1]' WHERE session = {_OF_B}",
    "an entry of no type": f"UPDATE entry SET value = '{{\"x\":1}}' WHERE session = {_OF_B}",
    "an entry that is half": f"UPDATE entry SET value = '{{' WHERE session = {_OF_B}",
    "a head that is a list": "UPDATE session SET head = '[]' WHERE id = 'b'",
    "a head that is empty": "UPDATE session SET head = '{}' WHERE id = 'b'",
    "a head that is no JSON": "UPDATE session SET head = 'xx' WHERE id = 'b'",
    "a time that is none": "UPDATE session SET updated_at = 'abc' WHERE id = 'b'",
    "a time in the head that is none": "UPDATE session SET head = "
    "json_set(head, '$.updated_at', 'abc') WHERE id = 'b'",
    "ranges that are none": "UPDATE session SET head = json_set(head, '$.hidden', json('[1]')) "
    "WHERE id = 'b'",
    "a section that is a number": "UPDATE section SET value = '5' "
    f"WHERE name = 'state' AND session = {_OF_B}",
    "nobody's section": f"DELETE FROM section WHERE name = 'about' AND session = {_OF_B}",
}


@pytest.mark.parametrize("how", HURTS)
def test_a_damaged_session_is_named_and_the_others_are_copied(how, tmp_path, capsys):
    file = tmp_path / "sessions.sqlite"
    anyio.run(filled, file)
    hurt(file, HURTS[how])
    flags = ["--data", str(tmp_path)]
    assert main(["store", "check", *flags]) == 1
    said = capsys.readouterr()
    assert [line[:3] for line in said.out.splitlines()] == ["b: "]
    assert "store check" not in said.out
    assert "3 sessions were checked, 1 are broken" in said.err
    assert main(["store", "copy", "sqlite:", "jsonl:", *flags]) == 1
    said = capsys.readouterr().err
    assert "\nb: " in f"\n{said}"
    assert "copied 2 sessions" in said
    assert "1 sessions are damaged: 1 of them were not copied" in said


@pytest.mark.parametrize("how", HURTS)
async def test_a_damaged_session_stops_no_list_and_is_a_store_error(how, tmp_path, heard):
    file = tmp_path / "sessions.sqlite"
    await filled(file)
    hurt(file, HURTS[how])
    store = SqliteStore(file)
    assert {"a", "c"} <= {info.id async for info in store.list()}
    assert {event.session_id for event in heard} <= {"b"}
    with pytest.raises(SessionDamaged, match="'b'"):
        await store.get("b")
    await store.close()


@pytest.mark.parametrize("value", ["{}", '{"x": 1}', "[1]", "5", "null"])
async def test_a_damaged_row_of_postgres_is_named(value, request):
    store = STORES["postgres"](request, utc_now)
    for name in "ab":
        await lived(store, name)
    schema = store._tables._schema

    async def work(server):
        await server.execute(f"UPDATE {schema}.entry SET content = '{value}' WHERE session = 1")
        await server.execute(f"UPDATE {schema}.session SET head = '{value}' WHERE number = 2")

    await store._tables._connections.run(work)
    assert [bool(found.problems) async for found in check(store)] == [True, True]
    assert [info.id async for info in store.list()] == ["a"]
    await store.close()


@pytest.mark.parametrize("value", ["{}", "xx", "[1]", "5", "null"])
async def test_a_damaged_value_of_redis_is_named(value, request, redis_url):
    store = STORES["redis"](request, utc_now)
    for name in "ab":
        await lived(store, name)
    async with Redis.from_url(redis_url) as redis:
        (session,) = await redis.keys("*:session:b")
        await redis.hset(session, "head", value)
        (entries,) = await redis.keys("*:entries:a")
        await redis.zremrangebyscore(entries, 5, 5)
        await redis.zadd(entries, {f"5 {value}": 5})
    assert {f.id: bool(f.problems) async for f in check(store)} == {"a": True, "b": True}
    assert [info.id async for info in store.list()] == ["a"]
    await store.close()


@pytest.mark.parametrize("how", ["nothing", "first line"])
def test_a_damaged_file_is_named(how, tmp_path, capsys):
    anyio.run(begun, tmp_path)
    file = tmp_path / "sessions" / "a.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"" if how == "nothing" else b"[]\n" + b"".join(lines[1:]))
    assert main(["store", "check", "--data", str(tmp_path)]) == 1
    assert "a: " in capsys.readouterr().out


_BAD = {
    "a range": (b'"hidden":[[', b'"hidden":["x",['),
    "a time": (b'"updated_at":"', b'"updated_at":"x'),
    "a section": (b'"name":"state","value":{', b'"name":"state","value":5,"was":{'),
    "an entry": (b'"type":"message"', b'"type":["message"]'),
}


@pytest.mark.parametrize("how", _BAD)
def test_a_file_with_values_that_make_no_sense_is_named_and_stops_no_copy(how, tmp_path, capsys):
    anyio.run(begun, tmp_path)
    file = tmp_path / "sessions" / "a.jsonl"
    assert _BAD[how][0] in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(*_BAD[how]))
    assert main(["store", "check", "--data", str(tmp_path)]) == 1
    assert "a: " in capsys.readouterr().out
    assert main(["store", "copy", "jsonl:", "sqlite:", "--data", str(tmp_path)]) == 1
    assert "1 sessions are damaged" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["sqlite:{}/nope/x", "jsonl:{}/nope"])
@pytest.mark.parametrize("words", [["check"], ["copy"]])
def test_a_place_that_is_not_there_is_told(place, words, tmp_path, capsys):
    place = place.format(tmp_path)
    words = [*words, place] + (["memory:"] if words == ["copy"] else [])
    assert main(["store", *words, "--data", str(tmp_path)]) == 4
    assert f"{tmp_path}/nope" in capsys.readouterr().err
    assert not (tmp_path / "nope").exists()


def test_an_interrupted_copy_says_how_far_it_is_and_what_goes_on(tmp_path, capsys, monkeypatch):
    anyio.run(filled, tmp_path / "sessions.sqlite")

    async def interrupted(*stores, tell, **options):
        def told(name, done):
            tell(name, done)
            signal.raise_signal(signal.SIGINT)

        return await copy(*stores, tell=told, **options)

    monkeypatch.setattr("nanoloop.cli.store.copy", interrupted)
    assert main(["store", "copy", "sqlite:", "jsonl:", "--data", str(tmp_path)]) == 130
    assert "stopped after 1 of 3; the same command resumes it" in capsys.readouterr().err


async def test_a_session_on_a_damaged_page_is_left_out_and_a_store_that_is_away_ends_it():
    source, target = InMemoryStore(), InMemoryStore()
    for name in "ab":
        await lived(source, name)
    read = source.snapshot

    async def fails(name):
        if name != "b":
            raise StoreError("part of the file is damaged")
        return await read(name)

    source.snapshot = fails
    heard = []
    done = await copy(source, target, warn=lambda *said: heard.append(said))
    assert (done.copied, done.left_out) == (1, 1)
    assert heard == [("a", "part of the file is damaged")]
    source.bound = fails
    with pytest.raises(StoreError, match="damaged"):
        await copy(source, InMemoryStore())


@pytest.mark.parametrize("how", HURTS)
def test_a_session_damaged_in_the_target_is_named_or_replaced(how, tmp_path, capsys):
    other = tmp_path / "other.sqlite"
    for file in (tmp_path / "sessions.sqlite", other):
        anyio.run(filled, file)
    words = ["store", "copy", "sqlite:", f"sqlite:{other}", "--replace", "--data", str(tmp_path)]
    assert main(words) == 0
    hurt(other, HURTS[how])
    words.remove("--replace")
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "\nb: it is damaged in the target: use --replace to overwrite it: " in said
    assert "1 sessions are damaged: 1 of them were not copied" in said
    assert main([*words, "--replace"]) == 0
    assert main(["store", "check", f"sqlite:{other}", "--data", str(tmp_path)]) == 0


@pytest.mark.parametrize("text", [b"", b"no line of ours"])
def test_a_file_of_the_target_that_lost_what_it_said_is_named_or_replaced(text, tmp_path, capsys):
    anyio.run(filled, tmp_path / "sessions.sqlite")
    words = ["store", "copy", "sqlite:", "jsonl:", "--data", str(tmp_path)]
    assert main(words) == 0
    (tmp_path / "sessions" / "b.jsonl").write_bytes(text)
    assert main(words) == 1
    assert "b: it is damaged in the target" in capsys.readouterr().err
    assert [main([*words, "--replace"]), main(words)] == [0, 0]


async def test_a_damaged_session_of_the_target_stops_no_copy_of_the_others(stores):
    source, target = stores
    for name in ("a", "b"):
        await lived(source, name)
    await copy(source, target)
    read = target.snapshot

    async def fails(name):
        if name == "a" and "a" in [found async for found in target.names()]:
            raise SessionDamaged(name, "torn")
        return await read(name)

    target.snapshot = fails
    done = await copy(source, target)
    assert (done.same, done.left_out, done.entries) == (1, 1, 30)


def test_logins_to_the_page_are_left_out_of_a_copy(tmp_path, capsys):
    async def before(place):
        store = SqliteStore(tmp_path / place)
        await Logins(Sessions(store)).begin(place, name="t", seconds=9999)
        if place == "a.sqlite":
            await lived(store, "zoo")
        await store.close()

    async def after():
        store = SqliteStore(tmp_path / "b.sqlite")
        logins = Logins(Sessions(store))
        said = [await logins.is_open(cookie) for cookie in ("a.sqlite", "b.sqlite")]
        await store.close()
        return said

    for place in ("a.sqlite", "b.sqlite"):
        anyio.run(before, place)
    words = [f"sqlite:{tmp_path / place}" for place in ("a.sqlite", "b.sqlite")]
    assert main(["store", "copy", *words, "--data", str(tmp_path)]) == 0
    assert "copied 1 sessions; 0 were already there" in capsys.readouterr().err
    assert anyio.run(after) == [False, True]


async def test_a_partly_readable_session_is_copied_into_a_sealed_store(tmp_path):
    await filled(tmp_path / "a.sqlite")
    hurt(tmp_path / "a.sqlite", f"DELETE FROM entry WHERE seq = 5 AND session = {_OF_B}")
    key = Fernet.generate_key().decode()
    source = SqliteStore(tmp_path / "a.sqlite")
    target = SqliteStore(tmp_path / "b.sqlite", seal=KeySeal(key))
    assert (await copy(source, target)).copied == 3
    assert 5 not in [entry.seq for entry in (await target.snapshot("b")).entries]
    assert (await copy(source, target)).same == 3
    await source.close()
    await target.close()


async def test_a_copy_that_can_not_be_read_back_stops_no_other(tmp_path, monkeypatch):
    source, target = InMemoryStore(), InMemoryStore()
    for name in "ab":
        await lived(source, name)
    read = target.snapshot

    async def snapshot(name):
        if name == "a" and await target.bound("written"):
            raise SessionDamaged(name, "its head is missing")
        return await read(name)

    async def restore(snapshot, *, replace=False):
        await InMemoryStore.restore(target, snapshot, replace=replace)
        await target.bind("written", "a")

    monkeypatch.setattr(target, "snapshot", snapshot)
    monkeypatch.setattr(target, "restore", restore)
    warned = []
    done = await copy(source, target, warn=lambda *words: warned.append(words))
    assert (done.copied, done.left_out) == (1, 1)
    assert [name for name, what in warned if "its head is missing" in what] == ["a"]
