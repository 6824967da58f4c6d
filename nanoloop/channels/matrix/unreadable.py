"""Encrypted rooms: the bot can't read them, and says so once in each."""

from __future__ import annotations

from nanoloop.channels.matrix.bookmark import Bookmark
from nanoloop.channels.matrix.event import MESSAGE, Event, words
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.channels.matrix.rooms import Room
from nanoloop.channels.matrix.saying import said
from nanoloop.channels.platform.host import Host
from nanoloop.channels.platform.platform import Heard, Text
from nanoloop.errors import Declined

WORDS = (
    "I can't read this room: it is encrypted, and I have no keys. "
    "Please write to me in a room without encryption."
)


class Unreadable:
    """Tells those who write there, and the operator."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host

    async def tell(self, room: Room, event: Event) -> None:
        """Say it, the first time that someone says something here who may talk."""
        heard = Heard(chat=room.id, id="", sender=words(event, "sender"), private=room.private)
        if room.id in self._bookmark.told or not self._host.welcomes(heard):
            return
        self._host.refuse(heard, "the room is encrypted")
        notice = said(Text(plain=WORDS), kind="m.notice")
        try:
            # The same name each time: a try that was not noted is not seen twice.
            send = self._homeserver.client.room_send(room.id, MESSAGE, notice, tx_id="unreadable")
            await self._homeserver.ask(send)
        except Declined:
            pass
        self._bookmark.told.append(room.id)
