"""Where to cut: pure functions from entries to the index at which the window begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from nanoloop.session.entry import MESSAGE, TOOL_RESULT, Entry
from nanoloop.session.pairs import results_by_call

Align = Literal["user", "pair"]


def message_count(entries: Sequence[Entry]) -> int:
    """Messages among the entries; tool entries ride with their turn."""
    return sum(1 for entry in entries if entry.type == MESSAGE)


def cut(
    entries: Sequence[Entry],
    *,
    keep: int | None = None,
    chars: int | None = None,
    align: Align = "pair",
    size: Callable[[Entry], int] | None = None,
) -> int:
    """The index at which the window begins; what is before it leaves.

    `align="user"` keeps at least `keep` messages and begins at a user's message, so that no
    exchange is split; `align="pair"` keeps at most `keep` entries and at most `chars` characters,
    and no result without its call. A limit of None, 0 or less is none. The newest entry always
    stays.
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


def _cut_exact(
    entries: Sequence[Entry], keep: int, chars: int, size: Callable[[Entry], int] | None
) -> int:
    start = max(0, len(entries) - keep) if keep > 0 else 0
    if chars > 0 and size is not None:
        start = max(start, _fitting_from(entries, chars, size))
    return _whole_pairs_from(entries, start)


def _fitting_from(entries: Sequence[Entry], chars: int, size: Callable[[Entry], int]) -> int:
    """Where the newest entries that fit begin; the newest alone may be too big."""
    total = size(entries[-1])
    start = len(entries) - 1
    while start > 0 and total + size(entries[start - 1]) <= chars:
        start -= 1
        total += size(entries[start])
    return start


def _whole_pairs_from(entries: Sequence[Entry], start: int) -> int:
    """Move forward past results whose call is cut off; back to the call where nothing is left."""
    pairs = results_by_call(entries)
    behind = max(_split_by(pairs, start).values(), default=start - 1) + 1
    answered = set(pairs.values())
    while behind < len(entries) and _is_orphan(entries[behind], behind, answered):
        behind += 1
    return behind if behind < len(entries) else _widened(pairs, start)


def _split_by(pairs: dict[int, int], start: int) -> dict[int, int]:
    return {call: result for call, result in pairs.items() if call < start <= result}


def _is_orphan(entry: Entry, index: int, answered: set[int]) -> bool:
    return entry.type == TOOL_RESULT and index not in answered


def _widened(pairs: dict[int, int], start: int) -> int:
    while split := _split_by(pairs, start):
        start = min(split)
    return start
