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
_STANDS = "SELECT version FROM {schema}.format"
_STOOD = "UPDATE {schema}.format SET version = $1"


async def migrate(connection: Connection, schema: str) -> int:
    """Have the tables in this version's format; returns which one they had, 0 for none.

    Raises `StoreError` where they are newer.
    """
    _check_encoding(connection)
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")
        # Until the end of the transaction: who waits here finds it done.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('nanoloop ' || $1, 0))"
        await connection.execute(lock, schema)
        stood = await standing(connection, schema)
        if stood < len(STEPS):
            await _take_steps(connection, schema, stood)
    return stood


async def _take_steps(connection: Connection, schema: str, stood: int) -> None:
    # Asked first: a schema that an administrator made may be used without the right to make one.
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", schema):
        await connection.execute(f"CREATE SCHEMA {schema}")
    if stood == 0:
        await connection.execute(_FORMAT.format(schema=schema))
    for step in STEPS[stood:]:
        await connection.execute(step.format(schema=schema))
    await connection.execute(_STOOD.format(schema=schema), len(STEPS))


async def standing(connection: Connection, schema: str) -> int:
    """Which format the tables have, 0 for none; raises `StoreError` where it is a newer one."""
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{schema}.format"):
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
