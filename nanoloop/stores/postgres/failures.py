"""What asyncpg raises, as a sentence with the next step: no password, nobody's words."""

from __future__ import annotations

from collections.abc import Mapping
from socket import gaierror
from ssl import SSLError

from asyncpg import InterfaceError, InternalClientError, PostgresError

from nanoloop.errors import StoreError
from nanoloop.stores.postgres.address import shown

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
