"""Just enough of an HTTP server for a stand-in: fast, and able to cut a connection."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from urllib.parse import parse_qsl

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

LIMIT = 60_000_000


class Cut(Exception):
    """The connection ends here, without a word."""


@dataclass(slots=True)
class Asked:
    """One request."""

    path: str
    values: dict[str, str]
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)


class HttpServer:
    """Hands each request to `answer`, which returns a status and a body; cuts those that rest."""

    def __init__(self, answer):
        self._answer = answer
        self._resting = set()

    async def serve(self, listener):
        async with anyio.create_task_group() as group, listener:
            await listener.serve(self._talk, group)

    def cut_resting(self):
        """Cut what is connected and asks for nothing now."""
        for scope in self._resting:
            scope.cancel()

    async def _talk(self, stream):
        buffered = BufferedByteReceiveStream(stream)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, Cut):
            async with stream:
                while True:
                    await self._one(stream, buffered)

    async def _one(self, stream, buffered):
        with anyio.CancelScope() as scope:
            self._resting.add(scope)
            try:
                head = await buffered.receive_until(b"\r\n\r\n", 65536)
            finally:
                self._resting.discard(scope)
        if scope.cancelled_caught:
            raise Cut
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        body = await buffered.receive_exactly(int(headers.get("content-length", 0)))
        status, said = await self._answer(_asked(first.split(" ")[1], headers, body))
        said = said if isinstance(said, bytes) else json.dumps(said).encode()
        await stream.send(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(said), said)
        )


def _asked(path, headers, body):
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        return _parts(path, kind, body)
    return Asked(path, dict(parse_qsl(body.decode(), keep_blank_values=True)))


def _parts(path, kind, body):
    asked = Asked(path, {})
    for part in message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body).get_payload():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if part.get_filename() is None:
            asked.values[name] = data.decode()
        else:
            asked.files[name] = (part.get_filename(), data)
    return asked
