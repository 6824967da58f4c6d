"""Assembles an answer as it arrives, and limits its size."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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
"""Finish reasons that mean the answer failed, even if text arrived."""
MOST_TOKENS = 100_000_000
"""No request has this many tokens, so a larger count must be invalid."""
NAME_CHARS = 256
_MODEL = re.compile(r"[\w.:/@+-]{1,256}")
"""The allowed form of a model's name, which is shown to people and logged."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Limits on the size of an answer, in bytes of UTF-8 after decompression."""

    text_bytes: int = 128_000
    thinking_bytes: int = 128_000
    argument_bytes: int = 128_000
    """The limit on the total size of all tool calls' arguments."""
    calls: int = 64
    event_bytes: int = 1_000_000
    """The limit on one line of a stream."""
    body_bytes: int = 2_000_000
    """The limit on an answer that is not streamed."""
    stream_bytes: int = 50_000_000
    """The limit on a streamed answer, including all protocol data."""
    stops_repeats: bool = False
    """Whether to cut off an answer that starts to repeat itself, as those of small models do."""


class PartialAnswer:
    """Collects an answer; once full, it ignores further pieces and counts as cut off."""

    def __init__(self, limits: AnswerLimits | None = None) -> None:
        limits = limits or AnswerLimits()
        self.model = ""
        self.finish_reason = ""
        """The finish reason given by the server; empty until then."""
        self.usage = Usage()
        self.has_begun = False
        """Whether the server has sent any part of an answer."""
        self.is_done = False
        """Whether the server has said that nothing more will follow."""
        self.is_full = False
        self._text = _Words(limits.text_bytes)
        self._repeats = Repeats() if limits.stops_repeats else None
        self._thinking = _Words(limits.thinking_bytes)
        self._arguments_left = limits.argument_bytes
        self._calls_left = limits.calls
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}

    def say(self, text: str) -> str:
        """Add a piece of the text; return the part of it that may be shown."""
        said = self._text.add(text)
        self.is_full = self.is_full or self._text.is_full
        begin = self._repeats.begin_in(said) if self._repeats else None
        if begin is None:
            return said
        self.is_full = True
        self._text.cut(begin)
        return ""

    def think(self, text: str) -> None:
        """Add a piece of the model's thinking."""
        self._thinking.add(text)
        self.is_full = self.is_full or self._thinking.is_full

    def call(self, index: int | None, call_id: str, name: str, arguments: str) -> None:
        """Add a piece of a tool call; pieces of the same call share an index or follow each other.

        Some servers give every call the index 0, or no index, so a new id means a new call.
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
        """Whether the answer is complete, even if the connection is still open."""
        return self.is_done or bool(self.finish_reason)

    @property
    def has_failed(self) -> bool:
        """Whether the server reported a failure, in which case the text may be anything."""
        return self.finish_reason.lower() in FAILURES

    def cut(self) -> None:
        """End the answer here, because it exceeds a limit."""
        self.is_full = True

    def reply(self) -> Reply:
        """Return the answer; raises `BadAnswer`, `ServerFailed` or `AnswerRefused` if it failed."""
        text, calls = self._text.whole, [_tool_call(call) for call in self._calls]
        if not self.has_begun:
            raise BadAnswer("the server sent an empty answer: try again in a moment")
        reason = self._reason(has_content=bool(text.strip() or calls))
        if reason == "content_filter" and not text and not calls:
            raise AnswerRefused("a content filter stopped the answer: rephrase the message")
        if reason == "length":  # the last call may be incomplete
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
            raise BadAnswer("the model's server ended the answer for an unknown reason: try again")
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
    """Text that arrives in pieces, up to a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._parts: list[str] = []
        self._half = ""
        """The first half of a surrogate pair whose second half comes with the next piece."""
        self.is_full = False

    def add(self, piece: str) -> str:
        """Add a piece; return the part that was kept."""
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

    def cut(self, chars: int) -> None:
        """Keep only this many characters, without trailing space."""
        self._parts = [self.whole[:chars].rstrip()]

    @property
    def whole(self) -> str:
        """The text so far."""
        return "".join(self._parts)


PHRASE_WORDS = 5
PHRASES = 4
"""A phrase that occurs this often, close together or evenly spaced, counts as repetition."""
SCATTERED_PHRASES = 8
"""A phrase that occurs this often counts as repetition, however far apart."""
NEAR_WORDS = 10
LINE_WORDS, LINE_CHARS = 4, 16
"""A line with fewer words and fewer characters than this may occur twice."""
_FENCE = "```"
_WORD = re.compile(r"\S+")
_MARK = re.compile(r"^[\W_\d]+")


class Repeats:
    """Detects, word by word, whether an answer repeats itself; code is exempt."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0
        self._line_begin = 0
        self._is_code = False
        self._words: list[tuple[str, int]] = []
        """The words in the current stretch of prose, each with its position."""
        self._phrases: dict[tuple[str, ...], list[int]] = {}
        """For each phrase, the indexes of the words at which it begins."""
        self._lines: set[str] = set()

    def begin_in(self, piece: str) -> int | None:
        """Add a piece; return where the text starts to repeat itself, or None if it does not."""
        self._text += piece
        for found in _WORD.finditer(self._text, self._read):
            if found.end() == len(self._text):  # the next piece may continue this word
                return None
            begin = self._line(found.start())
            begin = self._word(found[0], found.start()) if begin is None else begin
            if begin is not None:
                return begin
            self._read = found.end()
        return None

    def _line(self, upto: int) -> int | None:
        """Check the line that ended before this position, if any."""
        end = self._text.rfind("\n", self._read, upto)
        if end < 0:
            return None
        begin, self._line_begin = self._line_begin, end + 1
        line = self._text[begin:end].strip()
        plain = _MARK.sub("", line).casefold()
        is_short = len(plain.split()) < LINE_WORDS and len(plain) < LINE_CHARS
        if line.startswith(_FENCE) or self._is_code or is_short:
            return None
        if plain in self._lines:
            return begin
        self._lines.add(plain)
        return None

    def _word(self, word: str, place: int) -> int | None:
        if word.startswith(_FENCE):
            self._is_code = not self._is_code
            self._words.clear()
            self._phrases.clear()
        if self._is_code or word.startswith(_FENCE):
            return None
        self._words.append((word.casefold(), place))
        first = len(self._words) - PHRASE_WORDS
        if first < 0:
            return None
        phrase = tuple(text for text, _ in self._words[first:])
        begins = self._phrases.setdefault(phrase, [])
        if not begins or first - begins[-1] >= PHRASE_WORDS:  # the same word repeated would overlap
            begins.append(first)
            return self._begin_of(begins)
        return None

    def _begin_of(self, begins: list[int]) -> int | None:
        """Return where the phrase occurred for the second time, if it has occurred too often."""
        last = begins[-PHRASES:]
        gaps = [after - before for before, after in pairwise(last)]
        is_loop = len(set(gaps)) == 1 or max(gaps, default=0) <= NEAR_WORDS
        if len(last) == PHRASES and is_loop:
            return self._words[last[1]][1]
        return self._words[begins[1]][1] if len(begins) == SCATTERED_PHRASES else None


def clean(text: str) -> str:
    """Replace characters that don't belong in text: control characters and unpaired surrogates."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # A surrogate pair that was split is one character.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def count(value: object) -> int:
    """Return a server's token count, or 0 if the value is not a valid count."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value <= MOST_TOKENS else 0  # type: ignore[operator,return-value]
