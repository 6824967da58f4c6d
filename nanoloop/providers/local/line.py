"""Who is served: turns in order of arrival; background work while no turn is about.

One for all event loops and threads, as the model's process is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


class Line:
    """So many turns at a time. Background work steps aside for one, and is begun again after."""

    def __init__(self, width: int, *, patience_seconds: float = 60) -> None:
        """After `patience_seconds` of waiting, background work stands in line as turns do."""
        self._patience_seconds = patience_seconds
        self._guard = threading.Lock()
        self._free = self._width = width
        self._turns: deque[Future[None]] = deque()
        self._others: deque[Future[None]] = deque()
        self._in_gap = False
        self._step_aside: Callable[[], object] | None = None
        """Ends the background work that is going on."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place, and have it."""
        mine: Future[None] = Future()
        with self._guard:
            self._turns.append(mine)
            self._advance()
            if self._step_aside is not None:
                self._step_aside()
        await _granted(mine, self._leave)
        try:
            yield
        finally:
            self._leave()

    async def in_gaps(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do this while no turn is about, as often as it takes to get it done."""
        patience = anyio.current_time() + self._patience_seconds
        while (left := patience - anyio.current_time()) > 0:
            with anyio.move_on_after(left) as waiting:
                async with self._gap() as scope:
                    waiting.deadline = float("inf")
                    with scope:
                        return await work()
        async with self.turn():
            return await work()

    @asynccontextmanager
    async def _gap(self) -> AsyncIterator[anyio.CancelScope]:
        mine: Future[None] = Future()
        scope, loop = anyio.CancelScope(), asyncio.get_running_loop()
        with self._guard:
            self._others.append(mine)
            self._advance()
        await _granted(mine, self._leave_gap)
        try:
            with self._guard:
                self._step_aside = lambda: loop.call_soon_threadsafe(scope.cancel)
                if self._is_busy:  # a turn came before this one knew that it was its time
                    scope.cancel()
            yield scope
        finally:
            self._leave_gap()

    @property
    def _is_busy(self) -> bool:
        return self._free < self._width or bool(self._turns)

    def _leave(self) -> None:
        with self._guard:
            self._free += 1
            self._advance()

    def _leave_gap(self) -> None:
        with self._guard:
            self._step_aside = None
            self._in_gap = False
            self._advance()

    def _advance(self) -> None:
        while self._turns and self._free:
            self._free -= _grant(self._turns.popleft())
        while self._others and not self._in_gap and not self._is_busy:
            self._in_gap = _grant(self._others.popleft())


def _grant(waiting: Future[None]) -> bool:
    """Let it go ahead; False where it has gone away meanwhile."""
    if not waiting.set_running_or_notify_cancel():
        return False
    waiting.set_result(None)
    return True


async def _granted(mine: Future[None], give_back: Callable[[], None]) -> None:
    try:
        await asyncio.wrap_future(mine)
    except BaseException:
        if not mine.cancel():  # it was granted just before
            give_back()
        raise
