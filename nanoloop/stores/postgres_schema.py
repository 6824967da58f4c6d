"""The tables, and the views for people's own queries; one process at a time makes or renews them.

HOT: a commit changes no indexed column of `session`, and finds room in the same page, so that it
leaves nothing for the vacuum to collect. (With `sliding`, `expires_at` is an exception.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoloop.errors import StoreError

if TYPE_CHECKING:
    from asyncpg import Connection


_ENCODING = "UTF8"
_FORMAT = """
CREATE TABLE {schema}.format (version integer NOT NULL);
COMMENT ON TABLE {schema}.format IS 'One row: which format these tables have';
INSERT INTO {schema}.format VALUES (0);
"""
# Not by to_regclass: that may answer from a cache, as it was before we waited for the lock.
_HAS_FORMAT = """
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'format')
"""
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
_STANDS = "SELECT version FROM {schema}.format"
_STOOD = "UPDATE {schema}.format SET version = $1"


async def prepare(connection: Connection, schema: str) -> None:
    """Have the tables as this version knows them; raises `StoreError` where they are newer."""
    if await _standing(connection, schema) < len(STEPS):
        await migrate(connection, schema)


async def migrate(connection: Connection, schema: str) -> str:
    """Bring the tables up to date, and say what was done; raises as `prepare`."""
    _check_encoding(connection)
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        # Until the end of the transaction: who waits here finds it done.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('nanoloop ' || $1, 0))"
        await connection.execute(lock, schema)
        stood = await _standing(connection, schema)
        if stood < len(STEPS):
            await _take_steps(connection, schema, stood)
    if stood == len(STEPS):
        return f"the tables have format {stood} already"
    return (
        f"format {stood} → {len(STEPS)}" if stood else f"the tables were made, format {len(STEPS)}"
    )


async def _take_steps(connection: Connection, schema: str, stood: int) -> None:
    # Asked first: a schema that an administrator made may be used without the right to make one.
    if not await connection.fetchval(_HAS_SCHEMA, schema):
        await connection.execute(f"CREATE SCHEMA {schema}")
    if stood == 0:
        await connection.execute(_FORMAT.format(schema=schema))
    for step in STEPS[stood:]:
        await connection.execute(step.format(schema=schema))
    await connection.execute(_STOOD.format(schema=schema), len(STEPS))


async def _standing(connection: Connection, schema: str) -> int:
    """Which format the tables have, 0 for none."""
    if not await connection.fetchval(_HAS_FORMAT, schema):
        return 0
    stood = int(await connection.fetchval(_STANDS.format(schema=schema)))
    if stood > len(STEPS):
        raise StoreError(
            f"the tables in schema {schema} have format {stood}, and this version of nanoloop "
            f"knows {len(STEPS)}: upgrade nanoloop, or choose another database"
        )
    return stood


def _check_encoding(connection: Connection) -> None:
    encoding = connection.get_settings().server_encoding
    if encoding != _ENCODING:
        raise StoreError(
            f"the database has the encoding {encoding}, which has no place for every text: make "
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
    message_id,
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
"""Values as `json`, in which they stay as they were written, and not in part a second time."""

STEPS = (_FIRST, _AS_WRITTEN)
"""Each is run once, in its own order; a change of the tables is a new one."""
