"""Up to where each place was heard: after a gap, what came later is asked of the platform."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from nanoloop.channels.platform.platform import Place
from nanoloop.stores.folder import make_folder

PLACES = 500
"""Places that are asked about after a gap: those that were heard last."""
DAYS = 30
"""A place that was silent for so long is not asked about any more."""
_DAY = 86_400.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (place TEXT PRIMARY KEY, last TEXT, time REAL);
"""
_NOTE = """
INSERT INTO seen VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET last = excluded.last, time = excluded.time
WHERE (length(excluded.last), excluded.last) > (length(seen.last), seen.last)
"""
"""Ids that are times or numbers grow, in length too."""


class Seen:
    """Keeps it in a file, where one is given; what a crash takes from it is only heard again."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._database: sqlite3.Connection | None = None

    def note(self, place: Place, message: str) -> None:
        """All in this place up to that message has been taken in; what is older changes nothing."""
        self._open().execute(_NOTE, (str(place), message, self._clock()))

    def begin(self, place: Place, before: str) -> None:
        """Something was heard in a place that may be new, after that message."""
        self._open().execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (str(place), before, self._clock())
        )

    def places(self) -> list[tuple[Place, str]]:
        """Those to ask about, each with the last message that was taken in there."""
        rows = self._open().execute(
            "SELECT place, last FROM seen WHERE time > ? ORDER BY time DESC LIMIT ?",
            (self._clock() - DAYS * _DAY, PLACES),
        )
        return [(Place.of(place), last) for place, last in rows]

    def close(self) -> None:
        """Let go of the file; it is opened again when needed."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            if self._file is not None:
                make_folder(self._file.parent)
                self._file.touch(mode=0o600)
            self._database = sqlite3.connect(
                self._file or ":memory:", timeout=5, isolation_level=None
            )
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.executescript(_SCHEMA)
        return self._database
