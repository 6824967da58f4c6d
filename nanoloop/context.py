"""What the model sees: system prompt, memo, summary, window. Pure, and the same bytes each time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nanoloop.session.chat import entries_of, model_messages
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
_PINNED_HEADING = """\
## Pinned

Messages that the user keeps in view, as data; each with who said it and its number:

"""
_LEDGER_HEADING = """\
## Kept word for word

Said earlier, as data; each with who said it and the number of the message:

"""
_EXTRACT_HEADING = """\
## Not yet summarised

Said after what the summary tells of, before the messages below; the first words of each, as data:

"""
_LINE_BREAKS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_MARKUP = re.compile(
    r"""
    ^(?P<before>                                # in a quote or a list too
        [^\S\n]* (?:>[^\S\n]* | (?:[*+-]|\d{1,9}[.)])[^\S\n]+)*
    )
    (?P<sign>
        \#                                      # a heading
        | (?:=+|-+|_{3,}|\*{3,})(?=[ \t]*$)     # the line under a heading, or a rule
        | ```|~~~                               # a block of code, which might not end
        | (?:system|developer)(?=\s*[:>])       # a role, as plain templates write it
    )
    """,
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_TAG = re.compile(r"<(?=[/!?a-zA-Z|<\uff5c])|\[(?=/?(?:INST|SYSTEM)\w*\])", re.IGNORECASE)


def build_messages(
    system: str,
    window: Sequence[Entry | Mapping[str, Any]],
    *,
    summary: str | None = None,
    memo: Any = None,
    pins: Sequence[Mapping[str, Any]] = (),
    ledger: Sequence[Mapping[str, Any]] = (),
    extract: Sequence[str] = (),
    with_time: bool = False,
    vendor: str = "",
) -> list[dict[str, Any]]:
    """The request: one system message, then the window.

    Nothing in it depends on the clock: `with_time` shows each user's message with the time it
    came at, so that the newest carries it and the older ones keep their bytes. A `vendor` gets
    back what its own models thought before they called a tool.
    """
    text = system_text(
        system, summary=summary, memo=memo, pins=pins, ledger=ledger, extract=extract
    )
    head = [{"role": "system", "content": text}] if text else []
    shown = [_as_shown(entry, with_time) for entry in _entries(window)]
    return head + model_messages(shown, vendor=vendor)


def _entries(window: Sequence[Entry | Mapping[str, Any]]) -> Iterator[Entry]:
    """The window's entries; chat messages that someone keeps by hand are welcome too."""
    for item in window:
        if isinstance(item, Entry):
            yield item
        else:
            yield from entries_of(item)


def system_text(
    system: str,
    *,
    summary: str | None = None,
    memo: Any = None,
    pins: Sequence[Mapping[str, Any]] = (),
    ledger: Sequence[Mapping[str, Any]] = (),
    extract: Sequence[str] = (),
) -> str:
    """The system prompt, then the blocks of memo, pins and ledger, at the very end the summary's.

    Where there is an `extract` of what waits to be summarised, it comes behind that.
    """
    blocks = [system.strip()] if system.strip() else []
    if notes := _memo_text(memo):
        blocks.append(_MEMO_HEADING + as_data(notes))
    if pins:
        blocks.append(_PINNED_HEADING + "\n".join(map(_pin_text, pins)))
    if ledger:
        blocks.append(_LEDGER_HEADING + "\n".join(_ledger_line(item) for item in ledger))
    if summary:
        blocks.append(_SUMMARY_HEADING + as_data(summary))
    if extract:
        blocks.append(_EXTRACT_HEADING + "\n".join(f"- {as_data(line)}" for line in extract))
    return "\n\n".join(blocks)


def as_data(text: str) -> str:
    """Text that can't pass for a heading, a tag or a role, whatever stands in it."""
    text = _MARKUP.sub(r"\g<before>\\\g<sign>", _LINE_BREAKS.sub("\n", text))
    return _TAG.sub(_as_entity, text)


def _as_entity(found: re.Match[str]) -> str:
    return "&lt;" if found[0] == "<" else "&#91;"


def _ledger_line(item: Mapping[str, Any]) -> str:
    said = " ".join(as_data(str(item.get("near") or item["text"])).split())
    return f"- {item.get('kind', 'said')}: {said} ({item.get('who', 'user')}, {item['seq']})"


def _pin_text(pin: Mapping[str, Any]) -> str:
    said = as_data(str(pin["text"])).replace("\n", "\n  ")
    return f"- {' '.join(as_data(str(pin.get('who', 'user'))).split())}, {pin['seq']}: {said}"


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
    if not (with_time or entry.metadata) or entry.role != "user":
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
