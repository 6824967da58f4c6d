"""A server that says just these bytes, in HTTP or not."""

import ssl
from collections import deque

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener


class RawServer:
    """To each request the next of its words, the last of them for ever; none is to hang up."""

    def __init__(
        self, *words: bytes, hangs_up: bool = False, trust: ssl.SSLContext | None = None
    ) -> None:
        self._words = deque(words)
        self._hangs_up = hangs_up
        self._trust = trust
        self.connections = 0
        self.connections_made = 0
        self.heard: list[bytes] = []
        self.url = ""
        self._changed = anyio.Event()

    @property
    def count(self) -> int:
        """How many requests have come."""
        return len(self.heard)

    async def asked(self, count: int) -> None:
        """Wait until so many requests have come."""
        with anyio.fail_after(10):
            while self.count < count:
                await self._changed.wait()

    async def deserted(self) -> None:
        """Wait until no client is connected."""
        with anyio.fail_after(10):
            while self.connections:
                await self._changed.wait()

    async def __aenter__(self):
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        if self._trust is not None:
            listener = TLSListener(listener, self._trust, standard_compatible=False)
        self.url = f"http{'s' if self._trust else ''}://127.0.0.1:{port}/"
        self._listener = listener
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(listener.serve, self._hear)
        return self

    async def __aexit__(self, *_):
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        await self._listener.aclose()

    async def _hear(self, stream: ByteStream) -> None:
        self.connections_made += 1
        self.connections += 1
        try:
            async with stream:
                await self._answer(stream)
        finally:
            self.connections -= 1
            self._change()

    async def _answer(self, stream: ByteStream) -> None:
        while request := await self._asked(stream):
            self.heard.append(request)
            self._change()
            said = self._words.popleft() if len(self._words) > 1 else self._words[0]
            await stream.send(said)
            if self._hangs_up or not said:
                return

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _asked(self, stream: ByteStream) -> bytes:
        """Read a request, of which the head and the body are at most a packet."""
        try:
            return await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""
