"""The tables in a file of sessions, and how an older file comes to have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from nanoloop.errors import StoreError

APPLICATION = 0x6E4C6F70
"""What the file says of whose it is: "nLop"."""

_FIRST = (
    """
    CREATE TABLE session (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        rev INTEGER NOT NULL,
        shown_from INTEGER NOT NULL, -- the lowest seq that the window shows
        updated_at INTEGER NOT NULL, -- in microseconds since 1970, as the next
        expires_at INTEGER,
        size INTEGER NOT NULL, -- bytes of its entries
        head TEXT NOT NULL
    )
    """,
    "CREATE INDEX session_by_time ON session (updated_at, expires_at)",
    "CREATE INDEX session_by_end ON session (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE TABLE section (
        session INTEGER NOT NULL,
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (session, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE entry (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        value TEXT NOT NULL,
        UNIQUE (session, seq)
    )
    """,
    """
    CREATE TABLE heard (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        PRIMARY KEY (session, seq)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE binding (
        number INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        session TEXT NOT NULL
    )
    """,
)
UPGRADES: tuple[tuple[str, ...], ...] = (_FIRST,)
"""What brings a file from each format to the next; format 0 has nothing in it."""

_STANDING = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""
"""In one question: another process may be making it right now."""
_WHOLE = "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",)
_PART = "SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part")


def upgrade(connection: sqlite3.Connection, name: str) -> None:
    """Give the file this version's tables, all or none; raises `StoreError` where it can't."""
    if format_of(connection, name) == len(UPGRADES):
        return
    with transaction(connection):
        # Another process may have done it since.
        for steps in UPGRADES[format_of(connection, name) :]:
            for step in steps:
                connection.execute(step)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(UPGRADES)}")


def format_of(connection: sqlite3.Connection, name: str) -> int:
    """Which tables the file has, 0 for none; raises `StoreError` for a newer or foreign one."""
    application, version, tables = connection.execute(_STANDING).fetchone()
    if application != APPLICATION and (application or version or tables):
        raise StoreError(f"{name} is another program's database: choose another file")
    if version > len(UPGRADES):
        raise StoreError(
            f"{name} has format {version}, and this version of nanoloop knows formats up to "
            f"{len(UPGRADES)}: use the newer version that wrote it"
        )
    return int(version)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside, or nothing; no other process writes meanwhile.

    Inside another it is a part of that one, which can fail alone.
    """
    is_part = connection.in_transaction
    begin, end, undo = _PART if is_part else _WHOLE
    connection.execute(begin)
    try:
        yield
        connection.execute(end)
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            for statement in undo:
                connection.execute(statement)
        raise
