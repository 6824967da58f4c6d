"""Where entries stand in a file: a few numbers with their bytes, so that nothing is searched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from threading import Lock

SPACING = 4096
"""Bytes between two marks, at least."""
LIMIT = 1024
"""Marks kept for one file; beyond it the older ones get thinner."""


class Marks:
    """Pairs of a number and a byte: every entry from that number on begins there or later."""

    def __init__(self) -> None:
        self._seqs = [0]
        self._offsets = [0]
        self._lock = Lock()

    def add(self, seq: int, offset: int) -> None:
        """Note a place, unless one close by is known."""
        with self._lock:
            index = bisect_left(self._seqs, seq)
            near = index > 0 and offset - self._offsets[index - 1] < SPACING
            known = index < len(self._seqs) and self._offsets[index] - offset < SPACING
            if near or known:
                return
            self._seqs.insert(index, seq)
            self._offsets.insert(index, offset)
            if len(self._seqs) > LIMIT:
                self._thin()

    def _thin(self) -> None:
        """Drop every other mark of the older half, never the first."""
        older = slice(1, LIMIT // 2, 2)
        del self._seqs[older]
        del self._offsets[older]

    def before(self, seq: int) -> int:
        """A byte before which no entry from this number on begins, as close as is known."""
        with self._lock:
            return self._offsets[bisect_right(self._seqs, seq) - 1]

    def forget_from(self, offset: int) -> None:
        """Drop the marks of what was not written after all."""
        with self._lock:
            index = max(1, bisect_left(self._offsets, offset))
            del self._seqs[index:]
            del self._offsets[index:]
