"""The event loop that code which can't await asks in: one for the process, in its own thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nanoloop.session.blocking import blocking

T = TypeVar("T")

_lock = Lock()
_open: dict[int, tuple[AbstractContextManager[BlockingPortal], BlockingPortal]] = {}
"""By process: a fork has no threads of its parent."""


def from_sync(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the function comes to. All share one loop, so that connections last."""
    try:
        future: Future[T] = _portal().start_task_soon(function)
    except RuntimeError:  # called from within that loop, which must not wait for itself
        return blocking(function)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # as after Ctrl-C: nobody waits for it any more
        raise


def _portal() -> BlockingPortal:
    with _lock:
        if os.getpid() not in _open:
            opened = start_blocking_portal(name="nanoloop sync")
            _open[os.getpid()] = opened, opened.__enter__()
        return _open[os.getpid()][1]
