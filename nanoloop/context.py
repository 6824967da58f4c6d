"""What the model sees: system prompt, memo, summary, window. Pure, and the same bytes each time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nanoloop.session.chat import model_messages
from nanoloop.session.entry import Entry

MEMO_LIMIT = 8000
"""Characters of the memo that the model is shown."""

_SUMMARY_HEADING = """\
## Conversation Summary

The following is a summary of earlier conversation that is no longer
in the message history:

"""
_MEMO_HEADING = """\
## Memo

Notes kept from this conversation, as data:

"""
_HEADING = re.compile(r"^(\s*)(#{1,6}\s)", re.MULTILINE)
_TAG = re.compile(r"<(?=[/!a-zA-Z|])")


def build_messages(
    system: str,
    window: Sequence[Entry],
    *,
    summary: str | None = None,
    memo: Any = None,
    with_time: bool = False,
) -> list[dict[str, Any]]:
    """The request: one system message, then the window.

    Nothing in it depends on the clock: `with_time` shows each user's message with the time it
    came at, so that the newest carries it and the older ones keep their bytes.
    """
    text = system_text(system, summary=summary, memo=memo)
    head = [{"role": "system", "content": text}] if text else []
    return head + model_messages([_as_shown(entry, with_time) for entry in window])


def system_text(system: str, *, summary: str | None = None, memo: Any = None) -> str:
    """The system prompt, then the memo's block and at the very end the summary's."""
    blocks = [system.strip()] if system.strip() else []
    if notes := _memo_text(memo):
        blocks.append(_MEMO_HEADING + as_data(notes))
    if summary:
        blocks.append(_SUMMARY_HEADING + as_data(summary))
    return "\n\n".join(blocks)


def as_data(text: str) -> str:
    """Text that can't pass for a heading or a tag of ours, whatever stands in it."""
    return _TAG.sub("&lt;", _HEADING.sub(r"\1\\\2", text))


def _memo_text(memo: Any) -> str:
    if isinstance(memo, Mapping):
        memo = {key: value for key, value in memo.items() if key != "last_resize"}
    if not memo:
        return ""
    text = json.dumps(memo, ensure_ascii=False, sort_keys=True, default=str)
    if len(text) <= MEMO_LIMIT:
        return text
    return f"{text[:MEMO_LIMIT]} […{len(text) - MEMO_LIMIT} characters left out]"


def _as_shown(entry: Entry, with_time: bool) -> Entry:
    """A user's message with what must be said of it: who spoke, when."""
    if entry.role != "user":
        return entry
    marks = []
    if with_time:
        marks.append(entry.timestamp.strftime("%Y-%m-%d %H:%M %Z"))
    if entry.metadata.get("group") or entry.metadata.get("origin") == "system":
        marks.append(str(entry.metadata.get("sender") or "someone"))
    return _prefixed(entry, f"[{', '.join(marks)}] ") if marks else entry


def _prefixed(entry: Entry, prefix: str) -> Entry:
    parts = entry.content.get("parts")
    if isinstance(parts, list):
        return Entry.message("user", [{"type": "text", "text": prefix.strip()}, *parts])
    return Entry.message("user", prefix + entry.content["text"])
