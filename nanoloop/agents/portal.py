"""The event loop that code which can't await asks in: one for the process, in its own thread."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

from nanoloop.session.blocking import blocking

T = TypeVar("T")

_STOP_SECONDS = 1.0
_lock = Lock()
_open: dict[int, tuple[asyncio.AbstractEventLoop, Thread]] = {}
"""By process: a fork has no threads of its parent."""


def from_sync(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the function comes to. All share one loop, so that connections last."""
    loop, thread = _running_loop()
    if thread is current_thread():  # called from within that loop, which must not wait for itself
        return blocking(function)
    future = asyncio.run_coroutine_threadsafe(function(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # as after Ctrl-C: nobody waits for it any more
        raise


def _running_loop() -> tuple[asyncio.AbstractEventLoop, Thread]:
    with _lock:
        if os.getpid() not in _open:
            loop = asyncio.new_event_loop()
            # A daemon: what it still does must not keep the process from ending.
            thread = Thread(target=loop.run_forever, name="nanoloop sync", daemon=True)
            thread.start()
            atexit.register(_stop, os.getpid())
            _open[os.getpid()] = loop, thread
        return _open[os.getpid()]


def _stop(process: int) -> None:
    if process != os.getpid():
        return
    loop, thread = _open.pop(process)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_STOP_SECONDS)
    if not thread.is_alive():
        loop.close()
