"""Call async code from sync code and vice versa, with a lock that works in both."""

from __future__ import annotations

import inspect
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import start_blocking_portal

Handler = Callable[..., Any]
"""A sync or async function; its arguments are documented where it is set."""


async def called(handler: Handler, *arguments: Any) -> Any:
    """Return the handler's result, awaiting it if necessary."""
    if _is_async(handler):
        return await handler(*arguments)
    # In a thread, so that a slow handler delays no other session.
    result = await anyio.to_thread.run_sync(partial(handler, *arguments))
    return await result if inspect.isawaitable(result) else result


def _is_async(handler: Handler) -> bool:
    plain = handler.func if isinstance(handler, partial) else handler
    call = getattr(plain, "__call__", None)  # noqa: B004 - an object may have an async one
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(call)


def fitting(handler: Handler, *arguments: Any) -> tuple[Any, ...]:
    """Return as many of the arguments, from the first on, as the handler accepts."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return arguments
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return arguments
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(p.kind in positional for p in parameters)]


T = TypeVar("T")


def blocking(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async function in its own event loop, in another thread, and return its result."""
    with start_blocking_portal() as portal:
        came: T = portal.call(function)
    return came


_HELD: ContextVar[tuple[int, ...]] = ContextVar("_HELD", default=())
"""The locks held by this task, or by the task that called this thread."""


class _Waiter:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.turn = threading.Event()


class Mutex:
    """A lock with one holder at a time; waiting for it does not block the event loop."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holder: _Waiter | None = None
        self._waiting: deque[_Waiter] = deque()

    def check_may_block(self) -> None:
        """Raise RuntimeError if this thread would wait for itself forever."""
        thread = threading.get_ident()
        with self._guard:
            known = [*self._waiting, self._holder] if self._holder else []
        if any(waiter and waiter.thread == thread for waiter in known):
            raise RuntimeError(
                "this event loop is already resizing this session: use `await async_resize()`"
            )

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
            # Without a limit on threads, since waiting threads must not block the holder's handler.
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
        me.turn.set()  # ends the thread that is waiting
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
