"""The ledger beside the summary: what was said exactly, by whom and in which message; bounded.

What goes first when it is full: an item counts as older the less its kind is worth keeping, and
what a user marked as decided goes last of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoloop.memory.exact import Exact, exact_in
from nanoloop.session.entry import Entry
from nanoloop.session.kept import Kept

Item = dict[str, Any]

DECISION = "decision"
WORTH = {"money": 40, "date": 40, "file": 60, "link": 60, "id": 80, "contact": 120}
"""By how many entries an item counts as newer than it is."""
USER_WORTH = 40
REPEATED_WORTH = 20
"""For each time that it was said again, ten times at most."""
PER_MESSAGE = 12
"""Items of one message, so that a list of figures doesn't push out all the rest."""
SPEAKER_LIMIT = 40


def found_in(entry: Entry) -> list[Item]:
    """What must not be paraphrased of what a user or the assistant said, oldest first."""
    if entry.role not in {"user", "assistant"}:
        return []
    who = _speaker(entry)
    text = str(entry.content.get("text") or "")
    found = {
        (exact.kind, exact.text): _item(exact, who, entry.seq)
        for exact in exact_in(text, by_user=entry.role == "user")
    }
    return _best(list(found.values()), PER_MESSAGE)


def merged(
    before: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    *,
    items: int = 60,
    chars: int = 3000,
) -> Kept:
    """The ledger with what was found later, within its bounds; the same thing stands in it once."""
    known: dict[tuple[str, str], Item] = {}
    for item in (*before, *found):
        key = (str(item["kind"]), str(item["text"]).casefold())
        said = known.pop(key, None)
        known[key] = {**item, "count": int(item["count"]) + (int(said["count"]) if said else 0)}
    kept = _best(list(known.values()), items)
    while kept and sum(_size(item) for item in kept) > chars:
        kept.remove(min(kept, key=_worth))
    return tuple(kept)


def _item(exact: Exact, who: str, seq: int) -> Item:
    near = {} if exact.near == exact.text else {"near": exact.near}
    return {"kind": exact.kind, "text": exact.text, **near, "who": who, "seq": seq, "count": 1}


def _speaker(entry: Entry) -> str:
    told = entry.metadata.get("sender") if entry.metadata.get("group") else None
    return " ".join(str(told or entry.role).split())[:SPEAKER_LIMIT]


def _best(items: Sequence[Item], limit: int) -> list[Item]:
    """As many as may stay, in the order they have."""
    if len(items) <= limit:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda index: _worth(items[index]), reverse=True)
    return [items[index] for index in sorted(ranked[:limit])]


def _worth(item: Mapping[str, Any]) -> tuple[bool, int]:
    kind = str(item["kind"])
    worth = WORTH.get(kind, 0)
    worth += 0 if item["who"] == "assistant" else USER_WORTH
    worth += REPEATED_WORTH * min(int(item["count"]) - 1, 10)
    return kind == DECISION, int(item["seq"]) + worth


def _size(item: Mapping[str, Any]) -> int:
    return len(str(item.get("near") or item["text"])) + len(str(item["who"])) + 20
