"""What summaries have cost today, and whether the day still has room for more."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

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
