"""Up to where each place was heard: after a gap, what came later is asked of the platform."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from nanoloop.channels.platform.notebook import Notebook
from nanoloop.channels.platform.platform import Place

PLACES = 500
"""Places that are asked about after a gap: those that were heard last."""
DAYS = 30
"""A place that was silent for so long is not asked about any more."""
_DAY = 86_400.0

_SCHEMA = """
PRAGMA synchronous = OFF;
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
        self._clock = clock
        self._notebook = Notebook(file, _SCHEMA)

    def note(self, place: Place, message: str) -> None:
        """All in this place up to that message has been taken in; what is older changes nothing."""
        self._notebook.open().execute(_NOTE, (str(place), message, self._clock()))

    def begin(self, place: Place, before: str) -> None:
        """Something was heard in a place that may be new, after that message."""
        self._notebook.open().execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (str(place), before, self._clock())
        )

    def places(self) -> list[tuple[Place, str]]:
        """Those to ask about, each with the last message that was taken in there."""
        rows = self._notebook.open().execute(
            "SELECT place, last FROM seen WHERE time > ? ORDER BY time DESC LIMIT ?",
            (self._clock() - DAYS * _DAY, PLACES),
        )
        return [(Place.of(place), last) for place, last in rows]

    def close(self) -> None:
        """Let go of the file; it is opened again when needed."""
        self._notebook.close()
