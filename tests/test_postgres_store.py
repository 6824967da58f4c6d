"""What is particular to sessions in PostgreSQL: its tables, its formats, its connections."""

import json
import sys
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from importlib import import_module

import anyio
import anyio.lowlevel
import asyncpg
import pytest
from anyio.to_thread import run_sync
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoloop.errors import SettingsError, StoreError
from nanoloop.protocols import Node
from nanoloop.session.entry import Entry
from nanoloop.stores import postgres_server
from nanoloop.stores.postgres import PostgresStore, as_json, plain, unplain
from nanoloop.stores.postgres_server import STEPS, from_json
from nanoloop.stores.snapshot import encoded

ODD = [
    {"z": 1, "a": {"z": [1.0, 1e22, -0.0, 1e-7], "a": None}},
    {"deep": [float("inf"), 10**30, "nul\0", "\ud800", {"k\0": 1, "\udfff": True}]},
    {"_exact": "mine"},
    {"": "", "_": {"": []}},
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


FORMAT_1 = r"""
CREATE TABLE nanoloop.format (version integer NOT NULL);
INSERT INTO nanoloop.format VALUES (1);
INSERT INTO nanoloop.session (id, rev, token, size, heard, window_start, updated_at, head) VALUES
    ('s', 7, '6ff5d4e2-2f7c-4d05-a5fd-1f9a4ac9e4bb', 60, 0, 1, '2026-11-01T12:00:00Z',
    '{"rev": 7, "start": 1, "last": 3, "window": 1, "count": 3,
    "updated_at": "2026-11-01T12:00Z"}');
INSERT INTO nanoloop.section VALUES (1, 'about', '{"id": "s"}');
INSERT INTO nanoloop.entry (session, seq, content) VALUES
    (1, 1, '{"type": "message", "content": {"role": "user", "text": "one"}}'),
    (1, 2, '{"type": "message", "_exact": "{\"type\":\"message\",\"content\":'
        '{\"role\":\"assistant\",\"text\":\"nul\\u0000\"}}"}'),
    (1, 3, '{"_exact": "{\"type\":\"tool_call\",\"content\":{\"far\":Infinity}}"}');
"""
"""What an older version left behind."""


@pytest.fixture
async def store(postgres_url):
    opened = PostgresStore(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def server(postgres_url):
    """Someone with psql."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def opened(url, **options):
    store = PostgresStore(url, **options)
    yield store
    await store.close()


async def said(store, *texts, name="s"):
    session = await store.create(id=name)
    for number, text in enumerate(texts):
        session.add_message("assistant" if number % 2 else "user", text)
    await store.save(session)
    return session


class TestExact:
    @pytest.mark.slow
    @settings(max_examples=30)
    @given(st.lists(st.dictionaries(st.text(), ANY, max_size=4), max_size=30))
    def test_any_json_comes_back_as_it_was(self, shared_postgres, values):
        values += ODD

        async def through():
            server = await asyncpg.connect(shared_postgres.url)
            back = await server.fetchval(
                "SELECT $1::json[]", [as_json(encoded(value)) for value in values]
            )
            await server.close()
            return [from_json(text) for text in back]

        for value, back in zip(values, anyio.run(through), strict=True):
            assert json.dumps(back) == json.dumps(value)

    @given(st.text() | st.sampled_from(['"', '"a"', "\0", "\ud800", '"\\u0000"']))
    def test_any_name_comes_back_as_it_was(self, name):
        kept = plain(name)
        assert unplain(kept) == name
        assert "\0" not in kept
        kept.encode()

    @given(st.text(), st.text())
    def test_two_names_are_never_one(self, one, other):
        assert (plain(one) == plain(other)) == (one == other)

    async def test_arguments_of_a_tool_keep_their_order(self, store):
        session = await store.create(id="s")
        arguments = {"zoom": 1, "at": {"y": 2, "x": 1}}
        session.add_entry(Entry.tool_call("map", arguments))
        await store.save(session)
        back = (await store.load("s")).window[0].content["parameters"]
        assert json.dumps(back) == json.dumps(arguments)

    async def test_a_time_keeps_its_zone(self, store):
        zone = timezone(timedelta(hours=5, minutes=30))
        moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=zone)
        session = await store.create(id="s")
        session.add_entry(Entry(type="message", content={}, timestamp=moment))
        await store.save(session)
        assert (await store.load("s")).window[0].to_dict()["timestamp"].endswith("000678+05:30")

    async def test_what_jsonb_refuses_can_still_be_queried(self, store, server):
        await said(store, "nul\0 \ud800 end")
        assert await server.fetchval("SELECT text FROM nanoloop.messages") == "nul? ? end"
        assert (await store.load("s")).messages[0]["content"] == "nul\0 \ud800 end"

    async def test_long_message_ids_and_keys_fit(self, store):
        long = "".join(map(str, range(5000)))
        session = await store.create(id="s")
        session.hear(long, long)
        await store.save(session)
        await store.bind(long, "s")
        assert await store.has_heard(long, long)
        assert await store.bound(long) == "s"
        assert [item async for item in store.bindings()] == [(long, "s")]


class TestRows:
    async def test_no_row_of_an_entry_is_ever_rewritten(self, store, server):
        session = await said(store, "one")
        first = await server.fetchrow("SELECT ctid, xmin FROM nanoloop.entry")
        for number in range(5):
            session.add_message("user", str(number))
            session.trim_if_needed(3, 2)
            session.update_summary("They met.")
            await store.save(session)
        same = "SELECT ctid, xmin FROM nanoloop.entry WHERE seq = 1"
        assert await server.fetchrow(same) == first

    async def test_a_commit_touches_no_index_of_the_sessions(self, store, server):
        sessions = [await store.create(id=f"s{number}") for number in range(100)]
        for session in sessions:
            session.add_message("user", "hi")
            await store.save(session)
        await store.close()
        ours = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'session'"
        with anyio.fail_after(5):
            while (counts := await server.fetchrow(ours))["n_tup_upd"] < 100:
                await anyio.lowlevel.checkpoint()
        assert counts["n_tup_hot_upd"] == 100

    async def test_a_stale_writer_can_not_mix_its_entries_in(self, store, server):
        """Even where the check of the revision were missed: the table has one entry a number."""
        session = await said(store, "one")
        stale = await store.load("s")
        session.add_message("user", "two")
        await store.save(session)
        await server.execute("UPDATE nanoloop.session SET rev = $1", stale.revision)
        stale.add_message("user", "another two")
        with pytest.raises(StoreError, match="UniqueViolationError"):
            await store.save(stale)

    async def test_what_was_erased_is_in_no_table(self, store, server):
        session = await said(store, "the secret is xyzzy", "noted", "and", "so on")
        session.trim_if_needed(1, 1)
        session.update_summary("They said xyzzy.", seq=2)
        await store.save(session)
        await store.erase(session, [1])
        for table in ("session", "section", "entry", "binding"):
            rows = await server.fetch(f"SELECT t::text AS row FROM nanoloop.{table} AS t")
            assert "xyzzy" not in str(rows)

    async def test_a_deleted_session_leaves_nothing(self, store, server):
        await said(store, "one", "two")
        await said(store, "three", name="other")
        await store.delete("s")
        for table, left in (("session", 1), ("section", 1), ("entry", 1)):
            assert await server.fetchval(f"SELECT count(*) FROM nanoloop.{table}") == left

    async def test_many_expired_ones_are_removed_and_counted(self, postgres_url):
        now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
        async with opened(postgres_url, clock=lambda: now[0]) as store:
            for number in range(230):
                await store.create(id=f"s{number}", ttl=10)
            now[0] += timedelta(seconds=11)
            assert await store.delete_expired() == 230

    async def test_all_sessions_are_listed_while_they_change(self, store):
        for number in range(600):
            await store.create(id=f"s{number}")
        listed = set()
        async for info in store.list():
            listed.add(info.id)
            if len(listed) in {1, 400}:  # the last in the list becomes the first
                session = await store.load("s0")
                session.add_message("user", "hi")
                await store.save(session)
        assert len(listed) == 600


class TestViews:
    async def test_b2_2_people_can_ask_what_was_said(self, store, server):
        session = await said(store, "Hello", "Hi!")
        session.undo()
        session.add_entry(Entry.message("user", "Bye", metadata={"message_id": "m7"}))
        await store.save(session)
        rows = await server.fetch(
            "SELECT session, seq, role, text, message_id, is_visible "
            "FROM nanoloop.messages ORDER BY seq"
        )
        assert [tuple(row)[1:] for row in rows] == [
            (1, "user", "Hello", None, False),
            (2, "assistant", "Hi!", None, False),
            (3, "user", "Bye", "m7", True),
        ]

    async def test_and_about_sessions(self, store, server):
        session = await store.create(id="s", key="tg:1", agent="poet", metadata={"vip": True})
        session.add_message("user", "Hello there")
        session.update_summary("They met.")
        session.awaiting = 1
        await store.save(session)
        row = await server.fetchrow("SELECT * FROM nanoloop.sessions")
        assert (row["id"], row["key"], row["title"], row["agent"]) == (
            ("s", "tg:1", "Hello there", "poet")
        )
        assert (row["entries"], row["is_awaiting"], row["summary"]) == (1, True, "They met.")
        assert row["updated_at"] == session.updated_at
        assert row["metadata"] == '{"vip": true}'

    async def test_and_how_much_was_done(self, store, server):
        session = await said(store, "Hello", "Hi!")
        session.add_entry(Entry.tool_call("t", {}))
        session.add_entry(Entry.tool_result("t", None, "broke"))
        await store.save(session)
        row = await server.fetchrow("SELECT * FROM nanoloop.usage")
        assert tuple(row)[2:] == (1, 1, 1, 1, 8)


WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""


class TestNodes:
    async def test_of_two_that_want_one_account_at_the_same_moment_one_gets_it(
        self, postgres_url, server
    ):
        holds = {}

        async def want(name):
            async with opened(postgres_url) as store:
                nodes = await store.beat(Node(id=name, holds=frozenset({"x"})))
            holds[name] = next(node.holds for node in nodes if node.id == name)

        async with opened(postgres_url) as store:
            await store.migrate()
        lock = "hashtextextended('nanoloop node nanoloop', 0)"
        await server.execute(f"SELECT pg_advisory_lock({lock})")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for name in "ab":
                    group.start_soon(want, name)
                while await server.fetchval(WAITING) < 2:
                    await anyio.lowlevel.checkpoint()
                assert holds == {}
                await server.execute(f"SELECT pg_advisory_unlock({lock})")
        assert sorted(map(len, holds.values())) == [0, 1]


class TestFormats:
    async def test_migrating_says_what_it_did(self, postgres_url):
        async with opened(postgres_url) as store:
            assert await store.migrate() == f"the tables were created, format {len(STEPS)}"
            assert await store.migrate() == f"the tables already have format {len(STEPS)}"

    async def test_an_older_format_is_migrated_with_all_that_is_in_it(
        self, postgres_url, monkeypatch
    ):
        async with opened(postgres_url) as store:
            await said(store, "one")
        newer = (*STEPS, "CREATE VIEW {schema}.more AS SELECT id FROM {schema}.session")
        monkeypatch.setattr(postgres_server, "STEPS", newer)
        async with opened(postgres_url) as store:
            assert await store.migrate() == f"format {len(STEPS)} → {len(newer)}"
            assert (await store.get("s")).entry_count == 1

    async def test_what_format_1_kept_is_there_and_goes_on(self, postgres_url, server):
        await server.execute(f"CREATE SCHEMA nanoloop; {STEPS[0]}".format(schema="nanoloop"))
        await server.execute(FORMAT_1)
        async with opened(postgres_url) as store:
            session = await store.load("s")
            assert [m["content"] for m in session.messages] == ["one", "nul\0"]
            session.add_message("user", "two")
            await store.save(session)
            call, two = await store.entries("s", after=2)
        assert (call.content, two.content["text"]) == ({"far": float("inf")}, "two")
        said = await server.fetch("SELECT text FROM nanoloop.messages ORDER BY seq")
        assert [text for (text,) in said] == ["one", "nul?", "two"]

    async def test_a_newer_format_is_refused(self, store, server):
        await store.migrate()
        await server.execute("UPDATE nanoloop.format SET version = 99")
        for call in (store.create, store.migrate):
            with pytest.raises(StoreError, match=r"format 99.*upgrade nanoloop"):
                await call()

    async def test_many_that_begin_at_once_make_the_tables_once(self, postgres_url):
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(_begin, postgres_url, f"s{number}")
        async with opened(postgres_url) as store:
            assert len([info async for info in store.list()]) == 8

    async def test_a_step_that_fails_leaves_the_format_as_it_was(self, postgres_url, monkeypatch):
        async with opened(postgres_url) as store:
            await store.migrate()
            broken = (*STEPS, "CREATE TABLE {schema}.half (); SELECT 1 / 0")
            monkeypatch.setattr(postgres_server, "STEPS", broken)
            with pytest.raises(StoreError, match="DivisionByZeroError"):
                await store.migrate()
            monkeypatch.setattr(postgres_server, "STEPS", STEPS)
            assert "already" in await store.migrate()

    async def test_two_schemas_are_two_stores(self, postgres_url):
        async with opened(postgres_url) as one, opened(postgres_url, schema="other") as other:
            await said(one, "here")
            assert [info async for info in other.list()] == []

    @pytest.mark.parametrize("schema", ['x"; drop', "X", "", "1a", "a" * 64, "a.b"])
    def test_a_schema_that_is_no_plain_name_is_refused(self, schema):
        with pytest.raises(SettingsError, match="schema is"):
            PostgresStore("postgresql://nowhere/", schema=schema)

    async def test_a_database_that_has_no_place_for_every_text_is_refused(
        self, postgres_url, server
    ):
        await server.execute("DROP DATABASE IF EXISTS narrow")
        await server.execute("CREATE DATABASE narrow TEMPLATE template0 ENCODING 'SQL_ASCII'")
        async with opened(postgres_url.rpartition("/")[0] + "/narrow") as store:
            with pytest.raises(StoreError, match=r"SQL_ASCII.*createdb --encoding UTF8"):
                await store.create(id="s")


def test_without_its_library_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("nanoloop.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(SettingsError, match=r"the extra .postgres.*pip install"):
        import_module("nanoloop.stores.postgres")


async def _begin(url, name):
    async with opened(url) as store:
        await store.create(id=name)


class TestConnections:
    async def test_there_are_never_more_than_the_pool_has(self, postgres_url, server):
        async with opened(postgres_url, pool_size=3) as store:
            await said(store, "one")
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(store.load, "s")
            ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            assert await server.fetchval(ours) - 1 <= 3

    async def test_closing_leaves_none(self, postgres_url, server):
        async with opened(postgres_url) as store:
            await said(store, "one")
        ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        with anyio.fail_after(5):
            while await server.fetchval(ours) > 1:
                await anyio.lowlevel.checkpoint()

    async def test_it_can_be_used_from_the_loops_of_several_threads(self, store):
        async def write(name):
            await said(store, "from a thread", name=name)

        for name in ("one", "two"):
            await run_sync(anyio.run, write, name)
        await said(store, "from here")
        assert len([info async for info in store.list()]) == 3

    async def test_one_call_is_one_statement(self, store, monkeypatch):
        session = await said(store, "one")
        asked = []
        pool = await store.database._connections._here()
        pool._idle[0].add_query_logger(lambda record: asked.append(record.query))
        session.add_message("user", "two")
        session.set("k", "v")
        await store.save(session)
        await store.load("s")
        await anyio.lowlevel.checkpoint()  # it is told a moment later
        assert len(asked) == 2
