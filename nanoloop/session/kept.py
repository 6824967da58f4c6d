"""What is kept word for word beside the summary, as its items move from one numbering to another.

An item is a small JSON object; its `seq` is the number of the entry that said it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoloop.session.entry import Entry

Kept = tuple[Mapping[str, Any], ...]


def kept_in(stored: Any) -> Kept:
    """The items in what was stored or exported; what is no item is left out."""
    found = stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ()
    return tuple(
        dict(item)
        for item in found
        if isinstance(item, Mapping) and isinstance(item.get("seq"), int) and item.get("text")
    )


def placed(items: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> Kept:
    """The items with, for a number, the place of their entry among these, from 1."""
    seqs = [entry.seq for entry in entries]
    return tuple({**item, "seq": bisect_right(seqs, int(item["seq"]))} for item in items)


def moved(items: Iterable[Mapping[str, Any]], by: int) -> Kept:
    """The items with their numbers so much higher."""
    return tuple({**item, "seq": int(item["seq"]) + by} for item in items)
