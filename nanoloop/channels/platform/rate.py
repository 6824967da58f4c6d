"""How much someone may say: counted over a sliding time, and told once when it is too much."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

KNOWN = 10_000
"""How many senders and chats are counted at once; the one heard longest ago is forgotten."""


class Rate:
    """Counts what each of many does within a time."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._told: OrderedDict[str, float] = OrderedDict()

    def allows(self, who: str, limit: int | None) -> bool:
        """Whether one more is allowed; it is counted then."""
        if limit is None:
            return True
        times = self._times.setdefault(who, deque())
        self._times.move_to_end(who)
        _bound(self._times)
        while times and times[0] <= self._clock() - self._seconds:
            times.popleft()
        if len(times) >= limit:
            return False
        times.append(self._clock())
        return True

    def is_to_be_told(self, who: str) -> bool:
        """Whether to say no in words: once within the time, then in silence."""
        told = self._told.get(who)
        if told is not None and self._clock() - told < self._seconds:
            return False
        self._told[who] = self._clock()
        self._told.move_to_end(who)
        _bound(self._told)
        return True


def _bound(known: OrderedDict[str, float] | OrderedDict[str, deque[float]]) -> None:
    while len(known) > KNOWN:
        known.popitem(last=False)
