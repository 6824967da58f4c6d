"""The Matrix platform: serves one account, on any homeserver, and the rooms it has joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

import anyio

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.markdown import utf8
from nanoloop.channels.kit.platform import (
    File,
    Hear,
    Heard,
    Host,
    Limits,
    MessageGone,
    Place,
    Text,
    Upload,
)
from nanoloop.channels.matrix.homeserver import (
    ENCRYPTED,
    MESSAGE,
    REDACTION,
    STICKER,
    TOMBSTONE,
    Event,
    Homeserver,
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
from nanoloop.channels.matrix.rooms import (
    Content,
    Invitations,
    Room,
    Rooms,
    UnreadableEvents,
    meant,
    placed,
    rendered,
    said,
    shown,
)
from nanoloop.channels.matrix.sync import Batches, Bookmark, SyncNews, Timeline
from nanoloop.errors import Declined
from nanoloop.messages import Quote, Speaker

LIMITS = Limits(
    text=12_000,  # an event has at most 65536 bytes, and an edit repeats its text up to three times
    size=utf8,
    edit_seconds=2,  # homeservers allow few messages a second, and keep each edit forever
    typing_seconds=6,
    file_bytes=20_000_000,
    caption=2000,
)

UPLOAD_SECONDS = 120.0


class MatrixPlatform:
    """One account on one homeserver."""

    def __init__(
        self,
        *,
        homeserver: str,
        token: str,
        user: str | None = None,
        folder: Path | None = None,
        limits: Limits = LIMITS,
        name: str = "matrix",
    ) -> None:
        """Create the platform; given the data folder as `folder`, it can resume after a restart.

        The token must belong to `user`.
        """
        self.name = name
        self.limits = limits
        self._user = user
        self._homeserver = Homeserver(homeserver, token)
        self._bookmark = Bookmark(folder and folder / "channels" / f"{name}.bookmark.json")
        self._rooms = Rooms(self._homeserver)
        self._recent = Recent(self._homeserver)
        self._timeline = Timeline(self._homeserver)
        self._hearing = MatrixHearing(
            self._homeserver,
            rooms=self._rooms,
            recent=self._recent,
            file_bytes=limits.file_bytes,
        )
        self.meet(Host(channel=name))

    def meet(self, host: Host) -> None:
        """Set the channel, which decides who may invite the bot; before this call, nobody may."""
        self._invitations = Invitations(self._homeserver, bookmark=self._bookmark, host=host)
        self._unreadable = UnreadableEvents(self._homeserver, bookmark=self._bookmark, host=host)

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on the messages since the last run, and then new ones as they arrive."""
        try:
            await self._homeserver.sign_in(self._user)
            self._bookmark.load()
            self._bookmark.belongs_to(self._homeserver.me)
            connected()
            batches = Batches(hear, bookmark=self._bookmark)
            async with batches, anyio.create_task_group() as group:
                group.start_soon(self._invitations.join, name="matrix invitations")
                await self._read(batches)
        finally:
            with anyio.CancelScope(shield=True):
                await self._homeserver.close()

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam's name
        """Post a message; the homeserver recognises a repeated one by its id."""
        room = await self._rooms.see(place.chat)
        return await self._send(room, place, said(text, kind=_kind(room)), reply_to, id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of the bot's messages."""
        known = self._recent.known(message)
        if known is not None and not content(known):
            raise MessageGone(message)
        room = await self._rooms.see(place.chat)
        edit = meant(message, text, kind=_kind(room))
        client = self._homeserver.client
        await self._homeserver.send(client.room_send(place.chat, MESSAGE, edit))

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of the bot's messages."""
        client = self._homeserver.client
        with suppress(Declined):
            await self._homeserver.send(client.room_redact(place.chat, message, tx_id=uuid4()))

    async def typing(self, place: Place) -> None:
        """Show that the bot is typing."""
        milliseconds = int((self.limits.typing_seconds or 0) * 1000)
        client = self._homeserver.client
        await self._homeserver.send(client.room_typing(place.chat, timeout=milliseconds))

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file, displayed according to its type."""
        data, size = BytesIO(file.data), len(file.data)
        client = self._homeserver.client

        async def put() -> Any:
            with anyio.fail_after(UPLOAD_SECONDS):
                answer, _ = await client.upload(data, file.mime_type, file.name, filesize=size)
            return answer

        address = (await self._homeserver.send(put())).content_uri
        room = await self._rooms.see(place.chat)
        return await self._send(room, place, shown(file, address=address), reply_to, id)

    def rendered(self, markdown: str) -> str | None:
        """Convert Markdown to HTML; return None if the HTML adds nothing to the plain text."""
        return rendered(markdown)

    async def _send(
        self, room: Room, place: Place, content: Content, reply_to: str | None, name: str
    ) -> str:
        # In a private room it is clear which message is being answered.
        whole = placed(content, place, None if room.private else reply_to)
        send = self._homeserver.client.room_send(room.id, MESSAGE, whole, tx_id=name)
        return str((await self._homeserver.send(send)).event_id)

    async def _read(self, batches: Batches) -> None:
        since = self._bookmark.since
        while True:
            news = await self._timeline.read(since)
            await self._look(news)
            await batches.put(news.since, await self._hearing.heard(news.rooms))
            since = news.since

    async def _look(self, news: SyncNews) -> None:
        """Handle events other than messages: invitations, moved rooms and encrypted rooms."""
        await self._invitations.consider(news.invitations)
        for room, events in news.rooms.items():
            for event in events:
                if event.get("type") == TOMBSTONE:
                    self._invitations.follow(room, event)
                elif event.get("type") == ENCRYPTED:
                    await self._unreadable.tell(await self._rooms.see(room), event)


def _kind(room: Room) -> str:
    """Return the message type: in groups, m.notice, which is silent but ignored by other bots."""
    return "m.text" if room.private else "m.notice"


_BOTS = frozenset({"m.notice", "m.server_notice", "m.key.verification.request"})
"""Types of messages that bots, the homeserver or clients send on their own."""
_KINDS: Mapping[str, Literal["image", "audio", "video", "file"]] = {
    "m.image": "image",
    "m.audio": "audio",
    "m.video": "video",
    "m.file": "file",
}
_SIDE_BY_SIDE = 20
"""How many rooms are processed at once; each may require a request to the homeserver."""


class MatrixHearing:
    """Converts events to the kit's messages."""

    def __init__(
        self, homeserver: Homeserver, *, rooms: Rooms, recent: Recent, file_bytes: int
    ) -> None:
        self._homeserver = homeserver
        self._rooms = rooms
        self._recent = recent
        self._file_bytes = file_bytes

    async def heard(self, rooms: Mapping[str, Sequence[Event]]) -> Mapping[str, Sequence[Heard]]:
        """Convert the events caused by people, room by room and in order."""
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
            # Remembered only afterwards, because a deletion needs the author of the original
            # message.
            self._recent.learn(event)
        return [one for one in heard if one is not None]

    async def _understood(self, room: Room, event: Event) -> Heard | None:
        if event.get("type") == REDACTION:
            return self._taken_back(room, event)
        said = content(event)
        if event.get("type") not in (MESSAGE, STICKER) or "body" not in said:
            return None  # a deleted message has no body any more
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
            quotes=(self._quote(room, original),) if original else (),
            files=self._files(event),
            is_bot=sender == self._me or words(said, "msgtype") in _BOTS,
            time=moment(event),
        )

    def _quote(self, room: Room, original: Event) -> Quote:
        said, name = words(original, "sender"), room.name(words(original, "sender"))
        by = Speaker(id=said, name=name, is_me=said == self._me)
        return Quote(text=text(content(original)), speaker=by)

    async def _edit(self, room: Room, event: Event) -> Heard | None:
        """Accept an edit by its author only, because the homeserver does not check this."""
        earlier = edited(content(event))
        original = await self._recent.find(room.id, earlier)
        if original is None or original.get("sender") != event.get("sender"):
            return None
        relation = table(content(original), "m.relates_to")
        now = {**table(event, "content", "m.new_content"), "m.relates_to": relation}
        heard = await self._message(room, {**event, "content": now})
        return replace(heard, edits=earlier, files=())

    def _taken_back(self, room: Room, event: Event) -> Heard:
        """Report a deletion; the homeserver has checked that the sender may delete the message."""
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


_END = r"(?![\w-]|[.:]\w)"
"""Matches if no character follows that could be part of a longer name."""


def named(said: Mapping[str, Any], *, me: str, name: str) -> tuple[bool, str]:
    """Return whether the message mentions the bot, and the words that mention it, if any."""
    names = _names(me, name)
    start = _at_the_beginning(words(said, "body"), me, names)
    if start:
        return True, start
    if _is_mentioned(said, me) or _is_linked(said, me) or _stands_in(said, me):
        return True, _first(words(said, "body"), (me, *names))
    return False, ""


def _names(me: str, name: str) -> Sequence[str]:
    """Return the bot's names, longest first."""
    called = {found for found in (name, me[1:].partition(":")[0]) if found}
    return sorted((sign + found for found in called for sign in ("", "@")), key=len, reverse=True)


def _at_the_beginning(body: str, me: str, names: Sequence[str]) -> str:
    """Find a name as in `nano: hello` or `@nano hello`; in `nano hello` it may be a subject."""
    plain = "|".join(map(re.escape, names))
    signed = "|".join(re.escape(name) for name in (me, *names) if name.startswith("@"))
    form = rf"\s*((?:{plain})(?=[:,](?:\s|$))|(?:{signed}){_END})"
    found = re.match(form, body, re.IGNORECASE)
    return found[1] if found else ""


def _is_mentioned(said: Mapping[str, Any], me: str) -> bool:
    people = table(said, "m.mentions").get("user_ids")
    return isinstance(people, list) and me in people


def _is_linked(said: Mapping[str, Any], me: str) -> bool:
    """Return whether the message has the link that clients add when its name is picked."""
    formatted = words(said, "formatted_body")
    return any(f'"https://matrix.to/#/{form}"' in formatted for form in (me, quote(me, safe="")))


def _stands_in(said: Mapping[str, Any], me: str) -> bool:
    return re.search(rf"(?<!\S){re.escape(me)}{_END}", words(said, "body")) is not None


def _first(body: str, names: Sequence[str]) -> str:
    """Return the first of these names that the text contains, spelled as in the text."""
    for name in names:
        if found := re.search(rf"(?<!\w){re.escape(name)}(?!\w)", body, re.IGNORECASE):
            return found[0]
    return ""


REMEMBERED = 5000


class Recent:
    """Remembers recent events, and asks the homeserver for older ones."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver
        self._events: BoundedDict[str, Event] = BoundedDict(REMEMBERED)

    def learn(self, event: Event) -> None:
        """Remember an event, or apply an edit or deletion to a remembered one."""
        if taken_back := redacted(event):
            self._change(taken_back, {})
        elif earlier := edited(content(event)):
            known = self._events.get(earlier)
            if known is not None and known.get("sender") == event.get("sender"):
                self._change(earlier, _anew(known, event))
        else:
            self._keep(event)

    def known(self, message: str) -> Event | None:
        """Return the remembered event; its content is empty if it was deleted."""
        return self._events.get(message)

    async def find(self, room: str, message: str) -> Event | None:
        """Return an event, asking the homeserver if necessary; None if the bot may not see it."""
        if message in self._events:
            return self._events[message]
        ask = self._homeserver.ask
        try:
            answer = await ask(self._homeserver.client.room_get_event(room, message))
        except Declined:
            return None
        event: Event = answer.event.source
        edit = table(event, "unsigned", "m.relations", "m.replace")
        if edit:
            event = {**event, "content": _anew(event, edit)}
        self._keep(event)
        return event

    def _keep(self, event: Event) -> None:
        # Events that the bot sends are received again, and may have been edited by then.
        self._events.setdefault(str(event.get("event_id")), event)

    def _change(self, message: str, said: Event) -> None:
        if message in self._events:
            self._events[message] = {**self._events[message], "content": said}


def _anew(event: Event, edit: Event) -> Event:
    """Return an event's edited content, keeping its relation to other events."""
    relation = table(event, "content", "m.relates_to")
    return {**table(edit, "content", "m.new_content"), "m.relates_to": relation}
