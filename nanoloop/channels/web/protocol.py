"""HTTP on one connection, with a bound on what may stand before a request's body."""

from __future__ import annotations

import asyncio

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError:  # the slower parser has a bound of its own
    HttpToolsProtocol = None  # type: ignore[assignment,misc]

HEAD_BYTES = 64_000


def protocol() -> type[asyncio.Protocol] | str:
    """The fastest way to speak HTTP that is installed, for uvicorn."""
    return "h11" if HttpToolsProtocol is None else _bounded()


def _bounded() -> type[asyncio.Protocol]:
    class Bounded(HttpToolsProtocol):
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

    return Bounded
