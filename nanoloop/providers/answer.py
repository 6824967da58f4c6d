"""An answer as it comes in: bounded, clean text only, and ended for a reason we know."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nanoloop.errors import AnswerRefused, BadAnswer, ServerFailed
from nanoloop.protocols import FinishReason, Reply, ToolCall, Usage

FINISH_REASONS: Mapping[str, FinishReason] = {
    "content_filter": "content_filter",
    "end_turn": "stop",
    "eos": "stop",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
}
FAILURES = {"abort", "aborted", "cancelled", "canceled", "error", "failed", "failure"}
"""Reasons that make whatever text came with them no answer."""
MOST_TOKENS = 100_000_000
"""No request has so many: a larger count is no count."""
NAME_CHARS = 256
_MODEL = re.compile(r"[\w.:/@+-]{1,256}")
"""What a model's name may look like: it is told to people and to the log."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """How much an answer may be, in bytes of UTF-8 after decompression."""

    text_bytes: int = 128_000
    thinking_bytes: int = 128_000
    argument_bytes: int = 128_000
    """Of all tool calls together."""
    calls: int = 64
    event_bytes: int = 1_000_000
    """One line of a stream."""
    body_bytes: int = 2_000_000
    """An answer that comes whole."""
    stream_bytes: int = 50_000_000
    """An answer that comes in pieces, with all that is around them."""


class PartialAnswer:
    """Collects an answer; once it is full it takes no more, and ends as cut off."""

    def __init__(self, limits: AnswerLimits | None = None) -> None:
        limits = limits or AnswerLimits()
        self.model = ""
        self.finish_reason = ""
        """As the server says it; empty before it does."""
        self.usage = Usage()
        self.has_begun = False
        """Whether the server said anything that belongs to an answer."""
        self.is_done = False
        """Whether the server said that nothing more comes."""
        self.is_full = False
        self._text = _Words(limits.text_bytes)
        self._thinking = _Words(limits.thinking_bytes)
        self._arguments_left = limits.argument_bytes
        self._calls_left = limits.calls
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}

    def say(self, text: str) -> str:
        """Take a piece of the text; returns what of it is new and fit to be shown."""
        said = self._text.add(text)
        self.is_full = self.is_full or self._text.is_full
        return said

    def think(self, text: str) -> None:
        """Take a piece of the thinking."""
        self._thinking.add(text)
        self.is_full = self.is_full or self._thinking.is_full

    def call(self, index: int | None, call_id: str, name: str, arguments: str) -> None:
        """Take a piece of a tool call; pieces of one call share their index or follow each other.

        Some servers give every call the index 0, or none: a new id is a new call.
        """
        known = self._calls[-1] if index is None and self._calls else self._by_index.get(index)
        if known is None or (call_id and call_id != known.said_id):
            if not self._calls_left:
                self.is_full = True
                return
            self._calls_left -= 1
            known = _Call(said_id=call_id)
            self._calls.append(known)
            self._by_index[index] = known
        known.name = known.name or clean(name)[:NAME_CHARS]
        self._arguments_left -= len(arguments.encode("utf-8", "surrogatepass"))
        if self._arguments_left < 0:
            self.is_full = True
        else:
            known.arguments.append(arguments)

    @property
    def has_ended(self) -> bool:
        """Whether all of it is in, though the connection may still be open."""
        return self.is_done or bool(self.finish_reason)

    @property
    def has_failed(self) -> bool:
        """Whether the server said that it did: what came as text may be anything then."""
        return self.finish_reason.lower() in FAILURES

    def cut(self) -> None:
        """End it here: there is more than it may hold."""
        self.is_full = True

    def reply(self) -> Reply:
        """The answer; raises `BadAnswer`, `ServerFailed` or `AnswerRefused` where it is none."""
        text, calls = self._text.whole, [_tool_call(call) for call in self._calls]
        if not self.has_begun:
            raise BadAnswer("the server sent an answer with nothing in it: try again in a moment")
        reason = self._reason(has_content=bool(text.strip() or calls))
        if reason == "content_filter" and not text and not calls:
            raise AnswerRefused("a content filter stopped the answer: say it in other words")
        if reason == "length":  # it may have ended in the middle of a call
            calls = [call for call in calls if _is_whole(call)]
        return Reply(
            text=text,
            tool_calls=tuple(calls),
            thinking=self._thinking.whole,
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            usage=self.usage,
            model=self.model if _MODEL.fullmatch(self.model) else "",
        )

    def _reason(self, *, has_content: bool) -> FinishReason:
        said = (self.finish_reason or "stop").lower()
        if self.has_failed:
            raise ServerFailed(f"the model's server ended the answer with {said!r}: try again")
        if self.is_full:
            return "length"
        if said not in FINISH_REASONS and not has_content:
            raise BadAnswer("the model's server ended the answer for no known reason: try again")
        return FINISH_REASONS.get(said, "stop")


@dataclass(slots=True, kw_only=True)
class _Call:
    said_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


def _tool_call(call: _Call) -> ToolCall:
    call_id = clean(call.said_id)[:NAME_CHARS] or f"call_{uuid4().hex}"
    arguments = clean("".join(call.arguments))
    if "\\u" in arguments:
        arguments = _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], arguments)
    return ToolCall(id=call_id, name=call.name, arguments=arguments)


def _is_whole(call: ToolCall) -> bool:
    try:
        json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return False
    return True


class _Words:
    """Text in pieces, up to so many bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._parts: list[str] = []
        self._half = ""
        """The first half of a character whose second one comes with the next piece."""
        self.is_full = False

    def add(self, piece: str) -> str:
        """Take a piece; returns it as it is kept."""
        if self.is_full:
            return ""
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return self._kept(clean(piece))

    def _kept(self, piece: str) -> str:
        data = piece.encode()
        self._left -= len(data)
        if self._left < 0:
            self.is_full = True
            piece = data[: self._left].decode("utf-8", "ignore")
        if piece:
            self._parts.append(piece)
        return piece

    @property
    def whole(self) -> str:
        """All of it."""
        return "".join(self._parts)


def clean(text: str) -> str:
    """The text without what no text holds: half characters and control characters."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # Two halves that were written one by one are one character.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def count(value: object) -> int:
    """A number of tokens as a server says it; 0 where it is none."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value <= MOST_TOKENS else 0  # type: ignore[operator,return-value]
