"""Notes: what a session tells its model of a message that was changed or taken back."""

from __future__ import annotations

from collections.abc import Sequence

from nanoloop.session.entry import Entry
from nanoloop.session.seen import MESSAGE_ID

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
