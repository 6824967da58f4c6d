"""Run blocking functions in threads, so that a function that hangs doesn't block the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import anyio
from anyio.from_thread import run_sync
from anyio.lowlevel import EventLoopToken, RunVar, current_token

from nanoloop.errors import ToolError


@dataclass(slots=True, kw_only=True)
class _Slots:
    """The slots for calls running in one event loop."""

    limiter: anyio.CapacityLimiter
    left_behind: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Work:
    """One call, on its way from the event loop to a thread and back."""

    function: Callable[[], Any]
    slots: _Slots
    result: Any = None
    error: BaseException | None = None
    abandoned: bool = False
    done: anyio.Event = field(default_factory=anyio.Event)

    def finish(self) -> None:
        """Release the slot, in the event loop, once the thread has really ended."""
        self.slots.left_behind -= self.abandoned
        self.slots.limiter.release_on_behalf_of(self)
        self.done.set()


class Threads:
    """Runs at most `limit` calls at once; an abandoned call keeps its slot until it ends.

    Unlike anyio's, the threads are daemons, so that the process can end even if one hangs.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._per_loop: RunVar[_Slots] = RunVar("slots")

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread; raise its error, or `ToolError` if all slots are stuck."""
        slots = self._slots()
        if slots.left_behind >= self._limit:
            raise ToolError(
                f"{slots.left_behind} earlier calls of this tool are still hanging: continue "
                "without it"
            )
        work = _Work(function=function, slots=slots)
        await slots.limiter.acquire_on_behalf_of(work)
        self._start(work)
        await self._finished(work)
        if work.error is not None:
            raise work.error
        return work.result

    def _slots(self) -> _Slots:
        slots = self._per_loop.get(None)
        if slots is None:
            slots = _Slots(limiter=anyio.CapacityLimiter(self._limit))
            self._per_loop.set(slots)
        return slots

    def _start(self, work: _Work) -> None:
        arguments = (copy_context().run, work, current_token())
        try:
            Thread(target=_run, args=arguments, name="tool", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            work.finish()
            raise

    async def _finished(self, work: _Work) -> None:
        try:
            await work.done.wait()
        finally:
            if not work.done.is_set():
                work.abandoned = True
                work.slots.left_behind += 1


def _run(body: Callable[..., Any], work: _Work, token: EventLoopToken) -> None:
    """Run in the thread, and report to the event loop if it is still running."""
    try:
        work.result = body(work.function)
    except BaseException as error:  # noqa: BLE001 - it is raised again where it was asked for
        work.error = error
    with suppress(RuntimeError):  # the loop has closed, so nobody is waiting any more
        run_sync(work.finish, token=token)
