"""What happens in a session, as bytes that all its readers share: bounded, and resumable by id."""

from __future__ import annotations

import json
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

FRAMES = 512
"""Events that a feed keeps for who comes back; with more missed, a reader starts afresh."""
FRAME_BYTES = 256_000
"""How much they may be together; the newest one is kept whatever its size."""


class Wake(Protocol):
    """What a reader is woken by."""

    def set(self) -> None:
        """There is something new; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it goes over the wire."""

    id: int
    name: str
    data: bytes
    about: str
    """The session that it tells of."""


@dataclass(slots=True)
class Running:
    """The answer that is going on, as far as it has come."""

    message_id: str | None
    pieces: list[str] = field(default_factory=list)
    length: int = 0

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(self.pieces)


def frame_bytes(event_id: int | None, name: str, data: Mapping[str, Any]) -> bytes:
    """An event in the form of `text/event-stream`; without an id it moves no reader's place."""
    place = "" if event_id is None else f"id: {event_id}\n"
    return f"{place}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class Feed:
    """The last events of one session, and what wakes up who reads them."""

    def __init__(self, ids: Iterator[int], *, is_resumable: bool = True) -> None:
        self._ids = ids
        self._is_resumable = is_resumable
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._readers: set[Wake] = set()
        self.last = next(ids)
        """The newest event's id."""
        self._floor = self.last
        """Events up to here are gone."""
        self.running: Running | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody reads it and nothing is going on."""
        return not self._readers and self.running is None

    def add(self, name: str, data: Mapping[str, Any], *, about: str = "") -> None:
        """Tell all readers; waits for none."""
        self.last = next(self._ids)
        place = self.last if self._is_resumable else None
        frame = Frame(self.last, name, frame_bytes(place, name, data), about)
        self._frames.append(frame)
        self._bytes += len(frame.data)
        while len(self._frames) > FRAMES or (self._bytes > FRAME_BYTES and len(self._frames) > 1):
            gone = self._frames.popleft()
            self._bytes -= len(gone.data)
            self._floor = gone.id
        for reader in self._readers:
            reader.set()

    def has_since(self, event_id: int) -> bool:
        """Whether nothing that came after this id is gone."""
        return self._floor <= event_id <= self.last

    def since(self, event_id: int) -> list[Frame]:
        """The events that came after this id."""
        found: list[Frame] = []
        for frame in reversed(self._frames):
            if frame.id <= event_id:
                break
            found.append(frame)
        return found[::-1]

    def watch(self, wake: Wake) -> None:
        """From now on this is set when there is something new."""
        self._readers.add(wake)

    def unwatch(self, wake: Wake) -> None:
        """No more."""
        self._readers.discard(wake)


class Feeds:
    """A feed for each session that anyone reads or that is talking, and the one of all changes."""

    def __init__(self, *, limit: int = 1000) -> None:
        # They grow over restarts too: an id of an earlier process is older than all of this one.
        self._ids = count(time.time_ns() // 1000)
        self._limit = limit
        self._feeds: OrderedDict[str, Feed] = OrderedDict()
        self.changes = Feed(self._ids, is_resumable=False)
        """Which sessions have changed: told beside a session's own, for lists of them."""

    def __len__(self) -> int:
        return len(self._feeds)

    def of(self, session_id: str) -> Feed:
        """The feed of this session."""
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = Feed(self._ids)
            self._let_go()
        self._feeds.move_to_end(session_id)
        return feed

    def known(self, session_id: str) -> Feed | None:
        """The feed of this session, where there is one."""
        return self._feeds.get(session_id)

    def _let_go(self) -> None:
        """Forget those used longest ago that are idle; looks at a few each time."""
        for session_id in list(self._feeds)[: max(0, len(self._feeds) - self._limit)][:8]:
            if self._feeds[session_id].is_idle:
                del self._feeds[session_id]
            else:
                self._feeds.move_to_end(session_id)
