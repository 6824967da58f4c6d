"""Where to cut: pure functions from entries to the index at which the window begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from nanoloop.session.chat import Span, spans_of
from nanoloop.session.entry import MESSAGE, TOOL_RESULT, Entry
from nanoloop.session.pairs import results_by_call
from nanoloop.session.size import char_size

Align = Literal["user", "pair"]


def message_count(entries: Sequence[Entry]) -> int:
    """Messages among the entries; tool entries ride with their turn."""
    return [entry.type for entry in entries].count(MESSAGE)


def cut(
    entries: Sequence[Entry],
    *,
    keep: int | None = None,
    chars: int | None = None,
    align: Align = "pair",
    size: Callable[[Mapping[str, Any]], int] = char_size,
) -> int:
    """The index at which the window begins; what is before it leaves.

    `align="user"` keeps at least `keep` messages and begins at a user's message, so that no
    exchange is split; `align="pair"` keeps at most `keep` chat messages and at most `chars`
    characters, and no result without its call. A limit of None, 0 or less is none. The newest
    message always stays.
    """
    if not entries:
        return 0
    if align == "user" and any(entry.role == "user" for entry in entries):
        return _cut_at_user(entries, keep or 0)
    return _cut_exact(entries, keep or 0, chars or 0, size)


def _cut_at_user(entries: Sequence[Entry], keep: int) -> int:
    if keep <= 0:
        return 0
    kept = 0
    for index in range(len(entries) - 1, -1, -1):
        kept += entries[index].type == MESSAGE
        if kept >= keep and entries[index].role == "user":
            return index
    return 0


def cut_to_fit(entries: Sequence[Entry], *, room: float, size: Callable[[Entry], int]) -> int:
    """The index of the oldest user's message from which on all fits; at the latest the newest."""
    start = 0
    for index in range(len(entries) - 1, -1, -1):
        room -= size(entries[index])
        if start and room < 0:
            break
        if entries[index].role == "user":
            start = index
    return start


def _cut_exact(
    entries: Sequence[Entry], keep: int, chars: int, size: Callable[[Mapping[str, Any]], int]
) -> int:
    spans = spans_of(entries)
    start = _newest(spans, keep) if keep > 0 else 0
    if chars > 0:
        start = max(start, _fitting_from(spans, chars, size))
    return _whole_pairs_from(entries, sum(len(span.entries) for span in spans[:start]))


def _newest(spans: Sequence[Span], keep: int) -> int:
    """Where the newest `keep` spans with a message begin."""
    kept = 0
    for start in range(len(spans) - 1, -1, -1):
        kept += spans[start].message is not None
        if kept == keep:
            return start
    return 0


def _fitting_from(
    spans: Sequence[Span], chars: int, size: Callable[[Mapping[str, Any]], int]
) -> int:
    """Where the newest spans that fit begin; the newest message alone may be too big."""
    start = _newest(spans, 1)
    total = sum(_size(span, size) for span in spans[start:])
    while start > 0 and total + _size(spans[start - 1], size) <= chars:
        start -= 1
        total += _size(spans[start], size)
    return start


def _size(span: Span, size: Callable[[Mapping[str, Any]], int]) -> int:
    return 0 if span.message is None else size(span.message)


def _whole_pairs_from(entries: Sequence[Entry], start: int) -> int:
    """Move forward past results whose call is cut off; back to the call where nothing is left."""
    if start == 0:
        return 0
    pairs = results_by_call(entries)
    behind = max(_split_by(pairs, start).values(), default=start - 1) + 1
    answered = set(pairs.values())
    while behind < len(entries) and _is_orphan(entries[behind], behind, answered):
        behind += 1
    return behind if behind < len(entries) else whole_before(entries, start)


def _split_by(pairs: dict[int, int], start: int) -> dict[int, int]:
    return {call: result for call, result in pairs.items() if call < start <= result}


def _is_orphan(entry: Entry, index: int, answered: set[int]) -> bool:
    return entry.type == TOOL_RESULT and index not in answered


def whole_before(entries: Sequence[Entry], start: int) -> int:
    """The nearest index at or before `start` that parts no call from its result."""
    pairs = results_by_call(entries)
    while split := _split_by(pairs, start):
        start = _message_start(entries, min(split))
    return start


def _message_start(entries: Sequence[Entry], index: int) -> int:
    """Where the chat message that has this entry begins."""
    begins = 0
    for span in spans_of(entries):
        if begins + len(span.entries) > index:
            break
        begins += len(span.entries)
    return begins
