"""How connections to a file of sessions begin: one that writes, and any number that read."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from nanoloop.errors import StoreError
from nanoloop.events import Event
from nanoloop.files import make_folder
from nanoloop.stores.sqlite import schema
from nanoloop.stores.sqlite.damage import is_damage, is_ours, primary_code, put_aside

PAUSE_SECONDS = 0.01
PAGE_BYTES = 1024
"""A commit changes a few rows here and there, and writes the whole page of each."""
LOG_BYTES = 4_096_000
"""The log beside the file grows so far before it is worked into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Where the file is, and how it is opened."""

    path: Path
    fsync: bool
    busy_seconds: float
    clock: Callable[[], datetime]
    heard: list[Event] = field(default_factory=list)
    """What there is to tell; whoever tells it takes it out."""

    @property
    def inode(self) -> int:
        """Which file is there now; 0 for none."""
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return 0

    @property
    def stillness(self) -> tuple[int, int, int] | None:
        """What stays the same while nobody has the file open; None while someone has."""
        try:
            if self.path.with_name(f"{self.path.name}-wal").exists():
                return None
            now = self.path.stat()
        except FileNotFoundError:
            return 0, 0, 0
        return now.st_ino, now.st_size, now.st_mtime_ns

    def writer(self) -> sqlite3.Connection:
        """A connection that writes; the file is made, renewed or put aside as it needs be."""
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
        """Raise for a damaged or foreign file: one that can write would tidy up even there."""
        with suppress(sqlite3.OperationalError), closing(self._connect("ro")) as connection:
            schema.format_of(connection, str(self.path))

    def told_damage(self, error: sqlite3.DatabaseError) -> StoreError:
        """What is to be said of a damaged file, and what becomes of it."""
        failed = f"the store in {self.path} failed: {error}"
        try:
            self._look()
        except sqlite3.DatabaseError as first:
            if not is_damage(first):
                return StoreError(f"{failed}: look at the file")
            if not is_ours(self.path):
                return StoreError(f"{self.path} is no database: choose another file")
            return StoreError(
                f"{failed}: the file is damaged and is left as it is; the next start for writing "
                f"sets it aside as {self.path.name}.corrupt-DATE and begins a new one"
            )
        return StoreError(
            f"{failed}: a part of the file is damaged: take what is whole to another store with "
            "`nanoloop store copy`"
        )

    def _make(self) -> int:
        make_folder(self.path.parent)
        with suppress(FileExistsError):  # nobody else's to read, whatever SQLite would make it
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        return self.inode

    def _prepared(self) -> sqlite3.Connection:
        connection = self._connect("rw")
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a file that is just made
            self._keep_log(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // PAGE_BYTES}")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.fsync else 'NORMAL'}")
            connection.execute("PRAGMA secure_delete = ON")
            schema.upgrade(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep_log(self, connection: sqlite3.Connection) -> None:
        """Write changes into a log beside the file first, so that readers and writer don't wait."""
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:  # several begin at once: SQLite won't wait
                is_busy = primary_code(error) == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
        if mode != b"wal":
            raise StoreError(
                f"{self.path} is on a disk that SQLite can't share: choose a local one"
            )

    def reader(self, *, touching: bool = True) -> sqlite3.Connection:
        """A connection that reads what is committed; raises `StoreError` for an older format.

        Without touching nothing is locked and nothing is made beside the file: it must be still.
        """
        if not self.inode:
            return self._nothing()
        connection = self._connect("ro" if touching else "ro&immutable=1")
        try:
            found = schema.format_of(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        if found == len(schema.UPGRADES):
            return connection
        connection.close()
        if found == 0:  # it is being made
            return self._nothing()
        raise StoreError(
            f"{self.path} has an older format: open it once for writing, which renews it"
        )

    def _nothing(self) -> sqlite3.Connection:
        """A connection to an empty store: what a missing file is."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.text_factory = bytes
        schema.upgrade(connection, str(self.path))
        return connection

    def _connect(self, mode: Literal["rw", "ro", "ro&immutable=1"]) -> sqlite3.Connection:
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder: choose a file in it")
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self.busy_seconds,
        )
        connection.text_factory = bytes
        return connection
