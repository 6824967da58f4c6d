"""What summaries may cost a day, and the breaker that stops asking a model that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from nanoloop.events import Announce, BreakerClosed, BreakerOpened, silent
from nanoloop.protocols import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Calls and tokens; calls that came to nothing are among them."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.tokens_in + self.tokens_out


def local_now() -> datetime:
    """The time here: a day ends at the operator's midnight."""
    return datetime.now().astimezone()


class Budget:
    """Counts a day's tokens; without a limit there is always room.

    Where it is `kept_in` a file, a process that begins anew has no more for its day than is left.
    """

    def __init__(
        self,
        daily_tokens: int | None = None,
        *,
        kept_in: Path | None = None,
        now: Callable[[], datetime] = local_now,
    ) -> None:
        self._daily_tokens = daily_tokens
        self._file = kept_in
        self._now = now
        self._day = now().date()
        self._spent = self._kept()

    @property
    def spent_today(self) -> Spent:
        """Since midnight; where no file keeps it, since the process began at the earliest."""
        if self._now().date() != self._day:
            self._day, self._spent = self._now().date(), Spent()
        return self._spent

    @property
    def has_room(self) -> bool:
        """Whether a further call may be made today."""
        return self._daily_tokens is None or self.spent_today.tokens < self._daily_tokens

    @property
    def seconds_to_midnight(self) -> float:
        """Until the next day begins."""
        now = self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - now).total_seconds()

    def add(self, usage: Usage) -> None:
        """Count a call."""
        spent = self.spent_today
        self._spent = replace(
            spent,
            calls=spent.calls + 1,
            tokens_in=spent.tokens_in + usage.tokens_in,
            tokens_out=spent.tokens_out + usage.tokens_out,
            tokens_cached=spent.tokens_cached + usage.tokens_cached,
        )
        self._keep()

    def _keep(self) -> None:
        """Let it last; a disk that fails stops no summary."""
        if self._file is not None:
            with suppress(OSError):
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fresh = self._file.with_suffix(".new")
                fresh.write_text(json.dumps({"day": str(self._day), **asdict(self._spent)}))
                fresh.replace(self._file)

    def _kept(self) -> Spent:
        """What an earlier process has spent of this day."""
        if self._file is not None:
            with suppress(OSError, ValueError, TypeError, AttributeError):
                said = json.loads(self._file.read_text())
                if said.pop("day", None) == str(self._day):
                    return Spent(**{name: int(count) for name, count in said.items()})
        return Spent()


BreakerState = Literal["closed", "open", "half-open"]

FAILURES = 3
"""Failures in a row, of whatever sessions, that open it."""
BREAKER_SECONDS = 60
"""How long it then stays open, until one call is let through."""


class Breaker:
    """Lets calls to one model through, or keeps them back for a while."""

    def __init__(
        self,
        model: str,
        *,
        announce: Announce = silent,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
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
            self._open_until = self._clock() + BREAKER_SECONDS
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
        was_closed, self._open_until = self._open_until is None, self._clock() + BREAKER_SECONDS
        if was_closed:
            self._announce(
                BreakerOpened(model=self.model, failures=self._failures, seconds=BREAKER_SECONDS)
            )
