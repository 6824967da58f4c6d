"""Making the schema, and bringing an older one up to date: one process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoloop.errors import StoreError
from nanoloop.stores.postgres.schema import STEPS

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
