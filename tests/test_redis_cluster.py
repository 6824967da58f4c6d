"""Sessions spread over three servers: each stays whole on one of them."""

from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta

import pytest
import redis

from nanoloop.errors import AlreadyHeard, StoreConflict, StoreError
from nanoloop.session.entry import utc_now
from nanoloop.stores.redis import RedisStore
from tests.conftest import running
from tests.servers.redis import Redis
from tests.servers.server import free_port, wait_until

SLOTS = 16384
OPTIONS = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        buses = [str(free_port()) for _ in range(3)]
        started = [stack.enter_context(node(*OPTIONS, "--cluster-port", bus)) for bus in buses]
        for number, each in enumerate(started):
            first, end = (SLOTS * n // 3 for n in (number, number + 1))
            each.ask(f"CLUSTER ADDSLOTSRANGE {first} {end - 1}")
            each.ask(f"CLUSTER MEET 127.0.0.1 {started[0].port} {buses[0]}")
        wait_until(lambda: all(map(is_joined, started)))
        yield started


@contextmanager
def node(*options):
    yield from running(Redis, *options)


def is_joined(node):
    with redis.Redis(port=node.port) as client:
        info = client.cluster("INFO")
    return (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", str(SLOTS))


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    yield store
    await store.close()


def url_of(nodes):
    return f"redis+cluster://127.0.0.1:{nodes[0].port}"


@pytest.fixture
async def store(nodes, request):
    async with opened(url_of(nodes), prefix=request.function.__name__) as store:
        yield store


async def created(store, count):
    return [await store.create(id=f"s{number}", ttl=60) for number in range(count)]


async def test_a_cluster_keeps_sessions_as_one_server_does(store, nodes):
    names = [f"s{number}" for number in range(40)]
    for name in names:
        session = await store.create(id=name)
        session.add_message("user", name)
        await store.save(session)
        await store.bind(f"key {name}", name)
    assert [info.id async for info in store.list()] == names[::-1]
    assert dict([pair async for pair in store.bindings()]) == {f"key {n}": n for n in names}
    for name in names:
        assert (await store.load(name)).messages == [{"role": "user", "content": name}]
    assert all(int(node.ask("DBSIZE")[1:]) > 20 for node in nodes)


async def test_what_expired_is_removed_on_every_node(store):
    await created(store, 20)
    assert await store.delete_expired() == 0
    store.clock = lambda: utc_now() + timedelta(seconds=61)
    assert await store.delete_expired() == 20
    assert [info async for info in store.list()] == []


async def test_the_second_of_two_writers_is_told(store):
    await store.create(id="s")
    one, two = await store.load("s"), await store.load("s")
    for session in (one, two):
        session.add_message("user", "hi")
    await store.save(one)
    with pytest.raises(StoreConflict):
        await store.save(two)


async def test_who_names_one_server_of_a_cluster_is_told_how(nodes):
    async with opened(nodes[0].url) as store:
        with pytest.raises(StoreError, match=r"write redis\+cluster://HOST:PORT in store.url"):
            await created(store, 10)


async def test_a_message_is_taken_once_in_a_cluster_whatever_session_its_chat_has(store, nodes):
    async with opened(url_of(nodes), prefix="other") as other:
        for number in range(20):  # on all nodes
            first, second = [await store.create(id=f"{name}{number}") for name in "st"]
            for session, fails in ((first, False), (second, True)):
                session.hear(f"chat {number}", "m1")
                session.add_message("user", "hi")
                if fails:
                    with pytest.raises(AlreadyHeard):
                        await store.save(session)
                else:
                    await store.save(session)
            assert await store.has_heard(f"chat {number}", "m1")
            assert not await other.has_heard(f"chat {number}", "m1")
            again = await store.load(first.id)
            again.hear(f"chat {number}", "m1")
            with pytest.raises(AlreadyHeard):
                await store.save(again)
    store.clock = lambda: utc_now() + timedelta(hours=73)
    await store.delete_expired()
    assert [each async for each in store.heard()] == []


@pytest.mark.slow
async def test_when_one_node_is_away_the_sessions_of_the_others_go_on(nodes):
    async with opened(url_of(nodes), prefix="away", timeout_seconds=0.4) as store:
        sessions = await created(store, 12)
        nodes[1].kill()
        saved = [session for session in sessions if await is_saved(store, session)]
    assert 0 < len(saved) < len(sessions)


async def is_saved(store, session):
    session.add_message("user", "hi")
    try:
        await store.save(session)
    except StoreError:
        return False
    return True
