"""What every store promises. A new store joins by a line in `STORES`."""

from itertools import count

import anyio
import pytest
from cryptography.fernet import Fernet

from nanoloop.errors import (
    InvalidSessionId,
    SessionNotFound,
    StoreError,
)
from nanoloop.events import SessionsCounted, hearing
from nanoloop.protocols import Store
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.layered import LayeredStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.stores.sweep import sweep
from nanoloop.testing.stores import SetClock, StoreSuite
from nanoloop.testing.stores.stage import everything_in, infos, said, say, texts

NUMBERS = count(1)
SEAL = KeySeal(Fernet.generate_key().decode())


def sqlite_file(test):
    return folder(test) / "sessions.sqlite"


def folder(request):
    return request.getfixturevalue("tmp_path") / "sessions"


def fresh_schema(request):
    """A server and a schema of the test's own in it: made sooner than a database."""
    server = request.getfixturevalue("shared_postgres")
    return {"url": server.url, "schema": f"test_{next(NUMBERS)}"}


STORES = {
    "in_memory": lambda _, clock: InMemoryStore(clock=clock),
    "layered": lambda _, clock: LayeredStore(InMemoryStore(clock=clock), sessions=2),
    "jsonl": lambda test, clock: JsonlStore(folder(test), clock=clock),
    "jsonl_fsync": lambda test, clock: JsonlStore(folder(test), clock=clock, durability="fsync"),
    "jsonl_sealed": lambda test, clock: JsonlStore(folder(test), clock=clock, seal=SEAL),
    "sqlite": lambda test, clock: SqliteStore(sqlite_file(test), clock=clock),
    "sqlite_fsync": lambda test, clock: SqliteStore(
        sqlite_file(test), clock=clock, durability="fsync"
    ),
    "sqlite_sealed": lambda test, clock: SqliteStore(sqlite_file(test), clock=clock, seal=SEAL),
    "postgres": lambda test, clock: PostgresStore(**fresh_schema(test), clock=clock),
    "redis": lambda test, clock: RedisStore(test.getfixturevalue("redis_url"), clock=clock),
}
"""How to open each store, empty, with a clock of the test's."""


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
async def store(request, clock):
    opened = request.param(request, clock)
    yield opened
    await opened.close()


class TestStores(StoreSuite):
    """Each of ours keeps what every store promises."""

    def all_of(self, store, folder):
        kept = getattr(getattr(store, "database", None), "_rows", None)
        return everything_in(folder) + ("" if kept is None else repr(kept))


class TestSessions:
    async def test_it_keeps_the_protocol(self, store):
        kept: Store = store
        assert await kept.delete("nobody") is None

    async def test_c19_an_id_may_be_made_as_wanted_and_is_numbered_where_it_is_taken(self, store):
        made = [await store.create(new_id=lambda: "session-1") for _ in range(3)]
        assert [each.id for each in made] == ["session-1", "session-1-01", "session-1-02"]
        assert (await store.create(id="own", new_id=lambda: "session-1")).id == "own"
        with pytest.raises(InvalidSessionId):
            await store.create(new_id=lambda: "../x")


class TestExpiry:
    async def test_a_sweep_removes_what_expired_until_the_store_is_closed(self, store, clock):
        await store.create(id="s", ttl=100)
        naps = []

        async def sleep(seconds):
            naps.append(seconds)
            clock.advance(seconds)
            if len(naps) > 2:
                assert await infos(store) == []
                await store.close()
            await anyio.lowlevel.checkpoint()

        with anyio.fail_after(5):
            await sweep(store, every_seconds=300, sleep=sleep)
        assert naps[:3] == [300, 300, 300]

    async def test_r2_12_in_async_with_a_store_sweeps_by_itself(self, store, clock):
        swept = anyio.Event()

        def hear(event):
            if isinstance(event, SessionsCounted) and event.expired == 1:
                swept.set()

        store.sweep_seconds = 0.001
        with hearing(hear), anyio.fail_after(5):
            async with store as entered:
                assert entered is store
                await store.create(id="s", ttl=100)
                clock.advance(101)
                await swept.wait()

    async def test_leaving_async_with_closes_the_store_and_wraps_no_error(self, tmp_path):
        with pytest.raises(SessionNotFound):
            async with JsonlStore(tmp_path) as store:
                await store.get("s")
        with pytest.raises(StoreError, match="closed"):
            await store.get("s")

    async def test_what_is_cancelled_in_async_with_ends(self):
        with anyio.move_on_after(0.01) as scope:
            async with InMemoryStore():
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    async def test_b2_8_a_sweep_tells_what_there_is_and_what_expired(self, store, clock, heard):
        session = await store.create(id="lasting")
        say(session, 6)
        session.trim_if_needed(1, 2)
        await store.save(session)
        await store.create(id="gone", ttl=100)

        async def sleep(seconds):
            clock.advance(seconds)
            if len(heard) > 1:
                await store.close()
            await anyio.lowlevel.checkpoint()

        with anyio.fail_after(5):
            await sweep(store, expired=7, sleep=sleep)
        counts = {"entries": 6, "pending": 4}
        assert heard[:2] == [
            SessionsCounted(sessions=2, expired=7, **counts),
            SessionsCounted(sessions=1, expired=1, **counts),
        ]


PLAIN = {name: STORES[name] for name in ("in_memory", "jsonl", "sqlite", "postgres", "redis")}


@pytest.mark.parametrize("store", PLAIN.values(), ids=PLAIN.keys(), indirect=True)
class TestManySessions:
    async def crowd(self, store, clock, count):
        async def create(numbers):
            for number in numbers:
                await store.create(id=f"s{number}")

        await create([0])
        async with anyio.create_task_group() as group:
            for first in range(1, 9):
                group.start_soon(create, range(first, count, 8))
        clock.advance(1)

    @pytest.mark.slow
    async def test_ten_thousand_are_listed_each_once_and_the_last_active_first(self, store, clock):
        await self.crowd(store, clock, 10_000)
        for name in ("s17", "s9999"):
            session = await store.load(name)
            session.set("k", 1)
            await store.save(session)
            clock.advance(1)
        with anyio.fail_after(20):
            names = [info.id for info in await infos(store)]
        assert names[:2] == ["s9999", "s17"]
        assert sorted(names) == sorted(f"s{number}" for number in range(10_000))

    async def test_what_becomes_active_during_a_listing_is_listed_once(self, store, clock):
        await self.crowd(store, clock, 1_000)
        names = []
        async for info in store.list():
            names.append(info.id)
            if len(names) == 3:
                for name in ("s1", "s500", "s998"):
                    session = await store.load(name)
                    session.set("k", 1)
                    await store.save(session)
        assert sorted(names) == sorted(f"s{number}" for number in range(1_000))


LASTING = {name: made for name, made in STORES.items() if name != "in_memory"}


class TestClosing:
    async def test_r2_13_one_in_memory_goes_on_after_it_was_closed(self, clock):
        store = InMemoryStore(clock=clock)
        session = await said(store, 1)
        await store.close()
        await store.close()
        session.add_message("user", "late")
        await store.save(session)
        assert texts((await store.get("s")).window) == ["message 0", "late"]

    @pytest.mark.parametrize("store", LASTING.values(), ids=LASTING.keys(), indirect=True)
    async def test_closing_twice_is_fine_and_then_nothing_works(self, store):
        session = await said(store, 1)
        await store.close()
        await store.close()
        session.add_message("user", "late")
        for call in (
            store.get("s"),
            store.load("s"),
            store.entries("s"),
            store.save(session),
            store.create(),
            store.delete("s"),
            store.delete_expired(),
            store.bind("k", "s"),
            store.bound("k"),
        ):
            with pytest.raises(StoreError, match="closed"):
                await call
        with pytest.raises(StoreError, match="closed"):
            await infos(store)
