"""What is read from the tables: text comes as bytes, and each function sees one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from sqlite3 import Connection
from typing import Any

from nanoloop.errors import SessionDamaged
from nanoloop.session.changes import ABOUT
from nanoloop.session.entry import Entry, from_rfc3339
from nanoloop.session.seen import SEEN_LIMIT
from nanoloop.stores.database import Stored, micros
from nanoloop.stores.sense import (
    entries_of,
    head_of,
    making_sense,
    sections_of,
)
from nanoloop.stores.sqlite.writing import as_bytes

EVER = 1 << 62
"""Above every number of an entry."""

_SESSION = "SELECT number, head, shown_from, size, rev, updated_at FROM session WHERE id = ?"
_SECTIONS = "SELECT name, value FROM section WHERE session = ?"
_ENTRIES = """
    SELECT seq, value FROM entry WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_HEARD = """
    SELECT seq, message_id FROM heard WHERE session = ? ORDER BY seq DESC LIMIT ?
"""
_LIVING = """
    SELECT number FROM session WHERE expires_at IS NULL OR expires_at >= ?
    ORDER BY updated_at DESC, number DESC
"""
_GLANCES = """
    SELECT session.id, head, section.value, size FROM json_each(?) AS wanted
    JOIN session ON number = wanted.value LEFT JOIN section ON session = number AND name = ?
    ORDER BY wanted.key
"""
_NAMES = "SELECT id FROM session ORDER BY number"
_BINDINGS = "SELECT number, key, session FROM binding WHERE number > ? ORDER BY number LIMIT ?"


def head(connection: Connection, session_id: str) -> Mapping[str, Any] | None:
    """As `Database.head`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else head_of(session_id, row[1], json.loads)


def window(connection: Connection, session_id: str) -> Stored | None:
    """As `Database.window`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _stored(connection, session_id, row, start=row[2])


def whole(connection: Connection, session_id: str) -> Stored | None:
    """As `Database.whole`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _stored(connection, session_id, row, start=0)


def _stored(connection: Connection, session_id: str, row: tuple[Any, ...], *, start: int) -> Stored:
    number, head, _, size, *columns = row
    sections = connection.execute(_SECTIONS, (number,))
    heard = connection.execute(_HEARD, (number, SEEN_LIMIT)).fetchall()
    with making_sense(session_id):
        stored = Stored(
            head=head_of(session_id, head, json.loads),
            sections=sections_of(session_id, ((n.decode(), v) for n, v in sections), json.loads),
            entries=_entries(session_id, connection, number, start - 1, EVER, -1),
            seen={int(seq): _text(name) for seq, name in reversed(heard)},
            size=int(size),
        )
        if columns != [stored.head["rev"], micros(from_rfc3339(stored.head["updated_at"]))]:
            raise SessionDamaged(session_id, "its row and its head differ in what they say")
    return stored


def between(
    connection: Connection, session_id: str, after: int, upto: int | None, limit: int | None
) -> Sequence[Entry]:
    """As `Database.between`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        return []
    bounds = (after, EVER if upto is None else upto, -1 if limit is None else limit)
    return _entries(session_id, connection, row[0], *bounds)


def living(connection: Connection, now: int) -> list[int]:
    """The rows of all sessions that have not expired, the last changed first."""
    return [number for (number,) in connection.execute(_LIVING, (now,))]


def glances(connection: Connection, numbers: Sequence[int]) -> list[Stored | SessionDamaged]:
    """What these rows tell of who the sessions are; one that is gone is passed over."""
    rows = connection.execute(_GLANCES, (json.dumps(numbers), ABOUT))
    return [
        Stored.glance(_text(name), head, about, size, json.loads)
        for name, head, about, size in rows
    ]


def names(connection: Connection) -> list[str]:
    """The ids of all sessions."""
    return [_text(name) for (name,) in connection.execute(_NAMES)]


def bound(connection: Connection, key: str) -> str | None:
    """As `Database.bound`."""
    found = connection.execute(
        "SELECT session FROM binding WHERE key = CAST(? AS TEXT)", (as_bytes(key),)
    ).fetchone()
    return None if found is None else _text(found[0])


def bindings(connection: Connection, after: int, limit: int) -> list[tuple[int, str, str]]:
    """The next so many rows of keys behind this one, with their sessions."""
    rows = connection.execute(_BINDINGS, (after, limit))
    return [(number, _text(key), _text(session_id)) for number, key, session_id in rows]


def _entries(session_id: str, connection: Connection, *which: Any) -> list[Entry]:
    return entries_of(session_id, connection.execute(_ENTRIES, which), json.loads)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
