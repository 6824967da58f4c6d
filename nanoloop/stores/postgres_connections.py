"""Connections to PostgreSQL: kept for the next call, made anew when broken, tried again."""

from __future__ import annotations

import asyncio
import re
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from socket import gaierror
from ssl import SSLError
from typing import TypeVar

import anyio

from nanoloop.errors import SettingsError, StoreError, how_to_install

try:
    from asyncpg import Connection, InterfaceError, InternalClientError, PostgresError, connect
except ModuleNotFoundError as missing:  # said here: no other file imports it
    raise SettingsError(
        f"sessions in PostgreSQL need the package asyncpg: {how_to_install('postgres')}"
    ) from missing

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


_SETTING = "store.url (NANOLOOP_STORE__URL)"
_POOLER = (
    "a pooler before {where} mixes prepared statements up: let it pool sessions, or set "
    "max_prepared_statements (PgBouncer 1.21 or newer)"
)
_STATES: Mapping[str, str] = {
    "08": "the connection to {where} broke: is the server up? try again",
    "26": _POOLER,
    "42P05": _POOLER,
    "28": "{where} refused the user or the password: correct them in {setting}",
    "3D": "{where} is no database of that server: make it with createdb, or correct {setting}",
    "3F": "{where} has no such schema: run `nanoloop store migrate`",
    "42P01": "tables are missing in {where}: run `nanoloop store migrate`",
    "42501": "{where} doesn't let this user do that: let an administrator make the schema for "
    "them (CREATE SCHEMA nanoloop AUTHORIZATION …)",
    "25006": "{where} may only be read: is it a standby? write its primary in {setting}",
    "40": "{where} was busy with the same rows: try again",
    "53100": "the disk of {where} is full: make room there; nothing was half-written",
    "53200": "{where} is out of memory: make room there; nothing was half-written",
    "53300": "{where} takes no more connections: raise its max_connections, or lower pool_size",
    "53": "{where} has not enough resources: see its log; nothing was half-written",
    "57014": "{where} took too long: see what it is busy with, or raise timeout_seconds",
    "57P": "{where} is being shut down or started: try again in a moment",
    "54": "{where} can't take something so large: nothing was written",
}
"""By SQLSTATE or its beginning."""
_KINDS: Mapping[type[Exception], str] = {
    TimeoutError: "{where} did not answer within {seconds} s: is it up, and near enough?",
    gaierror: "the host of {where} is not known: correct it in {setting}",
    SSLError: "no secure connection to {where}: see its certificate, and sslmode in {setting}",
    ValueError: "{setting} is no whole URL: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
    "with % and two digits for what is special in a password",
}
_NOBODY = "nothing answers at {where}: start PostgreSQL there, or correct {setting}"
_PASSING = ("08", "40", "53300", "57P")
"""What a new connection, or a moment, may help."""

FAILURES = (PostgresError, InterfaceError, InternalClientError, OSError)
"""What the server, or the way to it, may raise: an internal error too, where the server ends a
connection in the moment in which it is asked."""


def is_passing(error: Exception) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, PostgresError):
        return _state(error).startswith(_PASSING)
    return not isinstance(error, (ValueError, gaierror, SSLError))


def failure(error: Exception, url: str, timeout_seconds: float) -> StoreError:
    """One of `FAILURES` as a sentence."""
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
    return f"{{where}} refused it ({type(error).__name__}, {state or 'no code'}): see its log"


def _state(error: PostgresError) -> str:
    return error.sqlstate or ""


# Strict: of a URL whose password has a # or ? unescaped, a part would pass for its host.
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?"
    r"(?P<where>[^@/?#]*(?:/[^@?#]*)?)(?:\?[^@]*)?"
)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def shown(url: str) -> str:
    """The URL without its password and its options; of one that is odd, nothing."""
    found = _URL.fullmatch(url)
    if found is None:
        return "PostgreSQL"
    scheme, user, where = found.group("scheme", "user", "where")
    return f"{scheme}://{user}@{where}" if user else f"{scheme}://{where}"


def schema_name(name: str) -> str:
    """The same name; raises `SettingsError` where it could mean anything else in a statement."""
    if not _SCHEMA.fullmatch(name):
        raise SettingsError(
            f"schema is {name!r}: use lower-case letters, digits and _, not a digit first, "
            "at most 63 characters"
        )
    return name
