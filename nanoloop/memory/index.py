"""The words of all sessions in one SQLite file: made from a store, and remade whenever it is lost.

It blocks: call it in a worker thread. One connection writes, another reads beside it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from nanoloop.errors import IndexUnusable
from nanoloop.memory.reading import Reading
from nanoloop.memory.rows import SCHEMA, Standing, add, begin, forget, standing_of
from nanoloop.session.entry import Entry

FORMAT = f"1 {unicodedata.unidata_version}"
"""A file of another format is made anew."""


class Index:
    """Rows of turns by (session, number of the entry), and the words in them.

    `path` is its file; None keeps it in memory.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path is not None else None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._writing = threading.Lock()
        self._reading = threading.Lock() if path is not None else self._writing
        self.opened = 0
        """How often the file was opened."""
        self.set_aside: Path | None = None
        """Where a damaged file was put, for whoever reports it."""

    # Opening

    def _open(self) -> sqlite3.Connection:
        """The writing connection; holds the writing lock."""
        if self._writer is None:
            if self._path is not None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.opened += 1
            self._writer = self._ready()
            self._reader = self._writer if self._path is None else self._connect()
        return self._writer

    def _ready(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            if _format(connection) == FORMAT:
                return connection
        except sqlite3.DatabaseError:
            connection.close()
            self._put_aside()
        else:
            connection.close()
            self._remove()
        connection = self._connect()
        _create(connection)
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            _keep_private(self._path)
        connection = sqlite3.connect(
            self._path or ":memory:", isolation_level=None, check_same_thread=False, timeout=10
        )
        with suppress(sqlite3.DatabaseError):  # a damaged file says so when it is looked at
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA cache_size = -16000")
        return connection

    def _put_aside(self) -> None:
        assert self._path is not None  # noqa: S101 - what is in memory is never damaged
        target = self._aside(self._path)
        self._path.replace(target)
        self._remove()
        self.set_aside = target

    @staticmethod
    def _aside(path: Path) -> Path:
        return path.with_name(f"{path.name}.damaged")

    def _remove(self) -> None:
        if self._path is not None:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def start_anew(self, opened: int) -> None:
        """Put the file aside that was damaged at this opening; the next use makes a new one."""
        with self._writing:
            if opened != self.opened:  # someone else has seen to it
                return
            self._close()
            if self._path is not None and self._path.exists():
                self._put_aside()

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        with self._writing:
            self._close()

    def _close(self) -> None:
        # The reader goes last: the connection that closes last tidies the files beside.
        with self._reading if self._reading is not self._writing else nullcontext():
            for connection in {self._writer, self._reader} - {None}:
                connection.close()  # type: ignore[union-attr]
            self._writer = self._reader = None

    # Writing

    def standing(self, session_id: str) -> Standing | None:
        """How far this session is indexed; None where nothing of it is."""
        with self._writing:
            return standing_of(self._open(), session_id)

    def sessions(self) -> list[str]:
        """The sessions that anything is known of."""
        with self._writing:
            rows = self._open().execute("SELECT json_group_array(id) FROM session").fetchone()
        found: list[str] = json.loads(rows[0])
        return found

    def add(self, session_id: str, born: str, entries: Sequence[Entry], reach: int) -> None:
        """Take in these entries and note how far that goes, in one commit.

        What is known of a session of the same name that was made at another time goes.
        """
        with self._writing:
            connection = self._open()
            with _commit(connection):
                known = standing_of(connection, session_id)
                if known is not None and known.born != born:
                    forget(connection, known.number, None)
                    known = None
                add(connection, known or begin(connection, session_id, born), entries, reach)

    def forget(self, session_id: str, seqs: Iterable[int] | None = None) -> None:
        """Remove all of a session, or some entries; their words leave the file too."""
        with self._writing:
            connection = self._open()
            with _commit(connection):
                known = standing_of(connection, session_id)
                if known is None:
                    return
                forget(connection, known.number, None if seqs is None else set(seqs))
            # Until it is merged, the full-text index keeps removed words beside a mark.
            connection.execute("INSERT INTO said(said) VALUES ('optimize')")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if self._path is not None:
                self._aside(self._path).unlink(missing_ok=True)

    # Reading

    def reading(self, session_id: str) -> Reading:
        """One session's turns, for as long as the `with` lasts."""
        if self._reader is None:  # else it waits for no writer
            with self._writing:
                self._open()
        return Reading(session_id, lambda: self._reader, self._reading)


def _keep_private(path: Path) -> None:
    """Make it a file for its owner's eyes only; SQLite makes those beside it alike."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    with suppress(PermissionError):  # someone else's, who decides on it
        path.chmod(0o600)


def _format(connection: sqlite3.Connection) -> str | None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return None
    has_format = "SELECT count(*) FROM sqlite_master WHERE name = 'format'"
    if not connection.execute(has_format).fetchone()[0]:
        raise sqlite3.DatabaseError("the file is another program's")
    row = connection.execute("SELECT version FROM format").fetchone()
    return str(row[0]) if row else None


def _create(connection: sqlite3.Connection) -> None:
    try:
        connection.executescript(f"BEGIN;{SCHEMA}")
        connection.execute("INSERT INTO format VALUES (?)", (FORMAT,))
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        raise IndexUnusable(
            "this Python's SQLite is built without FTS5: set recall.enabled to false, "
            "or use another build of Python"
        ) from error


@contextmanager
def _commit(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
