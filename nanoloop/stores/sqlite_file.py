"""A file of sessions and its connections: one for writing, and others for reading.

Calls block: make them in worker threads.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from glob import escape
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Concatenate, Literal, ParamSpec, TypeVar

from nanoloop.errors import StoreError
from nanoloop.events import DatabaseSetAside, Event
from nanoloop.files import (
    check_database,
    locked_file,
    make_database_file,
    make_folder,
    open_file,
    sync_folder,
    without_earlier,
)
from nanoloop.stores.database import HEARD_SECONDS
from nanoloop.stores.snapshot import chat_of, noted_in, owed_in

_ERASING = ".erasing-"
_EMPTY_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
READERS = 8
"""How many idle connections are kept for reading."""

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[sqlite3.Connection, P], T]


class SessionFile:
    """A file of sessions that is opened when needed and created by the first write."""

    def __init__(self, opening: SqliteConnector, *, read_only: bool = False) -> None:
        self.opening = opening
        self.path = opening.path
        self._read_only = read_only
        self._writing = Lock()
        self._writer: sqlite3.Connection | None = None
        self._inode = 0
        """The inode of the file that the writer has open."""
        self._pooling = Lock()
        self._readers: list[sqlite3.Connection] = []

    # Writing

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on the only writing connection, and return its result."""
        self.check_writes()
        with self._writing:
            connection = self._opened()
            try:
                return work(connection, *args, **kwargs)
            except sqlite3.Error:
                self._close()  # the next write opens the file again
                raise

    def check_writes(self) -> None:
        """Raise `StoreError` if the file is open only for reading."""
        if self._read_only:
            raise StoreError(f"{self.path} is open read-only: nothing was written")

    def _opened(self) -> sqlite3.Connection:
        """Return the writing connection to the current file; the caller must hold `_writing`."""
        if self._writer is not None and self._inode != self.opening.inode:
            self._close()  # the file was moved: stop writing to it
        if self._writer is None:
            self._writer = self.opening.writer()
            self._inode = self.opening.inode
            self._finish_erasing(self._writer)
        return self._writer

    def clean(self) -> None:
        """Remove all traces of erased data from the file's gaps and the log beside it.

        Raise `StoreError` if this fails, or if another process reads the log for too long.
        """
        try:
            # Rows that moved to another page may have left copies in free space.
            self.write(lambda connection: connection.execute("VACUUM"))
            if self._empty_log():
                return
        except sqlite3.Error as error:
            raise StoreError(
                f"{self._traces} ({error}): free some space, and erase again"
            ) from error
        raise StoreError(
            f"{self._traces}, which another process is reading: stop it, and erase again"
        )

    @property
    def _traces(self) -> str:
        return f"it was erased, but {self.path} or the log beside it may contain traces"

    def empty_log(self) -> bool:
        """Remove deleted data from the log beside the file; return False if the log is in use."""
        with suppress(sqlite3.Error):
            return self._empty_log()
        return False

    @contextmanager
    def erasing(self) -> Iterator[Callable[[], None]]:
        """Leave a note beside the file saying that it may contain traces of erased data.

        This yields a function that removes the note. If a process is killed and leaves a note, the
        next process that opens the file for writing removes the traces.
        """
        self.check_writes()
        make_folder(self.path.parent)
        note = self.path.with_name(f"{self.path.name}{_ERASING}{token_hex(8)}")
        with locked_file(note):
            sync_folder(self.path.parent)
            yield partial(note.unlink, missing_ok=True)

    def _finish_erasing(self, connection: sqlite3.Connection) -> None:
        """Remove the traces that stopped processes noted, as far as this is possible now."""
        for note in self.path.parent.glob(f"{escape(self.path.name)}{_ERASING}*"):
            with suppress(BlockingIOError, FileNotFoundError), locked_file(note, os.O_RDWR):
                try:
                    connection.execute("VACUUM")
                    is_busy, *_ = connection.execute(_EMPTY_LOG).fetchone()
                except sqlite3.Error:
                    return
                if not is_busy:
                    note.unlink()

    def _empty_log(self) -> bool:
        is_busy, *_ = self.write(lambda connection: connection.execute(_EMPTY_LOG).fetchone())
        return not is_busy

    # Reading

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on a snapshot of the file, and return its result.

        A missing file counts as empty.
        """
        if self._read_only:
            return self._look(work, *args, **kwargs)
        with self._reading() as connection:
            return _at_once(connection, work, *args, **kwargs)

    def _look(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, but without a lock if nobody has the file open."""
        while True:
            still = self.opening.stillness
            try:
                with closing(self.opening.reader(touching=still is None)) as connection:
                    result = _at_once(connection, work, *args, **kwargs)
            except (sqlite3.Error, StoreError):
                if still == self.opening.stillness:
                    raise
            else:
                if still in {None, self.opening.stillness}:
                    return result

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        connection, inode = self._reader()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._pooling:
            is_kept = inode and inode == self._inode and len(self._readers) < READERS
            if is_kept:
                self._readers.append(connection)
        if not is_kept:
            connection.close()

    def _reader(self) -> tuple[sqlite3.Connection, int]:
        """Return a connection for this caller alone, and the inode of the file it belongs to."""
        inode = self.opening.inode
        if inode and inode != self._inode:
            with self._writing:
                self._opened()  # upgrades an older format, and sets a damaged file aside
        with self._pooling:
            if inode and self._readers:
                return self._readers.pop(), self._inode
        return self.opening.reader(), self._inode if inode else 0

    # Closing

    def let_go(self) -> None:
        """Close the connections that are not in use."""
        with self._writing:
            self._close()

    def _close(self) -> None:
        with self._pooling:
            self._inode = 0
            readers, self._readers = self._readers, []
        # The writer last, because the last connection to close cleans up the log.
        for connection in readers:
            connection.close()
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _at_once(
    connection: sqlite3.Connection, work: Work[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    connection.execute("BEGIN")
    result = work(connection, *args, **kwargs)
    connection.execute("COMMIT")
    return result


PAUSE_SECONDS = 0.01
PAGE_BYTES = 1024
"""Small, because a commit changes a few scattered rows and writes the whole page of each."""
LOG_BYTES = 4_096_000
"""The size at which the log beside the file is merged into the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConnector:
    """The path of the file, and the ways to open the file."""

    path: Path
    fsync: bool
    busy_seconds: float
    clock: Callable[[], datetime]
    heard: list[Event] = field(default_factory=list)
    """Events to announce; whoever announces an event removes it."""

    @property
    def inode(self) -> int:
        """The inode of the current file, or 0 if there is no file."""
        try:
            return self.path.stat().st_ino
        except (FileNotFoundError, NotADirectoryError):
            return 0

    @property
    def stillness(self) -> tuple[int, int, int] | None:
        """The file's inode, size and time; None while someone has the file open."""
        try:
            if self.path.with_name(f"{self.path.name}-wal").exists():
                return None
            now = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0, 0
        return now.st_ino, now.st_size, now.st_mtime_ns

    def writer(self) -> sqlite3.Connection:
        """Return a writing connection; create or upgrade the file, or set it aside, as needed."""
        inode = self._make()
        try:
            self._look()
            return self._prepared()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.heard.extend(put_aside(self.path, inode, error, now=self.clock()))
        self._make()
        return self._prepared()

    def _look(self) -> None:
        """Raise an error for a damaged or foreign file, which a writing connection would modify."""
        with suppress(sqlite3.OperationalError), closing(self._connect("ro")) as connection:
            format_of(connection, str(self.path))

    def told_damage(self, error: sqlite3.DatabaseError) -> StoreError:
        """Return the error for a damaged file, which says what will happen to the file."""
        failed = f"the store in {self.path} failed: {error}"
        try:
            self._look()
        except sqlite3.DatabaseError as first:
            if not is_damage(first):
                return StoreError(f"{failed}: check the file")
            if not is_ours(self.path):
                return StoreError(f"{self.path} is not a database: choose another file")
            return StoreError(
                f"{failed}: the file is damaged and was not changed; the next start with write "
                f"access renames it to {self.path.name}.corrupt-DATE and creates a new "
                f"one"
            )
        return StoreError(
            f"{failed}: part of the file is damaged: copy what is intact to another store with "
            "`nanoloop store copy`"
        )

    def _make(self) -> int:
        make_folder(self.path.parent)
        if not self.path.is_dir():  # connecting raises an error for it
            make_database_file(self.path, tell=self.heard.append)
        return self.inode

    def _prepared(self) -> sqlite3.Connection:
        connection = self._connect("rw")
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # applies to a new file only
            self._keep_log(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // PAGE_BYTES}")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.fsync else 'NORMAL'}")
            connection.execute("PRAGMA secure_delete = ON")
            self._upgrade(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Upgrade an older format; raise `StoreLocked` while an earlier version uses the file."""
        if format_of(connection, str(self.path)) in {0, len(UPGRADES)}:
            upgrade(connection, str(self.path))
            return
        former = self.path.with_name(f"{self.path.name}.lock")
        with without_earlier(former, of=self.path):
            upgrade(connection, str(self.path))
            former.unlink()

    def _keep_log(self, connection: sqlite3.Connection) -> None:
        """Use a log beside the file, so that readers and the writer don't wait for each other."""
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except (
                sqlite3.OperationalError
            ) as error:  # SQLite doesn't wait if several start at once
                is_busy = primary_code(error) == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
        if mode != b"wal":
            raise StoreError(
                f"{self.path} is on a disk that SQLite can't share: choose a local disk"
            )

    def reader(self, *, touching: bool = True) -> sqlite3.Connection:
        """Return a connection that reads committed data; raise `StoreError` for an older format.

        If `touching` is False, nothing is locked or created, and nobody else may have the file
        open.
        """
        if not self.inode:
            return self._nothing()
        connection = self._connect("ro" if touching else "ro&immutable=1")
        try:
            found = format_of(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        if found == len(UPGRADES):
            return connection
        connection.close()
        if found == 0:  # being created
            return self._nothing()
        raise StoreError(
            f"{self.path} has an older format: open it once with write access, which upgrades it"
        )

    def _nothing(self) -> sqlite3.Connection:
        """Return a connection to an empty store, which stands in for a missing file."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.text_factory = bytes
        upgrade(connection, str(self.path))
        return connection

    def _connect(self, mode: Literal["rw", "ro", "ro&immutable=1"]) -> sqlite3.Connection:
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder: choose a file in it")
        check_database(self.path, writes=mode == "rw", tell=self.heard.append)
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self.busy_seconds,
        )
        connection.text_factory = bytes
        return connection


APPLICATION = 0x6E4C6F70
"""The id that marks a file as ours: "nLop"."""

_FIRST = (
    """
    CREATE TABLE session (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        rev INTEGER NOT NULL,
        shown_from INTEGER NOT NULL, -- the lowest seq that the window shows
        updated_at INTEGER NOT NULL, -- in microseconds since 1970, like the next
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
_NEWEST = "SELECT coalesce(max(updated_at), 0) FROM session"
_BEFORE = """
    SELECT number, id, head, updated_at, about.value, noted.value, waiting.value FROM session
    LEFT JOIN section AS about ON about.session = number AND about.name = 'about'
    LEFT JOIN section AS noted ON noted.session = number AND noted.name = 'heard'
    LEFT JOIN section AS waiting ON waiting.session = number AND waiting.name = 'waiting'
    WHERE number > ? ORDER BY number LIMIT 500
"""
_HEARD_BEFORE = """
    SELECT message_id FROM heard_in_session WHERE session = ? ORDER BY seq DESC LIMIT 128
"""
_TAKEN_OVER = """
    INSERT OR IGNORE INTO heard (chat, id, heard_at) VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?)
"""


def _take_over(connection: sqlite3.Connection) -> None:
    """Add pending work to the index, and the sessions' recorded messages to their chats."""
    number, since = 0, connection.execute(_NEWEST).fetchone()[0] - HEARD_SECONDS * 1_000_000
    while page := connection.execute(_BEFORE, (number,)).fetchall():
        for number, name, head, at, about, *noted in page:
            if owed := owed_in(head, json.loads):
                connection.execute("UPDATE session SET owes = ? WHERE number = ?", (owed, number))
            if at < since:
                continue  # too old to keep
            chat = as_bytes(chat_of(name.decode(), about, json.loads))
            heard = [message_id for (message_id,) in connection.execute(_HEARD_BEFORE, (number,))]
            heard += [as_bytes(each) for raw in noted for each in noted_in(raw, json.loads)]
            connection.executemany(_TAKEN_OVER, [(chat, each, at) for each in heard])
    connection.execute("DELETE FROM section WHERE name = 'heard'")


_OWING = (
    # An older version that has the file open then fails to write, so it can't add sessions that the
    # index would miss.
    "ALTER TABLE session RENAME COLUMN shown_from TO window_seq",
    "ALTER TABLE session ADD COLUMN owes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session ADD COLUMN node TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX session_by_owes ON session (owes) WHERE owes > 0",
    "ALTER TABLE heard RENAME TO heard_in_session",
    """
    CREATE TABLE heard (
        chat TEXT NOT NULL,
        id TEXT NOT NULL,
        heard_at INTEGER NOT NULL, -- in microseconds since 1970
        PRIMARY KEY (chat, id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX heard_by_time ON heard (heard_at)",
    _take_over,
    "DROP TABLE heard_in_session",
)
"""The SQL that adds each session's pending work and process, and a table of recorded messages."""
UPGRADES: tuple[tuple[str | Callable[[sqlite3.Connection], None], ...], ...] = (_FIRST, _OWING)
"""The steps that upgrade a file from each format to the next; format 0 is empty."""

_STANDING = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""
"""A single query, because another process may be creating the file at the same time."""
_WHOLE = "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",)
_PART = "SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part")


def upgrade(connection: sqlite3.Connection, name: str) -> None:
    """Upgrade the file to this version's tables, or change nothing and raise `StoreError`."""
    if format_of(connection, name) == len(UPGRADES):
        return
    with transaction(connection):
        # Another process may have upgraded it meanwhile.
        for steps in UPGRADES[format_of(connection, name) :]:
            for step in steps:
                step(connection) if callable(step) else connection.execute(step)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(UPGRADES)}")


def format_of(connection: sqlite3.Connection, name: str) -> int:
    """Return the file's format, or 0 if empty; raise `StoreError` for a newer or foreign file."""
    application, version, tables = connection.execute(_STANDING).fetchone()
    if application != APPLICATION and (application or version or tables):
        raise StoreError(f"{name} is another program's database: choose another file")
    if version > len(UPGRADES):
        raise StoreError(
            f"{name} has format {version}, but this version of nanoloop supports formats up to "
            f"{len(UPGRADES)}: use the newer version that wrote it"
        )
    return int(version)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write everything in the block, or nothing; no other process can write meanwhile.

    Inside another transaction, the block is a part that can fail on its own.
    """
    is_part = connection.in_transaction
    begin, end, undo = _PART if is_part else _WHOLE
    connection.execute(begin)
    try:
        yield
        connection.execute(end)
    except BaseException:
        if connection.in_transaction:  # unless a full disk has already ended it
            for statement in undo:
                connection.execute(statement)
        raise


def as_bytes(text: str) -> bytes:
    """Return the stored form of a text that isn't JSON."""
    return text.encode("utf-8", "surrogatepass")


MAGIC = b"SQLite format 3\0"
"""The bytes that every database file begins with."""
SUFFIXES = {".db", ".sqlite", ".sqlite3"}
"""The file suffixes that only databases use."""
_BESIDE = ("-wal", "-shm")


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return True if the file itself is damaged."""
    return primary_code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's error code without details, or 0 for an error that Python raised itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_ours(path: Path) -> bool:
    """Return True for a file that is or was a database; other files are left in place."""
    if path.suffix in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def put_aside(path: Path, inode: int, error: sqlite3.Error, *, now: datetime) -> list[Event]:
    """Rename a damaged database; raise `StoreError` for a file that was never a database.

    Return the events to announce, or none if another process was first.
    """
    # Nothing here may have the file open: closing a file releases all of SQLite's locks on it.
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return []
    try:
        if not is_ours(path):
            raise StoreError(f"{path} is not a database: choose another file") from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_ino != inode or path.stat().st_ino != inode:
            return []
        target = _free(path, now)
        for suffix in ("", *_BESIDE):
            if path.with_name(path.name + suffix).exists():
                path.with_name(path.name + suffix).replace(target.with_name(target.name + suffix))
    finally:
        os.close(fd)
    reason = (
        f"{path} was damaged ({error}): it was renamed to {target.name}, and a new one was created"
    )
    return [DatabaseSetAside(file=target.name, reason=reason)]


def _free(path: Path, now: datetime) -> Path:
    """Return a path that is not in use yet."""
    date = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    names = [
        f"{path.name}.corrupt-{date}",
        *(f"{path.name}.corrupt-{date}-{n}" for n in range(2, 99)),
    ]
    return next(each for each in map(path.with_name, names) if not each.exists())
