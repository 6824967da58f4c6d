"""One file of sessions, and the connections to it: one writes, others read beside it.

It blocks: call it in worker threads, and everything that writes in the same one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar

from nanoloop.errors import StoreError
from nanoloop.events import Event
from nanoloop.stores.sqlite.damage import is_damage, put_aside
from nanoloop.stores.sqlite.schema import is_current, upgrade

READERS = 8
"""Connections that are kept for reading while nobody reads."""

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[sqlite3.Connection, P], T]


class SessionFile:
    """Opened when it is needed, made when something is written."""

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool,
        read_only: bool,
        busy_seconds: float,
        clock: Callable[[], datetime],
    ) -> None:
        self.path = path
        self._fsync = fsync
        self._read_only = read_only
        self._busy_seconds = busy_seconds
        self._clock = clock
        self._opening = Lock()
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._inode = 0
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What happened since the last time."""
        heard, self._heard = self._heard, []
        return heard

    # Writing

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What this does on the one connection that writes."""
        if self._read_only:
            raise StoreError(f"{self.path} is open for reading only: nothing was written")
        connection = self._ready()
        try:
            return work(connection, *args, **kwargs)
        except sqlite3.Error:
            self.close()  # whatever the disk did: the next one looks at the file anew
            raise

    def clean(self, *, thoroughly: bool) -> None:
        """Leave nothing in the log of changes, and thoroughly, nothing in gaps of the file.

        Raises `StoreError` where someone reads too long.
        """
        if thoroughly:
            # Rows that moved from page to page may have left copies in what is free now.
            self.write(lambda connection: connection.execute("VACUUM"))
        checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
        is_busy, *_ = self.write(lambda connection: connection.execute(checkpoint).fetchone())
        if is_busy and thoroughly:
            raise StoreError(
                f"what was erased is no more in {self.path}, but still in the log beside it, which "
                "another process reads: stop that one, and erase again"
            )

    def _ready(self) -> sqlite3.Connection:
        """The writing connection to the file that is there now, made where it is missing."""
        with self._opening:
            if self._writer is not None and self._inode != _inode(self.path):
                self._close()  # someone moved it away: not a word more goes into that one
            if self._writer is None:
                self._writer = self._open()
                self._inode = _inode(self.path)
            return self._writer

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # nobody else's to read, whatever SQLite would make it
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        inode = _inode(self.path)
        try:
            return self._prepared()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._heard += put_aside(self.path, inode, error, now=self._clock())
        return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        connection = self._connect("rw")
        try:
            self._into_wal(connection)
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
            connection.execute("PRAGMA secure_delete = ON")
            upgrade(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _into_wal(self, connection: sqlite3.Connection) -> None:
        """Have a log of changes beside the file; of several that want it at once, each gets it."""
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            if mode != b"wal":
                raise StoreError(f"{self.path} is on no local disk, as SQLite needs: choose one")
            return

    # Reading

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What this makes of one moment of the file; a missing one is empty."""
        with self._reading() as connection:
            connection.execute("BEGIN")
            return work(connection, *args, **kwargs)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        connection, inode = self._reader()
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        with self._opening:
            if inode and inode == self._inode and len(self._readers) < READERS:
                self._readers.append(connection)
                return
        connection.close()

    def _reader(self) -> tuple[sqlite3.Connection, int]:
        """A connection of one's own, and the file that it may be used for again."""
        if not self.path.exists():
            return self._nothing(), 0
        if self._read_only:
            return self._looked_at(), 0
        self._ready()
        with self._opening:
            if self._readers:
                return self._readers.pop(), self._inode
            return self._connect("ro"), self._inode

    def _nothing(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.text_factory = bytes
        upgrade(connection, str(self.path))
        return connection

    def _looked_at(self) -> sqlite3.Connection:
        connection = self._connect("ro")
        try:
            has_all = is_current(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        if has_all:
            return connection
        connection.close()
        raise StoreError(
            f"{self.path} has an older format: open it once for writing, which renews it"
        )

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self._busy_seconds,
        )
        connection.text_factory = bytes
        return connection

    # The end

    def close(self) -> None:
        """Let go of the connections that nobody uses; the next use opens others."""
        with self._opening:
            self._close()

    def _close(self) -> None:
        # The writer goes last: the connection that closes last tidies the log up.
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._inode = 0


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
