"""Connections that are kept and used again, with as little as can be between a call and its server.

The client above is httpx2's, which knows of URLs, redirects and encodings. Its own transport looks
at all connections for each request and parses answers in Python: for hundreds of calls at once that
is most of what a call costs.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from anyio import to_thread
from anyio.abc import ByteStream

from nanoloop.providers.connection import Connection, LetGo

IDLE_SECONDS = 5
"""After so long without use a connection is closed: what stands between may have forgotten it."""
PORTS = {"http": 80, "https": 443}
THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}
Place = tuple[str, str, int]
"""Scheme, host and port."""


def direct(host: str) -> Connections | None:
    """The transport for a client; None, which is the client's own, where a proxy stands between."""
    is_proxied = {"http", "https", "all"} & getproxies().keys()
    is_direct = not is_proxied or host in THIS_MACHINE or proxy_bypass(host)
    return Connections() if is_direct else None


class Connections(httpx2.AsyncBaseTransport):
    """One for each call under way, and those that wait for the next; never two calls on one."""

    def __init__(self) -> None:
        self._free: dict[Place, deque[tuple[float, Connection]]] = defaultdict(deque)
        self._trusted: SSLContext | None = None
        self._trusting = anyio.Lock()
        self._is_closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Ask it on a connection that is free, or on a new one."""
        data, place = await as_sent(request), place_of(request.url)
        if (kept := await self._kept(place)) is not None:
            with suppress(LetGo):
                return await self._asked(kept, place, data)
        return await self._asked(await self._new(request, place), place, data)

    async def _asked(self, connection: Connection, place: Place, data: bytes) -> httpx2.Response:
        try:
            head = await connection.ask(data)
        except BaseException:
            await connection.close()
            raise
        body = _Body(connection, partial(self._keep, place, connection))
        return httpx2.Response(head.status, headers=head.headers, stream=body)

    async def _kept(self, place: Place) -> Connection | None:
        """The one that was used last, as long as its server keeps it too."""
        free = self._free[place]
        while free:
            since, connection = free.pop()
            if not _is_old(since) and not connection.has_news:
                return connection
            await connection.close()
        return None

    async def _keep(self, place: Place, connection: Connection) -> None:
        free = self._free[place]
        if connection.is_free and not self._is_closed:
            free.append((time.monotonic(), connection))
        else:
            await connection.close()
        while free and _is_old(free[0][0]):
            await free.popleft()[1].close()

    async def _new(self, request: httpx2.Request, place: Place) -> Connection:
        seconds = request.extensions.get("timeout", {}).get("connect")
        try:
            with anyio.fail_after(seconds):
                return Connection(await self._connected(*place))
        except TimeoutError:
            raise httpx2.ConnectTimeout("nothing answers", request=request) from None
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise httpx2.ConnectError(str(error), request=request) from error

    async def _connected(self, scheme: str, host: str, port: int) -> ByteStream:
        if scheme == "http":
            return await anyio.connect_tcp(host, port)
        trust = await self._trust()
        return await anyio.connect_tcp(
            host, port, ssl_context=trust, tls_hostname=host, tls_standard_compatible=False
        )

    async def _trust(self) -> SSLContext:
        async with self._trusting:
            if self._trusted is None:  # it takes long to make, and others wait for this loop
                self._trusted = await to_thread.run_sync(httpx2.create_ssl_context)
                self._trusted.set_alpn_protocols(["http/1.1"])
        return self._trusted

    async def aclose(self) -> None:
        """Hang up wherever no call is under way."""
        self._is_closed = True
        while self._free:
            _, free = self._free.popitem()
            while free:
                await free.pop()[1].close()


class _Body(httpx2.AsyncByteStream):
    """The body of an answer; once it is over, or dropped, its connection is given back."""

    def __init__(self, connection: Connection, give_back: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._give_back: Callable[[], Awaitable[None]] | None = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._connection.body():
            yield piece

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            await give_back()


def place_of(url: httpx2.URL) -> Place:
    """Where a URL leads to."""
    if url.scheme not in PORTS:
        raise httpx2.UnsupportedProtocol("only http:// and https:// can be asked")
    return url.scheme, url.host, url.port or PORTS[url.scheme]


def _is_old(since: float) -> bool:
    return time.monotonic() - since > IDLE_SECONDS


async def as_sent(request: httpx2.Request) -> bytes:
    """A request as it goes over the line."""
    first = b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)
    headers = [b"%b: %b" % header for header in request.headers.raw]
    return b"\r\n".join([first, *headers, b"", await request.aread()])
