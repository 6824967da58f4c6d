"""Many small pools of connections that act as one: a pool looks at all it has for each request."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from urllib.request import getproxies

import httpx2
from anyio import to_thread

SIZE = 8
"""Calls at once by one pool; further ones go by the next."""


def small_pools() -> Pools | None:
    """The transport for a client; None, which is the client's own, where a proxy is set."""
    return None if {"http", "https", "all"} & getproxies().keys() else Pools()


class Pools(httpx2.AsyncBaseTransport):
    """Grows by a pool whenever all that there are have as many calls as they should."""

    def __init__(self) -> None:
        self._pools: list[httpx2.AsyncHTTPTransport] = []
        self._busy: list[int] = []
        self._ssl: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it by the first pool that has room."""
        if self._ssl is None:  # one for all; it takes long to make, and others wait for the loop
            self._ssl = await to_thread.run_sync(httpx2.create_ssl_context)
        index = self._free(self._ssl)
        self._busy[index] += 1
        try:
            response = await self._pools[index].handle_async_request(request)
        except BaseException:
            self._busy[index] -= 1
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an async pool
        response.stream = _Counted(response.stream, lambda: self._done(index))
        return response

    def _free(self, verify: ssl.SSLContext) -> int:
        for index, busy in enumerate(self._busy):
            if busy < SIZE:
                return index
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=SIZE)
        self._pools.append(httpx2.AsyncHTTPTransport(verify=verify, limits=limits))
        self._busy.append(0)
        return len(self._pools) - 1

    def _done(self, index: int) -> None:
        self._busy[index] -= 1

    async def aclose(self) -> None:
        """Let go of all connections."""
        for pool in self._pools:
            await pool.aclose()


class _Counted(httpx2.AsyncByteStream):
    """A response's bytes; says once when they are over."""

    def __init__(self, stream: httpx2.AsyncByteStream, done: Callable[[], None]) -> None:
        self._stream = stream
        self._done: Callable[[], None] | None = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            done, self._done = self._done, None
            if done is not None:
                done()
