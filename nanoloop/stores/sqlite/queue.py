"""Writes that wait for their turn: those that come while one is written share a transaction.

So many sessions at once wait for the disk once, not once each.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nanoloop.stores.sqlite.damage import primary_code
from nanoloop.stores.sqlite.file import SessionFile
from nanoloop.stores.sqlite.schema import transaction

TOGETHER = 64
"""Writes that one transaction takes at most."""


class Write:
    """One of them, and what came of it."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def on(self, connection: sqlite3.Connection) -> None:
        """Do it; what the file isn't to blame for is its own failure, and spares the others."""
        try:
            self._result = self._work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            self._error = error

    def fail(self, error: Exception) -> None:
        """It was not done."""
        self._error = error

    @property
    def outcome(self) -> Any:
        """What it returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class WriteQueue:
    """What is put in from the event loop, and done in the thread that writes."""

    def __init__(self, file: SessionFile) -> None:
        self._file = file
        self._waiting: deque[Write] = deque()

    def put(self, work: Callable[[sqlite3.Connection], Any]) -> Write:
        """Let it wait; it is done by the end of the next `work_off`."""
        self._waiting.append(write := Write(work))
        return write

    def work_off(self) -> None:
        """Do all that waits by now."""
        while writes := [self._waiting.popleft() for _ in range(min(len(self._waiting), TOGETHER))]:
            self._do(writes)

    def _do(self, writes: Sequence[Write]) -> None:
        try:
            self._file.write(_together if len(writes) > 1 else _alone, writes)
        except Exception as error:  # noqa: BLE001 - raised where each was asked for
            is_one_too_big = isinstance(error, sqlite3.Error) and not _is_busy(error)
            for write in writes:
                if len(writes) > 1 and is_one_too_big:
                    self._do([write])
                else:
                    write.fail(error)


def _alone(connection: sqlite3.Connection, writes: Sequence[Write]) -> None:
    writes[0].on(connection)


def _together(connection: sqlite3.Connection, writes: Sequence[Write]) -> None:
    with transaction(connection):
        for write in writes:
            write.on(connection)


def _is_busy(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_BUSY
