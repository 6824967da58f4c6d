"""How MCP servers are reached: by the lines of a program, or over HTTP; each message is bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from shutil import which
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync
from mcp import types as wire
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from nanoloop.addresses import trusted_certificates
from nanoloop.children import NETWORK, child_environment, has_ended, how_it_ended, open_group
from nanoloop.errors import ServerGone
from nanoloop.proxies import proxy_for
from nanoloop.tools.servers import ToolServerPlace

if TYPE_CHECKING:
    from nanoloop.tools.mcp import ServerConnection

MOST_BYTES = 16_000_000
"""The size of the largest message that a server may send."""
CONNECT_SECONDS = 10.0
LAST_LINES = 5
"""How many of a program's last lines on standard error are remembered."""
_LINE_CHARS = 300
_Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def program(place: ToolServerPlace, connection: ServerConnection) -> AsyncGenerator[_Streams]:
    """Run the server's program, and exchange lines with it."""
    keeps = (*NETWORK, *place.env)
    if which(place.command[0], path=child_environment(keeps).get("PATH")) is None:
        raise ServerGone(
            f"there is no program {place.command[0]}: install it, or write its whole path"
        )
    async with (
        open_group(place.command, keeps=keeps) as process,
        anyio.create_task_group() as group,
    ):
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        group.start_soon(_read_lines, process, incoming, connection, name="read a program")
        group.start_soon(_write_lines, process, outgoing, name="write to a program")
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        group.start_soon(_keep_words, process.stderr, connection, name="last words")
        try:
            yield read, write
        finally:
            group.cancel_scope.cancel()
            for stream in (read, write, incoming, outgoing):
                stream.close()


async def _read_lines(
    process: Process,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    connection: ServerConnection,
) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with incoming:
        # The end is announced before `incoming` is closed, which is when the calls find out.
        try:
            async for line in _lines(process.stdout):
                with suppress(ValueError):  # for example, a line of its log
                    message = wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await incoming.send(connection.sift(SessionMessage(message)))
        except ServerGone as gone:
            connection.end(str(gone))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # it was us
        else:
            await has_ended(process)  # soon after its output ended
            connection.end(f"its program {how_it_ended(process.returncode)}")


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Yield a stream's lines; raise `ServerGone` if a line is too long."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in stream:
        first, *rest = chunk.split(b"\n")
        pieces.append(first)
        size += len(first)
        for part in rest:
            yield b"".join(pieces)
            pieces, size = [part], len(part)
        if size > MOST_BYTES:
            raise ServerGone(f"it sends a message of more than {MOST_BYTES:,} bytes")


async def _write_lines(
    process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    with outgoing:
        async for message in outgoing:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            # If the program has ended, its output shows that too, and then it is known how it
            # ended.
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.send(f"{line}\n".encode())


async def _keep_words(stream: ByteReceiveStream, connection: ServerConnection) -> None:
    """Read what the program writes to standard error, and remember the last lines."""
    rest = b""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:_LINE_CHARS]
            for line in lines[-LAST_LINES:]:
                text = line.decode("utf-8", "replace").strip()
                connection.last_lines += [text[:_LINE_CHARS]] if text else []


@asynccontextmanager
async def http_stream(
    place: ToolServerPlace, connection: ServerConnection
) -> AsyncGenerator[_Streams]:
    """Exchange messages with the server at its URL.

    Redirects are followed only within the server's origin, so that headers go nowhere else.
    """
    is_plain = place.url.startswith("http:")
    trusted: Any = True if is_plain else await run_sync(trusted_certificates)
    proxied = httpx2.AsyncHTTPTransport(verify=trusted, proxy=proxy_for(place.url))
    async with (
        httpx2.AsyncClient(
            transport=_Bounded(proxied),
            headers={**place.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            auth=connection.access,
            event_hooks={"response": [connection.note]},
            trust_env=False,
        ) as http,
        streamable_http_client(place.url, http_client=http, max_sse_event_size=MOST_BYTES) as both,
        anyio.create_task_group() as group,
    ):
        theirs, write = both
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def pass_on() -> None:
            with incoming, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in theirs:
                    is_fault = isinstance(message, Exception)
                    await incoming.send(message if is_fault else connection.sift(message))  # type: ignore[arg-type]

        group.start_soon(pass_on, name=f"messages of {place.name}")
        try:
            yield read, write  # type: ignore[misc] # a stream of the client's own, alike
        finally:
            group.cancel_scope.cancel()
            read.close()
            incoming.close()


class _Bounded(httpx2.AsyncBaseTransport):
    """Limits responses to `MOST_BYTES`, and rejects compressed ones, whose size has no limit."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ServerGone("it compressed its response, which was not requested")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            # Each event has a limit, but the stream has no end.
            response.stream = _Counted(response.stream)  # type: ignore[arg-type] # an async one
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._inner:
            size += len(piece)
            if size > MOST_BYTES:
                raise ServerGone(f"it sends a message of more than {MOST_BYTES:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


# Results
