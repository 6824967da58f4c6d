"""One file of sessions, and its connections: one that writes, and others that read beside it.

It blocks: call it in worker threads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar

from nanoloop.errors import StoreError
from nanoloop.files import ProcessLock
from nanoloop.stores.sqlite.opening import Opening

READERS = 8
"""Connections that are kept for reading while nobody reads."""

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[sqlite3.Connection, P], T]


class SessionFile:
    """Opened when it is needed, made when something is written."""

    def __init__(
        self, opening: Opening, *, read_only: bool = False, lock: ProcessLock | None = None
    ) -> None:
        self.opening = opening
        self.path = opening.path
        self._read_only = read_only
        self._lock = lock
        self._writing = Lock()
        self._writer: sqlite3.Connection | None = None
        self._inode = 0
        """The file that the writer has open."""
        self._pooling = Lock()
        self._readers: list[sqlite3.Connection] = []

    # Writing

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What this does on the one connection that writes."""
        if self._read_only:
            raise StoreError(f"{self.path} is open for reading only: nothing was written")
        with self._writing:
            if self._lock is not None:
                self._lock.take()
            connection = self._opened()
            try:
                return work(connection, *args, **kwargs)
            except sqlite3.Error:
                self._close()  # whatever the disk did: the next one looks at the file anew
                raise

    def _opened(self) -> sqlite3.Connection:
        """The connection that writes to the file that is there now; holds the writing lock."""
        if self._writer is not None and self._inode != self.opening.inode:
            self._close()  # someone moved it away: not a word more goes into that one
        if self._writer is None:
            self._writer = self.opening.writer()
            self._inode = self.opening.inode
        return self._writer

    def clean(self) -> None:
        """Leave nothing of what was erased: neither in the file's gaps nor in the log beside it.

        Raises `StoreError` where it can't be done, or another process reads the log for too long.
        """
        try:
            # Rows that once moved from page to page may have left copies in what is free now.
            self.write(lambda connection: connection.execute("VACUUM"))
            if self._empty_log():
                return
        except sqlite3.Error as error:
            raise StoreError(
                f"{self._traces} ({error}): free some space, and erase again"
            ) from error
        raise StoreError(f"{self._traces}, which another process reads: end that, and erase again")

    @property
    def _traces(self) -> str:
        return f"it was erased, but {self.path} or the log beside it may hold traces"

    def empty_log(self) -> None:
        """Leave nothing of what was deleted in the log beside the file, as far as it goes."""
        with suppress(sqlite3.Error):
            self._empty_log()

    def _empty_log(self) -> bool:
        checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
        is_busy, *_ = self.write(lambda connection: connection.execute(checkpoint).fetchone())
        return not is_busy

    # Reading

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What this makes of one moment of the file; a missing one is empty."""
        if self._read_only:
            return self._look(work, *args, **kwargs)
        with self._reading() as connection:
            return _at_once(connection, work, *args, **kwargs)

    def _look(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `read`, and where nobody has the file open it isn't even locked."""
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
        """A connection of one's own, and the file for which it may be kept."""
        inode = self.opening.inode
        if inode and inode != self._inode:
            with self._writing:
                self._opened()  # it renews an older format, and puts a damaged file aside
        with self._pooling:
            if inode and self._readers:
                return self._readers.pop(), self._inode
        return self.opening.reader(), self._inode if inode else 0

    # The end

    def let_go(self) -> None:
        """Close the connections that nobody uses, and let others own the file."""
        with self._writing:
            self._close()
            if self._lock is not None:
                self._lock.release()

    def _close(self) -> None:
        with self._pooling:
            self._inode = 0
            readers, self._readers = self._readers, []
        # The writer goes last: the connection that closes last tidies the log up.
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
