"""Running awaiting code from code that can't await, inside and outside a running event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import anyio

T = TypeVar("T")


def blocking(function: Callable[[], Awaitable[T]]) -> T:
    """What the function comes to; where an event loop runs, in a thread with a loop of its own."""
    if not _is_in_loop():
        return _run(function)
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: context.run(_run, function)).result()


def _run(function: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(function)


def _is_in_loop() -> bool:
    try:
        anyio.get_current_task()
    except (anyio.NoEventLoopError, RuntimeError):
        return False
    return True
