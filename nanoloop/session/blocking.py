"""Running awaiting code from code that can't await, inside and outside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the function comes to; where an event loop runs, in a thread with a loop of its own."""
    if not _is_in_loop():
        return asyncio.run(function())
    # Not `anyio.run`: in a copied context it takes the caller's loop for one of this thread.
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: context.run(asyncio.run, function())).result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
