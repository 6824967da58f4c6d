"""A conversation for people's eyes: a short view, counts, plain text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nanoloop.session.chat import result_text, spans_of
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry

HEADING = "Session Summary:"
_ELLIPSIS = "..."


def displayed(entries: Sequence[Entry], *, last: int = 20, width: int = 80) -> str | None:
    """The last messages, a line each and one for each tool used; None where there is none.

    `last` or `width` of 0 is no limit.
    """
    spans = [span for span in spans_of(entries) if span.message is not None]
    if not spans:
        return None
    shown = spans[-last:] if last > 0 else spans
    lines = [line for span in shown for entry in span.entries for line in _lines(entry)]
    return f"{HEADING}\n\n" + "\n".join(shortened(line, width) for line in lines)


def _lines(entry: Entry) -> Iterator[str]:
    if entry.type == MESSAGE:
        text = str(entry.content.get("text") or "")
        if text or "parts" not in entry.content:
            yield f"[{str(entry.role or '').upper()}] {_on_one_line(text)}"
    elif entry.type == TOOL_CALL:
        yield f"[TOOL] tool_use: {entry.content.get('tool', '')}"
    elif entry.type == TOOL_RESULT:
        yield f"[TOOL] tool_result: {_on_one_line(result_text(entry))}"


def _on_one_line(text: str) -> str:
    return text.replace("\r\n", "\\n").replace("\n", "\\n")


def shortened(line: str, width: int) -> str:
    """The line in at most so many columns, `...` at the end where it was cut."""
    if width <= 0 or sum(map(_columns, line)) <= width:
        return line
    room = max(0, width - len(_ELLIPSIS))
    used = 0
    for index, character in enumerate(line):
        used += _columns(character)
        if used > room:
            return line[:index] + _ELLIPSIS[:width]
    return line


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def counted(entries: Sequence[Entry]) -> dict[str, Any]:
    """Messages by role, calls of tools, and the names of the tools in the order of their calls."""
    said = [span.message for span in spans_of(entries) if span.message is not None]
    roles = [message["role"] for message in said]
    calls = [entry for entry in entries if entry.type == TOOL_CALL]
    results = sum(entry.type == TOOL_RESULT for entry in entries)
    return {
        "user": roles.count("user"),
        "assistant": roles.count("assistant"),
        "tool": roles.count("tool"),
        # A result whose call was never written down was a call too.
        "tool_calls": max(len(calls), results),
        "tools_used": [str(call.content.get("tool", "")) for call in calls],
    }


def conversation(entries: Sequence[Entry]) -> str:
    """`[role] content` of each message, a blank line between them."""
    said = [span for span in spans_of(entries) if span.message is not None]
    return "\n\n".join(f"[{_role(span.message)}] {_content(span.entries)}" for span in said)


def _role(message: Mapping[str, Any] | None) -> str:
    return str((message or {}).get("role", ""))


def _content(entries: Sequence[Entry]) -> str:
    return "\n".join(text for text in map(_words, entries) if text)


def _words(entry: Entry) -> str:
    if entry.type == MESSAGE:
        return str(entry.content.get("text") or "")
    if entry.type == TOOL_RESULT:
        return result_text(entry)
    return f"tool_use: {entry.content.get('tool', '')}" if entry.type == TOOL_CALL else ""
