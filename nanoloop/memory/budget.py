"""What summaries have cost today, and whether the day still has room for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

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
    """Counts a day's tokens; without a limit there is always room."""

    def __init__(
        self, daily_tokens: int | None = None, *, now: Callable[[], datetime] = local_now
    ) -> None:
        self._daily_tokens = daily_tokens
        self._now = now
        self._day = now().date()
        self._spent = Spent()

    @property
    def spent_today(self) -> Spent:
        """Since midnight, or since the process began."""
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
