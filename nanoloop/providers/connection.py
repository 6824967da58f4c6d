"""One connection to a server: a request goes out and its answer comes in, again and again."""

from __future__ import annotations

import select
import ssl
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httptools
import httpx2
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute

PIECE = 65_536
HEAD_LIMIT = 262_144
"""Bytes of status and headers; no honest server sends so many."""


class LetGo(Exception):
    """A connection that was kept open turns out to be over: nothing was answered on it."""


class Connection:
    """Asked one thing at a time; whoever asks reads the answer to its end, or drops it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._answer = Heard()
        self._is_new = True

    @property
    def is_free(self) -> bool:
        """Whether the answer is in, and something else may be asked."""
        return self._answer.is_over and self._answer.stays

    @property
    def has_news(self) -> bool:
        """Whether the server said something unasked, or hung up."""
        poll = select.poll()
        try:
            socket = self._stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - no Django
            poll.register(socket, select.POLLIN)
        except (anyio.ClosedResourceError, OSError, ValueError):
            return True
        return bool(poll.poll(0)) or self._has_deciphered

    @property
    def _has_deciphered(self) -> bool:
        """Whether what came encrypted behind the answer, and was taken in with it, says more."""
        encrypted = self._stream.extra(TLSAttribute.ssl_object, None)  # noqa: S610 - no Django
        try:
            return encrypted is not None and encrypted.read(1) is not None
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            return True

    async def ask(self, request: bytes) -> Heard:
        """Send it and return once the head of the answer is in; raises `httpx2.TransportError`.

        Raises `LetGo` where the server had let go of it, so that another may be tried at once.
        """
        self._answer = answer = Heard()
        was_kept, self._is_new = not self._is_new, False
        try:
            await self._send(request)
            while not answer.has_head:
                await self._hear(answer)
        except httpx2.TransportError as error:
            if was_kept and not answer.size:
                raise LetGo from error
            raise
        return answer

    async def _send(self, request: bytes) -> None:
        try:
            await self._stream.send(request)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return  # it may have been refused before it was whole: what was said is heard first

    async def body(self) -> AsyncIterator[bytes]:
        """What comes behind the head, as it comes."""
        answer = self._answer
        while True:
            for piece in answer.take():
                yield piece
            if answer.is_over:
                return
            await self._hear(answer)

    async def _hear(self, answer: Heard) -> None:
        try:
            data = await self._stream.receive(PIECE)
        except anyio.EndOfStream:
            answer.end()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise httpx2.ReadError("the connection broke") from error
        else:
            answer.hear(data)

    async def close(self) -> None:
        """Hang up, whatever is under way."""
        await anyio.aclose_forcefully(self._stream)


class Heard:
    """An answer as far as it has come in. Pure."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_over = False
        self.size = 0
        """Bytes of it so far."""
        self.stays = True
        """Whether the connection can be used again after it."""
        self._parts: list[bytes] = []
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # for whom nothing stands behind who might differ
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
            lenient_chunked_length=True,
        )

    @property
    def status(self) -> int:
        """The status; there is one once the head is in."""
        return int(self._parser.get_status_code())

    def take(self) -> list[bytes]:
        """The parts of its body that came since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def hear(self, data: bytes) -> None:
        """Take in what came; raises `RemoteProtocolError` where it isn't HTTP."""
        self.size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.stays = False
            if not self.is_over:
                raise httpx2.RemoteProtocolError("that is no HTTP") from None
        if not self.has_head and self.size > HEAD_LIMIT:
            raise httpx2.RemoteProtocolError("the headers have no end")
        # The stream may keep the rest of what came at once: it would be heard as the next answer.
        if self.is_over and len(data) >= PIECE:
            self.stays = False

    def end(self) -> None:
        """Hear that the server hung up; raises `RemoteProtocolError` where something is missing."""
        self.stays = False
        if not self.has_head or self._has_length:
            raise httpx2.RemoteProtocolError("the answer is not whole")
        self.is_over = True

    @property
    def _has_length(self) -> bool:
        names = {name.lower() for name, _ in self.headers}
        return bool(names & {b"content-length", b"transfer-encoding"})

    # What the parser calls

    def on_message_begin(self) -> None:
        """Refuse what comes behind the answer."""
        if self.is_over:
            raise ValueError("said unasked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if not self.has_head:  # else it comes behind the body
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is in, unless it is only a word in between."""
        self.has_head = self.status >= 200  # noqa: PLR2004 - a status

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """The answer is over; after a word in between it is still to come."""
        if self.has_head:
            self.is_over = True
            self.stays = self.stays and self._parser.should_keep_alive()
        else:
            self.headers.clear()
