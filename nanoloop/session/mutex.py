"""A lock for awaiting code: one for all event loops and threads, first come, first served."""

from __future__ import annotations

import math
import threading
from collections import deque
from contextvars import ContextVar

import anyio
import anyio.to_thread

_HELD: ContextVar[tuple[int, ...]] = ContextVar("_HELD", default=())
"""The locks that this task, or the task that called this thread, is inside."""


class _Waiter:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.turn = threading.Event()


class Mutex:
    """One holder at a time; whoever waits leaves its event loop free."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holder: _Waiter | None = None
        self._waiting: deque[_Waiter] = deque()

    def check_may_block(self) -> None:
        """Raise RuntimeError where this thread would wait for itself, and so for ever."""
        thread = threading.get_ident()
        with self._guard:
            known = [*self._waiting, self._holder] if self._holder else []
        if any(waiter and waiter.thread == thread for waiter in known):
            raise RuntimeError("a resize is going on in this event loop: await async_resize()")

    async def __aenter__(self) -> None:
        if id(self) in _HELD.get():
            raise RuntimeError("a handler can't resize the session that called it")
        me = _Waiter()
        with self._guard:
            if self._holder is None:
                self._holder = me
            else:
                self._waiting.append(me)
        if self._holder is not me:
            await self._wait(me)
        _HELD.set((*_HELD.get(), id(self)))

    async def _wait(self, me: _Waiter) -> None:
        try:
            # Without a limit on threads: those that wait must not keep the holder's handler out.
            limiter = anyio.CapacityLimiter(math.inf)
            await anyio.to_thread.run_sync(me.turn.wait, abandon_on_cancel=True, limiter=limiter)
        except BaseException:
            self._leave(me)
            raise

    def _leave(self, me: _Waiter) -> None:
        with self._guard:
            is_mine = self._holder is me
            if not is_mine:
                self._waiting.remove(me)
        me.turn.set()  # the thread that waits for it ends
        if is_mine:
            self._pass_on()

    async def __aexit__(self, *exc: object) -> None:
        _HELD.set(tuple(held for held in _HELD.get() if held != id(self)))
        self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            self._holder = self._waiting.popleft() if self._waiting else None
            if self._holder is not None:
                self._holder.turn.set()
