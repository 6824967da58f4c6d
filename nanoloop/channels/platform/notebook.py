"""A small database of a channel's: opened when it is needed, for its owner's eyes only."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nanoloop.stores.folder import make_folder


class Notebook:
    """One file, or memory where none is given; from one thread at a time."""

    def __init__(self, file: Path | None, schema: str) -> None:
        self._file = file
        self._schema = schema
        self._database: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        """Its connection, which begins no transaction by itself."""
        if self._database is None:
            if self._file is not None:
                make_folder(self._file.parent)
                self._file.touch(mode=0o600)
            self._database = sqlite3.connect(
                self._file or ":memory:", timeout=5, isolation_level=None, check_same_thread=False
            )
            self._database.executescript(self._schema)
        return self._database

    def close(self) -> None:
        """Let go of the file; it is opened again when needed."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def __del__(self) -> None:
        """Close it with whoever held it."""
        self.close()
