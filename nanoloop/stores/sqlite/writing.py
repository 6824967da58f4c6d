"""What is written into the tables: each function is one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from sqlite3 import Connection

from nanoloop.stores.database import Commit, text_of
from nanoloop.stores.encoding import encoded
from nanoloop.stores.sqlite.schema import transaction

BATCH = 50
"""Expired sessions that one transaction removes."""

# Bound as bytes, which SQLite takes for text as they are: half a surrogate pair passes too.
_STANDING = "SELECT number, rev, expires_at FROM session WHERE id = ?"
_NEW = """
    INSERT INTO session (id, rev, shown_from, updated_at, size, head) VALUES (?, 0, 0, 0, 0, '')
"""
_HEAD = """
    UPDATE session SET rev = ?, shown_from = ?, updated_at = ?, expires_at = ?, size = size + ?,
    head = CAST(? AS TEXT) WHERE number = ?
"""
_ENTRY = "INSERT INTO entry (session, seq, value) VALUES (?, ?, CAST(? AS TEXT))"
_REWRITTEN = "UPDATE entry SET value = CAST(? AS TEXT) WHERE session = ? AND seq = ?"
_HEARD = "INSERT INTO heard (session, seq, message_id) VALUES (?, ?, CAST(? AS TEXT))"
_SECTION = """
    INSERT INTO section (session, name, value) VALUES (?, ?, CAST(? AS TEXT))
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value
"""
_BINDING = """
    INSERT INTO binding (key, session) VALUES (CAST(? AS TEXT), ?)
    ON CONFLICT (key) DO UPDATE SET session = excluded.session
"""


def insert(connection: Connection, commit: Commit, over: int | None) -> bool:
    """As `Database.insert`."""
    with transaction(connection):
        old = connection.execute(_STANDING, (commit.id,)).fetchone()
        if (None if old is None else old[1]) != over:
            return False
        if old is not None:
            _remove(connection, [old[0]])
        number = connection.execute(_NEW, (commit.id,)).lastrowid
        assert number is not None  # noqa: S101 - a row was inserted
        _take_in(connection, number, commit)
    return True


def commit(connection: Connection, commit: Commit, now: int) -> int | None:
    """As `Database.commit`."""
    with transaction(connection):
        row = connection.execute(_STANDING, (commit.id,)).fetchone()
        if row is None or (row[2] is not None and row[2] < now):
            return None
        number, stood, _ = row
        if stood == commit.revision:
            _take_in(connection, number, commit)
    return int(stood)


def _take_in(connection: Connection, number: int, commit: Commit) -> None:
    head = encoded(commit.head, kind="head")
    times = commit.updated_at, commit.expires_at
    connection.execute(
        _HEAD, (commit.revision + 1, commit.window, *times, commit.grows, head, number)
    )
    new = zip(commit.entries, commit.texts, strict=True)
    connection.executemany(_ENTRY, [(number, entry.seq, text) for entry, text in new])
    if commit.rewritten:
        erased = [(text_of(entry), number, entry.seq) for entry in commit.rewritten]
        connection.executemany(_REWRITTEN, erased)
    if commit.message_ids:
        heard = [(number, seq, as_bytes(name)) for seq, name in commit.message_ids.items()]
        connection.executemany(_HEARD, heard)
    if commit.sections:
        values = [(number, name, encoded(value)) for name, value in commit.sections.items()]
        connection.executemany(_SECTION, values)


def delete(connection: Connection, session_id: str) -> None:
    """As `Database.delete`."""
    with transaction(connection):
        row = connection.execute(_STANDING, (session_id,)).fetchone()
        if row is not None:
            _remove(connection, [row[0]])


def delete_expired(connection: Connection, now: int) -> int:
    """Remove some of those whose time was over before now; returns how many, 0 for no more."""
    with transaction(connection):
        rows = connection.execute(
            "SELECT number FROM session WHERE expires_at < ? LIMIT ?", (now, BATCH)
        ).fetchall()
        _remove(connection, [number for (number,) in rows])
    return len(rows)


def _remove(connection: Connection, numbers: Iterable[int]) -> None:
    for number in numbers:
        connection.execute("DELETE FROM entry WHERE session = ?", (number,))
        connection.execute("DELETE FROM heard WHERE session = ?", (number,))
        connection.execute("DELETE FROM section WHERE session = ?", (number,))
        connection.execute("DELETE FROM session WHERE number = ?", (number,))


def bind(connection: Connection, key: str, session_id: str) -> None:
    """As `Database.bind`."""
    with transaction(connection):
        connection.execute(_BINDING, (as_bytes(key), session_id))


def as_bytes(text: str) -> bytes:
    """A text as it is kept where it isn't JSON."""
    return text.encode("utf-8", "surrogatepass")
