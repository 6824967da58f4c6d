"""Stands between a client and a server, and goes wrong when told to."""

import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio

from tests.servers.server import free_port

NO_LIMIT = sys.maxsize
BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass(slots=True)
class Flow:
    """Bytes one way, of all connections together."""

    passed: int = 0
    limit: int = NO_LIMIT

    def let_through(self, data):
        through = data[: self.limit - self.passed]
        self.passed += len(through)
        return through


class Faulty:
    """`async with faulty(server.url) as proxy:` and then `proxy.url` in place of the server's."""

    def __init__(self, url, tasks):
        self._server_port = urlsplit(url).port
        self._tasks = tasks
        self.port = free_port()
        self.url = url.replace(f":{self._server_port}", f":{self.port}")
        self.to_server = Flow()
        self.from_server = Flow()
        self.cuts = 0
        """How often connections that there were have been ended."""
        self.after_cut = lambda: None
        """Called behind each of them."""
        self._came = anyio.Event()
        self._listener = None
        self._connections = set()
        self._flowing = anyio.Event()
        self._flowing.set()

    @property
    def connections(self):
        return len(self._connections)

    def cut(self):
        """End all connections now; new ones are let in."""
        self.to_server.limit = self.from_server.limit = NO_LIMIT
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            self.cuts += 1
            self.after_cut()

    async def new_connection(self):
        """Wait for the next one."""
        await self._came.wait()

    def cut_after(self, *, to_server=None, from_server=None):
        """So many bytes still pass; with the next one all connections are cut, once."""
        if to_server is not None:
            self.to_server.limit = self.to_server.passed + to_server
        if from_server is not None:
            self.from_server.limit = self.from_server.passed + from_server

    def hold(self):
        """What is asked still reaches the server, but no answer comes back before `resume()`."""
        if self._flowing.is_set():
            self._flowing = anyio.Event()

    async def refuse(self):
        """Nobody can connect before `resume()`; who is connected stays so."""
        await self._listener.aclose()

    async def resume(self):
        """Answer and let in again, as if nothing had been."""
        self._flowing.set()
        await self._listener.aclose()
        await self.listen()

    async def listen(self):
        place = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port)
        [self._listener] = place.listeners
        self._tasks.start_soon(self._serve, self._listener, name="proxy")

    async def _serve(self, listener):
        with suppress(anyio.ClosedResourceError):
            async with listener:
                await listener.serve(self._connect, self._tasks)

    async def _connect(self, client):
        with anyio.CancelScope() as scope, suppress(*BROKEN):
            self._connections.add(scope)
            self._came.set()
            self._came = anyio.Event()
            async with client, await anyio.connect_tcp("127.0.0.1", self._server_port) as server:
                await self._both_ways(client, server, scope)
        self._connections.discard(scope)

    async def _both_ways(self, client, server, scope):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pass, client, server, self.to_server, scope)
            tasks.start_soon(self._pass, server, client, self.from_server, scope)

    async def _pass(self, source, sink, flow, scope):
        with suppress(*BROKEN):
            async for data in source:
                if flow is self.from_server:
                    await self._flowing.wait()
                through = flow.let_through(data)
                await sink.send(through)
                if len(through) < len(data):
                    self.cut()
        scope.cancel()


@asynccontextmanager
async def faulty(url):
    async with anyio.create_task_group() as tasks:
        proxy = Faulty(url, tasks)
        await proxy.listen()
        yield proxy
        tasks.cancel_scope.cancel()
