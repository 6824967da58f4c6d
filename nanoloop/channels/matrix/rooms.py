"""Rooms on Matrix: their members, invitations, and messages the bot can't read."""

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
    """A room, with its current state."""

    id: str
    known: Any
    """nio's object for the room, which stays up to date; None if the bot can't see the room."""

    @property
    def private(self) -> bool:
        """Whether only one person and the bot have joined the room."""
        return self.known is not None and self._joined <= TWO

    def name(self, user: str) -> str:
        """Return someone's display name in this room, distinct from everyone else's."""
        found = None if self.known is None else self.known.user_name(user)
        return str(found or user)

    @property
    def _joined(self) -> int:
        return len(self.known.users.keys() - self.known.invited_users.keys())


class Rooms:
    """Looks up rooms, requesting each room's members only once."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def see(self, room: str) -> Room:
        """Return a room, even if the bot has left it; raises the homeserver's errors."""
        client = self._homeserver.client
        # A message left over from before a restart may go to a room that has not been synced yet.
        known = client.rooms.setdefault(room, MatrixRoom(room, self._homeserver.me))
        if not known.members_synced:
            try:
                await self._homeserver.send(client.joined_members(room))
            except Declined:
                known = None
        return Room(id=room, known=known)


AGAIN_SECONDS = 10.0
TRIES = 30
"""How many times to try to join a room."""


class Invitations:
    """Answers invitations; a room that is slow to join does not delay the others."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host
        self._tries: Counter[str] = Counter()
        self._news = anyio.Event()

    async def consider(self, invitations: Mapping[str, Sequence[Event]]) -> None:
        """Accept or refuse each invitation; accepted rooms are joined even after a restart."""
        for room, events in invitations.items():
            invitation = next(filter(self._is_for_me, events), {})
            private = content(invitation).get("is_direct") is True
            if not self._accept(room, words(invitation, "sender"), chat=room, private=private):
                await self._refuse(room)

    def follow(self, room: str, event: Event) -> None:
        """Follow a room that has moved, if the person who moved it may invite the bot."""
        if new := words(event, "content", "replacement_room"):
            self._accept(new, words(event, "sender"), chat=room, private=False)

    async def join(self) -> None:
        """Join accepted rooms until cancelled."""
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
            return  # the room no longer exists

    async def _join(self, room: str) -> float:
        """Try to join a room; return how long to wait before trying again, or 0 to stop trying."""
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
    """Tells the people in an encrypted room, and the operator, that the bot can't read it."""

    def __init__(self, homeserver: Homeserver, *, bookmark: Bookmark, host: Host) -> None:
        self._homeserver = homeserver
        self._bookmark = bookmark
        self._host = host

    async def tell(self, room: Room, event: Event) -> None:
        """Send the notice once per room, when someone with access first writes there."""
        heard = Heard(chat=room.id, id="", sender=words(event, "sender"), private=room.private)
        if room.id in self._bookmark.told or not self._host.welcomes(heard):
            return
        self._host.refuse(heard, "the room is encrypted")
        notice = said(Text(plain=self._host.say("encrypted_room")), kind="m.notice")
        try:
            # The transaction id is always the same, so that a repeated notice appears once.
            send = self._homeserver.client.room_send(room.id, MESSAGE, notice, tx_id="unreadable")
            await self._homeserver.ask(send)
        except Declined:
            pass
        self._bookmark.told.append(room.id)


Content = dict[str, Any]

_IMAGE = re.compile(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>')


def said(text: Text, *, kind: str) -> Content:
    """Build a message that mentions nobody, even if it contains people's names."""
    content: Content = {"msgtype": kind, "body": text.plain, "m.mentions": {}}
    if text.formatted is not None:
        content |= {"format": "org.matrix.custom.html", "formatted_body": text.formatted}
    return content


def meant(message: str, text: Text, *, kind: str) -> Content:
    """Build an edit; clients without support for edits show a new message with a star."""
    star = said(Text(plain=f"* {text.plain}"), kind=kind)
    relation = {"rel_type": "m.replace", "event_id": message}
    return {**star, "m.new_content": said(text, kind=kind), "m.relates_to": relation}


def shown(file: Upload, *, address: str) -> Content:
    """Build a message for a file that is already uploaded to this address."""
    group = file.mime_type.partition("/")[0]
    kind = group if group in ("image", "audio", "video") else "file"
    info = {"mimetype": file.mime_type, "size": len(file.data)}
    name = said(file.caption or Text(plain=file.name), kind=f"m.{kind}")
    return {**name, "filename": file.name, "url": address, "info": info}


def placed(content: Content, place: Place, reply_to: str | None) -> Content:
    """Put a message in its thread, and make it a reply if `reply_to` is given."""
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
    """Convert Markdown to HTML; return None if the HTML adds nothing to the plain text."""
    found = html(markdown)
    if found == f"<p>{escape(markdown)}</p>":
        return None
    # Clients show only pictures that are stored on a homeserver.
    return _IMAGE.sub(r'<a href="\1">\2</a>', found)
