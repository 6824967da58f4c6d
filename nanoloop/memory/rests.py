"""How long a session's summary is left alone after it failed: longer each time, never the same."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_SECONDS = 6 * 3600
"""The longest pause between two tries that nobody's message brings about: a text that no model
takes must not be paid for every few minutes, for ever."""
LIMIT = 10_000
"""Sessions whose failures are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    count: int
    until: float
    wake_at: float


class Rests:
    """Counts failures for each session, and says when the next try is due."""

    def __init__(self, *, seconds: float, limit_seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def until(self, session_id: str) -> float | None:
        """The end of its rest; None where it does not rest."""
        failures = self._failures.get(session_id)
        resting = failures is not None and self._clock() < failures.until
        return failures.until if failures is not None and resting else None

    def wake_at(self, session_id: str) -> float:
        """When to try again though nobody speaks: at first the end of its rest, then later."""
        failures = self._failures.get(session_id)
        return self._clock() if failures is None else failures.wake_at

    def after_failure(self, session_id: str) -> float:
        """The end of the rest that a failure begins."""
        before = self._failures.pop(session_id, None)
        count = before.count + 1 if before else 1
        doubled = self._seconds * 2.0 ** min(count - 1, 30)
        rest = min(doubled, self._limit_seconds)
        # Not all sessions the same time, or all of them would come back at once.
        until = self._clock() + rest * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
        wake_at = until + max(0, min(doubled, PATIENCE_SECONDS) - rest)
        self._failures[session_id] = _Failures(count=count, until=until, wake_at=wake_at)
        if len(self._failures) > LIMIT:
            self._failures.popitem(last=False)
        return until

    def after_success(self, session_id: str) -> None:
        """Forget that it ever failed."""
        self._failures.pop(session_id, None)
