"""A file that can't be read as a database: what it is called by, and where it is put."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from datetime import datetime, timezone
from pathlib import Path

from nanoloop.errors import StoreError
from nanoloop.events import DatabaseSetAside, Event

MAGIC = b"SQLite format 3\0"
"""What every database begins with."""
SUFFIXES = {".db", ".sqlite", ".sqlite3"}
"""What names a file that is nothing but a database."""
_BESIDE = ("-wal", "-shm")


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is to blame."""
    return primary_code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's code without its details; 0 where Python itself complained."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_ours(path: Path) -> bool:
    """Whether it is or was a database: what never was one is not moved."""
    if path.suffix in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def put_aside(path: Path, inode: int, error: sqlite3.Error, *, now: datetime) -> list[Event]:
    """Give a damaged database another name; raises `StoreError` for what never was one.

    Returns what there is to tell: nothing where another process was first.
    """
    # No connection to it is open here: closing a file lets go of all locks that SQLite has on it.
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        if not is_ours(path):
            raise StoreError(f"{path} is no database: choose another file") from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_ino != inode or path.stat().st_ino != inode:
            return []
        target = _free(path, now)
        for suffix in ("", *_BESIDE):
            if path.with_name(path.name + suffix).exists():
                path.with_name(path.name + suffix).replace(target.with_name(target.name + suffix))
    finally:
        os.close(fd)
    reason = f"{path} was damaged ({error}): it is kept as {target.name}, and a new one was begun"
    return [DatabaseSetAside(file=target.name, reason=reason)]


def _free(path: Path, now: datetime) -> Path:
    """A name that no file has."""
    date = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    names = [
        f"{path.name}.corrupt-{date}",
        *(f"{path.name}.corrupt-{date}-{n}" for n in range(2, 99)),
    ]
    return next(each for each in map(path.with_name, names) if not each.exists())
