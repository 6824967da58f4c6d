"""Real HTTP and SOCKS proxies to the servers of this machine, whatever their names."""

import base64
import re
import ssl
import struct
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteStream

BROKEN = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    ssl.SSLError,
)
HEAD_BYTES = 1 << 16


class Proxy:
    """`async with running(HttpProxy()) as proxy:`; `proxy.url` is what the environment names."""

    scheme = "http"

    def __init__(self, *, user="", password=""):
        self.user, self.password = user, password
        self.asked = []
        """Where each request or connection was to go."""
        self.turned_away = 0
        self.from_server = 0
        """Bytes that servers sent through it."""
        self.address = ""

    @property
    def url(self):
        who = f"{self.user}:{self.password}@" if self.user else ""
        return f"{self.scheme}://{who}{self.address}"

    async def _serve(self, stream):
        with suppress(*BROKEN):
            async with stream:
                await self._hear(BufferedByteStream(stream))

    async def _forward(self, port, first, client, requests):
        """Connect to a server, whose answers go to the client as they are."""
        async with (
            await anyio.connect_tcp("127.0.0.1", port) as server,
            anyio.create_task_group() as tasks,
        ):
            await client.send(first)
            tasks.start_soon(self._back, server, client, tasks.cancel_scope)
            with suppress(*BROKEN):
                await requests(client, server)
            tasks.cancel_scope.cancel()

    async def _back(self, server, client, scope):
        with suppress(*BROKEN):
            async for data in server:
                self.from_server += len(data)
                await client.send(data)
        scope.cancel()


async def _as_they_are(client, server):
    while True:
        await server.send(await client.receive())


class HttpProxy(Proxy):
    """Tunnels what is encrypted with CONNECT, and hands on other requests one by one."""

    async def _hear(self, client):
        head = await client.receive_until(b"\r\n\r\n", HEAD_BYTES)
        if not self._is_known(head):
            self.turned_away += 1
            await client.send(
                b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                b'Proxy-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n'
            )
            return
        method, target, _ = head.decode().split(" ", 2)
        if method == "CONNECT":
            self.asked.append(f"CONNECT {target}")
            port = int(target.rpartition(":")[2])
            await self._forward(port, b"HTTP/1.1 200 OK\r\n\r\n", client, _as_they_are)
        else:

            async def one_by_one(client, server):
                await self._hand_on(head, client, server)

            await self._forward(urlsplit(target).port, b"", client, one_by_one)

    def _is_known(self, head):
        known = base64.b64encode(f"{self.user}:{self.password}".encode())
        return not self.user or b"proxy-authorization: basic " + known.lower() in head.lower()

    async def _hand_on(self, head, client, server):
        while True:
            method, target, rest = head.decode().split(" ", 2)
            self.asked.append(f"{method} {target}")
            rest = re.sub(r"(?i)\r\nproxy-[^\r]*", "", rest)
            path = "/" + target.split("/", 3)[3]
            await server.send(f"{method} {path} {rest}\r\n\r\n".encode())
            length = re.search(r"(?im)^content-length: *(\d+)", rest)
            await server.send(await client.receive_exactly(int(length[1]) if length else 0))
            head = await client.receive_until(b"\r\n\r\n", HEAD_BYTES)


class SocksProxy(Proxy):
    """SOCKS5 as in RFC 1928 and, with a user, RFC 1929."""

    scheme = "socks5"

    async def _hear(self, client):
        methods = await self._counted(client, skip=1)
        method = 2 if self.user else 0
        await client.send(bytes([5, method if method in methods else 0xFF]))
        if method and not await self._is_known(client):
            self.turned_away += 1
            return
        host, port = await self._place(client)
        self.asked.append(f"{host}:{port}")
        await self._forward(port, bytes([5, 0, 0, 1, *bytes(6)]), client, _as_they_are)

    async def _counted(self, client, *, skip=0):
        """Bytes behind their number."""
        await client.receive_exactly(skip)
        [length] = await client.receive_exactly(1)
        return await client.receive_exactly(length)

    async def _is_known(self, client):
        user, password = await self._counted(client, skip=1), await self._counted(client)
        is_known = (user.decode(), password.decode()) == (self.user, self.password)
        await client.send(bytes([1, 0 if is_known else 1]))
        return is_known

    async def _place(self, client):
        kind = (await client.receive_exactly(4))[3]
        if kind == 3:
            host = (await self._counted(client)).decode()
        else:
            host = (await client.receive_exactly(4 if kind == 1 else 16)).hex()
        return host, *struct.unpack(">H", await client.receive_exactly(2))


@asynccontextmanager
async def running(proxy):
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        proxy.address = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, proxy._serve, tasks)
        yield proxy
        tasks.cancel_scope.cancel()
