"""The same thing done many times: how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median


class Samples:
    """Times in seconds, and what they come to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Take the time of what is inside."""
        started = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - started)

    @property
    def median(self) -> float:
        return median(self.seconds)

    def quantile(self, share: float) -> float:
        """The time that this share of them does not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def cells(self) -> tuple[str, str, str, str]:
        """Median, spread (the middle eight of ten), p99 and worst, for a table."""
        spread = f"{self.quantile(0.1) * 1e3:.2f} - {self.quantile(0.9) * 1e3:.2f}"
        return ms(self.median), spread, ms(self.quantile(0.99)), ms(max(self.seconds))


CELLS = ("median ms", "p10 - p90", "p99", "worst")


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
