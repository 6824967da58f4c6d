"""A gate that a test opens by hand, so that no test has to sleep."""

from __future__ import annotations

from collections import deque

import anyio


class Gate:
    """Whoever comes waits until the test lets it through."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self._waiting: deque[anyio.Event] = deque()
        self._news = anyio.Event()
        self.count = 0
        """How many have come so far, let through or not."""

    @property
    def waiting(self) -> int:
        """How many stand before it now."""
        return len(self._waiting)

    async def passes(self) -> None:
        """Wait until it is opened; at once where it is open."""
        self.count += 1
        self._news.set()
        self._news = anyio.Event()
        if self._is_open:
            return
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        finally:
            if turn in self._waiting:  # cancelled: it takes nobody's place
                self._waiting.remove(turn)

    async def reached(self, count: int = 1) -> None:
        """Wait until so many have come."""
        while self.count < count:
            await self._news.wait()

    def open(self, count: int | None = None) -> int:
        """Let so many of the waiting through; without a number all, and those to come.

        Returns how many were let through.
        """
        if count is None:
            self._is_open = True
        let = len(self._waiting) if count is None else min(count, len(self._waiting))
        for _ in range(let):
            self._waiting.popleft().set()
        return let

    def close(self) -> None:
        """From now on whoever comes waits."""
        self._is_open = False
