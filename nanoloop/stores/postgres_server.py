"""Connections to a PostgreSQL server, and the tables for sessions."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from socket import gaierror
from ssl import SSLError
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from nanoloop.errors import SettingsError, StoreError, how_to_install
from nanoloop.stores.database import HEARD_SECONDS
from nanoloop.stores.snapshot import chat_of, noted_in, owed_in

if TYPE_CHECKING:
    from asyncpg import Connection, Record


try:
    from asyncpg import (
        Connection,
        InterfaceError,
        InternalClientError,
        PostgresError,
        connect,
    )
except ModuleNotFoundError as missing:  # reported here, at the only import
    raise SettingsError(
        f"sessions in PostgreSQL need the asyncpg package: {how_to_install('postgres')}"
    ) from missing

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""The pauses between attempts; a server that restarts is usually back before they end."""
_CLOSE_SECONDS = 2.0
_OURS = """
SELECT set_config('statement_timeout', $1, false), set_config(
    'application_name', coalesce(nullif(current_setting('application_name'), ''), 'nanoloop'), false
)
"""


class Connections:
    """A limited number of connections for each event loop, because loops can't share them."""

    def __init__(
        self,
        url: str,
        *,
        size: int,
        timeout_seconds: float,
        prepare: Callable[[Connection], Awaitable[object]],
    ) -> None:
        self._url = url
        self._size = size
        self._timeout = timeout_seconds
        self._prepare = prepare
        self._pools: dict[AbstractEventLoop, _Pool] = {}

    async def run(self, work: Work[T]) -> T:
        """Run this work with a connection, and retry even if it may already have been done.

        Raise `StoreError`, after the timeout at the latest.
        """
        try:
            with anyio.fail_after(self._timeout):
                return await self._tried(work)
        except FAILURES as error:
            raise failure(error, self._url, self._timeout) from error

    async def _tried(self, work: Work[T]) -> T:
        for pause in PAUSES_SECONDS:
            try:
                return await self._once(work)
            except FAILURES as error:
                if not is_passing(error):
                    raise
            await anyio.sleep(pause)
        return await self._once(work)

    async def _once(self, work: Work[T]) -> T:
        async with (await self._here()).one() as connection:
            return await work(connection)

    async def alone(self, work: Work[T]) -> T:
        """Run this work once, without a timeout, on a connection that is not prepared."""
        try:
            connection = await self._opened()
            try:
                return await work(connection)
            finally:
                connection.terminate()
        except FAILURES as error:
            raise failure(error, self._url, self._timeout) from error

    async def _here(self) -> _Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools = {old: pool for old, pool in self._pools.items() if not old.is_closed()}
            pool = self._pools[loop] = _Pool(self._connect, self._size)
            await anext(pool.life)
        return self._pools[loop]

    async def _connect(self) -> Connection:
        connection = await self._opened()
        try:
            # The server needs the limit too, so that an abandoned statement can't wait forever for
            # a lock.
            await connection.execute(_OURS, f"{round(self._timeout * 1000)}ms")
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _opened(self) -> Connection:
        try:
            return await connect(self._url, timeout=self._timeout)
        except ValueError as error:
            # Not `from error`, because its text may contain part of the password.
            raise failure(error, self._url, self._timeout) from None

    async def close(self) -> None:
        """Close all connections, each in its own event loop."""
        here = asyncio.get_running_loop()
        while self._pools:
            loop, pool = self._pools.popitem()
            if loop is here:
                await pool.life.aclose()
            elif loop.is_running():
                loop.call_soon_threadsafe(pool.end)


class _Pool:
    """The connections of one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._room = anyio.Semaphore(size)
        self._idle: list[Connection] = []
        self._is_closed = False
        self.life = self._live()

    async def _live(self) -> AsyncGenerator[None]:
        """Close the pool when its event loop closes, even if the store stays open."""
        try:
            yield
        finally:
            await self._close()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Yield a connection for exclusive use; after an error, it is not used again."""
        async with self._room:
            connection = self._kept() or await self._connect()
            try:
                yield connection
            except BaseException:
                connection.terminate()
                raise
            self._idle.append(connection)
            if self._is_closed:
                self.end()

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _close(self) -> None:
        with anyio.move_on_after(_CLOSE_SECONDS):
            while (connection := self._kept()) is not None:
                await connection.close()
        self.end()

    def end(self) -> None:
        """Drop the idle connections without closing them properly."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().terminate()


_SETTING = "store.url (NANOLOOP_STORE__URL)"
_POOLER = (
    "the pooler in front of {where} breaks prepared statements: use session pooling, or set "
    "max_prepared_statements (PgBouncer 1.21 or newer)"
)
_STATES: Mapping[str, str] = {
    "08": "the connection to {where} was lost: check that the server is running, and try again",
    "26": _POOLER,
    "42P05": _POOLER,
    "28": "{where} refused the user or the password: correct them in {setting}",
    "3D": "{where} does not exist on that server: create it with createdb, or correct {setting}",
    "3F": "{where} has no such schema: run `nanoloop store migrate`",
    "42P01": "tables are missing in {where}: run `nanoloop store migrate`",
    "42501": "{where} does not allow this user to do that: ask an administrator to create the "
    "schema (CREATE SCHEMA nanoloop AUTHORIZATION …)",
    "25006": "{where} is read-only: if it is a standby, set {setting} to its primary",
    "40": "{where} was busy with the same rows: try again",
    "53100": "the disk of {where} is full: free some space there; nothing was half-written",
    "53200": "{where} is out of memory: free some memory there; nothing was half-written",
    "53300": "{where} accepts no more connections: raise its max_connections, or lower pool_size",
    "53": "{where} does not have enough resources: see its log; nothing was half-written",
    "57014": "{where} took too long: check its load, or raise timeout_seconds",
    "57P": "{where} is being shut down or started: try again in a moment",
    "54": "{where} can't store something this large: nothing was written",
}
"""Error messages by SQLSTATE, or by its first characters."""
_KINDS: Mapping[type[Exception], str] = {
    TimeoutError: "{where} did not answer within {seconds} s: check that it is running and "
    "reachable",
    gaierror: "the host of {where} is unknown: correct it in {setting}",
    SSLError: "no secure connection to {where}: check its certificate, and sslmode in {setting}",
    ValueError: "{setting} is not a complete URL: write "
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters of the "
    "password as %XX",
}
_NOBODY = "nothing answers at {where}: start PostgreSQL there, or correct {setting}"
_PASSING = ("08", "40", "53300", "57P")
"""The SQLSTATEs that a new connection or a short wait may fix."""

FAILURES = (PostgresError, InterfaceError, InternalClientError, OSError)
"""The errors that the server or the connection may raise.

They include an internal error, in case the server closes a connection that is in use.
"""


def is_passing(error: Exception) -> bool:
    """Return True if another attempt may succeed."""
    if isinstance(error, PostgresError):
        return _state(error).startswith(_PASSING)
    return not isinstance(error, (ValueError, gaierror, SSLError))


def failure(error: Exception, url: str, timeout_seconds: float) -> StoreError:
    """Convert one of `FAILURES` to a `StoreError` with a sentence."""
    told = _of_the_server(error) if isinstance(error, PostgresError) else _of_the_way(error)
    return StoreError(
        told.format(where=shown(url), seconds=f"{timeout_seconds:g}", setting=_SETTING)
    )


def _of_the_way(error: Exception) -> str:
    return next((told for kind, told in _KINDS.items() if isinstance(error, kind)), _NOBODY)


def _of_the_server(error: PostgresError) -> str:
    state = _state(error)
    for length in (5, 3, 2):
        if state[:length] in _STATES:
            return _STATES[state[:length]]
    return f"{{where}} refused this ({type(error).__name__}, {state or 'no code'}): see its log"


def _state(error: PostgresError) -> str:
    return error.sqlstate or ""


# Strict: if a password contained an unescaped # or ?, part of it would pass for the host.
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?"
    r"(?P<where>[^@/?#]*(?:/[^@?#]*)?)(?:\?[^@]*)?"
)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def shown(url: str) -> str:
    """Return the URL without password and options, or just "PostgreSQL" if it is malformed."""
    found = _URL.fullmatch(url)
    if found is None:
        return "PostgreSQL"
    scheme, user, where = found.group("scheme", "user", "where")
    return f"{scheme}://{user}@{where}" if user else f"{scheme}://{where}"


def schema_name(name: str) -> str:
    """Return the name; raise `SettingsError` if using it in a statement is not safe."""
    if not _SCHEMA.fullmatch(name):
        raise SettingsError(
            f"schema is {name!r}: use a-z, 0-9 and _ (a letter or _ first, at most 63 characters)"
        )
    return name


_ENCODING = "UTF8"
_FORMAT = """
CREATE TABLE {schema}.format (version integer NOT NULL);
COMMENT ON TABLE {schema}.format IS 'One row: which format these tables have';
INSERT INTO {schema}.format VALUES (0);
"""
# Not with to_regclass, which may answer from a cache older than the lock.
_HAS_FORMAT = """
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'format')
"""
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
_STANDS = "SELECT version FROM {schema}.format"
_STOOD = "UPDATE {schema}.format SET version = $1"


async def prepare(connection: Connection, schema: str) -> None:
    """Upgrade the tables to this version's format; raise `StoreError` if theirs is newer."""
    if await _standing(connection, schema) < len(STEPS):
        await migrate(connection, schema)


async def migrate(connection: Connection, schema: str) -> str:
    """Upgrade the tables and return what was done; same errors as `prepare`."""
    _check_encoding(connection)
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        # Held until the transaction ends, so that others who wait here find the work done.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('nanoloop ' || $1, 0))"
        await connection.execute(lock, schema)
        stood = await _standing(connection, schema)
        if stood < len(STEPS):
            await _take_steps(connection, schema, stood)
    if stood == len(STEPS):
        return f"the tables already have format {stood}"
    return (
        f"format {stood} → {len(STEPS)}"
        if stood
        else f"the tables were created, format {len(STEPS)}"
    )


async def _take_steps(connection: Connection, schema: str, stood: int) -> None:
    # Checked first, because a schema made by an administrator can be used without the right to
    # create one.
    if not await connection.fetchval(_HAS_SCHEMA, schema):
        await connection.execute(f"CREATE SCHEMA {schema}")
    if stood == 0:
        await connection.execute(_FORMAT.format(schema=schema))
    for step in STEPS[stood:]:
        await connection.execute(step.format(schema=schema))
        if step is _OWING:
            await _take_over(connection, schema)
            without = _WITHOUT_FORMER + _VIEWS.replace("MESSAGE_ID", _MESSAGE_ID)
            await connection.execute(without.format(schema=schema))
    await connection.execute(_STOOD.format(schema=schema), len(STEPS))


_NEWEST = "SELECT max(updated_at) FROM {schema}.session"
_BEFORE = """
SELECT number, id, head, updated_at, about.value AS about, noted.value AS noted,
    waiting.value AS waiting, ARRAY(
    SELECT message_id FROM {schema}.entry
    WHERE entry.session = number AND entry.heard > session.heard - 128 AND updated_at >= $2
) AS heard
FROM {schema}.session
LEFT JOIN {schema}.section AS about ON about.session = number AND about.name = 'about'
LEFT JOIN {schema}.section AS noted ON noted.session = number AND noted.name = 'heard'
LEFT JOIN {schema}.section AS waiting ON waiting.session = number AND waiting.name = 'waiting'
WHERE number > $1 ORDER BY number LIMIT 500
"""
_NOTE_OWED = """
UPDATE {schema}.session SET owes = new.owes
FROM unnest($1::bigint[], $2::smallint[]) AS new (number, owes)
WHERE session.number = new.number
"""
_NOTE_HEARD = """
INSERT INTO {schema}.heard (digest, chat, id, heard_at)
SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::timestamptz[])
ON CONFLICT DO NOTHING
"""


async def _take_over(connection: Connection, schema: str) -> None:
    """Add pending work to the index, and the sessions' recorded messages to their chats."""
    ask, owe, hear = (each.format(schema=schema) for each in (_BEFORE, _NOTE_OWED, _NOTE_HEARD))
    newest = await connection.fetchval(_NEWEST.format(schema=schema))
    after, since = 0, newest and newest - timedelta(seconds=HEARD_SECONDS)
    while page := await connection.fetch(ask, after, since):
        found = {row["number"]: owed_in(row["head"], from_json) for row in page}
        owing = {number: owed for number, owed in found.items() if owed}
        await connection.execute(owe, [*owing], [*owing.values()])
        heard = [each for row in page if row["updated_at"] >= since for each in _heard_in(row)]
        await connection.execute(hear, *([each[n] for each in heard] for n in range(4)))
        after = page[-1]["number"]


def _heard_in(row: Record) -> Iterator[tuple[bytes, str, str, datetime]]:
    """Yield rows for the messages recorded in a session of an older format."""
    chat = plain(chat_of(unplain(row["id"]), row["about"], from_json))
    noted = [each for name in ("noted", "waiting") for each in noted_in(row[name], from_json)]
    for message_id in dict.fromkeys((*row["heard"], *map(plain, noted))):
        yield digest_of(chat, message_id), chat, message_id, row["updated_at"]


def digest_of(chat: str, message_id: str) -> bytes:
    """Return a digest of two plain texts that fits into an index, however long they are."""
    return sha256(f"{len(chat)}:{chat}{message_id}".encode()).digest()


def is_plain(text: str) -> bool:
    """Return True if PostgreSQL accepts the text: no NUL and no half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_QUOTE = '"'


def plain(text: str) -> str:
    """Return any text in a form that PostgreSQL accepts: unchanged, or quoted with escapes."""
    is_itself = is_plain(text) and not text.startswith(_QUOTE)
    return text if is_itself else json.dumps(text)


def unplain(text: str) -> str:
    """Return the original text."""
    return json.loads(text) if text.startswith(_QUOTE) else text


def from_json(text: str) -> Any:
    """Decode a stored value; no stored value is a plain string."""
    value = json.loads(text)
    return json.loads(value) if isinstance(value, str) else value


async def _standing(connection: Connection, schema: str) -> int:
    """Return the tables' format, or 0 if there are no tables."""
    if not await connection.fetchval(_HAS_FORMAT, schema):
        return 0
    stood = int(await connection.fetchval(_STANDS.format(schema=schema)))
    if stood > len(STEPS):
        raise StoreError(
            f"the tables in schema {schema} have format {stood}, but this version of nanoloop "
            f"supports {len(STEPS)}: upgrade nanoloop, or choose another database"
        )
    return stood


def _check_encoding(connection: Connection) -> None:
    encoding = connection.get_settings().server_encoding
    if encoding != _ENCODING:
        raise StoreError(
            f"the database has the encoding {encoding}, which can't store every character: create "
            "one with `createdb --encoding UTF8 --template template0 NAME`"
        )


_FIRST = """
CREATE TABLE {schema}.session (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    rev bigint NOT NULL,
    token uuid NOT NULL,
    size bigint NOT NULL,
    heard bigint NOT NULL,
    window_start bigint NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    head jsonb NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.session IS 'Sessions: the only row of one that each commit rewrites';
COMMENT ON COLUMN {schema}.session.heard IS 'How many of its entries have a message_id';
COMMENT ON COLUMN {schema}.session.token IS 'By which a writer knows its own last commit';
CREATE INDEX session_expires_at ON {schema}.session (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {schema}.section (
    session bigint NOT NULL REFERENCES {schema}.session ON DELETE CASCADE,
    name text NOT NULL,
    value jsonb NOT NULL,
    PRIMARY KEY (session, name)
) WITH (fillfactor = 70);
COMMENT ON TABLE {schema}.section IS 'Parts of a session that change seldom: about, summary, state';

CREATE TABLE {schema}.entry (
    session bigint NOT NULL REFERENCES {schema}.session ON DELETE CASCADE,
    seq bigint NOT NULL,
    heard bigint,
    message_id text,
    content jsonb NOT NULL,
    PRIMARY KEY (session, seq)
);
COMMENT ON TABLE {schema}.entry IS 'Messages, tool calls and results; never rewritten but to erase';
COMMENT ON COLUMN {schema}.entry.heard IS 'Of those with a message_id the first, second, third ...';
CREATE UNIQUE INDEX entry_heard ON {schema}.entry (session, heard) WHERE heard IS NOT NULL;

CREATE TABLE {schema}.binding (
    digest bytea PRIMARY KEY,
    key text NOT NULL,
    session text NOT NULL
);
COMMENT ON TABLE {schema}.binding IS 'Which session a chat has now; the digest is of a key';
"""

_VIEWS = """
CREATE VIEW {schema}.sessions AS
SELECT session.id,
    about.value ->> 'key' AS key,
    about.value ->> 'title' AS title,
    about.value ->> 'agent' AS agent,
    about.value -> 'metadata' AS metadata,
    (about.value ->> 'created_at')::timestamptz AS created_at,
    session.updated_at,
    session.expires_at,
    coalesce((asked ->> 'count')::bigint, 0) AS entries,
    coalesce((asked ->> 'turns')::bigint, 0) AS turns,
    coalesce((asked ->> 'awaiting')::bigint, 0) > 0 AS is_awaiting,
    summary.value ->> 'value' AS summary,
    session.size AS bytes
FROM (SELECT *, {schema}.readable(head) AS asked FROM {schema}.session) AS session
LEFT JOIN (
    SELECT session, {schema}.readable(value) AS value FROM {schema}.section WHERE name = 'about'
) AS about ON about.session = number
LEFT JOIN (
    SELECT session, {schema}.readable(value) AS value FROM {schema}.section WHERE name = 'summary'
) AS summary ON summary.session = number;
COMMENT ON VIEW {schema}.sessions IS 'One row a session; sealed words are null';

CREATE VIEW {schema}.messages AS
SELECT session.id AS session,
    seq,
    (said ->> 'timestamp')::timestamptz AS at,
    said -> 'content' ->> 'role' AS role,
    said -> 'content' ->> 'text' AS text,
    MESSAGE_ID AS message_id,
    seq >= coalesce((asked ->> 'start')::bigint, 1) AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(coalesce(asked -> 'hidden', '[]')) AS pair
        WHERE seq BETWEEN (pair ->> 0)::bigint AND (pair ->> 1)::bigint
    ) AS is_visible
FROM (SELECT *, {schema}.readable(content) AS said FROM {schema}.entry) AS entry
JOIN (SELECT *, {schema}.readable(head) AS asked FROM {schema}.session) AS session
    ON session.number = entry.session
WHERE said ->> 'type' = 'message';
COMMENT ON VIEW {schema}.messages IS 'What was said; is_visible is false after a reset or an undo';

CREATE VIEW {schema}.usage AS
SELECT session.id AS session,
    ((said ->> 'timestamp')::timestamptz AT TIME ZONE 'UTC')::date AS day,
    count(*) FILTER (WHERE said -> 'content' ->> 'role' = 'user') AS from_users,
    count(*) FILTER (WHERE said -> 'content' ->> 'role' = 'assistant') AS answers,
    count(*) FILTER (WHERE said ->> 'type' = 'tool_call') AS tool_calls,
    count(*) FILTER (WHERE said -> 'content' ->> 'success' = 'false') AS failed_tool_calls,
    coalesce(sum(length(said -> 'content' ->> 'text')), 0) AS characters
FROM (SELECT *, {schema}.readable(content) AS said FROM {schema}.entry) AS entry
JOIN {schema}.session ON session.number = entry.session
GROUP BY 1, 2;
COMMENT ON VIEW {schema}.usage IS 'What was said and done, by session and day (UTC)';
"""

_AS_WRITTEN = r"""
DROP VIEW IF EXISTS {schema}.sessions, {schema}.messages, {schema}.usage;

CREATE FUNCTION {schema}.written(value jsonb) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(value) = 'object' AND value ? '_exact' THEN
        RETURN (value ->> '_exact')::json;
    END IF;
    RETURN value::json;
EXCEPTION WHEN invalid_text_representation THEN -- Infinity and the like
    RETURN to_json(value ->> '_exact');
END $$;
ALTER TABLE {schema}.session DROP COLUMN token,
    ALTER COLUMN head TYPE json USING {schema}.written(head);
ALTER TABLE {schema}.section ALTER COLUMN value TYPE json USING {schema}.written(value);
ALTER TABLE {schema}.entry ALTER COLUMN content TYPE json USING {schema}.written(content);
DROP FUNCTION {schema}.written;

CREATE FUNCTION {schema}.readable(value json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN regexp_replace(
        value::text, '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{{2}})', '\1?', 'g'
    )::jsonb;
END $$;
COMMENT ON FUNCTION {schema}.readable IS
    'A value to be asked: ? for NUL and for halves of characters, which jsonb has no place for';
"""
"""Store values as `json`, which keeps their text as written, and store nothing twice."""

_OWING = """
-- An older version that is connected then fails to write, so it cannot add sessions that the index
-- would miss.
ALTER TABLE {schema}.session RENAME COLUMN window_start TO window_seq;
ALTER TABLE {schema}.session ADD COLUMN owes smallint NOT NULL DEFAULT 0,
    ADD COLUMN node text NOT NULL DEFAULT '';
COMMENT ON COLUMN {schema}.session.owes IS '1: something to its chat, else 2: a summary, else 0';
COMMENT ON COLUMN {schema}.session.node IS 'The process that answers there, or did so last';
CREATE INDEX session_owes ON {schema}.session (owes) WHERE owes > 0;

CREATE TABLE {schema}.heard (
    digest bytea PRIMARY KEY,
    chat text NOT NULL,
    id text NOT NULL,
    heard_at timestamptz NOT NULL
);
COMMENT ON TABLE {schema}.heard IS 'Messages of the last 72 hours; the digest is of chat and id';
CREATE INDEX heard_by_time ON {schema}.heard (heard_at);

CREATE TABLE {schema}.node (
    id text PRIMARY KEY,
    place text NOT NULL,
    pid bigint NOT NULL,
    holds text[] NOT NULL,
    seen timestamptz NOT NULL
);
COMMENT ON TABLE {schema}.node IS 'Which processes live: each says so every few seconds';
COMMENT ON COLUMN {schema}.node.holds IS 'The accounts at chat platforms that it alone may use';

CREATE FUNCTION {schema}.beat(
    mine text, its_place text, its_pid bigint, wants text[], lives double precision,
    forgotten_after double precision
) RETURNS SETOF {schema}.node LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('nanoloop node {schema}', 0));
    now := clock_timestamp();
    DELETE FROM {schema}.node AS old
        WHERE abs(extract(epoch FROM now - old.seen)) >= forgotten_after;
    INSERT INTO {schema}.node AS own VALUES (
        mine, its_place, its_pid,
        ARRAY(
            SELECT wanted FROM unnest(wants) AS wanted
            WHERE NOT EXISTS (
                SELECT FROM {schema}.node AS other
                WHERE other.id <> mine AND wanted = ANY (other.holds)
                    AND abs(extract(epoch FROM now - other.seen)) < lives
            )
        ),
        now
    ) ON CONFLICT (id) DO UPDATE SET place = excluded.place, pid = excluded.pid,
        holds = excluded.holds, seen = excluded.seen;
    RETURN QUERY SELECT * FROM {schema}.node;
END $$;
COMMENT ON FUNCTION {schema}.beat IS
    'Note that a process lives; of two that want the same account at once one gets it';
"""

_WITHOUT_FORMER = """
DELETE FROM {schema}.section WHERE name = 'heard';
DROP VIEW {schema}.sessions, {schema}.messages, {schema}.usage;
ALTER TABLE {schema}.session DROP COLUMN heard;
ALTER TABLE {schema}.entry DROP COLUMN heard, DROP COLUMN message_id;
"""
"""Drop the older format's message records, which the chats' own records replace."""

_MESSAGE_ID = "said -> 'metadata' ->> 'message_id'"

HEARD_KEY = "heard_pkey"
"""The constraint that fails if a message was recorded before."""

STEPS = (_FIRST, _AS_WRITTEN + _VIEWS.replace("MESSAGE_ID", "message_id"), _OWING)
"""Each step is run once, in order; to change the tables, add a step."""
