"""Many small pools of connections that act as one: a pool looks at all it has for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ssl import SSLContext
from urllib.request import getproxies

import httpx2
from anyio import to_thread

SIZE = 8
"""Calls at once by one pool; further ones go by the next."""


def small_pools() -> Pools | None:
    """The transport for a client; None, which is the client's own, where a proxy is set."""
    return None if {"http", "https", "all"} & getproxies().keys() else Pools()


@dataclass(slots=True)
class _Pool:
    """One of them, and the calls it has now."""

    scheme: str
    transport: httpx2.AsyncHTTPTransport
    calls: int = 0

    def done(self) -> None:
        """One call less."""
        self.calls -= 1


class Pools(httpx2.AsyncBaseTransport):
    """Grows by a pool whenever all that there are have as many calls as they should."""

    def __init__(self) -> None:
        self._pools: list[_Pool] = []
        self._verify: SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it by the first pool that has room."""
        pool = await self._free(request.url.scheme)
        pool.calls += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.done()
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an async pool
        response.stream = _Counted(response.stream, pool.done)
        return response

    async def _free(self, scheme: str) -> _Pool:
        verify: SSLContext | bool = False  # plain connections know nothing of certificates
        if scheme == "https":
            if self._verify is None:  # it takes long to make, and others wait for this loop
                self._verify = await to_thread.run_sync(httpx2.create_ssl_context)
            verify = self._verify
        for pool in self._pools:
            if pool.scheme == scheme and pool.calls < SIZE:
                return pool
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=SIZE)
        made = _Pool(scheme, httpx2.AsyncHTTPTransport(verify=verify, limits=limits))
        self._pools.append(made)
        return made

    async def aclose(self) -> None:
        """Let go of all connections."""
        for pool in self._pools:
            await pool.transport.aclose()


class _Counted(httpx2.AsyncByteStream):
    """A response's bytes; says once when they are over."""

    def __init__(self, stream: httpx2.AsyncByteStream, done: Callable[[], None]) -> None:
        self._stream = stream
        self._done: Callable[[], None] | None = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        """Close it, and give the call's place back."""
        try:
            await self._stream.aclose()
        finally:
            done, self._done = self._done, None
            if done is not None:
                done()
