"""What came with a message, by reference: never the thing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_REFS = ("file", "url", "path", "id", "name")
_FACTS = ("name", "mime_type", "size", "width", "height", "duration")
_TEXT = {"text", "input_text", "output_text", "tool_use", "tool_result"}
REF_LIMIT = 500
"""Characters of a reference that are shown; what is longer is a payload in disguise."""


def attachment_summaries(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Type, reference and known facts of each part of a message that is no text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [
        {"type": part["type"], "ref": _ref(part), "meta": _facts(part)}
        for part in parts
        if isinstance(part, Mapping) and part.get("type") and part["type"] not in _TEXT
    ]


def _ref(part: Mapping[str, Any]) -> Any:
    """The first reference there is: in the part itself, else in what it wraps."""
    wrapped = [value for value in part.values() if isinstance(value, Mapping)]
    for holder in (part, *wrapped):
        for name in _REFS:
            value = holder.get(name)
            if value and not isinstance(value, (Mapping, list)):
                return _shown(value)
    plain = part.get(str(part["type"]))
    return _shown(plain) if isinstance(plain, str) and plain else None


def _shown(ref: Any) -> Any:
    if not isinstance(ref, str):
        return ref
    if ref.startswith("data:"):
        return ref.partition(",")[0][:REF_LIMIT]
    return ref if len(ref) <= REF_LIMIT else ref[:REF_LIMIT] + "…"


def _facts(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in _FACTS if part.get(name)}


def without_payloads(content: Any) -> Any:
    """A content with its attachments named instead of carried."""
    if not isinstance(content, list):
        return content
    return "\n".join(filter(None, (_in_words(part) for part in content)))


def _in_words(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "tool_use":
        return f"[calls {part.get('name', '')}]"
    named: Iterable[dict[str, Any]] = attachment_summaries({"content": [part]})
    return " ".join(f"[{about['type']}]" for about in named)
