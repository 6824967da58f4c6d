"""An answer in OpenAI's form: whole, or as the chunks of a stream. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nanoloop.protocols import Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"
_REASONS = {"stop", "length", "tool_calls", "content_filter"}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a question came to."""

    text: str
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Calls for the client to run, each in OpenAI's form."""

    @property
    def reason(self) -> str:
        """The reason that clients know: whatever else ended it, it ended."""
        return self.finish_reason if self.finish_reason in _REASONS else "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One answer's name and time, the same in all its chunks."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    with_usage: bool = False

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The answer as one object."""
        calls = list(completion.tool_calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": completion.text or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None}
        return {
            **self._head("chat.completion"),
            "choices": [{**choice, "finish_reason": completion.reason}],
            "usage": usage_form(completion.usage),
        }

    def first(self) -> bytes:
        """The chunk that says who speaks."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def piece(self, text: str) -> bytes:
        """A chunk with some of the text."""
        return self._chunk({"content": text})

    def last(self, completion: Completion) -> bytes:
        """All chunks that come after the text."""
        calls = [{"index": i, **call} for i, call in enumerate(completion.tool_calls)]
        data = self._chunk({"tool_calls": calls}) if calls else b""
        data += self._chunk({}, completion.reason)
        if self.with_usage:
            usage = {"choices": [], "usage": usage_form(completion.usage)}
            data += event({**self._head("chat.completion.chunk"), **usage})
        return data + DONE

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return event({**chunk, "usage": None} if self.with_usage else chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(data: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {_encode(data)}\n\n".encode("utf-8", "replace")


def usage_form(usage: Usage) -> dict[str, Any]:
    """What an answer took, all its steps together."""
    return {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens_in + usage.tokens_out,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
    }
