"""Sessions whose summary has to wait: which, why, and until when; bounded.

A session that falls off the end is folded when it next speaks, or at the next start.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Literal

import anyio

from nanoloop.session.session import Session

Why = Literal["failure", "breaker", "budget", "small"]
"""It failed a short while ago; no model may be asked; the day's tokens are spent; there is less
to summarise than a summary is long."""

LIMIT = 1000
"""Sessions that are held in memory for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One session that waits."""

    session: Session
    why: Why
    since: float
    due: float
    pending_seq: int
    """How far what waits reached when it was last looked at."""


class Agenda:
    """Who waits, the longest waiting first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._changed = anyio.Event()
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, waiting: Waiting) -> bool:
        """Let it wait; returns whether it did not wait for the same reason already."""
        before = self._waiting.pop(waiting.session.id, None)
        self._waiting[waiting.session.id] = waiting
        if len(self._waiting) > self._limit:
            self._waiting.popitem(last=False)
        self._changed.set()
        return before is None or before.why != waiting.why

    def of(self, session_id: str) -> Waiting | None:
        """What this session waits for, if it does."""
        return self._waiting.get(session_id)

    def remove(self, session_id: str) -> None:
        """It waits no more; one that did not is fine."""
        self._waiting.pop(session_id, None)

    def due(self, now: float) -> list[Waiting]:
        """Those whose time has come."""
        return [waiting for waiting in self._waiting.values() if waiting.due <= now]

    def that_are(self, why: Why) -> list[Waiting]:
        """Those that wait for this reason."""
        return [waiting for waiting in self._waiting.values() if waiting.why == why]

    async def changed(self) -> None:
        """Wait until someone has been put on it."""
        await self._changed.wait()
        self._changed = anyio.Event()

    @property
    def next_due(self) -> float | None:
        """When the first of them is due; None where none waits."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)

    @property
    def counts(self) -> dict[Why, int]:
        """How many wait for each reason."""
        return dict(Counter(waiting.why for waiting in self._waiting.values()))
