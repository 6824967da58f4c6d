"""The chat completions form: a request as bytes, an answer as a `Reply`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from nanoloop.errors import AnswerRefused, BadAnswer
from nanoloop.protocols import ChatMessage, Reply, ToolCall, ToolSpec, Usage

STREAMING = {"stream": True, "stream_options": {"include_usage": True}}
FINISH_REASONS = {
    "end_turn": "stop",
    "eos": "stop",
    "function_call": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
}


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode


def request_bytes(
    *,
    model: str,
    options: Mapping[str, Any],
    tools: Sequence[ToolSpec],
    messages: Sequence[ChatMessage],
    stream: bool,
) -> bytes:
    """The body of a request; equal input gives equal bytes."""
    head = {"model": model, **(STREAMING if stream else {}), **options}
    form: dict[str, Any] = {key: value for key, value in head.items() if value is not None}
    if tools:
        form["tools"] = [tool_form(tool) for tool in tools]
    # Last: so each request is the one before it, byte for byte, plus what is new.
    form["messages"] = list(messages)
    return _json(form).encode("utf-8", "replace")


def tool_form(tool: ToolSpec) -> dict[str, Any]:
    """A tool as the server wants to hear of it."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


@dataclass(slots=True, kw_only=True)
class _Call:
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Draft:
    """An answer as it comes in, whole or in pieces."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int | None, _Call] = {}
        self._usage = Usage()
        self._model = ""
        self._has_choice = False

    def add(self, data: Mapping[str, Any]) -> str:
        """Take one chunk, or a whole answer; returns the text that is new."""
        self._model = self._model or _string(data.get("model"))
        if isinstance(counted := data.get("usage"), dict):
            self._usage = _usage(counted)
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return ""
        self._has_choice = True
        self.finish_reason = _string(choices[0].get("finish_reason")) or self.finish_reason
        return self._add_said(_mapping(choices[0].get("delta") or choices[0].get("message")))

    def _add_said(self, said: Mapping[str, Any]) -> str:
        thought = said.get("reasoning_content") or said.get("reasoning")
        if thought:
            self._thinking.append(_string(thought))
        for call in _list(said.get("tool_calls")):
            self._add_call(_mapping(call))
        text = _text(said.get("content")) or _string(said.get("refusal"))
        if text:
            self._text.append(text)
        return text

    def _add_call(self, part: Mapping[str, Any]) -> None:
        index = part.get("index")
        number = index if isinstance(index, int) else None
        call = self._call_for(number, _string(part.get("id")))
        function = _mapping(part.get("function"))
        call.name = call.name or _string(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.arguments.append(_json(arguments))
        else:
            call.arguments.append(_string(arguments))

    def _call_for(self, index: int | None, call_id: str) -> _Call:
        known = self._calls[-1] if index is None and self._calls else self._by_index.get(index)
        # Some servers count every call as number 0, or don't count: a new id is a new call.
        if known is None or (call_id and call_id != known.id):
            known = _Call(id=call_id or f"call_{uuid4().hex}")
            self._calls.append(known)
            self._by_index[index] = known
        return known

    def reply(self) -> Reply:
        """What the model said; raises `BadAnswer` or `AnswerRefused` when that is nothing."""
        if not self._has_choice:
            raise BadAnswer("the server sent an answer with nothing in it: try again in a moment")
        text = "".join(self._text)
        calls = tuple(_tool_call(call) for call in self._calls)
        reason = _finish_reason(self.finish_reason, calls)
        if reason == "content_filter" and not text and not calls:
            raise AnswerRefused("a content filter stopped the answer: say it in other words")
        return Reply(
            text=text,
            tool_calls=calls,
            thinking="".join(self._thinking),
            finish_reason=reason,
            usage=self._usage,
            model=self._model,
        )


def _finish_reason(said: str | None, calls: tuple[ToolCall, ...]) -> str:
    reason = FINISH_REASONS.get(said, said) if said else "stop"
    return "tool_calls" if calls and reason == "stop" else reason


def _tool_call(call: _Call) -> ToolCall:
    return ToolCall(id=call.id, name=call.name, arguments="".join(call.arguments))


def _usage(counted: Mapping[str, Any]) -> Usage:
    details = _mapping(counted.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or counted.get("prompt_cache_hit_tokens")
    return Usage(
        tokens_in=_count(counted.get("prompt_tokens")),
        tokens_out=_count(counted.get("completion_tokens")),
        tokens_cached=_count(cached),
    )


def _text(content: object) -> str:
    """Text that came as a string, or as parts of which some are text."""
    if isinstance(content, list):
        return "".join(_string(_mapping(part).get("text")) for part in content)
    return _string(content)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
