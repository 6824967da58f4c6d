"""What a hostile way to answer is made of, and the words that must never come out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

STATUS = "Wolpertinger-status"
HEADER = "Wolpertinger-header"
BODY = "Wolpertinger-body"
ERROR = "Wolpertinger-error"
FIELD = "Wolpertinger-field"
"""Ids, finish reasons, codes of errors: what the server calls things."""
PATH = "wolpertinger-path"
USER, PASSWORD = "wolpertinger-user", "wolpertinger-password"
QUERY = "wolpertinger-query"
KEY = "sk-wolpertinger-key"
STOLEN = "Wolpertinger-stolen"
"""What a server says that was sent to where the request should not have gone."""
TOLD = "Basilisk"
"""A word of the model's own: it may reach the chat, and no log."""
WORDS = (STATUS, HEADER, BODY, ERROR, FIELD, PATH, STOLEN)
"""The server's words: for no chat."""
SECRETS = (USER, PASSWORD, QUERY, KEY)
"""For no chat, and for no log."""
DONE = f"All is done, says the {TOLD}."
"""What is answered once tools have run."""
PIECE = 65536
CUT = b"\0cut"
"""Hang up at once, with a reset."""
END = b"\0end"
"""Hang up in order."""
DEAF = b"\0deaf"
"""Take connections for a while and read nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the server knows of a request."""

    head: bytes
    size: int
    is_streamed: bool
    has_results: bool
    """Whether tools have just run."""
    count: int
    """How often this mode was asked before."""

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")


Play = Callable[[Asked], Iterator[bytes | float]]
"""The bytes of an answer, with seconds to wait between them, and marks to hang up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One hostile way to answer."""

    name: str
    play: Play
    says: str
    """A regular expression for all that the chat may read of it; empty: a failure is due."""
    must: bool
    """Whether the answer is sound enough that a failure is wrong."""
    known: str
    """Why the daemon does not stand it; it is shown, and counts as no violation."""

    @property
    def is_quick(self) -> bool:
        """Whether its answers end by themselves and at once: several may be tried at a time."""
        return self.name.startswith(("characters-", "finish-", "status-", "wrong-"))


MODES: dict[str, Mode] = {}


def mode(
    says: str = "", *, must: bool = False, name: str | None = None, known: str = ""
) -> Callable[[Play], Play]:
    """Put this into the table, under the function's name."""

    def put(play: Play) -> Play:
        called = name or play.__name__.strip("_").replace("_", "-")
        assert called not in MODES, called
        MODES[called] = Mode(name=called, play=play, says=says, must=must, known=known)
        return play

    return put


# HTTP


def head(*headers: str, status: str = "200", kind: str = "text/event-stream") -> bytes:
    """The head of an answer, with a word in each place where one can hide."""
    lines = [f"HTTP/1.1 {status} {STATUS}", f"content-type: {kind}", f"x-request-id: {HEADER}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


CHUNKED = "transfer-encoding: chunked"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(
    body: bytes | str, *headers: str, status: str = "200", kind: str = "application/json"
) -> bytes:
    """An answer in one piece."""
    data = body.encode() if isinstance(body, str) else body
    return head(f"content-length: {len(data)}", *headers, status=status, kind=kind) + data


def streamed(*events: bytes, done: bool = True) -> bytes:
    """A whole stream of events."""
    return b"".join(
        [head(CHUNKED), *map(chunk, events), chunk(b"data: [DONE]\n\n") if done else b"", LAST]
    )


def endless(piece: bytes, *before: bytes) -> Iterator[bytes]:
    """This over and over, in large pieces."""
    yield from before
    many = piece * max(1, PIECE // len(piece))
    while True:
        yield many


def endless_events(piece: bytes, *before: bytes) -> Iterator[bytes]:
    """A stream of this over and over."""
    many = piece * max(1, PIECE // len(piece))
    return endless(chunk(many), head(CHUNKED), *map(chunk, before))


# Chat completions


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def envelope(kind: str = "chat.completion.chunk", **fields: Any) -> dict[str, Any]:
    return {"id": FIELD, "object": kind, "created": 1, "model": "it", **fields}


def event(**fields: Any) -> bytes:
    return b"data: " + dumps(envelope(**fields)) + b"\n\n"


def delta(finish: Any = None, **said: Any) -> bytes:
    """An event that says this."""
    return event(choices=[{"index": 0, "delta": said, "finish_reason": finish}])


def message(finish: Any = "stop", **said: Any) -> bytes:
    """A whole answer that says this, as JSON."""
    made = {"role": "assistant", "content": None, **said}
    choice = {"index": 0, "message": made, "finish_reason": finish}
    return dumps(envelope("chat.completion", choices=[choice]))


def call(name: str = "clock", arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    """A call of a tool that there is."""
    made = {"index": 0, "id": "call_1", "type": "function", **fields}
    return {**made, "function": {"name": name, "arguments": arguments}}


def plain(asked: Asked, text: str = DONE) -> bytes:
    """A sane answer in the form that was asked for."""
    if asked.is_streamed:
        return streamed(delta(role="assistant", content=text), delta("stop"))
    return whole(message(content=text))


def error_body(text: str = BODY) -> bytes:
    return dumps({"error": {"message": text, "type": FIELD, "code": FIELD, "param": FIELD}})


@mode(says=r"You sent \d+ bytes\.", must=True)
def sane(asked: Asked) -> Iterator[bytes]:
    """Behind each mode: does the chat still work, and how long have its requests become?"""
    yield plain(asked, f"You sent {asked.size} bytes.")
