"""A model server that answers as badly as it is told to, in a process of its own.

    python -m tests.servers.hostile_server [--port 0]

The first line it prints is its URL. The words `mode:NAME` in the last message choose how it
answers: `tests/hostile` has the names.
"""

from __future__ import annotations

import argparse
import re
import socket
import struct
import time
from collections import Counter
from contextlib import suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.memory import MemoryObjectSendStream

from tests.hostile import answers, transport
from tests.hostile.mode import CUT, DEAF, END, MODES, PASSWORD, PATH, QUERY, USER, Asked, whole

NAMED = re.compile(rb"mode:([a-z0-9-]+)")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": ?true')
LAST_ROLE = re.compile(rb'"role": ?"(\w+)"')
HEAD_END = b"\r\n\r\n"
DEAF_SECONDS = 1.0
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
assert answers
assert transport


def url(port: int) -> str:
    """The base URL, with a secret in each place where a URL can have one."""
    return f"http://{USER}:{PASSWORD}@127.0.0.1:{port}/{PATH}/v1?key={QUERY}"


class HostileServer:
    """Counts how often each mode was asked, for those that do something else each time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._deaf_until = 0.0

    async def serve(self, port: int, *, started: MemoryObjectSendStream[int]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        started.send_nowait(listener.extra(SocketAttribute.local_port))
        await listener.serve(self.hear)

    async def hear(self, stream: SocketStream) -> None:
        async with stream:
            if (seconds := self._deaf_until - time.monotonic()) > 0:
                await anyio.sleep(seconds)
                return
            await Connection(self, stream).run()

    def be_deaf(self) -> None:
        self._deaf_until = time.monotonic() + DEAF_SECONDS


class Connection:
    """Reads all the time, so that it knows at once when the other side has left."""

    def __init__(self, server: HostileServer, stream: SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._buffer = b""

    async def run(self) -> None:
        send, receive = anyio.create_memory_object_stream[tuple[bytes, bytes]](100)
        async with anyio.create_task_group() as group, receive:
            group.start_soon(self._read, send, group.cancel_scope)
            with suppress(*GONE):
                async for head, body in receive:
                    if not await self._answer(head, body):
                        break
            group.cancel_scope.cancel()

    async def _read(self, requests: MemoryObjectSendStream, left: anyio.CancelScope) -> None:
        with suppress(*GONE):
            while True:
                self._buffer += await self._stream.receive()
                while (request := self._take()) is not None:
                    await requests.send(request)
        left.cancel()

    def _take(self) -> tuple[bytes, bytes] | None:
        head, end, rest = self._buffer.partition(HEAD_END)
        found = LENGTH.search(head)
        length = int(found[1]) if found else 0
        if not end or len(rest) < length:
            return None
        self._buffer = rest[length:]
        return head, rest[:length]

    async def _answer(self, head: bytes, body: bytes) -> bool:
        """Whether the connection stays."""
        names = [name.decode() for name in NAMED.findall(body) if name.decode() in MODES]
        if not names:
            await self._stream.send(whole(b"name a mode", status="404"))
            return True
        asked = Asked(
            head=head,
            size=len(body),
            is_streamed=STREAMED.search(body) is not None,
            has_results=LAST_ROLE.findall(body)[-1] == b"tool",
            count=self._server.counts[names[-1]],
        )
        self._server.counts[names[-1]] += 1
        for part in MODES[names[-1]].play(asked):
            if part in (CUT, END):
                return self._hang_up(with_reset=part == CUT)
            if part == DEAF:
                self._server.be_deaf()
            elif isinstance(part, float):
                await anyio.sleep(part)
            else:
                await self._stream.send(part)
        return True

    def _hang_up(self, *, with_reset: bool) -> bool:
        if with_reset:
            raw = self._stream.extra(SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


async def serve(port: int) -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(lambda: HostileServer().serve(port, started=send))
        print(url(await receive.receive()), flush=True)  # noqa: T201 - for whoever started it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    anyio.run(serve, parser.parse_args().port)


if __name__ == "__main__":
    main()
