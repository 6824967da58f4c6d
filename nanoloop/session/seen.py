"""Which messages a session has heard already, by the ids their channels gave them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry that names the channel's message."""
SEEN_LIMIT = 512
"""Message ids that a session in memory remembers."""
NOTED_LIMIT = 200
"""The most of them that are in no entry of its log."""


class Seen:
    """The newest ids, bounded."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def remove(self, message_id: str | None) -> None:
        """Forget this one; an unknown one is fine."""
        if message_id is not None:
            self._ids.pop(message_id, None)

    def add(self, message_id: str | None) -> None:
        """Remember this one as the newest; None is nobody's id."""
        if message_id is None:
            return
        self._ids[message_id] = None
        self._ids.move_to_end(message_id)
        if len(self._ids) > SEEN_LIMIT:
            self._ids.popitem(last=False)
