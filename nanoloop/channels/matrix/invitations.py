"""Rooms that the bot is asked into: joined where it knows who asks, refused else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import anyio

from nanoloop.channels.matrix.bookmark import Bookmark
from nanoloop.channels.matrix.event import MEMBER, Event, content, words
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.channels.platform.host import Host
from nanoloop.channels.platform.platform import Heard
from nanoloop.errors import Declined, NanoloopError, SendLater

AGAIN_SECONDS = 10.0
TRIES = 30
"""How often a room that can't be joined now is tried."""


class Invitations:
    """Answers them; a room that takes its time to join holds up no other."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host
        self._tries: Counter[str] = Counter()
        self._news = anyio.Event()

    async def consider(self, invitations: Mapping[str, Sequence[Event]]) -> None:
        """Accept or refuse each; what is accepted is joined soon, also after a restart."""
        for room, events in invitations.items():
            invitation = next(filter(self._is_for_me, events), {})
            private = content(invitation).get("is_direct") is True
            if not self._accept(room, words(invitation, "sender"), chat=room, private=private):
                await self._refuse(room)

    def follow(self, room: str, event: Event) -> None:
        """Go where a room has moved, if who says so may ask the bot into rooms."""
        if new := words(event, "content", "replacement_room"):
            self._accept(new, words(event, "sender"), chat=room, private=False)

    async def join(self) -> None:
        """Join what was accepted, until cancelled."""
        while True:
            self._news = anyio.Event()
            rests = [await self._join(room) for room in [*self._bookmark.to_join]]
            with anyio.move_on_after(max(rests, default=0) or None):
                await self._news.wait()

    def _accept(self, room: str, sender: str, *, chat: str, private: bool) -> bool:
        asks = Heard(chat=chat, id="", sender=sender, private=private)
        if not self._host.welcomes(asks):
            self._host.refuse(asks, "may not invite the bot")
            return False
        if room not in self._bookmark.to_join:
            self._bookmark.to_join.append(room)
        self._news.set()
        return True

    async def _refuse(self, room: str) -> None:
        try:
            await self._homeserver.ask(self._homeserver.client.room_leave(room))
        except Declined:
            return  # it is gone already

    async def _join(self, room: str) -> float:
        """How long to wait with the next try; 0 where none is needed."""
        self._tries[room] += 1
        try:
            await self._homeserver.ask(self._homeserver.client.join(room))
        except SendLater as later:
            if self._tries[room] < TRIES:
                return later.seconds or AGAIN_SECONDS
            self._give_up(room, later)
        except Declined as refused:
            self._give_up(room, refused)
        self._bookmark.to_join.remove(room)
        self._bookmark.save()
        del self._tries[room]
        return 0

    def _give_up(self, room: str, error: NanoloopError) -> None:
        asked = Heard(chat=room, id="", sender="")
        self._host.refuse(asked, f"the room can't be joined: {error}")

    def _is_for_me(self, event: Event) -> bool:
        return event.get("type") == MEMBER and event.get("state_key") == self._homeserver.me
