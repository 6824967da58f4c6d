"""What the version before this one left in each store is there, and goes on where it was.

`tests/formats` holds what that version wrote: a turn cut off in its middle with what was said
meanwhile, an answer that its chat may not have got, a summary that is behind, a session that owes
nothing and one whose time is over.
"""

import json
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import datetime, timezone
from pathlib import Path

import anyio
import asyncpg
import pytest
from redis.asyncio import Redis

from nanoloop.errors import AlreadyHeard, StoreError
from nanoloop.stores.database import HEARD_SECONDS
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.postgres_server import STEPS
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore

FORMATS = Path(__file__).parent / "formats"


async def sqlite_of_format_1(request):
    file = request.getfixturevalue("tmp_path") / "sessions.sqlite"
    with closing(sqlite3.connect(file)) as made:
        made.executescript((FORMATS / "sqlite_1.sql").read_text())
    return lambda: SqliteStore(file)


@asynccontextmanager
async def connected(url):
    """Someone with psql."""
    server = await asyncpg.connect(url)
    try:
        yield server
    finally:
        await server.close()


async def postgres_of_format_2(request):
    url = request.getfixturevalue("postgres_url")
    async with connected(url) as server:
        for statements in ("CREATE SCHEMA nanoloop", *STEPS[:2]):
            await server.execute(statements.format(schema="nanoloop"))
        await server.execute((FORMATS / "postgres_2.sql").read_text())
        await server.execute("ALTER TABLE nanoloop.session ALTER number RESTART WITH 100")
    return lambda: PostgresStore(url)


async def redis_of_format_1(request):
    url = request.getfixturevalue("redis_url")
    async with Redis.from_url(url) as server:
        for command in json.loads((FORMATS / "redis_1.json").read_text()):
            await server.execute_command(*command)
    return lambda: RedisStore(url)


OLDER = {
    "sqlite": sqlite_of_format_1,
    "postgres": postgres_of_format_2,
    "redis": redis_of_format_1,
}


@pytest.fixture(params=OLDER.values(), ids=OLDER.keys())
async def opens(request):
    """Opens what the older version left behind, any number of times."""
    return await request.param(request)


@asynccontextmanager
async def opened(opens):
    store = opens()
    yield store
    await store.close()


async def owing(store, *, pending=False):
    return {owed.id: owed.revision async for owed in store.owing(pending=pending)}


async def revisions(store, *names):
    return {name: (await store.load(name)).revision for name in names}


async def test_what_is_owed_is_found(opens):
    for _ in range(2):
        async with opened(opens) as store:
            assert await owing(store) == await revisions(store, "cut", "unsent")
            everywhere = await revisions(store, "cut", "unsent", "behind")
            assert await owing(store, pending=True) == everywhere


async def test_every_session_is_there_as_it_was(opens):
    async with opened(opens) as store:
        assert {info.id async for info in store.list()} == {"cut", "unsent", "behind", "idle"}
        cut = await store.get("cut")
        assert [entry.type for entry in cut.window] == ["message", "tool_call"]
        assert [entry.content["text"] for entry in cut.waiting] == ["And a taxi", "/new"]
        assert (cut.awaiting, cut.agent) == (1, "poet")
        assert (await store.get("unsent")).unsent == (2,)
        behind = await store.load("behind")
        assert (behind.summary, behind.covered_seq, behind.pending_seq) == ("the first ones", 9, 18)
        assert len(await store.entries("behind")) == 24
        assert await store.bound("tg:1") == "cut"


async def test_what_was_heard_is_heard(opens):
    async with opened(opens) as store:
        named = {(each.chat, each.id) async for each in store.heard()}
        assert named == {
            *(("tg:1", f"m{number}") for number in (1, 2, 3)),  # it waits, or is answered
            ("tg:2", "m1"),
            *(("tg:3", f"m{number}") for number in range(24)),
            *(("tg:3", f"noted {number}") for number in (1, 2)),
            ("idle", "m7"),
            ("over", "m8"),
        }
        cut = await store.load("cut")
        cut.hear("tg:1", "m3")
        with pytest.raises(AlreadyHeard):
            await store.save(cut)


async def test_what_was_heard_by_the_older_version_is_forgotten_in_its_time(opens):
    async with opened(opens) as store:
        at = {each.at async for each in store.heard()}
        store.clock = lambda: datetime.fromtimestamp(
            max(at) / 1e6 + HEARD_SECONDS + 1, timezone.utc
        )
        await store.delete_expired()
        assert [each async for each in store.heard()] == []


async def test_each_goes_on_and_is_known_by_what_it_owes_then(opens):
    async with opened(opens) as store:
        cut, idle = await store.load("cut"), await store.load("idle")
        cut.claim("me")
        idle.add_message("user", "and?")
        idle.awaiting = idle.last_seq
        unsent = await store.load("unsent")
        unsent.arrived(2)
        for session in (cut, idle, unsent):
            await store.save(session)
        assert {owed.id: owed.by async for owed in store.owing()} == {"cut": "me", "idle": ""}
        await store.delete("cut")
        assert set(await owing(store)) == {"idle"}


async def test_what_is_over_is_swept(opens):
    async with opened(opens) as store:
        assert await store.delete_expired() == 1
        assert set(await owing(store, pending=True)) == {"cut", "unsent", "behind"}


async def test_several_that_open_it_at_once_renew_it_once(opens):
    found = []

    async def look():
        async with opened(opens) as store:
            found.append(set(await owing(store)))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(look)
    assert found == [{"cut", "unsent"}] * 4


async def test_sqlite_that_is_opened_for_reading_only_says_what_to_do(tmp_path, request):
    opens = await sqlite_of_format_1(request)
    before = (tmp_path / "sessions.sqlite").read_bytes()
    store = SqliteStore(tmp_path / "sessions.sqlite", read_only=True)
    with pytest.raises(
        StoreError, match="older format: open it once with write access, which upgrades it"
    ):
        await store.load("cut")
    await store.close()
    assert (tmp_path / "sessions.sqlite").read_bytes() == before
    async with opened(opens) as renewed:
        assert (await renewed.load("cut")).awaiting == 1


# A process of the older version that is still running: it looked at the format when it began.

SQLITE_1_COMMITS = """
    UPDATE session SET rev = 9, shown_from = 1, updated_at = 0, expires_at = NULL, size = size + 1,
    head = '{}' WHERE number = 1
"""
SQLITE_1_INSERTS = """
    INSERT INTO session (id, rev, shown_from, updated_at, size, head) VALUES ('x', 0, 0, 0, 0, '')
"""


@pytest.mark.parametrize("statement", [SQLITE_1_COMMITS, SQLITE_1_INSERTS])
async def test_an_older_process_writes_nothing_into_a_renewed_sqlite(tmp_path, request, statement):
    async with opened(await sqlite_of_format_1(request)) as store:
        with closing(sqlite3.connect(tmp_path / "sessions.sqlite", isolation_level=None)) as older:
            assert older.execute("SELECT max(shown_from) FROM session").fetchone() == (19,)
            await store.save(await store.load("cut"))  # which renews the file
            with pytest.raises(sqlite3.OperationalError, match="shown_from"):
                older.execute(statement)


POSTGRES_2_COMMITS = """
UPDATE nanoloop.session SET rev = 9, head = '{}', window_start = 1, updated_at = now(),
    expires_at = NULL, size = size + 1, heard = heard + 1
WHERE id = $1
"""
POSTGRES_2_INSERTS = """
INSERT INTO nanoloop.session (id, rev, head, window_start, updated_at, expires_at, size, heard)
VALUES ($1, 1, '{}', 1, now(), NULL, 0, 0) ON CONFLICT (id) DO NOTHING
"""


@pytest.mark.parametrize("statement", [POSTGRES_2_COMMITS, POSTGRES_2_INSERTS])
async def test_an_older_process_writes_nothing_into_renewed_tables(
    postgres_url, request, statement
):
    opens = await postgres_of_format_2(request)
    async with connected(postgres_url) as older, opened(opens) as store:
        await older.execute(statement, "y")
        before = (await store.load("cut")).revision
        with pytest.raises(asyncpg.PostgresError, match=r"window_start|heard"):
            await older.execute(statement, "cut")
        assert (await store.load("cut")).revision == before


async def test_an_older_process_finds_no_revision_to_write_over_in_a_renewed_redis(
    redis_url, request
):
    async with (
        opened(await redis_of_format_1(request)) as store,
        Redis.from_url(redis_url) as redis,
    ):
        assert len(await owing(store)) == 2
        keys = await redis.keys("*:session:*")
        assert len(keys) == 5
        assert [await redis.hget(key, "rev") for key in keys] == [None] * 5
        await store.save(await store.create(id="fresh"))
        assert await redis.hget(store.database._keys.of("fresh")[0], "rev") is None


async def test_what_an_older_process_wrote_to_redis_meanwhile_goes_on(redis_url, request):
    async with (
        opened(await redis_of_format_1(request)) as store,
        Redis.from_url(redis_url) as redis,
    ):
        session = await store.load("idle")
        key = store.database._keys.of("idle")[0]
        await redis.hset(key, "rev", await redis.hget(key, "revision"))
        await redis.hdel(key, "revision")  # as that process leaves it
        session.awaiting = 1
        await store.save(session)
        assert "idle" in await owing(store)
