"""An entry in the words of a model's context, for who builds one by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nanoloop.session.entry import MESSAGE, THINKING, TOOL_CALL, TOOL_RESULT, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What a piece of context says."""

    type: str
    """The role of a message, the type of any other entry."""
    text: str


def rendered(entry: Entry) -> Rendered:
    """The entry as text; a type that isn't known is its JSON."""
    text = {
        MESSAGE: _message,
        TOOL_CALL: _tool_call,
        TOOL_RESULT: _tool_result,
        THINKING: _message,
    }.get(entry.type, Entry.to_json)(entry)
    return Rendered(type=entry.role or entry.type, text=text)


def _message(entry: Entry) -> str:
    return str(entry.content.get("text") or "")


def _tool_call(entry: Entry) -> str:
    parameters = _json(entry.content.get("parameters"))
    return f"Tool: {entry.content.get('tool', '')}\nParameters: {parameters}"


def _tool_result(entry: Entry) -> str:
    content = entry.content
    has_worked = bool(content.get("success", True))
    value = content.get("result")
    outcome = (
        f"Result: {value if isinstance(value, str) else _json(value)}"
        if has_worked
        else f"Error: {content.get('error') or ''}"
    )
    success = "true" if has_worked else "false"
    return f"Tool: {content.get('tool', '')}\nSuccess: {success}\n{outcome}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
