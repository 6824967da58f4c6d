"""The terminal channel for scripts: sends input lines or one message, and waits for answers."""

from __future__ import annotations

import json
import os
import re
import select
from codecs import lookup
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import anyio

from nanoloop.channels.screen import fitting, printable, unshown
from nanoloop.events import TextStreamed
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus
from nanoloop.sentences import Incidents
from nanoloop.session.speech import file_mark

_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ROLES = {"answer": "assistant", "notice": "notice", "error": "error"}


class PipeChannel:
    """Sends each line of `stdin`, or just `message`, and writes the answers.

    In plain text, answers go to `stdout`, errors and notices to `stderr`. Details of a failure for
    the operator always go to `stderr`.
    """

    name = "terminal"

    def __init__(
        self,
        *,
        chat: str,
        message: str | None = None,
        as_json: bool = False,
        streams: bool = False,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        encoding: str = "utf-8",
    ) -> None:
        """Create the channel; characters that `encoding` lacks are replaced, or escaped in JSON."""
        self.chat = chat
        self.streams = streams and not as_json
        """Whether pieces of an answer are written as they arrive."""
        self.failed = False
        """True once a message has been answered with an error."""
        self.incidents = Incidents()
        """Details of failures for the operator: here, the person at the terminal."""
        self._message = message
        self._as_json = as_json
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._encoding = encoding
        self._asked: str | None = None
        self._answered = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._streamed = ""

    async def run(self, bus: Bus) -> None:
        """Send one message after another until all are answered or the reader closes the pipe."""
        with anyio.CancelScope() as self._scope:
            async for text in self._texts():
                await self._ask(bus, text)

    async def _texts(self) -> AsyncIterator[str]:
        if self._message is not None:
            yield self._message
            return
        async for line in _lines(self._stdin):
            text = line.decode("utf-8", "replace").strip("\r\n\ufeff")
            if text.strip():
                yield text

    async def _ask(self, bus: Bus, text: str) -> None:
        self._answered = anyio.Event()
        # Each line gets its own id: two identical lines are two messages.
        self._asked = uuid4().hex
        await bus.put(
            Inbound(
                channel=self.name,
                chat=self.chat,
                text=text,
                message_id=self._asked,
                rank="owner",
            )
        )
        await self._answered.wait()

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Write and flush one item; end the run if the reader has closed the pipe."""
        if item.chat != self.chat:
            return
        try:
            await (self._whole(item) if isinstance(item, Outbound) else self._piece(item.text))
        except OSError as error:
            # The output can't be written, because the reader has gone or the disk is full: stop
            # here.
            if self._scope is not None:
                self._scope.cancel()
            if not isinstance(error, BrokenPipeError):
                self.failed = True
                raise

    async def _piece(self, text: str) -> None:
        if self.streams:
            self._streamed += text
            await self._write(self._stdout, printable(text))

    async def _whole(self, item: Outbound) -> None:
        asked = item.reply_to is not None and item.reply_to == self._asked
        if self._as_json:
            await self._write(self._stdout, self._json(item, asked=asked))
        else:
            await self._plain(item, asked=asked)
        if about := self.incidents.line(item.incident):
            await self._write(self._stderr, printable(about))
        self.failed = self.failed or item.kind == "error"
        # Release the next line only now that this answer has been written.
        if asked:
            self._answered.set()

    async def _plain(self, item: Outbound, *, asked: bool) -> None:
        to_stdout = item.kind == "answer" or (asked and item.kind == "notice")
        text = item.text
        if self._streamed and (asked or item.kind == "answer"):
            missing = unshown(text, self._streamed) if item.kind == "answer" else None
            text = f"\n{text}" if missing is None else missing
            self._streamed = ""
        text = "\n".join((text, *(file_mark(asdict(file)) for file in item.attachments)))
        await self._write(self._stdout if to_stdout else self._stderr, printable(text) + "\n")

    def _json(self, item: Outbound, *, asked: bool) -> str:
        fields: dict[str, Any] = {"role": _ROLES[item.kind], "text": item.text}
        fields["session"] = self.chat
        if item.attachments:
            named = ("ref", "kind", "name", "mime_type", "size")
            fields["files"] = [
                {name: getattr(file, name) for name in named} for file in item.attachments
            ]
        if not asked:  # an answer to an earlier run's message, or to none
            fields["unasked"] = True
        line = json.dumps(fields, ensure_ascii=lookup(self._encoding).name != "utf-8")
        return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n"

    async def _write(self, descriptor: int, text: str) -> None:
        await _write(descriptor, fitting(text, self._encoding).encode(self._encoding))


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    while line := await _line(descriptor):
        yield line


async def _line(descriptor: int) -> bytes:
    """Read one line and not a byte more, so that unsent lines stay in the pipe.

    Waits without a thread, so that it can be cancelled.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], 0)[0]:
            await _ready(anyio.wait_readable, descriptor)
        with suppress(BlockingIOError):
            if not (byte := os.read(descriptor, 1)):
                break
            line += byte
    return bytes(line)


async def _write(descriptor: int, written: bytes) -> None:
    """Write all of the data without blocking other tasks while the reader is slow."""
    data = memoryview(written)
    while data:
        await _ready(anyio.wait_writable, descriptor)
        with suppress(BlockingIOError):
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    with suppress(PermissionError):  # a regular file is always ready and can't be waited for
        await wait(descriptor)
