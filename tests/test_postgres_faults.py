"""The server goes away, hangs, refuses, is full: a clear error, and nothing lost or doubled."""

from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
from anyio.to_thread import run_sync
from asyncpg import exceptions as errors

from nanoloop.errors import StoreConflict, StoreError
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores import postgres_server
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.postgres_server import failure
from tests.servers.proxy import faulty
from tests.test_loop import put, running


@asynccontextmanager
async def opened(url, **options):
    store = PostgresStore(url, **options)
    yield store
    await store.close()


@pytest.fixture
def no_patience(monkeypatch):
    monkeypatch.setattr(postgres_server, "PAUSES_SECONDS", (0.01,))


async def said(store, *texts):
    session = await store.create(id="s")
    for text in texts:
        session.add_message("user", text)
    await store.save(session)
    return session


async def stored(url):
    """What is there for whoever opens the store anew."""
    async with opened(url) as store:
        session = await store.get("s")
    return [entry.content["text"] for entry in session.window], session.revision


@asynccontextmanager
async def row_locked(url):
    """Whoever commits to a session waits for this."""
    holder = await asyncpg.connect(url)
    async with holder.transaction():
        await holder.execute("SELECT FROM nanoloop.session FOR UPDATE")
        yield
    await holder.close()


async def until_waiting(url, count):
    """Return when the server has so many that wait for a row."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    watcher = await asyncpg.connect(url)
    with anyio.fail_after(5):
        while await watcher.fetchval(waiting) != count:
            await anyio.lowlevel.checkpoint()
    await watcher.close()


class TestCuts:
    @pytest.mark.parametrize(
        "cut",
        [
            {"to_server": 0},
            {"to_server": 20},
            {"to_server": 200},
            {"from_server": 0},
            {"from_server": 5},
        ],
        ids=str,
    )
    async def test_a_commit_is_written_once_wherever_the_connection_breaks(self, postgres_url, cut):
        async with faulty(postgres_url) as proxy, opened(proxy.url) as store:
            session = await said(store, "one")
            session.add_message("user", "two")
            proxy.cut_after(**cut)
            await store.save(session)
            assert await stored(postgres_url) == (["one", "two"], session.revision)

    @pytest.mark.slow
    async def test_a_session_is_made_once_wherever_the_connection_breaks(self, postgres_url):
        async with faulty(postgres_url) as proxy, opened(proxy.url) as store:
            await said(store, "one")
            for limit in range(0, 300, 20):
                proxy.cut_after(from_server=limit)
                session = await store.create(id=f"s{limit}")
                assert await store.revision(session.id) == session.revision
            assert len([info async for info in store.list()]) == 16

    async def test_what_was_erased_is_gone_after_a_lost_answer(self, postgres_url):
        async with faulty(postgres_url) as proxy, opened(proxy.url) as store:
            session = await said(store, "secret", "two")
            await store.revision("s")
            for limit in (0, 400, 900):
                proxy.cut_after(from_server=limit)
                await store.erase(session, [1])
        async with opened(postgres_url) as store:
            assert [entry.type for entry in await store.entries("s")] == ["erased", "message"]

    async def test_a_second_writer_is_told_of_a_commit_whose_answer_got_lost(self, postgres_url):
        async with faulty(postgres_url) as proxy, opened(proxy.url) as store:
            mine, theirs = await said(store, "one"), await store.load("s")
            mine.add_message("user", "mine")
            proxy.cut_after(from_server=0)
            await store.save(mine)
            theirs.add_message("user", "theirs")
            with pytest.raises(StoreConflict):
                await store.save(theirs)
        assert (await stored(postgres_url))[0] == ["one", "mine"]


class TestAway:
    async def test_a_server_killed_in_the_middle_of_a_commit_and_back_is_not_noticed(
        self, postgres_server
    ):
        url = postgres_server.url
        async with opened(url) as store, anyio.create_task_group() as group:
            session = await said(store, "one")
            session.add_message("user", "two")
            holder = await asyncpg.connect(url)
            await holder.execute("BEGIN; SELECT FROM nanoloop.session FOR UPDATE")
            group.start_soon(store.save, session)
            await until_waiting(url, 1)
            await run_sync(postgres_server.restart)
        assert await stored(url) == (["one", "two"], session.revision)

    async def test_one_that_stays_away_is_told_and_back_all_goes_on(
        self, postgres_server, no_patience
    ):
        url = postgres_server.url
        async with opened(url) as store:
            session = await said(store, "one")
            postgres_server.kill()
            for text in ("two", "three"):
                session.add_message("user", text)
                with pytest.raises(StoreError, match=r"nothing answers at postgresql://postgres@"):
                    await store.save(session)
            await run_sync(postgres_server.start)
            await store.save(session)
        assert await stored(url) == (["one", "two", "three"], session.revision)

    async def test_one_that_hangs_is_told_within_the_limit(self, postgres_server):
        url = postgres_server.url
        async with opened(url, timeout_seconds=0.3) as store:
            await store.migrate()  # not within the limit
            session = await said(store, "one")
            session.add_message("user", "two")
            postgres_server.pause()
            with anyio.fail_after(1), pytest.raises(StoreError, match=r"within 0\.3 s"):
                await store.save(session)
            postgres_server.resume()
            session.add_message("user", "three")  # the server may still write, or have written, two
            await store.save(session)
        assert await stored(url) == (["one", "two", "three"], session.revision)

    async def test_a_commit_whose_answer_never_came_is_known_again(self, postgres_url):
        async with faulty(postgres_url) as proxy, opened(proxy.url, timeout_seconds=0.3) as store:
            await store.migrate()  # not within the limit
            session = await said(store, "one")
            session.add_message("user", "two")
            proxy.hold()
            with pytest.raises(StoreError, match="did not answer"):
                await store.save(session)
            proxy.cut()
            await proxy.resume()
            session.add_message("user", "three")
            await store.save(session)
            assert await stored(postgres_url) == (["one", "two", "three"], session.revision)

    async def test_a_row_that_someone_holds_is_told_and_no_backend_is_left_waiting(
        self, postgres_url
    ):
        async with opened(postgres_url, timeout_seconds=0.3) as store:
            await store.migrate()  # not within the limit
            session = await said(store, "one")
            session.add_message("user", "two")
            async with row_locked(postgres_url):
                with pytest.raises(StoreError, match=r"did not answer|took too long"):
                    await store.save(session)
                await until_waiting(postgres_url, 0)
            await store.save(session)
        assert (await stored(postgres_url))[0] == ["one", "two"]

    @pytest.mark.slow
    async def test_who_is_thrown_out_comes_back(self, postgres_url):
        admin = await asyncpg.connect(postgres_url)
        async with opened(postgres_url) as store:
            session = await said(store)
            for number in range(20):
                await admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'nanoloop' AND datname = current_database()"
                )
                session.add_message("user", str(number))
                await store.save(session)
        await admin.close()
        assert (await stored(postgres_url))[0] == [str(number) for number in range(20)]


class TestRefused:
    async def test_a_full_disk_is_told_and_nothing_is_half_written(self, postgres_url):
        admin = await asyncpg.connect(postgres_url)
        async with opened(postgres_url) as store:
            session = await said(store, "one")
            await admin.execute("""
                CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
                CREATE TRIGGER full_disk BEFORE INSERT ON nanoloop.entry
                EXECUTE FUNCTION full_disk()
            """)
            before = await stored(postgres_url)
            session.add_message("user", "two")
            session.set("k", "v")
            with pytest.raises(StoreError, match=r"disk of postgresql://.* is full"):
                await store.save(session)
            assert await stored(postgres_url) == before
            await admin.execute("DROP TRIGGER full_disk ON nanoloop.entry")
            await store.save(session)
        await admin.close()
        assert (await stored(postgres_url))[0] == ["one", "two"]

    async def test_too_many_connections_are_told(self, postgres_url, no_patience):
        admin = await asyncpg.connect(postgres_url)
        await admin.execute("DROP ROLE IF EXISTS few; CREATE ROLE few LOGIN CONNECTION LIMIT 0")
        async with opened(postgres_url.replace("postgres@", "few@")) as store:
            with pytest.raises(StoreError, match=r"accepts no more connections.*pool_size"):
                await store.create(id="s")
        await admin.execute("DROP ROLE few")
        await admin.close()

    async def test_a_wrong_password_is_told_but_not_written(self, postgres_server):
        server = postgres_server
        server.ask("CREATE ROLE bob LOGIN PASSWORD 'right'")
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        await run_sync(server.restart)
        url = server.url.replace("postgres@", "bob:hunter2@")
        async with opened(url) as store:
            with pytest.raises(StoreError, match="refused the user or the password") as told:
                await store.create(id="s")
        assert "hunter2" not in str(told.value) + repr(told.value.__cause__)

    async def test_who_may_make_no_schema_is_told_who_can(self, postgres_url):
        admin = await asyncpg.connect(postgres_url)
        await admin.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
        async with opened(postgres_url.replace("postgres@", "guest@")) as store:
            with pytest.raises(StoreError, match="administrator to create the schema"):
                await store.create(id="s")
            await admin.execute("CREATE SCHEMA nanoloop AUTHORIZATION guest")
            await store.create(id="s")
        await admin.execute("DROP SCHEMA nanoloop CASCADE; DROP ROLE guest")
        await admin.close()

    async def test_an_unknown_database_is_told(self, postgres_url):
        async with opened(postgres_url.rpartition("/")[0] + "/nobodys") as store:
            with pytest.raises(StoreError, match=r"nobodys does not exist.*createdb"):
                await store.create(id="s")

    async def test_an_unknown_host_is_told(self):
        async with opened("postgresql://u:hunter2@no.such.host.invalid/db") as store:
            with pytest.raises(
                StoreError, match=r"host of .*u@no\.such\.host\.invalid/db is unknown"
            ):
                await store.create(id="s")

    @pytest.mark.parametrize(
        "password", ["p#hunter2", "p?hunter2", "p/hunter2", "[hunter2", "hunter2@x"]
    )
    async def test_a_password_without_escapes_is_told_and_not_written(self, password, no_patience):
        async with opened(f"postgresql://u:{password}@127.0.0.1:1/db") as store:
            with pytest.raises(StoreError) as told:
                await store.create(id="s")
        assert "hunter2" not in f"{told.value}{told.value.__cause__}"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errors.InvalidSQLStatementNameError, "max_prepared_statements"),
        (errors.OutOfMemoryError, "out of memory"),
        (errors.ConfigurationLimitExceededError, "not have enough resources"),
        (errors.ReadOnlySQLTransactionError, "its primary"),
        (errors.CannotConnectNowError, "in a moment"),
        (errors.DeadlockDetectedError, "try again"),
        (errors.ProgramLimitExceededError, "this large"),
        (errors.DivisionByZeroError, "DivisionByZeroError, 22012"),
    ],
)
def test_each_refusal_says_what_to_do_and_nobodys_words(error, advice):
    told = str(failure(error("secret words"), "postgresql://u:hunter2@h/db?password=x", 10))
    assert advice in told
    assert "postgresql://u@h/db" in told
    assert not any(word in told for word in ("secret", "hunter2", "password=x"))


async def test_a_turn_that_loses_its_server_is_told_and_the_chat_goes_on(
    postgres_server, no_patience, monkeypatch
):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    provider = ScriptedProvider(["first", "second"], held=True)
    store = PostgresStore(postgres_server.url)
    async with running(provider, store=store, store_timeout_seconds=0) as loop:
        put(loop, "one")
        await provider.asked()
        postgres_server.kill()
        provider.release()
        assert ENGLISH["store_down"] in (await loop.chats.until("a", 1))[0]
        await run_sync(postgres_server.start)
        put(loop, "two")
        assert (await loop.chats.until("a", 3))[1:] == ["first", "second"]
    kept = await store.get("test:a")
    assert [m["content"] for m in kept.messages] == ["one", "first", "two", "second"]
    await store.close()
