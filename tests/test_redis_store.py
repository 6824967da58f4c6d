"""What is special about sessions in Redis; what all stores promise is in test_stores.py."""

import json
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from nanoloop.errors import SessionNotFound, SettingsError, StoreError
from nanoloop.session.entry import Entry, utc_now
from nanoloop.stores import redis as redis_store
from nanoloop.stores.copying import copy
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.redis import RedisStore
from tests.certificates import certified
from tests.servers.proxy import faulty
from tests.servers.server import free_port


@pytest.fixture
async def redis(redis_url):
    """A plain client of the same server."""
    async with Redis.from_url(redis_url) as client:
        yield client


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(redis_url):
    async with opened(redis_url) as store:
        yield store


async def grown(store, count, *, name="s", keep=10):
    session = await store.create(id=name)
    for number in range(count):
        metadata = {"message_id": f"m{100_000 + number}"}
        session.add_entry(Entry.message("user", f"message {number}", metadata=metadata))
    session.trim_if_needed(1, keep)
    await store.save(session)
    return session


async def listed(store):
    return [info.id async for info in store.list()]


# Keys


async def test_all_keys_are_under_the_prefix(redis_url, redis):
    async with opened(redis_url, prefix="bots:one") as store:
        await grown(store, 3)
        await store.bind("chat", "s")
    assert all(key.startswith(b"bots:one:") for key in await redis.keys())


async def test_two_prefixes_are_two_stores(redis_url):
    async with opened(redis_url, prefix="a") as one, opened(redis_url, prefix="b") as two:
        await grown(one, 3)
        assert (await listed(one), await listed(two)) == (["s"], [])


@pytest.mark.parametrize("prefix", ["", "{x}", "a b", "a*"])
def test_a_prefix_that_would_spoil_the_keys_is_refused(prefix):
    with pytest.raises(ValueError, match="prefix is"):
        RedisStore("redis://localhost", prefix=prefix)


async def test_what_belongs_to_a_session_stays_together_in_a_cluster(store):
    for name in ("s", "tg:123", "a.b@c-d"):
        assert len({key_slot(key) for key in store.database._keys.of(name)}) == 1


async def test_sessions_are_spread_over_a_cluster(store):
    slots = {key_slot(store.database._keys.of(f"chat:{number}")[0]) for number in range(1000)}
    assert len(slots) > 50


async def test_no_key_has_a_word_that_was_erased(store, redis):
    session = await grown(store, 5)
    session.add_message("user", "xyzzy")
    await store.save(session)
    about, entries = store.database._keys.of("s")[:2]

    async def kept():
        return str([await redis.hgetall(about), await redis.zrange(entries, 0, -1)])

    assert "xyzzy" in await kept()
    await store.erase(session, [6])
    assert "xyzzy" not in await kept()


# Cost


async def test_a_commit_and_a_load_are_one_request_each(store):
    session = await grown(store, 30)
    asked, ask = [], store.database._server.ask

    async def counted(*calls):
        asked.extend(calls)
        return await ask(*calls)

    store.database._server.ask = counted
    session.add_message("user", "hi")
    await store.save(session)
    await store.load("s")
    assert [call[0] for call in asked] == ["EVALSHA", "EVALSHA"]


async def test_a_load_brings_the_window_however_long_the_history(redis_url):
    async with faulty(redis_url) as proxy, opened(proxy.url) as store:
        brought = []
        for count in (600, 6000):
            await grown(store, count, name=f"s{count}")
            before = proxy.from_server.passed
            assert len((await store.load(f"s{count}")).window) == 10
            brought.append(proxy.from_server.passed - before)
    assert brought[1] < brought[0] * 1.1


async def test_a_redis_that_forgot_the_scripts_is_told_again(store, redis):
    session = await grown(store, 2)
    await redis.script_flush()
    session.add_message("user", "hi")
    await store.save(session)
    await redis.script_flush()
    assert await listed(store) == ["s"]


# Expiry


async def test_c22_redis_drops_it_by_itself_an_hour_after_its_own_moment(store, redis):
    session = await store.create(id="s", ttl=60)
    session.add_entry(Entry.message("user", "hi", metadata={"message_id": "m"}))
    store.clock = lambda: utc_now() + timedelta(seconds=30)
    await store.save(session)
    moment = session.head().expires_at + timedelta(hours=1)
    for key in store.database._keys.of("s")[:2]:
        assert await redis.pexpiretime(key) == int(moment.timestamp() * 1000)


async def test_what_expired_long_ago_is_left_to_the_sweep(store, redis):
    store.clock = lambda: utc_now() - timedelta(hours=2)
    await store.create(id="s", ttl=60)
    assert await redis.pttl(store.database._keys.of("s")[0]) == -1
    store.clock = utc_now
    assert await store.delete_expired() == 1


async def test_one_that_lasts_is_not_dropped(store, redis):
    await grown(store, 3)
    assert {await redis.ttl(key) for key in await redis.keys()} == {-1}


async def test_what_redis_dropped_is_gone_everywhere(store, redis):
    session = await store.create(id="s", ttl=60)
    await grown(store, 3, name="t")
    await redis.delete(*store.database._keys.of("s")[:2])
    assert await listed(store) == ["t"]
    session.add_message("user", "late")
    with pytest.raises(SessionNotFound):
        await store.save(session)
    store.clock = lambda: utc_now() + timedelta(seconds=61)
    assert await store.delete_expired() == 1
    assert await redis.zcard(store.database._keys.of("s")[2]) == 0


async def test_a_redis_that_forgets_when_it_is_full_is_refused(redis_server):
    redis_server.ask("CONFIG SET maxmemory-policy allkeys-lru")
    async with opened(redis_server.url) as store:
        with pytest.raises(StoreError, match=r"allkeys-lru\): set it to noeviction"):
            await store.create(id="s")
        redis_server.ask("CONFIG SET maxmemory-policy noeviction")
        await store.create(id="s")


async def test_one_that_drops_what_expires_is_not_told_what_does(redis_server):
    redis_server.ask("CONFIG SET maxmemory-policy volatile-lru")
    async with opened(redis_server.url) as store:
        await store.create(id="s", ttl=60)
        key = store.database._keys.of("s")[0].decode()
        assert redis_server.ask(f"TTL {key}") == b":-1\r\n"
        store.clock = lambda: utc_now() + timedelta(seconds=61)
        assert await store.delete_expired() == 1


# Format


async def test_a_newer_format_is_refused(store, redis):
    await redis.set("nanoloop:format", redis_store.FORMAT + 1)
    with pytest.raises(StoreError, match="format 3, but this version supports 2: install a newer"):
        await store.create(id="s")


async def test_an_older_one_is_brought_up_once(redis_url, redis, monkeypatch):
    async with opened(redis_url) as store:
        await grown(store, 3)
    head = store.database._keys.of("s")[0]
    await redis.rename(head, "nanoloop:old:s")
    await redis.set("nanoloop:format", 0)
    asked = []

    async def upgrade(server, keys):
        asked.append(await server.ask(("RENAMENX", "nanoloop:old:s", keys.of("s")[0])))

    monkeypatch.setattr(redis_store, "UPGRADES", {**redis_store.UPGRADES, 0: upgrade})
    for _ in range(2):
        async with opened(redis_url) as store:
            assert (await store.load("s")).entry_count == 3
    assert len(asked) == 1
    assert await redis.get("nanoloop:format") == b"2"


async def test_what_an_earlier_version_owes_may_be_an_erasure(store, redis):
    for name in ("earlier", "now"):
        session = await store.create(id=name)
        session.claim("me")
        session.add_message("user", "hi")
        session.awaiting = session.last_seq
        await store.save(session)
    earlier, now = (store.database._keys.of(name)[4] for name in ("earlier", "now"))
    await redis.hset(earlier, "earlier", f"{session.revision}  me".encode())
    told = {each.id: (each.revision, each.by, each.erasing) async for each in store.owing()}
    assert told == {
        "earlier": (session.revision, "me", True),
        "now": (session.revision, "me", False),
    }
    # Which reads what this version writes: a number, perhaps a moment, and a name.
    revision, moment, by = (await redis.hget(now, "now")).split(b" ", 2)
    assert (int(revision), moment, by) == (session.revision, b"", b"me")


# Moving


async def test_a_session_comes_back_from_redis_as_it_went_there(store):
    one, two = InMemoryStore(), InMemoryStore()
    session = await grown(one, 30, keep=4)
    for text in ("\ud800 half", "nul\x00nul", "a\u2028b", "line\nline", "x" * 1_000_000):
        session.add_entry(Entry.message("user", text, metadata={"message_id": text[:9]}))
        session.set(text[:9], text)
        session.hear("\ud800", text[:9])
        await one.save(session)
    await one.erase(session, [2])
    await one.bind("\ud800", "s")
    for source, target in ((one, store), (store, two)):
        assert (await copy(source, target)).keys == 1  # each is compared after it was written
    assert (await two.get("s")).dump() == session.dump()
    assert await two.has_heard("\ud800", "nul\x00nul")


# Where it is


def test_what_is_no_url_is_refused_without_a_word_of_it():
    for url in ("redis://:secret@host:port", "http://secret", "redis://host/0?socket_timeout=no"):
        with pytest.raises(SettingsError, match="write redis://HOST:PORT") as refused:
            RedisStore(url)
        assert "secret" not in str(refused.value)


async def test_a_socket_file_will_do(redis_server, tmp_path):
    redis_server.kill()
    redis_server.options += ("--unixsocket", str(redis_server.folder / "redis.sock"))
    redis_server.start()
    async with opened(f"unix://{redis_server.folder}/redis.sock") as store:
        await grown(store, 3)
        assert (await store.load("s")).entry_count == 3


async def test_a_line_may_be_encrypted(redis_server, tmp_path):
    certified(tmp_path)
    files = {"key": "key", "cert": "cert", "ca-cert": "cert"}
    asked = " ".join(f"tls-{name}-file {tmp_path}/{files[name]}.pem" for name in files)
    port = free_port()
    assert redis_server.ask(f"CONFIG SET {asked} tls-auth-clients no tls-port {port}") == b"+OK\r\n"
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/cert.pem"
    async with opened(url) as store:
        await grown(store, 3)
        assert (await store.load("s")).entry_count == 3
    async with opened(url.partition("?")[0], timeout_seconds=0.5) as store:
        with pytest.raises(StoreError, match=r"not trusted here: add \?ssl_ca_certs=FILE"):
            await store.load("s")


async def test_a_server_that_is_too_old_is_refused(redis_url, monkeypatch):
    monkeypatch.setattr("nanoloop.stores.redis_server.OLDEST", 99)
    async with opened(redis_url) as store:
        with pytest.raises(
            StoreError, match=r"is version \d+\.\d+\.\d+: sessions need 99 or newer"
        ):
            await store.create(id="s")


# Listing


@pytest.mark.slow
async def test_ten_thousand_are_listed_the_last_changed_first(store, redis):
    await store.create(id="s")
    fields = await redis.hgetall(store.database._keys.of("s")[0])
    about = json.loads(fields[b"section:about"])
    pipeline = redis.pipeline(transaction=False)
    for number in range(10_000):
        key, _, names, *_ = store.database._keys.of(f"s{number}")
        about["id"] = f"s{number}"
        pipeline.hset(key, mapping={**fields, b"section:about": json.dumps(about)})
        pipeline.zadd(names, {f"s{number}": number})
    await pipeline.execute()
    assert (await listed(store))[1:] == [f"s{number}" for number in reversed(range(10_000))]


# A whole history


async def test_what_is_erased_while_a_whole_history_is_read_is_in_no_part_of_it(store, monkeypatch):
    monkeypatch.setattr("nanoloop.stores.redis.ENTRIES", 3)
    session = await grown(store, 20)
    page = store.database._page
    asked = []

    async def erasing(*where):
        asked.append(where)
        if len(asked) == 3:
            await store.erase(session, [1])
        if len(asked) == 5:
            session.add_message("user", "more")
            await store.save(session)
        return await page(*where)

    store.database._page = erasing
    stored = await store.database.whole("s")
    assert [entry.seq for entry in stored.entries] == list(range(1, 21))
    assert (stored.head["last"], stored.entries[0].type) == (20, "erased")


def test_without_its_library_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("nanoloop.stores.redis")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=r'the extra "redis".*pip install'):
        import_module("nanoloop.stores.redis")
