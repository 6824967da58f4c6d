"""How big a message is: in characters as the resize rules count them, and in rough tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nanoloop.session.entry import MESSAGE, Entry


def char_size(message: Mapping[str, Any]) -> int:
    """Characters of role and content, plus one between them."""
    return len(str(message.get("role") or "")) + 1 + content_size(message.get("content"))


def content_size(content: Any) -> int:
    """Characters of a content: text counts as it is, anything structured as its JSON."""
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(_part_size(part) for part in content)
    if isinstance(content, Mapping):
        return _part_size(content)
    return len(str(content))


def _part_size(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    if isinstance(part, Mapping):
        text = part.get("text")
        return len(text) if isinstance(text, str) else len(_json(part))
    return len(str(part))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def total_chars(messages: Iterable[Mapping[str, Any]]) -> int:
    """Characters of all of them."""
    return sum(char_size(message) for message in messages)


def entry_text(entry: Entry) -> str:
    """All the text of an entry, for counting: a tool's name, arguments and result count too."""
    if entry.type == MESSAGE:
        return str(entry.content.get("text") or "")
    values = (value for key, value in entry.content.items() if key != "success")
    return "".join(value if isinstance(value, str) else _text(value) for value in values)


def _text(value: Any) -> str:
    return "" if value is None else _json(value)


def rough_tokens(characters: int) -> int:
    """Four characters a token, as the oldest rule of thumb has it."""
    return characters // 4
