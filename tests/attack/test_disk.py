"""Whoever reads and writes the disk, the database or a backup, and has no key, changes no word."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from itertools import count
from random import Random

import anyio
import asyncpg
import pytest
from cryptography.fernet import Fernet
from redis.asyncio import Redis

from nanoloop.cli import main
from nanoloop.errors import NotReadable, SessionNotFound, StoreError
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from tests.openai_server import OpenAIServer
from tests.references import ROOT
from tests.stages.command_line import CommandLine

NUMBERS = count(1)
KEY, OTHER = (Fernet.generate_key().decode() for _ in range(2))
PEOPLE = "abc"


def hashes_of(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).digest() for file in files}


# What somebody with a disk can do: each store as rows, read and written beside it


class SqliteRows:
    """The rows of a file."""

    TABLES: Mapping[str, str] = {
        "session": "id",
        "section": "session, name",
        "entry": "session, seq",
        "binding": "key",
    }

    def __init__(self, test):
        self.path = test.getfixturevalue("tmp_path") / "sessions.sqlite"

    def open(self, keys=KEY):
        return SqliteStore(self.path, seal=KeySeal(keys) if keys else None)

    async def read(self):
        with closing(sqlite3.connect(self.path)) as connection:
            return {
                (table, *row[: names.count(",") + 1]): row
                for table, names in self.TABLES.items()
                for row in connection.execute(f"SELECT {names}, * FROM {table}")
            }

    async def write(self, rows):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for table, names in self.TABLES.items():
                connection.execute(f"DELETE FROM {table}")
                for place, row in rows.items():
                    if place[0] == table:
                        own = row[names.count(",") + 1 :]
                        marks = ", ".join("?" * len(own))
                        connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", own)


class PostgresRows:
    """The rows of a schema."""

    TABLES: Mapping[str, tuple[str, ...]] = {
        "session": ("number", "id", "rev", "window_seq", "updated_at", "size", "head"),
        "section": ("session", "name", "value"),
        "entry": ("session", "seq", "content"),
        "binding": ("digest", "key", "session"),
    }

    def __init__(self, test):
        self.url = test.getfixturevalue("shared_postgres").url
        self.schema = f"disk_{next(NUMBERS)}"

    def open(self, keys=KEY):
        seal = KeySeal(keys) if keys else None
        return PostgresStore(self.url, schema=self.schema, seal=seal)

    async def read(self):
        connection = await asyncpg.connect(self.url)
        try:
            return {
                (table, *(row[name] for name in names[: -1 if table != "session" else 1])): (
                    *(row[name] for name in names),
                )
                for table, names in self.TABLES.items()
                for row in await connection.fetch(f"SELECT * FROM {self.schema}.{table}")
            }
        finally:
            await connection.close()

    async def write(self, rows):
        connection = await asyncpg.connect(self.url)
        try:
            for table, names in self.TABLES.items():
                await connection.execute(f"DELETE FROM {self.schema}.{table}")
                marks = ", ".join(f"${n + 1}" for n in range(len(names)))
                own = "OVERRIDING SYSTEM VALUE" if table == "session" else ""
                insert = (
                    f"INSERT INTO {self.schema}.{table} ({', '.join(names)}) {own} VALUES ({marks})"
                )
                for place, row in rows.items():
                    there = table in {"session", "binding"} or any(
                        other[0] == "session" and other[1] == row[0] for other in rows
                    )
                    if place[0] == table and there:
                        await connection.execute(insert, *row)
        finally:
            await connection.close()


class RedisRows:
    """Fields of hashes, and members of sorted sets."""

    def __init__(self, test):
        self.url = test.getfixturevalue("redis_url")

    def open(self, keys=KEY):
        return RedisStore(self.url, seal=KeySeal(keys) if keys else None)

    async def read(self):
        rows = {}
        async with Redis.from_url(self.url) as redis:
            for key in await redis.keys("*"):
                kind = await redis.type(key)
                if kind == b"hash" and (b":session:" in key or b"bindings" in key):
                    for name, value in (await redis.hgetall(key)).items():
                        rows[key, name] = value
                elif kind == b"zset" and b":entries:" in key:
                    for value, score in await redis.zrange(key, 0, -1, withscores=True):
                        rows[key, score] = value
        return rows

    async def write(self, rows):
        async with Redis.from_url(self.url) as redis:
            await redis.delete(*{key for key, _ in await self.read()})
            for (key, name), value in rows.items():
                if isinstance(name, float):
                    await redis.zadd(key, {value: name})
                else:
                    await redis.hset(key, name, value)


class JsonlRows:
    """The lines of files."""

    def __init__(self, test):
        self.path = test.getfixturevalue("tmp_path") / "sessions"

    def open(self, keys=KEY):
        return JsonlStore(self.path, seal=KeySeal(keys) if keys else None)

    async def read(self):
        files = [*self.path.glob("*.jsonl"), *self.path.glob("keys/*.json")]
        return {
            (str(file.relative_to(self.path)), number): line
            for file in files
            for number, line in enumerate(file.read_bytes().splitlines(keepends=True))
        }

    async def write(self, rows):
        for file in [*self.path.glob("*.jsonl"), *self.path.glob("keys/*.json")]:
            file.unlink()
        for name in {name for name, _ in rows}:
            lines = [line for place, line in sorted(rows.items()) if place[0] == name]
            (self.path / name).write_bytes(b"".join(lines))


class KeyedSqliteRows(SqliteRows):
    """The same with a keys file, which the reader of the disk does not have."""

    def open(self, keys=KEY):
        return SqliteStore(self.path, seal=with_keys_file(keys, self.path))


class KeyedJsonlRows(JsonlRows):
    """The same with a keys file."""

    def open(self, keys=KEY):
        return JsonlStore(self.path, seal=with_keys_file(keys, self.path))


def with_keys_file(keys, path):
    return KeySeal(keys, keys_file=path.with_name("store.keys")) if keys else None


STORES = {
    "sqlite": SqliteRows,
    "sqlite, keyed": KeyedSqliteRows,
    "jsonl": JsonlRows,
    "jsonl, keyed": KeyedJsonlRows,
    "postgres": PostgresRows,
    "redis": RedisRows,
}


@pytest.fixture(params=STORES.values(), ids=STORES)
def disk(request):
    return request.param(request)


# What is in them


async def talk(store, name, *, turn):
    """One turn of a conversation, which changes all its parts."""
    if turn == 0:
        session = await store.create(id=name, key=f"tg:{name}", metadata={"of": f"{name} meta"})
        await store.bind(f"tg:{name}", name)
    session = await store.load(name)
    session.add_message("user", f"{name} asks {turn}")
    session.add_message("assistant", f"{name} hears {turn}")
    session.title, session.memo = f"{name} title {turn}", f"{name} memo {turn}"
    session.set("told", f"{name} state {turn}")
    session.trim_if_needed(5, 3)
    session.update_summary(f"{name} summary {turn}", seq=max(0, session.last_seq - 4))
    await store.save(session)


async def told(store, name):
    """All that the store shows of a session."""
    whole, part = await store.get(name), await store.load(name)
    said = [(e.seq, e.content.get("text")) for e in await store.entries(name)]
    shown = (part.title, part.memo, part.summary, repr(part.state), repr(part.metadata))
    assert [e.seq for e in part.window] == [e.seq for e in whole.window]
    return (
        tuple(said),
        tuple((e.seq, e.content.get("text")) for e in whole.window),
        tuple(e.content.get("text") for e in part.window),
        (whole.title, whole.memo, whole.summary, repr(whole.state), repr(whole.metadata)),
        shown,
    )


async def state_of(store, name):
    """The same, or why it can't be shown."""
    try:
        return await told(store, name)
    except (StoreError, SessionNotFound) as error:
        return type(error).__name__


class Lives:
    """Some sessions, all that was true of them, and the rows that there ever were."""

    def __init__(self, disk):
        self.disk = disk
        self.true = {name: [] for name in PEOPLE}
        self.former = {}
        self.rows = {}

    async def live(self, turns=4):
        for turn in range(turns):
            store = self.disk.open()
            for name in PEOPLE:
                await talk(store, name, turn=turn)
                self.true[name].append(await told(store, name))
            await store.close()
            self.former.update({(turn, *place): row for place, row in self.rows.items()})
            self.rows = await self.disk.read()

    async def check(self):
        """Each session is as it once was, or is not shown; returns how many are shown."""
        store = self.disk.open()
        shown = 0
        try:
            for name in PEOPLE:
                found = await state_of(store, name)
                assert isinstance(found, str) or found in self.true[name], (name, found)
                shown += not isinstance(found, str)
                assert await store.bound(f"tg:{name}") in {None, name}
            titles = {states[3][0] for name in PEOPLE for states in self.true[name]}
            async for info in store.list():
                assert info.title in titles | {""}, info
        except NotReadable:  # nothing is opened at all
            return 0
        finally:
            await store.close()
        return shown


def flipped(random, value):
    """One character of it is another one."""
    if not value:
        return value
    place = random.randrange(len(value))
    if isinstance(value, bytes):
        return value[:place] + bytes([value[place] ^ 1 << random.randrange(8)]) + value[place + 1 :]
    return value[:place] + random.choice('0aZ_"}') + value[place + 1 :]


def with_other(random, row, change):
    """A row with one of its texts changed."""
    if isinstance(row, (str, bytes)):
        return change(row)
    texts = [n for n, value in enumerate(row) if isinstance(value, (str, bytes)) and value]
    chosen = texts[-1] if random.random() < 0.8 else random.choice(texts)
    return *row[:chosen], change(row[chosen]), *row[chosen + 1 :]


def harmed(random, lives):
    """The rows with one thing done to them."""
    rows = dict(lives.rows)
    places = sorted(rows, key=repr)
    here = random.choice(places)
    kind = random.choice(["flip", "swap", "drop", "replay", "copy"])
    there = random.choice([place for place in places if _kin(place, here)])
    if kind == "flip":
        rows[here] = with_other(random, rows[here], lambda value: flipped(random, value))
    elif kind == "swap":
        rows[here], rows[there] = _moved(rows[there], rows[here]), _moved(rows[here], rows[there])
    elif kind == "copy":
        rows[here] = _moved(rows[there], rows[here])
    elif kind == "drop":
        del rows[here]
    else:
        old = [(p, row) for p, row in lives.former.items() if _kin(p[1:], here)]
        rows[here] = _moved(
            random.choice(sorted(old, key=repr))[1] if old else rows[here], rows[here]
        )
    return kind, rows


def _kin(one, other):
    """Whether they are rows of one kind."""
    if isinstance(one[0], bytes):
        return type(one[1]) is type(other[1])
    return len(one) == len(other) and (one[0] == other[0] or ".json" in str(one[0]))


def _moved(row, place):
    """What one row says, where another one is."""
    return row if isinstance(row, (str, bytes)) else (*place[:-1], row[-1])


@pytest.mark.slow
@pytest.mark.parametrize("many", [25, pytest.param(500, marks=pytest.mark.long)])
async def test_what_is_flipped_swapped_dropped_copied_or_replayed_is_never_shown(disk, many):
    random, lives = Random(18), Lives(disk)
    await lives.live()
    assert await lives.check() == len(PEOPLE)
    told = []
    for _ in range(many):
        kind, rows = harmed(random, lives)
        try:
            await disk.write(rows)
        except Exception as error:  # noqa: BLE001 - the database itself refuses it
            told.append((kind, type(error).__name__))
            continue
        told.append((kind, await lives.check()))
    await disk.write(lives.rows)
    assert await lives.check() == len(PEOPLE)
    assert sum(shown != len(PEOPLE) for _, shown in told) > many / 3, told


# Without the key


THIRD = Fernet.generate_key().decode()
COMMANDS = [
    ("sessions", "list"),
    ("sessions", "show", "s"),
    ("store", "check"),
    ("store", "copy", "STORE", "jsonl:elsewhere"),
    ("store", "copy", "jsonl:nowhere", "STORE"),
    ("store", "seal"),
    ("store", "migrate"),
    ("doctor",),
]


class Program:
    """A command line on a data folder whose store was sealed, then with the second of two keys."""

    def __init__(self, folder, kind, monkeypatch, capfd):
        self.data = folder / "data"
        self._kind, self._monkeypatch, self._capfd = kind, monkeypatch, capfd
        self._set("NANOLOOP_DATA", str(self.data))
        self._set("NANOLOOP_STORE__URL", f"{kind}:")
        self._set("NANOLOOP_MODEL", "a-model")
        self._set("OPENAI_API_KEY", "none")
        self._set("OPENAI_BASE_URL", "http://127.0.0.1:9")
        monkeypatch.chdir(folder)
        (folder / "nowhere").mkdir()
        anyio.run(self._live)

    def _set(self, name, value):
        self._monkeypatch.setenv(name, value)

    async def _live(self):
        for keys, name in ((KEY, "s"), (f"{OTHER},{KEY}", "t")):
            is_file = self._kind == "sqlite"
            path = self.data / ("sessions.sqlite" if is_file else "sessions")
            store = (SqliteStore if is_file else JsonlStore)(path, seal=KeySeal(keys))
            await talk(store, name, turn=0)
            await store.close()

    def use(self, keys):
        """Have these keys from now on."""
        self._monkeypatch.delenv("NANOLOOP_STORE__ENCRYPTION_KEY", raising=False)
        if keys is not None:
            self._set("NANOLOOP_STORE__ENCRYPTION_KEY", keys)

    def __call__(self, *words):
        """The exit code, and all that it says."""
        code = main([f"{self._kind}:" if word == "STORE" else word for word in words])
        captured = self._capfd.readouterr()
        return code, captured.out + captured.err

    def serve(self, *words):
        """The same in a process of its own, with a chat on its standard input."""
        command = [sys.executable, "-m", "nanoloop", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, env=env, input="hello\n", capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys"),
    [("sqlite", None), ("jsonl", OTHER), pytest.param("sqlite", THIRD, marks=pytest.mark.long)],
    ids=["sqlite, no key", "jsonl, another", "sqlite, a third"],
)
def test_without_its_keys_nothing_opens_a_store_or_writes_a_byte(
    tmp_path, monkeypatch, capfd, kind, keys
):
    program = Program(tmp_path, kind, monkeypatch, capfd)
    before = hashes_of(program.data)
    program.use(keys)
    told = [(words, *program(*words)) for words in COMMANDS if keys or words != ("store", "seal")]
    told += [(words, *program.serve(*words)) for words in (("run",), ("chat",))]
    for words, code, said in told:
        assert code != 0, (words, said)
        assert "the data stored here is encrypted" in said, (words, said)
        assert "Traceback" not in said, (words, said)
    after = hashes_of(program.data)
    after.pop("nanoloop.log")  # where `chat` says the same
    assert after == before
    program.use(f"{OTHER},{KEY}")
    assert program("store", "check")[0] == 0


# What lies in the data folder


CANARY = "quetzalcoatlus"
SAID = [
    *(f"{CANARY} {number}" for number in range(3)),
    *("/history", f"/recall {CANARY}", "/export", f"/rename {CANARY}", "/pin", "/summary"),
    *("/status", "/sessions", "/fork", f"{CANARY} again", "/undo", "/new", f"/switch {CANARY}"),
]


def canaries_in(folder):
    found = [path for path in folder.rglob("*") if CANARY in path.name]
    return found + [
        path
        for path in folder.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["jsonl:", pytest.param("sqlite:", marks=pytest.mark.long)])
async def test_no_word_of_a_chat_lies_beside_a_sealed_store(tmp_path, url):
    async with OpenAIServer(otherwise=lambda _: f"You said {CANARY}.") as server:
        nanoloop = CommandLine(tmp_path, server.url)
        nanoloop.set(NANOLOOP_STORE__URL=url, NANOLOOP_STORE__ENCRYPTION_KEY=KEY)
        out, _ = await nanoloop.run("chat", text="\n".join(SAID))
        assert out.count(CANARY) > 10
        assert canaries_in(nanoloop.data) == []
        async with nanoloop.started("chat", stdin=subprocess.PIPE) as process:
            await process.stdin.send(f"{CANARY}\n".encode())
            await process.stdout.receive()  # answered, and so it is kept
            assert canaries_in(nanoloop.data) == []
            process.kill()
            await process.wait()
            assert canaries_in(nanoloop.data) == []
