"""Serving an application on a socket of ours, and ending so that no client is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import uvicorn
from starlette.types import ASGIApp

SWEEP_SECONDS = 1
TICK_SECONDS = 1
ENDING_SECONDS = 0.01
"""How often to look whether all has ended, when it should."""


class _UvicornServer(uvicorn.Server):
    """Leaves signals to the program it runs in, and sleeps until it is told to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = anyio.Event()

    def end(self) -> None:
        """Take nothing more, and let what runs end."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # it also tells responses the time
            with anyio.move_on_after(TICK_SECONDS):
                await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is idle, and what runs when it is done or out of time."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown) as patience:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - no event says so
                await anyio.sleep(ENDING_SECONDS)
        if patience.cancelled_caught:
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            for task in list(self.server_state.tasks):
                task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """Serves until it is cancelled; then takes nothing more, and gives what runs some time."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        header_seconds: float,
        grace_seconds: float,
        at_end: Callable[[], None],
    ) -> None:
        """`at_end` ends what would never end by itself."""
        config = uvicorn.Config(
            app,
            http=protocol(),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, int(grace_seconds)),
        )
        self._server = _UvicornServer(config)
        self._header_seconds = header_seconds
        self._at_end = at_end
        self._idle_since: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()

    async def serve(self, listener: socket.socket) -> None:
        """Serve on this socket, which is closed then."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sweep, name="web sweep")
            group.start_soon(self._watch, name="web end")
            with anyio.CancelScope(shield=True):  # told by `_watch`, it ends in its own time
                await self._server.serve(sockets=[listener])
            group.cancel_scope.cancel()

    async def _watch(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._at_end()
            self._server.end()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            self._cut_idle(time.monotonic())

    def _cut_idle(self, now: float) -> None:
        """Cut connections that neither send a whole request nor end, however slowly they drip."""
        for connection in list(self._server.server_state.connections):
            cycle: Any = getattr(connection, "cycle", None)
            transport = connection.transport
            is_served = cycle is not None and not cycle.response_complete
            if is_served and not transport.is_closing():
                self._idle_since.pop(connection, None)
                continue
            of, since = self._idle_since.get(connection, (id(cycle), now))
            if of == id(cycle) and now - since >= self._header_seconds:
                transport.abort()
            self._idle_since[connection] = (id(cycle), since if of == id(cycle) else now)


try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError:  # the slower parser has a bound of its own
    HttpToolsProtocol = None  # type: ignore[assignment,misc]

HEAD_BYTES = 64_000


def protocol() -> type[asyncio.Protocol] | str:
    """The fastest way to speak HTTP that is installed, for uvicorn."""
    return "h11" if HttpToolsProtocol is None else _bounded()


def _bounded() -> type[asyncio.Protocol]:
    class BoundedProtocol(HttpToolsProtocol):
        """Refuses a request whose head is too long, and cuts the connection."""

        _is_in_head = True
        _head = 0

        def data_received(self, data: bytes) -> None:
            was_in_head = self._is_in_head
            super().data_received(data)
            # What came with its end may be a body: only what brought no end counts.
            self._head += len(data) if was_in_head and self._is_in_head else 0
            if self._head > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            self._is_in_head, self._head = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_in_head, self._head = False, 0
            super().on_headers_complete()

    return BoundedProtocol
