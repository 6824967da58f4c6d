"""What is read from the tables: text comes as bytes, and each function sees one moment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import Any

from nanoloop.errors import StoreError
from nanoloop.session.changes import ABOUT
from nanoloop.session.entry import Entry
from nanoloop.session.seen import SEEN_LIMIT
from nanoloop.stores.database import Stored
from nanoloop.stores.sqlite.writing import as_bytes

EVER = 1 << 62
"""Above every number of an entry."""

_SESSION = "SELECT number, head, shown_from, size FROM session WHERE id = ?"
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
    SELECT head, size, section.value FROM json_each(?) AS wanted
    JOIN session ON number = wanted.value JOIN section ON session = number AND name = ?
    ORDER BY wanted.key
"""
_BINDINGS = "SELECT number, key, session FROM binding WHERE number > ? ORDER BY number LIMIT ?"


def head(connection: Connection, session_id: str) -> dict[str, Any] | None:
    """As `Database.head`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _decoded(row[1])


def window(connection: Connection, session_id: str) -> Stored | None:
    """As `Database.window`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _stored(connection, *row)


def whole(connection: Connection, session_id: str) -> Stored | None:
    """As `Database.whole`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        return None
    number, head, _, size = row
    return _stored(connection, number, head, 0, size)


def _stored(connection: Connection, number: int, head: bytes, start: int, size: int) -> Stored:
    sections = connection.execute(_SECTIONS, (number,))
    heard = connection.execute(_HEARD, (number, SEEN_LIMIT)).fetchall()
    return Stored(
        head=_decoded(head),
        sections={name.decode(): _decoded(value) for name, value in sections},
        entries=_entries(connection.execute(_ENTRIES, (number, start - 1, EVER, -1))),
        seen={seq: _text(name) for seq, name in reversed(heard)},
        size=size,
    )


def between(
    connection: Connection, session_id: str, after: int, upto: int | None, limit: int | None
) -> Sequence[Entry]:
    """As `Database.between`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        return []
    bounds = (after, EVER if upto is None else upto, -1 if limit is None else limit)
    return _entries(connection.execute(_ENTRIES, (row[0], *bounds)))


def living(connection: Connection, now: int) -> list[int]:
    """The rows of all sessions that have not expired, the last changed first."""
    return [number for (number,) in connection.execute(_LIVING, (now,))]


def glances(connection: Connection, numbers: Sequence[int]) -> list[Stored]:
    """What these rows tell of who the sessions are; one that is gone is passed over."""
    rows = connection.execute(_GLANCES, (json.dumps(numbers), ABOUT))
    return [
        Stored(head=_decoded(head), sections={ABOUT: _decoded(about)}, size=size)
        for head, size, about in rows
    ]


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


def _entries(rows: Iterable[tuple[int, bytes]]) -> list[Entry]:
    return [Entry.from_dict(_decoded(value), seq=seq) for seq, value in rows]


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"what is stored of a session can't be read ({error}): `nanoloop store check` says "
            "which sessions are damaged"
        ) from error
    return value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
