"""Sessions in PostgreSQL: each call is one statement, but for the rare ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from anyio.to_thread import run_sync

from nanoloop.errors import SessionDamaged
from nanoloop.events import Announce, silent
from nanoloop.protocols import Seal
from nanoloop.session.changes import ABOUT
from nanoloop.session.entry import Entry, utc_now
from nanoloop.stores.database import Commit, Stored
from nanoloop.stores.postgres import rows
from nanoloop.stores.postgres.address import schema_name
from nanoloop.stores.postgres.connections import Connections
from nanoloop.stores.postgres.exact import plain, unpacked, unplain
from nanoloop.stores.postgres.migration import migrate, prepare
from nanoloop.stores.postgres.statements import Statements
from nanoloop.stores.sense import head_of
from nanoloop.stores.store import DatabaseStore

if TYPE_CHECKING:
    from asyncpg import Connection, Record

Arguments = tuple[Any, ...]
_PAGE = 500
_EXPIRED_PAGE = 100
_NONE = 1 << 62
"""A number above all: entries from there on are none."""


class _Tables:
    """The tables of one schema."""

    def __init__(self, url: str, *, schema: str, pool_size: int, timeout_seconds: float) -> None:
        self._schema = schema
        self._sql = Statements.of(schema)
        self._connections = Connections(
            url,
            size=pool_size,
            timeout_seconds=timeout_seconds,
            prepare=lambda server: prepare(server, schema),
        )

    async def migrate(self) -> str:
        return await self._connections.alone(lambda server: migrate(server, self._schema))

    # Writing

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        arguments = rows.arguments(commit, uuid4())

        async def work(server: Connection) -> bool:
            if over is None:
                return await self._insert(server, arguments)
            async with server.transaction():
                await server.execute(self._sql.delete_over, arguments[0], over)
                return await self._insert(server, arguments)

        return await self._connections.run(work)

    async def _insert(self, server: Connection, arguments: Arguments) -> bool:
        if await server.fetchval(self._sql.insert, *arguments) is not None:
            return True
        stands = await self._stands(server, arguments, now=0)
        return stands is not None and bool(stands["is_mine"])

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        arguments = rows.arguments(commit, uuid4())

        async def work(server: Connection) -> int | None:
            if not commit.rewritten:
                return await self._commit(server, arguments, now)
            async with server.transaction():
                stood = await self._commit(server, arguments, now)
                if stood == commit.revision:
                    await server.execute(self._sql.rewrite, *rows.rewritten(commit))
                return stood

        return await self._connections.run(work)

    async def _commit(self, server: Connection, arguments: Arguments, now: int) -> int | None:
        revision = int(arguments[1])
        moment = rows.moment(now)
        if await server.fetchval(self._sql.commit, *arguments, moment) is not None:
            return revision
        stands = await self._stands(server, arguments, now=now)
        if stands is None:
            return None
        # Ours: an earlier try was written, and its answer got lost.
        return revision if stands["is_mine"] else int(stands["rev"])

    async def _stands(self, server: Connection, arguments: Arguments, *, now: int) -> Record | None:
        name, _, token, *_ = arguments
        return await server.fetchrow(self._sql.stands, name, token, rows.moment(now))

    async def delete(self, session_id: str) -> None:
        await self._connections.run(lambda s: s.execute(self._sql.delete, plain(session_id)))

    async def delete_expired(self, *, now: int) -> int:
        total, count = 0, _EXPIRED_PAGE
        arguments = (self._sql.delete_expired, rows.moment(now), _EXPIRED_PAGE)
        while count == _EXPIRED_PAGE:
            count = await self._connections.run(lambda s: s.fetchval(*arguments))
            total += count
        return total

    # Reading

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        text = await self._connections.run(
            lambda s: s.fetchval(self._sql.head, plain(session_id)),
        )
        return None if text is None else head_of(session_id, text, unpacked)

    async def window(self, session_id: str) -> Stored | None:
        row = await self._connections.run(
            lambda s: s.fetchrow(self._sql.window, plain(session_id), None)
        )
        return None if row is None else rows.stored(session_id, row)

    async def whole(self, session_id: str) -> Stored | None:
        name = plain(session_id)

        async def work(server: Connection) -> tuple[Any, Any]:
            # One view of both; and in rows, for an array has its limit.
            async with server.transaction(isolation="repeatable_read", readonly=True):
                row = await server.fetchrow(self._sql.window, name, _NONE)
                return row, await server.fetch(self._sql.between, name, 0, _NONE, None)

        row, entries = await self._connections.run(work)
        return None if row is None else await run_sync(rows.stored, session_id, row, entries)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        last = _NONE if upto is None else upto
        bounds = (max(-1, min(bound, _NONE)) for bound in (after, last))
        arguments = (plain(session_id), *bounds, limit)
        found = await self._connections.run(lambda s: s.fetch(self._sql.between, *arguments))
        return rows.entries_of(session_id, found)

    async def names(self) -> AsyncIterator[str]:
        for row in await self._connections.run(lambda s: s.fetch(self._sql.names)):
            yield unplain(row["id"])

    async def glances(self, *, now: int) -> AsyncIterator[Stored | SessionDamaged]:
        # All of them first: the order moves with every commit, and none may slip through.
        newest = await self._connections.run(lambda s: s.fetch(self._sql.newest, rows.moment(now)))
        numbers = [row["number"] for row in newest]
        for start in range(0, len(numbers), _PAGE):
            arguments = (rows.moment(now), numbers[start : start + _PAGE], ABOUT)
            for row in await self._connections.run(
                lambda s: s.fetch(self._sql.glances, *arguments)  # noqa: B023 - awaited here
            ):
                yield rows.glance(row)

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        arguments = (_digest(key), plain(key), plain(session_id))
        await self._connections.run(lambda s: s.execute(self._sql.bind, *arguments))

    async def bound(self, key: str) -> str | None:
        found = await self._connections.run(lambda s: s.fetchval(self._sql.bound, _digest(key)))
        return None if found is None else unplain(found)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        after = b""
        while True:
            page = await self._connections.run(
                lambda s: s.fetch(self._sql.bindings, after, _PAGE)  # noqa: B023 - awaited here
            )
            for row in page:
                yield unplain(row["key"]), unplain(row["session"])
            if len(page) < _PAGE:
                return
            after = page[-1]["digest"]

    async def close(self) -> None:
        await self._connections.close()


class PostgresStore(DatabaseStore):
    """Sessions in the tables of one schema, which are made where there are none."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "nanoloop",
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
        announce: Announce = silent,
        pool_size: int = 10,
        timeout_seconds: float = 10,
    ) -> None:
        """`pool_size` connections at most, and no call takes longer than `timeout_seconds`."""
        self._tables = _Tables(
            url,
            schema=schema_name(schema),
            pool_size=pool_size,
            timeout_seconds=timeout_seconds,
        )
        super().__init__(self._tables, clock=clock, seal=seal, announce=announce)

    async def migrate(self) -> str:
        """Make the tables, or bring older ones up to date; says what was done."""
        return await self._tables.migrate()


def _digest(key: str) -> bytes:
    """An index has room for this, however long the key is."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
