"""A breaker for each model: after three failures in a row it is left alone, then tried once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nanoloop.events import Announce, BreakerClosed, BreakerOpened, silent

BreakerState = Literal["closed", "open", "half-open"]

FAILURES = 3
"""Failures in a row, of whatever sessions, that open it."""


class Breaker:
    """Lets calls to one model through, or keeps them back for a while."""

    def __init__(
        self,
        model: str,
        *,
        rest_seconds: float = 60,
        announce: Announce = silent,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self._rest_seconds = rest_seconds
        self._announce = announce
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None

    @property
    def state(self) -> BreakerState:
        """`open` keeps every call back, `half-open` lets the next one through."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    @property
    def admits_at(self) -> float:
        """When, by its clock, the next call is let through; a moment in the past is now."""
        return self._open_until or 0

    def admit(self) -> bool:
        """Whether a call may be made now; say then how it went."""
        if self.state == "open":
            return False
        if self._open_until is not None:
            # One is let through. Should it never be heard of again, the next may try in its turn.
            self._open_until = self._clock() + self._rest_seconds
        return True

    def succeeded(self) -> bool:
        """Hear that a call went well; returns whether that closed it."""
        was_open, self._open_until, self._failures = self._open_until is not None, None, 0
        if was_open:
            self._announce(BreakerClosed(model=self.model))
        return was_open

    def failed(self) -> None:
        """Hear that a call went wrong."""
        self._failures += 1
        if self._failures < FAILURES:
            return
        was_closed, self._open_until = self._open_until is None, self._clock() + self._rest_seconds
        if was_closed:
            self._announce(
                BreakerOpened(model=self.model, failures=self._failures, seconds=self._rest_seconds)
            )
