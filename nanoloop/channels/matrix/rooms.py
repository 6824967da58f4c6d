"""Rooms: their members, invitations, and what can't be read there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import anyio
from nio import MatrixRoom  # type: ignore[import-untyped]  # as homeserver.py has it

from nanoloop.channels.kit.markdown import html
from nanoloop.channels.kit.platform import Heard, Host, Place, Text, Upload
from nanoloop.channels.matrix.homeserver import MEMBER, MESSAGE, Event, Homeserver, content, words
from nanoloop.channels.matrix.sync import Bookmark
from nanoloop.errors import Declined, NanoloopError, SendLater

TWO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A room as it is now."""

    id: str
    known: Any
    """What nio knows about it, and keeps up to date; None if the bot may not see it."""

    @property
    def private(self) -> bool:
        """Whether only one person and the bot have joined it."""
        return self.known is not None and self._joined <= TWO

    def name(self, user: str) -> str:
        """Someone's name in this room; two people with the same name are told apart."""
        found = None if self.known is None else self.known.user_name(user)
        return str(found or user)

    @property
    def _joined(self) -> int:
        return len(self.known.users.keys() - self.known.invited_users.keys())


class Rooms:
    """Reads rooms; the members of each are requested once."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def see(self, room: str) -> Room:
        """The room; raises the homeserver's errors, unless the bot has left it."""
        client = self._homeserver.client
        # What is owed since before a restart may go to a room that no news has named yet.
        known = client.rooms.setdefault(room, MatrixRoom(room, self._homeserver.me))
        if not known.members_synced:
            try:
                await self._homeserver.send(client.joined_members(room))
            except Declined:
                known = None
        return Room(id=room, known=known)


AGAIN_SECONDS = 10.0
TRIES = 30
"""How often to retry a room that can't be joined now."""


class Invitations:
    """Answers invitations; a room that is slow to join delays no other."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host
        self._tries: Counter[str] = Counter()
        self._news = anyio.Event()

    async def consider(self, invitations: Mapping[str, Sequence[Event]]) -> None:
        """Accept or refuse each; accepted rooms are joined soon, even after a restart."""
        for room, events in invitations.items():
            invitation = next(filter(self._is_for_me, events), {})
            private = content(invitation).get("is_direct") is True
            if not self._accept(room, words(invitation, "sender"), chat=room, private=private):
                await self._refuse(room)

    def follow(self, room: str, event: Event) -> None:
        """Follow a room that has moved, if the person who says so may invite the bot."""
        if new := words(event, "content", "replacement_room"):
            self._accept(new, words(event, "sender"), chat=room, private=False)

    async def join(self) -> None:
        """Join accepted rooms, until cancelled."""
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
        """Try to join; returns how long to wait before the next attempt, or 0 if none is needed."""
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


class UnreadableEvents:
    """Tells the people in an unreadable room, and the operator."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host

    async def tell(self, room: Room, event: Event) -> None:
        """Tell them the first time that someone who may talk to the bot writes there."""
        heard = Heard(chat=room.id, id="", sender=words(event, "sender"), private=room.private)
        if room.id in self._bookmark.told or not self._host.welcomes(heard):
            return
        self._host.refuse(heard, "the room is encrypted")
        notice = said(Text(plain=self._host.say("encrypted_room")), kind="m.notice")
        try:
            # The same name each time: a try that was not noted is not seen twice.
            send = self._homeserver.client.room_send(room.id, MESSAGE, notice, tx_id="unreadable")
            await self._homeserver.ask(send)
        except Declined:
            pass
        self._bookmark.told.append(room.id)


Content = dict[str, Any]

_IMAGE = re.compile(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>')


def said(text: Text, *, kind: str) -> Content:
    """A message; it mentions nobody, whatever names it contains."""
    content: Content = {"msgtype": kind, "body": text.plain, "m.mentions": {}}
    if text.formatted is not None:
        content |= {"format": "org.matrix.custom.html", "formatted_body": text.formatted}
    return content


def meant(message: str, text: Text, *, kind: str) -> Content:
    """An edit of a message; clients without edits show it as a message with a star."""
    star = said(Text(plain=f"* {text.plain}"), kind=kind)
    relation = {"rel_type": "m.replace", "event_id": message}
    return {**star, "m.new_content": said(text, kind=kind), "m.relates_to": relation}


def shown(file: Upload, *, address: str) -> Content:
    """A file that is already uploaded, at this address."""
    group = file.mime_type.partition("/")[0]
    kind = group if group in ("image", "audio", "video") else "file"
    info = {"mimetype": file.mime_type, "size": len(file.data)}
    name = {"body": file.name, "filename": file.name}
    return {"msgtype": f"m.{kind}", **name, "url": address, "info": info, "m.mentions": {}}


def placed(content: Content, place: Place, reply_to: str | None) -> Content:
    """The same content in its thread, as a reply to this message if there is one."""
    answers: Content = {"m.in_reply_to": {"event_id": reply_to}} if reply_to else {}
    if place.thread:
        answers = {
            "rel_type": "m.thread",
            "event_id": place.thread,
            "is_falling_back": reply_to is None,
            "m.in_reply_to": {"event_id": reply_to or place.thread},
        }
    return {**content, "m.relates_to": answers} if answers else content


def rendered(markdown: str) -> str | None:
    """The text as HTML; None if that adds nothing to the plain text."""
    found = html(markdown)
    if found == f"<p>{escape(markdown)}</p>":
        return None
    # Clients show only pictures that are on a homeserver.
    return _IMAGE.sub(r'<a href="\1">\2</a>', found)
