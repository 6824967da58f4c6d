"""Where a session's file stands: its newest head, and at which byte the parts of it are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.changes import WAITING
from nanoloop.session.entry import Entry
from nanoloop.stores.jsonl.lines import ENTRY, SECTION, Line
from nanoloop.stores.jsonl.reading import Tail

WINDOW, PENDING = "window", "pending"
"""The places of entries; every other name in `at` is a section's."""
NO_HEAD: Mapping[str, Any] = {"rev": 0, "start": 1, "last": 0, "window": 1, "count": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the end of a file says."""

    head: Mapping[str, Any]
    at: Mapping[str, int]
    size: int
    """Where the next line goes."""
    torn: int = 0
    """Bytes behind that, of a line that was never finished."""
    open_ended: bool = False
    """Whether the last line lacks its newline."""
    newer: int = 0
    """Entries behind the head: written, but their head was lost with the process."""

    @property
    def revision(self) -> int:
        """How many commits were made."""
        return int(self.head["rev"])

    @property
    def last(self) -> int:
        """The newest number, as the head has it."""
        return int(self.head["last"])


def standing_of(tail: Tail) -> Standing:
    """What these last lines say; whole lines behind the head are taken in."""
    index = tail.head_index
    head, at = head_of(tail.lines[index]) if index >= 0 else (dict(NO_HEAD), {})
    newer = tail.lines[index + 1 :]
    at |= {line.name: line.offset for line in newer if line.kind == SECTION}
    head |= _owed([line.value for line in newer if line.kind == ENTRY])
    waiting = [line.value for line in newer if line.name == WAITING]
    head |= {WAITING: len(waiting[-1])} if waiting else {}
    return Standing(
        head=head,
        at=at,
        size=tail.size,
        torn=tail.torn,
        open_ended=tail.open_ended,
        newer=sum(1 for line in newer if line.kind == ENTRY),
    )


def _owed(newer: Sequence[Entry]) -> dict[str, Any]:
    """What the lost head would have said: of an answer that is owed, or was never sent."""
    last = newer[-1] if newer else None
    if last is None or last.role not in {"user", "assistant"}:
        return {}
    return {"awaiting": last.seq} if last.role == "user" else {"awaiting": 0, "unsent": [last.seq]}


def head_of(line: Line) -> tuple[dict[str, Any], dict[str, int]]:
    """A head and its places."""
    head = {name: value for name, value in line.value.items() if name not in {"_type", "at"}}
    return head, dict(line.value["at"])
