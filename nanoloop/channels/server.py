"""Serves an ASGI application on a given socket, and shuts down without cutting off clients."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanoloop.addresses import network_of
from nanoloop.files import connection_limit

HEAD_BYTES = 64_000
"""How many bytes a request may send outside its body before its connection is closed."""
CHUNK_COST = 8
"""Extra bytes allowed per byte of the body, for clients that send tiny chunks."""
SMALL_BYTES = 1000
PIECES = 8
REST_SECONDS = 0.01
"""If a request arrives in more pieces than this, reading pauses after each small piece.

Otherwise, a client that sends byte by byte would slow everyone else down.
"""
IGNORED_BYTES = 1_000_000
"""How many bytes of a body are accepted after its request has been answered."""
LOOP_BYTES = 64_000
"""The largest body that is parsed in the event loop; larger ones are parsed in a thread."""
PATIENCE_SECONDS = 30
"""How long a client may go without receiving any pending data before it is disconnected."""
SWEEP_SECONDS = 0.5
"""How often to look for clients to disconnect; a client may stay this much too long."""
TICK_SECONDS = 1
ENDING_SECONDS = 0.01
"""During shutdown, how often to check whether all connections have ended."""


class OpenConnections:
    """The open connections of all listeners in a process, limited in total and per address.

    If a limit is exceeded, the connection that has waited longest for its client (to finish a
    request or to receive data) is closed. If no other connection is waiting, the new one is closed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_of_address = max(1, limit // 2)
        self.count = 0
        self._guard = Lock()  # listeners may run in different event loops
        # For each address: its number of connections, and those waiting for the client, oldest
        # first.
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, dict[_Protocol, None]] = {}

    def enter(self, connection: _Protocol) -> None:
        """Add a connection; if that exceeds a limit, close one as the class describes."""
        address = connection.address
        with self._guard:
            self.count += 1
            self._counts[address] = self._counts.get(address, 0) + 1
            self._add(connection)
            if self._counts[address] > self.limit_of_address:
                self._cut_oldest(address)
            elif self.count > self.limit:
                self._cut_oldest(max(self._waiting, key=lambda each: len(self._waiting[each])))

    def leave(self, connection: _Protocol) -> None:
        """Remove a connection."""
        address = connection.address
        with self._guard:
            self._drop(connection)
            self.count -= 1
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def wait(self, connection: _Protocol) -> None:
        """Mark a connection as waiting for its client."""
        with self._guard:
            self._add(connection)

    def go_on(self, connection: _Protocol) -> None:
        """Mark a connection as no longer waiting for its client."""
        with self._guard:
            self._drop(connection)

    def _add(self, connection: _Protocol) -> None:
        self._waiting.setdefault(connection.address, {})[connection] = None

    def _drop(self, connection: _Protocol) -> None:
        waiting = self._waiting.get(connection.address, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(connection.address, None)

    def _cut_oldest(self, address: str) -> None:
        oldest = next(iter(self._waiting[address]))
        self._drop(oldest)
        with contextlib.suppress(RuntimeError):  # the connection's event loop has ended
            oldest.loop.call_soon_threadsafe(oldest.transport.abort)


@cache
def connections_of_process() -> OpenConnections:
    """Return the connections of all listeners in this process, capped by the open-file limit."""
    return OpenConnections(connection_limit())


class _Http(h11.Connection):
    """Parses HTTP, and counts the bytes that a request sends outside its body."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)  # this also limits each line of a body
        self._beside = self._body = 0
        self.pieces = 0
        """How many reads the current request has taken so far."""

    @property
    def has_too_much(self) -> bool:
        """Whether a request has sent more outside its body than any real client would."""
        return self._beside > HEAD_BYTES + CHUNK_COST * self._body

    def receive_data(self, data: bytes) -> None:
        self._beside += len(data)
        self.pieces += 1
        super().receive_data(data)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._beside -= len(event.data)
            self._body += 0 if self.our_state is h11.DONE else len(event.data)
        elif isinstance(event, h11.Request):
            self._beside = self._body = 0
        elif isinstance(event, h11.EndOfMessage):
            self.pieces = 0
        return event


class _Protocol(H11Protocol):
    """Handles one HTTP connection, which counts towards the limits on connections and on data."""

    conn: _Http
    others: OpenConnections
    address = ""
    _ignored = 0

    @classmethod
    def among(cls, others: OpenConnections) -> Callable[..., _Protocol]:
        """Return the protocol factory that uvicorn needs; it counts connections in `others`."""

        def make(**named: Any) -> _Protocol:
            made = cls(**named)
            made.conn, made.others = _Http(), others
            return made

        return make

    def data_received(self, data: bytes) -> None:
        is_answered = self.conn.our_state is h11.DONE
        super().data_received(data)
        self._ignored = self._ignored + len(data) if is_answered else 0
        if self.transport.is_closing():
            return
        if self._ignored > IGNORED_BYTES:
            self.transport.abort()
        elif self.conn.has_too_much:
            self.send_400_response("The request's headers are too large.")
        elif self.conn.pieces > PIECES and len(data) < SMALL_BYTES:
            self.transport.pause_reading()
            self.loop.call_later(REST_SECONDS, self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self.others.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.leave(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.transport.is_closing():
            self.others.wait(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def _go_on(self) -> None:
        cycle = self.cycle
        is_asked = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if is_asked and not self.flow.write_paused:
            self.others.go_on(self)

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self.others.wait(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # a request in progress gets no response
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # a response has already begun
            self.transport.abort()


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the program and sleeps until told to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = anyio.Event()

    def end(self) -> None:
        """Stop accepting connections, and let running requests finish."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # also updates the date header of responses
            with anyio.move_on_after(TICK_SECONDS):
                await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close idle connections now, and the others when they finish or run out of time."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown) as patience:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - there is no event for it
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
    """Serves until cancelled; then stops accepting connections and lets running requests finish."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        header_seconds: float,
        grace_seconds: float,
        at_end: Callable[[], None],
    ) -> None:
        """Create the server; `at_end` ends requests that would never end on their own."""
        config = uvicorn.Config(
            app,
            http=_Protocol.among(connections_of_process()),  # type: ignore[arg-type]
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
        self._same_since: WeakKeyDictionary[Any, tuple[object, float]] = WeakKeyDictionary()

    async def serve(self, listener: socket.socket) -> None:
        """Serve on this socket, and close it afterwards."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sweep, name="web sweep")
            group.start_soon(self._watch, name="web end")
            with anyio.CancelScope(shield=True):  # `_watch` tells it to stop
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
        """Close connections that are too slow to send a request, to receive data, or to close."""
        for connection in list(self._server.server_state.connections):
            state, patience = self._state_of(connection)
            known, since = self._same_since.get(connection, (state, now))
            since = since if known == state else now
            self._same_since[connection] = (state, since)
            if now - since >= patience:
                connection.transport.abort()

    def _state_of(self, connection: Any) -> tuple[object, float]:
        """Return a value that changes with the client's progress, and how long it may stall."""
        cycle, transport = connection.cycle, connection.transport
        is_paused, is_closing = connection.flow.write_paused, transport.is_closing()
        is_asked = cycle is not None and not cycle.response_complete
        if is_asked and not is_paused and not is_closing:
            return None, math.inf
        patience = PATIENCE_SECONDS if is_paused and not is_closing else self._header_seconds
        return (id(cycle), transport.get_write_buffer_size()), patience
