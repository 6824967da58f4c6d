"""Watches the event loop: reports to systemd that it runs, and logs where it stalls."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from threading import Event, Thread, get_ident
from typing import TYPE_CHECKING

import anyio

from nanoloop.errors import place_in
from nanoloop.events import LoopStalled, announce

if TYPE_CHECKING:
    from nanoloop.app import App

_LOOKS = 4
"""How many checks fit into the time after which a stall is reported."""


def watch(app: App, stall_seconds: float, env: Mapping[str, str] = os.environ) -> None:
    """Watch this daemon's event loop, for its log and for a service manager."""
    app.beside.append(Watchdog(stall_seconds).keep)
    manager = ServiceManager(env)
    if manager.is_there:
        app.beside.append(manager.keep)
        app.stopping.append(manager.stopping)


class Watchdog:
    """A thread that reports where the event loop is stuck, once per stall."""

    def __init__(self, stall_seconds: float) -> None:
        self._limit = stall_seconds
        self._ended = Event()
        self._is_told = False
        self._turned()

    async def keep(self) -> None:
        """Watch the current event loop until cancelled."""
        context = copy_context()  # includes the observers of announced events
        arguments = (self._watch, get_ident())
        Thread(target=context.run, args=arguments, name="watchdog", daemon=True).start()
        try:
            while True:
                self._turned()
                await anyio.sleep(self._limit / _LOOKS)
        finally:
            self._ended.set()

    def _turned(self) -> None:
        self._last = time.monotonic()

    def _watch(self, thread: int) -> None:
        while not self._ended.wait(self._limit / _LOOKS):
            self.look(thread)

    def look(self, thread: int) -> None:
        """Report a stall longer than the limit, unless it has been reported already."""
        seconds = time.monotonic() - self._last
        if seconds < self._limit:
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            frame = sys._current_frames().get(thread)  # noqa: SLF001 - Python has no public way
            announce(LoopStalled(seconds=round(seconds, 1), where=place_in(frame)))


class ServiceManager:
    """Reports this process's state to systemd, or to any manager with the same protocol."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._address = env.get("NOTIFY_SOCKET", "")
        self._beat_seconds = _beat_seconds(env)

    @property
    def is_there(self) -> bool:
        """Whether a service manager wants to be notified."""
        return self._address[:1] in ("/", "@")

    async def keep(self) -> None:
        """Report that the daemon is ready, then regularly that it is alive, until cancelled."""
        self._tell("READY=1")
        while self._beat_seconds is not None:
            # Sent by the event loop itself, so that nothing is sent while the loop is stuck.
            await anyio.sleep(self._beat_seconds)
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the daemon is shutting down on its own."""
        self._tell("STOPPING=1")

    def _tell(self, what: str) -> None:
        address = self._address
        if address.startswith("@"):  # a name in the abstract namespace
            address = f"\0{address[1:]}"
        # If the manager is gone or busy, the daemon must not stop.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as letter:
            letter.setblocking(False)
            letter.sendto(what.encode(), address)


def _beat_seconds(env: Mapping[str, str]) -> float | None:
    """Return how often to report that the daemon is alive, or None if not requested."""
    asked = env.get("WATCHDOG_USEC", "")
    is_mine = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not (asked.isdecimal() and int(asked) and is_mine):
        return None
    return int(asked) / 1_000_000 / 2
