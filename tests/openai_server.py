"""An OpenAI-compatible server for tests and benchmarks: real HTTP, fast, told what to say.

In a test: `async with OpenAIServer("Hello.") as server: OpenAIProvider(base_url=server.url, ...)`.
On its own: `python tests/openai_server.py --port 0`; the first line it prints is its URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import anyio

PATH = b"/v1/chat/completions"
STREAMED = re.compile(rb'"stream": ?true')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEADERS_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server says to one request."""

    text: str = "Hello."
    thinking: str = ""
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and arguments of each."""
    finish_reason: str | None = ""
    """Empty: what fits; None: the server doesn't say."""
    usage: tuple[int, int, int] | None = (10, 5, 0)
    """Tokens in, out and cached."""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """Sent as it is, in place of an answer."""
    chunks: tuple[bytes, ...] | None = None
    """Sent as they are, in place of a streamed answer."""
    done: bool = True
    """Whether a stream ends with `[DONE]`."""
    delay_seconds: float = 0
    held: bool = False
    """Nothing is sent before `release()`."""
    hold_after: int | None = None
    """After so many chunks of a stream (0: the head) the rest waits for `release()`."""
    cut_after: int | None = None
    """After so many chunks of a stream (0: the head) the connection is cut."""


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    head: bytes
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @cached_property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def streamed(self) -> bool:
        return STREAMED.search(self.body) is not None


Say = Answer | str | Callable[[Request], "Answer | str"]


class OpenAIServer:
    """Plays its answers in order, then `otherwise`; keeps the last requests."""

    def __init__(self, *answers: Say, otherwise: Say = "Hello.", keep: int = 1000) -> None:
        self.answers: deque[Say] = deque(answers)
        self.otherwise = otherwise
        self.requests: deque[Request] = deque(maxlen=keep)
        self.models: Any = None
        """What its list of models has; None where it has no list."""
        self.count = 0
        self.connections = 0
        self.connections_made = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = anyio.Event()
        self._server: asyncio.Server | None = None
        self.root = ""

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return self.root + "/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        assert self._server is not None
        self._server.close()

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port)
        self.root = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def arrived(self, count: int) -> None:
        """Wait until so many requests have come."""
        await self._until(lambda: self.count >= count)

    async def deserted(self) -> None:
        """Wait until no client is connected."""
        await self._until(lambda: self.connections == 0)

    async def _until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not holds():
                await self._changed.wait()

    def release(self, count: int | None = None) -> None:
        """Let `count` held answers go on (all of them by default)."""
        for _ in range(len(self._waiting) if count is None else count):
            self._waiting.popleft()()

    def hold(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)

    def changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def answer(self, request: Request) -> Answer:
        self.count += 1
        self.requests.append(request)
        self.changed()
        if self.models is not None and request.path.partition("?")[0].endswith("/models"):
            return Answer(body=dumps({"object": "list", "data": self.models}))
        if not request.head.startswith(b"POST " + PATH):
            return Answer(status=404, body=b"<html>404 page not found</html>")
        say = self.answers.popleft() if self.answers else self.otherwise
        said = say(request) if callable(say) else say
        return Answer(text=said) if isinstance(said, str) else said


class Connection(asyncio.Protocol):
    """One client: its requests are answered one after the other."""

    def __init__(self, server: OpenAIServer) -> None:
        self.server = server
        self.buffer = b""
        self.busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections += 1
        self.server.connections_made += 1

    def connection_lost(self, _: Exception | None) -> None:
        self.server.connections -= 1
        self.server.changed()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._next()

    def _next(self) -> None:
        while not self.busy and (request := self._take()) is not None:
            self.busy = True
            self._begin(self.server.answer(request), streamed=request.streamed)

    def _take(self) -> Request | None:
        head, end, rest = self.buffer.partition(HEADERS_END)
        if not end:
            return None
        found = LENGTH.search(head)
        length = int(found[1]) if found else 0
        if len(rest) < length:
            return None
        self.buffer = rest[length:]
        return Request(head, rest[:length])

    def _begin(self, answer: Answer, *, streamed: bool) -> None:
        parts = iter(rendered(answer, streamed))
        if answer.held:
            self.server.hold(lambda: self._send(parts))
        elif answer.delay_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(answer.delay_seconds, self._send, parts)
        else:
            self._send(parts)

    def _send(self, parts: Any) -> None:
        for part in parts:
            if part is HOLD:
                self.server.hold(lambda: self._send(parts))
                return
            if part is CUT:
                self.transport.close()
                return
            self.transport.write(part)
        self.busy = False
        self._next()


HOLD = b"hold"
CUT = b"cut"


@lru_cache(maxsize=64)
def rendered(answer: Answer, streamed: bool) -> tuple[bytes, ...]:
    """The bytes of an answer, with marks where to stop."""
    if answer.body is not None or answer.status != 200 or not streamed:
        kind = "application/json"
        body = dumps(whole(answer)) if answer.body is None else answer.body
        if body.startswith(b"<"):
            kind = "text/html"
        parts = [head(answer, kind, f"content-length: {len(body)}") + body]
    else:
        chunks = [b"%x\r\n%b\r\n" % (len(c), c) for c in streamed_chunks(answer)]
        begin = head(answer, "text/event-stream", "transfer-encoding: chunked")
        parts = [begin, *chunks, b"0\r\n\r\n"]
    return tuple(with_marks(parts, answer))


def with_marks(parts: list[bytes], answer: Answer) -> Iterable[bytes]:
    """The parts, with those between two marks in one piece: a write each costs time."""
    begin = 0
    for end, mark in ((answer.hold_after, HOLD), (answer.cut_after, CUT)):
        if end is not None:
            yield b"".join(parts[begin : end + 1])
            yield mark
            begin = end + 1
    yield b"".join(parts[begin:])


def head(answer: Answer, kind: str, framing: str) -> bytes:
    given = {name.lower(): value for name, value in answer.headers}
    lines = [f"{name}: {value}" for name, value in ({"content-type": kind} | given).items()]
    return "\r\n".join([f"HTTP/1.1 {answer.status} X", framing, *lines, "", ""]).encode("latin-1")


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def whole(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.tool_calls:
        message["tool_calls"] = [call_form(*call) for call in answer.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": finish(answer)}
    return envelope("chat.completion", choices=[choice], **usage(answer))


def streamed_chunks(answer: Answer) -> Iterable[bytes]:
    if answer.chunks is not None:
        yield from answer.chunks
        return
    for delta in deltas(answer):
        yield event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
    yield event(choices=[{"index": 0, "delta": {}, "finish_reason": finish(answer)}])
    if answer.usage:
        yield event(choices=[], **usage(answer))
    if answer.done:
        yield b"data: [DONE]\n\n"


def deltas(answer: Answer) -> Iterable[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in re.findall(r"\s*\S+|\s+", answer.thinking):
        yield {"reasoning_content": piece}
    for piece in re.findall(r"\s*\S+|\s+", answer.text):
        yield {"content": piece}
    for index, (call_id, name, arguments) in enumerate(answer.tool_calls):
        yield {"tool_calls": [{"index": index} | call_form(call_id, name, "")]}
        for start in range(0, len(arguments), 8):
            part = {"arguments": arguments[start : start + 8]}
            yield {"tool_calls": [{"index": index, "function": part}]}


def event(**fields: Any) -> bytes:
    return b"data: " + dumps(envelope("chat.completion.chunk", **fields)) + b"\n\n"


def envelope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "test-model", **fields}


def call_form(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def finish(answer: Answer) -> str | None:
    return (
        ("tool_calls" if answer.tool_calls else "stop")
        if answer.finish_reason == ""
        else (answer.finish_reason)
    )


def usage(answer: Answer) -> dict[str, Any]:
    if answer.usage is None:
        return {}
    tokens_in, tokens_out, cached = answer.usage
    counted = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"usage": counted}


async def serve(port: int, answer: Answer) -> None:
    server = OpenAIServer(otherwise=answer, keep=1)
    await server.start(port)
    print(server.url, flush=True)  # noqa: T201 - whoever started it reads the URL
    await anyio.sleep_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--text", default="Hello.", help="what it answers")
    parser.add_argument("--delay-seconds", type=float, default=0)
    args = parser.parse_args()
    anyio.run(serve, args.port, Answer(text=args.text, delay_seconds=args.delay_seconds))


if __name__ == "__main__":
    main()
