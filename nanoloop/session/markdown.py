"""A conversation as Markdown, for people to read and keep."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime

from nanoloop.session.chat import result_text
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry

_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(entries: Sequence[Entry], *, title: str, about: str = "", summary: str = "") -> str:
    """A heading, the summary, then every message and tool with its time; thoughts are left out."""
    blocks = [f"# {title or 'Conversation'}"]
    blocks += [about] if about else []
    blocks += [f"## Summary of what came before\n\n{summary}"] if summary else []
    blocks += [block for entry in entries if (block := _block(entry))]
    return "\n\n".join(blocks) + "\n"


def _block(entry: Entry) -> str:
    if entry.type == MESSAGE:
        role = str(entry.role or "")
        text = str(entry.content.get("text") or "")
        return f"**{_NAMES.get(role, role.title())}** · {_time(entry.timestamp)}\n\n{text}".rstrip()
    if entry.type == TOOL_CALL:
        given = json.dumps(entry.content.get("parameters"), ensure_ascii=False, default=str)
        return f"**Tool call** `{entry.content.get('tool', '')}`\n\n{_fenced(given, 'json')}"
    if entry.type == TOOL_RESULT:
        return f"**Tool result** `{entry.content.get('tool', '')}`\n\n{_fenced(result_text(entry))}"
    return ""


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _fenced(text: str, language: str = "") -> str:
    """The text between fences longer than any it has."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
