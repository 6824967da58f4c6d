"""What asyncpg raises, as a sentence with the next step: no password, nobody's words."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from nanoloop.errors import SettingsError, StoreError
from nanoloop.stores.postgres.address import shown

try:
    from asyncpg import InterfaceError, PostgresError
except ModuleNotFoundError as missing:
    raise SettingsError(
        "a store in PostgreSQL needs the package asyncpg: install nanoloop[postgres]"
    ) from missing

_SETTING = "store.url (NANOLOOP_STORE__URL)"
_STATES: Mapping[str, str] = {
    "08": "the connection to {where} broke: is the server up? try again",
    "28": "{where} refused the user or the password: correct them in " + _SETTING,
    "3D": "{where} is no database of that server: make it with createdb, or correct " + _SETTING,
    "3F": "{where} has no such schema: run `nanoloop store migrate`",
    "42P01": "tables are missing in {where}: run `nanoloop store migrate`",
    "42501": "{where} doesn't let this user do that: let an administrator run "
    "`CREATE SCHEMA nanoloop AUTHORIZATION` for it",
    "25006": "{where} may only be read: is it a standby? write its primary in " + _SETTING,
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
_PASSING = ("08", "40", "53300", "57P")
"""What a new connection, or a moment, may help."""


def is_passing(error: Exception) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, PostgresError):
        return _state(error).startswith(_PASSING)
    if isinstance(error, InterfaceError):  # the connection was closed under our hands
        return not isinstance(error, ValueError)
    return isinstance(error, OSError) and not isinstance(error, socket.gaierror)


def failure(error: Exception, url: str, timeout_seconds: float) -> Exception:
    """A `StoreError` for what the server or the way to it did; anything else as it is."""
    where = shown(url)
    if isinstance(error, PostgresError):
        return StoreError(_sentence(error).format(where=where))
    if isinstance(error, TimeoutError):
        return StoreError(
            f"{where} did not answer within {timeout_seconds:g} s: is it up, and near enough?"
        )
    if isinstance(error, socket.gaierror):
        return StoreError(f"the host of {where} is not known: correct it in {_SETTING}")
    if isinstance(error, OSError | InterfaceError):
        return StoreError(
            f"nothing answers at {where}: start PostgreSQL there, or correct {_SETTING}"
        )
    return error


def _sentence(error: PostgresError) -> str:
    state = _state(error)
    for length in (5, 3, 2):
        if state[:length] in _STATES:
            return _STATES[state[:length]]
    return f"{{where}} refused it ({type(error).__name__}, {state or 'no code'}): see its log"


def _state(error: PostgresError) -> str:
    return error.sqlstate or ""
