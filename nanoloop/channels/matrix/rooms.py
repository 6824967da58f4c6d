"""Who is in a room, and what they are called there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nio import MatrixRoom  # type: ignore[import-untyped]  # as homeserver.py has it

from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.errors import Declined

TWO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A room as it is now."""

    id: str
    known: Any
    """What nio knows of it, and keeps up to date; None where the bot may not look."""

    @property
    def private(self) -> bool:
        """Whether nobody but one person and the bot has joined it."""
        return self.known is not None and self._joined <= TWO

    def name(self, user: str) -> str:
        """What someone is called here; two of the same name are told apart."""
        found = None if self.known is None else self.known.user_name(user)
        return str(found or user)

    @property
    def _joined(self) -> int:
        return len(self.known.users.keys() - self.known.invited_users.keys())


class Rooms:
    """Looks at rooms; the members of each are asked for once."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def see(self, room: str) -> Room:
        """The room; raises what the homeserver raises, save where the bot is out of it by now."""
        client = self._homeserver.client
        # What is owed since before a restart may go to a room that no news has named yet.
        known = client.rooms.setdefault(room, MatrixRoom(room, self._homeserver.me))
        if not known.members_synced:
            try:
                await self._homeserver.send(client.joined_members(room))
            except Declined:
                known = None
        return Room(id=room, known=known)
