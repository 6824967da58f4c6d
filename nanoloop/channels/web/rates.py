"""How often someone may call: so many at once, then so many a minute."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

KNOWN = 10_000
"""Callers that are remembered; who was quiet longest is forgotten, and has a full bucket again."""


class Rates:
    """A bucket for each caller that fills up by `per_minute`."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take one; 0 where there was one, else the seconds until there is."""
        level = self._level(caller)
        self._keep(caller, level - 1 if level >= 1 else level)
        return 0 if level >= 1 else (1 - level) * 60 / self._per_minute

    def wait(self, caller: str) -> float:
        """The seconds until there is one; takes none."""
        level = self._level(caller)
        return 0 if level >= 1 else (1 - level) * 60 / self._per_minute

    def _level(self, caller: str) -> float:
        now = self._clock()
        level, at = self._buckets.get(caller, (float(self._per_minute), now))
        return min(self._per_minute, level + (now - at) * self._per_minute / 60)

    def _keep(self, caller: str, level: float) -> None:
        self._buckets[caller] = (level, self._clock())
        self._buckets.move_to_end(caller)
        if len(self._buckets) > KNOWN:
            self._buckets.popitem(last=False)
