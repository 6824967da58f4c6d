"""Which messages of its chat a session has heard, and its notes on those that were changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nanoloop.session.entry import Entry

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry that names the channel's message."""
SEEN_LIMIT = 128
"""Message ids that a session in memory remembers: more than any platform delivers at once."""
NOTED_LIMIT = 100
"""The most of them that are in no entry of its log."""

_line = json.JSONEncoder().encode
"""An id as it stands in the text: with no line break in it, whatever it is."""


class MessageIds:
    """The newest ids, bounded; lines of one text, as there are thousands of sessions of them."""

    def __init__(self) -> None:
        self._lines = "\n"

    def __contains__(self, message_id: str) -> bool:
        return f"\n{_line(message_id)}\n" in self._lines

    def __iter__(self) -> Iterator[str]:
        return map(json.loads, self._lines.split("\n")[1:-1])

    def remove(self, message_id: str | None) -> None:
        """Forget this one; an unknown one is fine."""
        self._lines = self._lines.replace(f"\n{_line(message_id)}\n", "\n", 1)

    def add(self, *message_ids: str | None) -> None:
        """Remember these as the newest, in this order; None is nobody's id."""
        new = {_line(name): None for name in message_ids if name is not None}
        old = [line for line in self._lines.split("\n")[1:-1] if line not in new]
        self._lines = "\n".join(("", *[*old, *new][-SEEN_LIMIT:], ""))


AMENDMENT = "amendment"
"""The origin of an entry that is a note."""
AMENDS = "amends"
"""The metadata key of a note that names the channel's message it is about."""


def is_asked(entry: Entry) -> bool:
    """Whether it is a user's message, and no note about one."""
    return entry.role == "user" and entry.metadata.get("origin") != AMENDMENT


def last_exchange(entries: Sequence[Entry]) -> list[Entry]:
    """The newest message of a user with all that came of it; notes on earlier ones left out."""
    first = next((i for i in reversed(range(len(entries))) if is_asked(entries[i])), None)
    if first is None:
        return []
    said = entries[first:]
    names = {None, *(entry.metadata.get(MESSAGE_ID) for entry in said)}
    return [entry for entry in said if entry.metadata.get(AMENDS) in names]


def reworded(entry: Entry, text: str) -> Entry:
    """The same message with other words; what came with it stays."""
    content = {**entry.content, "text": text}
    parts = content.pop("parts", None)
    if parts:
        rest = [part for part in parts if part.get("type") != "text"]
        content["parts"] = [{"type": "text", "text": text}, *rest]
    return replace(entry, content=content)
