"""From the events of rooms to what the kit hears: who said what, to whom, about what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import anyio

from nanoloop.channels.matrix.event import (
    MESSAGE,
    REDACTION,
    STICKER,
    Event,
    answered,
    content,
    edited,
    moment,
    redacted,
    table,
    text,
    thread,
    words,
)
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.channels.matrix.naming import named
from nanoloop.channels.matrix.recent import Recent
from nanoloop.channels.matrix.rooms import Room, Rooms
from nanoloop.channels.platform.platform import File, Heard

_BOTS = frozenset({"m.notice", "m.server_notice", "m.key.verification.request"})
"""What no person has written: other bots, the homeserver, clients among themselves."""
_KINDS: Mapping[str, Literal["image", "audio", "video", "file"]] = {
    "m.image": "image",
    "m.audio": "audio",
    "m.video": "video",
    "m.file": "file",
}
_SIDE_BY_SIDE = 20
"""Rooms that are looked at at once: the homeserver may have to be asked about each."""


class Hearing:
    """Understands what was said."""

    def __init__(
        self, homeserver: Homeserver, *, rooms: Rooms, recent: Recent, file_bytes: int
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._recent = recent
        self._file_bytes = file_bytes

    async def heard(self, rooms: Mapping[str, Sequence[Event]]) -> Mapping[str, Sequence[Heard]]:
        """What it comes to, by room and in order."""
        found: dict[str, list[Heard]] = {room: [] for room in rooms}
        limiter = anyio.CapacityLimiter(_SIDE_BY_SIDE)

        async def look(room: str) -> None:
            async with limiter:
                found[room] = await self._in_room(room, rooms[room])

        async with anyio.create_task_group() as group:
            for room in rooms:
                group.start_soon(look, room, name=f"matrix room {room}")
        return found

    async def _in_room(self, room_id: str, events: Sequence[Event]) -> list[Heard]:
        room = await self._rooms.see(room_id)
        heard = []
        for event in events:
            heard.append(await self._understood(room, event))
            # After that: of what takes a message back it is asked who said that message.
            self._recent.learn(event)
        return [one for one in heard if one is not None]

    async def _understood(self, room: Room, event: Event) -> Heard | None:
        if event.get("type") == REDACTION:
            return self._taken_back(room, event)
        said = content(event)
        if event.get("type") not in (MESSAGE, STICKER) or "body" not in said:
            return None  # what was taken back since has no body any more
        return await (self._edit if edited(said) else self._message)(room, event)

    async def _message(self, room: Room, event: Event) -> Heard:
        said, sender = content(event), words(event, "sender")
        name = room.name(sender)
        is_named, mention = named(said, me=self._me, name=room.name(self._me))
        original = await self._recent.find(room.id, answered(said)) if answered(said) else None
        return Heard(
            chat=room.id,
            id=words(event, "event_id"),
            sender=sender,
            name=name,
            text=text(said, name),
            private=room.private,
            addressed=is_named or words(original, "sender") == self._me,
            mention=mention,
            thread=thread(said),
            reply_to=answered(said) or None,
            quote=text(content(original)) if original else "",
            files=self._files(event),
            is_bot=sender == self._me or words(said, "msgtype") in _BOTS,
            time=moment(event),
        )

    async def _edit(self, room: Room, event: Event) -> Heard | None:
        """Only who said it may say it otherwise: the homeserver doesn't see to that."""
        earlier = edited(content(event))
        original = await self._recent.find(room.id, earlier)
        if original is None or original.get("sender") != event.get("sender"):
            return None
        relation = table(content(original), "m.relates_to")
        now = {**table(event, "content", "m.new_content"), "m.relates_to": relation}
        heard = await self._message(room, {**event, "content": now})
        return replace(heard, edits=earlier, files=())

    def _taken_back(self, room: Room, event: Event) -> Heard:
        """By whom doesn't matter: the homeserver sees to that, and a moderator may."""
        original = self._recent.known(redacted(event)) or {}
        sender = words(original, "sender") or words(event, "sender")
        return Heard(
            chat=room.id,
            id=words(event, "event_id"),
            sender=sender,
            name=room.name(sender),
            private=room.private,
            thread=thread(content(original)),
            deletes=redacted(event),
            is_bot=sender == self._me,
            time=moment(event),
        )

    def _files(self, event: Event) -> tuple[File, ...]:
        said = content(event)
        kind = "image" if event.get("type") == STICKER else _KINDS.get(words(said, "msgtype"))
        address = words(said, "url")
        if kind is None or not address.startswith("mxc://"):
            return ()
        size = table(said, "info").get("size")
        file = File(
            kind=kind,
            fetch=partial(self._homeserver.download, address, self._file_bytes),
            name=words(said, "filename") or words(said, "body"),
            mime_type=words(said, "info", "mimetype"),
            size=size if isinstance(size, int) and size >= 0 else None,
        )
        return (file,)

    @property
    def _me(self) -> str:
        return self._homeserver.me
