"""Less of what was said, cut without a model: shortened tool results, and first words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nanoloop.session.chat import result_text
from nanoloop.session.entry import MESSAGE, TOOL_RESULT, Entry

WORDS_LIMIT = 80
"""Characters of a message that its first words are."""
_HEAD_SHARE = 2 / 3
_MARK_ROOM = 60
"""Characters that the mark in the middle may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """Results up to this number in the log are shown with about so many characters."""

    upto: int
    chars: int

    def is_within(self, other: Shortening) -> bool:
        """Whether the other one shortens all that this one does, as much at least."""
        return self.upto <= other.upto and self.chars >= other.chars


def with_short_result(entry: Entry, rules: Sequence[Shortening]) -> Entry:
    """The entry, its tool result shortened where a rule says so; the log keeps it whole."""
    if entry.type != TOOL_RESULT or not rules:
        return entry
    chars = min((rule.chars for rule in rules if entry.seq <= rule.upto), default=None)
    text = "" if chars is None else result_text(entry)
    if chars is None or len(text) <= chars + _MARK_ROOM:
        return entry
    content = {**entry.content, "success": True, "result": shortened(text, chars)}
    return replace(entry, content=content)


def shortened(text: str, chars: int) -> str:
    """Head and tail of a text, and between them how much is left out."""
    head = int(chars * _HEAD_SHARE)
    tail = chars - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[…{left_out} characters left out…]\n{text[len(text) - tail :]}"


def first_words(entries: Iterable[Entry]) -> list[tuple[int, str]]:
    """Number and first words of each message, with who said them."""
    return [(entry.seq, _line(entry)) for entry in entries if entry.type == MESSAGE]


def _line(entry: Entry) -> str:
    text = str(entry.content.get("text") or "")[: WORDS_LIMIT * 4]
    words = " ".join(text.split())
    more = "…" if len(words) > WORDS_LIMIT else ""
    return f"{entry.role}: {words[:WORDS_LIMIT]}{more}"
