"""Connections to PostgreSQL: kept for the next call, made anew when broken, tried again."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from nanoloop.errors import SettingsError, how_to_install

try:
    from asyncpg import Connection, connect
except ModuleNotFoundError as missing:  # said here: no other file that needs it comes before
    raise SettingsError(
        f"sessions in PostgreSQL need the package asyncpg: {how_to_install('postgres')}"
    ) from missing

from nanoloop.stores.postgres.failures import FAILURES, failure, is_passing

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Between tries; a server that is restarted is mostly back by then."""
_CLOSE_SECONDS = 2.0
_OURS = """
SELECT set_config('statement_timeout', $1, false), set_config(
    'application_name', coalesce(nullif(current_setting('application_name'), ''), 'nanoloop'), false
)
"""


class Connections:
    """So many at a time in each event loop: a connection can't be used in another than its own."""

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
        """Do this with a connection, again where that may help; it may have been done before.

        Raises `StoreError`, at the latest when the time is up.
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
        """Do this once, as long as it takes, with a connection that is not prepared."""
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
            # On the server too: what nobody waits for any more must not wait for a lock for ever.
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
            # Not `from error`: its words may be a part of the password.
            raise failure(error, self._url, self._timeout) from None

    async def close(self) -> None:
        """Close them all, each in its loop."""
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
        """A loop that ends closes its generators: who forgets to close the store leaves nothing."""
        try:
            yield
        finally:
            await self._close()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """One that nobody else uses meanwhile; after an error it is used no more."""
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
        """Drop them as they are; those in use follow."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().terminate()
