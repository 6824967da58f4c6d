"""Matrix: rooms of any homeserver that the bot has an account on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio

from nanoloop.channels.kit.markdown import utf8
from nanoloop.channels.kit.platform import Hear, Host, Limits, MessageGone, Place, Text, Upload
from nanoloop.channels.matrix.hearing import MatrixHearing, Recent
from nanoloop.channels.matrix.homeserver import ENCRYPTED, MESSAGE, TOMBSTONE, Homeserver, content
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

LIMITS = Limits(
    text=12_000,  # an event has 65536 bytes, and an edit says everything up to three times
    size=utf8,
    edit_seconds=2,  # homeservers allow few messages a second, and keep each edit for ever
    typing_seconds=6,
    file_bytes=20_000_000,
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
        """With a `folder`, the data folder, it reads on after a restart where it stood.

        `user` says whose token it has to be.
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
        """Learn who may ask the bot into rooms; before that, nobody may."""
        self._invitations = Invitations(self._homeserver, bookmark=self._bookmark, host=host)
        self._unreadable = UnreadableEvents(self._homeserver, bookmark=self._bookmark, host=host)

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Hand over what was said since the last time, and then what is said."""
        try:
            await self._homeserver.sign_in(self._user)
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
        """Post a message; the homeserver knows one that is posted again by its id."""
        room = await self._rooms.see(place.chat)
        return await self._send(room, place, said(text, kind=_kind(room)), reply_to, id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Let one of our messages say this."""
        known = self._recent.known(message)
        if known is not None and not content(known):
            raise MessageGone(message)
        room = await self._rooms.see(place.chat)
        edit = meant(message, text, kind=_kind(room))
        client = self._homeserver.client
        await self._homeserver.send(client.room_send(place.chat, MESSAGE, edit))

    async def remove(self, place: Place, message: str) -> None:
        """Take one of our messages back."""
        client = self._homeserver.client
        with suppress(Declined):
            await self._homeserver.send(client.room_redact(place.chat, message, tx_id=uuid4()))

    async def typing(self, place: Place) -> None:
        """Show that an answer is being written."""
        milliseconds = int((self.limits.typing_seconds or 0) * 1000)
        client = self._homeserver.client
        await self._homeserver.send(client.room_typing(place.chat, timeout=milliseconds))

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file, shown as what it is."""
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
        """It as HTML, as far as clients show that."""
        return rendered(markdown)

    async def _send(
        self, room: Room, place: Place, content: Content, reply_to: str | None, name: str
    ) -> str:
        # Where only two talk it is clear what is answered.
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
        """See to what isn't said by people: invitations, rooms that moved or can't be read."""
        await self._invitations.consider(news.invitations)
        for room, events in news.rooms.items():
            for event in events:
                if event.get("type") == TOMBSTONE:
                    self._invitations.follow(room, event)
                elif event.get("type") == ENCRYPTED:
                    await self._unreadable.tell(await self._rooms.see(room), event)


def _kind(room: Room) -> str:
    """In groups the mark of bots: no bot answers it, though telephones keep quiet then."""
    return "m.text" if room.private else "m.notice"
