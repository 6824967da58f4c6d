"""Fetches messages sent while the bot was away, and records which ones it has received."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.kit.platform import Place
from nanoloop.errors import NanoloopError, SendLater
from nanoloop.files import make_database_file, make_folder

AT_ONCE = 4
"""How many places are read at the same time."""
E = TypeVar("E")
REST_SECONDS = 5.0
Job = Callable[[], Awaitable[None]]
Put = Callable[[str, Job], Awaitable[None]]


@dataclass(slots=True)
class _Gap:
    place: Place
    last: str
    tried: anyio.Event = field(default_factory=anyio.Event)
    rest_seconds: float | None = None
    """How long to wait before the next attempt; None if no other attempt is needed."""


class Gaps(Generic[E]):
    """Fetches messages missed while disconnected, on platforms whose history can be read."""

    def __init__(
        self,
        seen: SeenMessages,
        *,
        since: Callable[[Place, str], Awaitable[Sequence[E]]],
        take: Callable[[E], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Create the object; `since` may raise `SendLater` to be called again later.

        Any other error stops the reading of a place.
        """
        self._seen = seen
        self._since = since
        self._take = take
        self._sleep = sleep
        self._open: set[Place] = set()
        self._is_cut = False
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    def note(self, place: Place, message: str) -> None:
        """Record that all messages up to this one arrived, unless the place still has a gap."""
        if not self._is_cut and place not in self._open:
            self._seen.note(place, message)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Wrap the processing of a message; if it is interrupted, nothing more is recorded."""
        try:
            yield
        except BaseException:
            # Other tasks may run a little longer, and would record messages after the interrupted
            # one.
            self._is_cut = True
            raise

    async def close(self, put: Put, group: TaskGroup) -> None:
        """Start fetching the missed messages, in this task group.

        `put` adds a job to a chat's queue. When this returns, all jobs have been queued ahead of
        any message that arrives later.
        """
        places = self._seen.places()
        self._open = {place for place, _ in places}
        for place, last in places:
            gap = _Gap(place, last)
            await put(place.chat, partial(self._try, gap))
            group.start_soon(self._end, gap, put, name=f"gap {place}")

    async def _end(self, gap: _Gap, put: Put) -> None:
        await gap.tried.wait()
        while gap.rest_seconds is not None:
            await self._sleep(gap.rest_seconds)
            gap.tried = anyio.Event()
            await put(gap.place.chat, partial(self._try, gap))
            await gap.tried.wait()

    async def _try(self, gap: _Gap) -> None:
        gap.rest_seconds = None
        try:
            async with self._limiter:
                found = await self._since(gap.place, gap.last)
            for one in found:
                await self._take(one)
        except SendLater as later:
            gap.rest_seconds = REST_SECONDS if later.seconds is None else later.seconds
        except NanoloopError:
            pass  # the bot can no longer read this place
        if gap.rest_seconds is None:
            self._open.discard(gap.place)
        gap.tried.set()


PLACES = 500
"""How many places are read after a gap, the most recently active first."""
DAYS = 30
"""Places that have been silent for this many days are not read."""
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
"""An id is a timestamp or a number, so a longer id is always a newer one."""


class SeenMessages:
    """Remembers the last message from each place; after a crash, some may be received again."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._notebook = Notebook(file, _SCHEMA)

    def note(self, place: Place, message: str) -> None:
        """Record that everything in this place up to this message was received."""
        self._notebook.open().execute(_NOTE, (str(place), message, self._clock()))

    def begin(self, place: Place, before: str) -> None:
        """Record a position before a place's first message, unless the place is already known."""
        self._notebook.open().execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (str(place), before, self._clock())
        )

    def places(self) -> list[tuple[Place, str]]:
        """Return the places to read, each with the id of the last message received there."""
        rows = self._notebook.open().execute(
            "SELECT place, last FROM seen WHERE time > ? ORDER BY time DESC LIMIT ?",
            (self._clock() - DAYS * _DAY, PLACES),
        )
        return [(Place.of(place), last) for place, last in rows]

    def close(self) -> None:
        """Close the file; it is reopened when needed."""
        self._notebook.close()


class Notebook:
    """A SQLite database, in memory if no file is given; only one thread may use it at a time."""

    def __init__(self, file: Path | None, schema: str) -> None:
        self._file = file
        self._schema = schema
        self._database: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        """Return the database connection, which never starts a transaction on its own."""
        if self._database is None:
            if self._file is not None:
                make_folder(self._file.parent)
                make_database_file(self._file)
            self._database = sqlite3.connect(
                self._file or ":memory:", timeout=5, isolation_level=None, check_same_thread=False
            )
            self._database.executescript(self._schema)
        return self._database

    def close(self) -> None:
        """Close the file; it is reopened when needed."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def __del__(self) -> None:
        """Close the database when its owner is discarded."""
        self.close()
