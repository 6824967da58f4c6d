"""A Redis that goes away, comes back, refuses, hangs or is full: nothing is lost or doubled."""

import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.protocols import Node
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.redis import RedisStore
from tests.conftest import running
from tests.servers.proxy import faulty
from tests.servers.redis import Redis
from tests.servers.server import wait_until

SOON = 0.4
"""Seconds after which a call is given up here."""


@asynccontextmanager
async def opened(url, *, timeout_seconds=10.0):
    store = RedisStore(url, timeout_seconds=timeout_seconds)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def proxy(redis_url):
    async with faulty(redis_url) as proxy:
        yield proxy


async def say(store, session, *words):
    for word in words:
        session.add_message("user", word)
        await store.save(session)


async def words(store, name="s"):
    entries = await store.entries(name)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [entry.content["text"] for entry in entries]


# The connection


@pytest.mark.parametrize("passed", [0, 1, 5, 100])
async def test_an_answer_that_gets_lost_costs_nothing(proxy, passed):
    async with opened(proxy.url) as store:
        session = await store.create(id="s")
        proxy.cut_after(from_server=passed)
        await say(store, session, "one", "two")
        assert await words(store) == ["one", "two"]
        assert await store.revision("s") == session.revision


@pytest.mark.parametrize("passed", [0, 1, 40, 400, 800, 1200])
async def test_nor_does_a_request_that_gets_lost(proxy, passed):
    async with opened(proxy.url) as store:
        session = await store.create(id="s")
        proxy.cut_after(to_server=passed)
        await say(store, session, "one", "two")
        assert await words(store) == ["one", "two"]
        assert await store.revision("s") == session.revision


async def test_a_session_whose_creation_got_no_answer_is_there_once(proxy):
    async with opened(proxy.url) as store:
        await store.bound("k")
        proxy.cut_after(from_server=3)  # of the look whether there is one
        await store.create(id="s")
        proxy.cut_after(from_server=6)  # the next answer is that of the creation
        session = await store.create(id="t")
        await say(store, session, "one")
        assert await words(store, "t") == ["one"]


async def test_while_nobody_answers_a_call_is_tried_again(proxy):
    async with opened(proxy.url) as store:
        session = await store.create(id="s")
        await proxy.refuse()
        proxy.cut()
        async with anyio.create_task_group() as group:
            group.start_soon(say, store, session, "one")
            await anyio.wait_all_tasks_blocked()
            await proxy.resume()
        assert await words(store) == ["one"]


async def test_an_answer_that_comes_too_late_is_known_at_the_next_commit(proxy):
    async with opened(proxy.url, timeout_seconds=SOON) as store:
        session = await store.create(id="s")
        proxy.hold()
        with anyio.fail_after(5), pytest.raises(StoreError, match="took too long to answer"):
            await say(store, session, "one")
        await proxy.resume()
        await say(store, session, "two")
        assert await words(store) == ["one", "two"]


async def test_many_that_wait_for_a_server_that_hangs_are_all_told_in_time(redis_server):
    async with opened(redis_server.url, timeout_seconds=SOON) as store:
        sessions = [await store.create() for _ in range(80)]
        told = []

        async def save(session):
            try:
                await say(store, session, "one")
            except StoreError as error:
                told.append(error)

        redis_server.pause()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for session in sessions:
                    group.start_soon(save, session)
        assert len(told) == len(sessions)
        redis_server.resume()
        for session in sessions:
            await store.save(session)
            assert await words(store, session.id) == ["one"]


async def test_a_cancelled_read_leaves_the_connection_as_it_should_be(proxy):
    async with opened(proxy.url) as store:
        await store.create(id="s", metadata={"name": "s"})
        await store.create(id="t", metadata={"name": "t"})
        connection = await store.database._server.ask(("CLIENT", "ID"))
        proxy.hold()
        async with anyio.create_task_group() as group:
            group.start_soon(store.load, "s")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await proxy.resume()
        assert (await store.load("t")).metadata == {"name": "t"}
        assert await store.database._server.ask(("CLIENT", "ID")) == connection


# The server


async def test_a_server_that_was_killed_is_found_again(redis_server):
    async with opened(redis_server.url, timeout_seconds=SOON) as store:
        session = await store.create(id="s")
        await say(store, session, "one")
        redis_server.kill()
        with anyio.fail_after(5), pytest.raises(StoreError, match="does not answer: start it"):
            await say(store, session, "two")
        redis_server.start()
        await say(store, session, "three")
        assert await words(store) == ["one", "two", "three"]


async def test_whatever_was_confirmed_is_there_after_a_kill(redis_server):
    async with opened(redis_server.url) as store:
        session = await store.create(id="s")
        for turn in range(3):
            async with anyio.create_task_group() as group:
                numbers = [str(10 * turn + number) for number in range(10)]
                group.start_soon(say, store, session, *numbers)
                await anyio.wait_all_tasks_blocked()
                await anyio.to_thread.run_sync(redis_server.restart)
        assert await words(store) == [str(number) for number in range(30)]


async def test_a_full_memory_is_said_and_nothing_is_half_written(redis_server):
    async with opened(redis_server.url) as store:
        session = await store.create(id="s", ttl=60)
        await store.create(id="t")
        redis_server.ask("CONFIG SET maxmemory 1")
        with pytest.raises(StoreError, match="out of memory: raise maxmemory or delete"):
            await say(store, session, "one")
        with pytest.raises(StoreError, match="out of memory"):
            await store.create(id="u")
        assert (await store.load("s")).last_seq == 0
        await store.delete("t")
        redis_server.ask("CONFIG SET maxmemory 0")
        await say(store, session, "two")
        assert await words(store) == ["one", "two"]
        assert [info.id async for info in store.list()] == ["s"]


async def test_a_process_is_known_to_live_where_the_memory_is_full(redis_server):
    async with opened(redis_server.url) as store:
        await store.beat(Node(id="a"))
        redis_server.ask("CONFIG SET maxmemory 1")
        assert {node.id for node in await store.beat(Node(id="b"))} == {"a", "b"}
        redis_server.ask("CONFIG SET maxmemory 0")


async def test_a_full_disk_is_said_and_nothing_is_half_written(redis_server):
    async with opened(redis_server.url) as store:
        session = await store.create(id="s")
        redis_server.ask("CONFIG SET save '3600 1000'")
        (redis_server.folder / "dump.rdb").mkdir()  # as good as a full disk: it can't be written
        redis_server.ask("BGSAVE")
        wait_until(lambda: redis_server.ask("SET x 1").startswith(b"-MISCONF"))
        with pytest.raises(StoreError, match="can't write to its disk"):
            await say(store, session, "one")
        assert (await store.load("s")).last_seq == 0
        redis_server.ask("CONFIG SET stop-writes-on-bgsave-error no")
        await say(store, session, "two")
        assert await words(store) == ["one", "two"]


# Who may not


async def refused(url):
    """What the store says of a server that refuses."""
    async with opened(url, timeout_seconds=SOON) as store:
        with anyio.fail_after(5), pytest.raises(StoreError) as error:
            await store.load("s")
    return str(error.value)


async def test_a_wrong_password_is_told_and_not_repeated(redis_server):
    redis_server.ask("CONFIG SET requirepass right")
    url = redis_server.url.replace("//", "//:wr0ng@")
    said = await refused(url)
    assert said.endswith("refused the user or the password: check both in store.url")
    assert "wr0ng" not in said
    assert (await refused(redis_server.url)) == said  # none at all
    async with opened(url.replace("wr0ng", "right")) as store:
        await store.create(id="s")


async def test_a_user_without_the_right_is_told_which(redis_server):
    redis_server.ask("ACL SETUSER ann on >pw ~other:* +@all")
    said = await refused(redis_server.url.replace("//", "//ann:pw@"))
    assert "does not allow this user to do that: grant it ~PREFIX:*" in said
    assert "pw" not in said


async def test_an_unknown_host_is_named(redis_url):
    said = await refused("redis://:secret@no-such-host.invalid:6379/0")
    assert said.startswith("Redis at no-such-host.invalid:6379 ")
    assert said.endswith(("check store.url", "far away"))  # as fast as names are looked up
    assert "secret" not in said


async def test_what_is_no_redis_is_told(tmp_path):
    async def hello(stream):
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, hello)
        assert "is not a Redis server: check store.url" in await refused(
            f"redis://127.0.0.1:{port}"
        )
        group.cancel_scope.cancel()
    await listener.aclose()


# Two processes

WRITER = """
import sys, anyio
from nanoloop.errors import StoreConflict
from nanoloop.stores.redis import RedisStore

async def main(url, name, count):
    store = RedisStore(url)
    session = await store.load("s")
    lost = 0
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        while True:
            session.add_message("user", f"{name}{number}")
            try:
                await store.save(session)
                break
            except StoreConflict:
                lost += 1
                session = await store.load("s")
    await store.close()
    print(lost)

anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def writer(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


async def test_of_two_processes_one_wins_each_time_and_nothing_is_lost_or_doubled(redis_url):
    async with opened(redis_url) as store:
        session = await store.create(id="s")
        with writer(redis_url, "a", "150") as one, writer(redis_url, "b", "150") as two:
            for each in (one, two):
                each.stdin.write("go\n")
                each.stdin.flush()
            lost = [int(each.stdout.readline()) for each in (one, two)]
        said = await words(store)
        assert [word for word in said if word[0] == "a"] == [f"a{n}" for n in range(150)]
        assert [word for word in said if word[0] == "b"] == [f"b{n}" for n in range(150)]
        assert await store.revision("s") == session.revision + 300
        assert sum(lost) > 0


# The whole


@asynccontextmanager
async def talking(store, provider):
    loop = AgentLoop(provider=provider, store=store, store_timeout_seconds=SOON)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield direct
        loop.bus.close()


@pytest.mark.slow
async def test_a_chat_is_told_and_goes_on_by_itself_when_the_server_is_back(redis_server):
    provider = ScriptedProvider(["first", lambda *_: redis_server.kill() or "second", "third"])
    async with opened(redis_server.url, timeout_seconds=SOON) as store:
        async with talking(store, provider) as direct:
            assert (await direct.ask("one")).text == "first"
            told = await direct.ask("two")  # it goes away while the model is thinking
            assert (told.kind, ENGLISH["store_down"] in told.text) == ("error", True)
            told = await direct.ask("three")
            assert told.kind == "error"
            redis_server.start()
            assert (await direct.ask("four")).text == "You said: four"
        assert await words(store, "direct:default") == (
            ["one", "first", "two", "second", "three", "third", "four", "You said: four"]
        )


async def test_a_chat_goes_on_after_an_answer_that_got_lost(proxy, monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    provider = ScriptedProvider(["first", lambda *_: proxy.hold() or "second", "third"])
    async with opened(proxy.url, timeout_seconds=SOON) as store:
        async with talking(store, provider) as direct:
            assert (await direct.ask("one")).text == "first"
            told = await direct.ask("two")
            assert (told.kind, ENGLISH["store_down"] in told.text) == ("error", True)
            await proxy.resume()
            assert (await direct.ask("three")).text == "third"
        assert await words(store, "direct:default") == (
            ["one", "first", "two", "second", "three", "third"]
        )


async def test_a_deleted_session_is_gone_though_the_answer_got_lost(proxy):
    async with opened(proxy.url) as store:
        session = await store.create(id="s")
        proxy.cut_after(from_server=0)
        await store.delete("s")
        with pytest.raises(SessionNotFound):
            await say(store, session, "late")


async def test_a_replica_is_not_written_to_until_it_is_the_primary(redis_server):
    async with opened(redis_server.url, timeout_seconds=SOON) as store:
        session = await store.create(id="s")
        redis_server.ask("REPLICAOF 127.0.0.1 1")
        with pytest.raises(StoreError, match="is a replica: name the primary"):
            await say(store, session, "one")
        assert (await store.load("s")).last_seq == 0
        redis_server.ask("REPLICAOF NO ONE")
        await say(store, session, "two")
        assert await words(store) == ["one", "two"]


async def test_another_server_that_became_the_primary_is_found_by_itself(redis_server):
    async with faulty(redis_server.url) as proxy, opened(proxy.url) as store:
        session = await store.create(id="s")
        await say(store, session, "one")
        with contextmanager(running)(Redis) as other:
            redis_server.ask("CONFIG SET repl-diskless-sync-delay 0")
            other.ask(f"REPLICAOF 127.0.0.1 {redis_server.port}")
            wait_until(lambda: other.ask("DBSIZE") == redis_server.ask("DBSIZE"))
            other.ask("REPLICAOF NO ONE")
            redis_server.ask(f"REPLICAOF 127.0.0.1 {other.port}")
            proxy._server_port = other.port  # its name means the other one from now on
            await say(store, session, "two")
            assert await words(store) == ["one", "two"]
