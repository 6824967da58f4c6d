"""Fetches updates from the homeserver, in order, and remembers how far it has read."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import anyio

from nanoloop.channels.kit.platform import Hear, Heard
from nanoloop.channels.matrix.homeserver import (
    ENCRYPTED,
    MEMBER,
    MESSAGE,
    REDACTION,
    STICKER,
    TOMBSTONE,
    Event,
    Homeserver,
    words,
)
from nanoloop.errors import Declined
from nanoloop.files import load_file, save_json
from nanoloop.lanes import Lanes

WAIT_SECONDS = 30
PAGE = 100
"""How many events to request from a room at once."""
PAGES = 100
"""The largest gap to fill in a room's history, in pages of events."""
_NOTHING: Mapping[str, Any] = {"types": []}
_TOLD = {"types": [MESSAGE, STICKER, REDACTION, ENCRYPTED, TOMBSTONE, MEMBER], "limit": PAGE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNews:
    """The updates from the homeserver since the last request."""

    since: str
    """The homeserver's position after these updates."""
    rooms: Mapping[str, Sequence[Event]]
    """New events by room, oldest first."""
    invitations: Mapping[str, Sequence[Event]]
    """Rooms that the bot is invited to, with the state events known about them."""


class Timeline:
    """Reads the event timelines of all rooms."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def read(self, since: str | None) -> SyncNews:
        """Wait a while for updates; if `since` is None, return only the current position."""
        try:
            answer = await self._sync(since)
        except Declined:
            if since is None:
                raise
            return await self.read(None)  # the homeserver has forgotten this position for good
        rooms = answer.rooms.join if since else {}
        return SyncNews(
            since=answer.next_batch,
            rooms={room: await self._events(room, rooms[room], since) for room in rooms},
            invitations={
                room: _sources(it.invite_state) for room, it in answer.rooms.invite.items()
            },
        )

    async def _sync(self, since: str | None) -> Any:
        client = self._homeserver.client
        wait = WAIT_SECONDS * 1000 if since else 0
        return await self._homeserver.ask(
            client.sync(timeout=wait, since=since, sync_filter=_filter(since))
        )

    async def _events(self, room: str, info: Any, since: str | None) -> Sequence[Event]:
        me, timeline = self._homeserver.me, info.timeline
        events = _sources(timeline.events)
        start = timeline.prev_batch if timeline.limited else None
        arrival = _arrival(events, me)
        for _ in range(PAGES):
            if start is None or (arrival is not None and _step(events[arrival], me) != "accept"):
                break
            # Messages since an invitation are new, even if they precede the position.
            page = await self._page(room, start, since if arrival is None else None)
            events, start = [*reversed(_sources(page.chunk)), *events], page.end
            arrival = _arrival(events, me)
        return events[arrival or 0 :]

    async def _page(self, room: str, start: str, end: str | None) -> Any:
        client = self._homeserver.client
        return await self._homeserver.ask(
            client.room_messages(room, start, end, limit=PAGE, message_filter=_TOLD)
        )


def _filter(since: str | None) -> Mapping[str, Any]:
    """Return a filter for messages and membership changes; without `since`, it admits nothing."""
    timeline = _TOLD if since else {**_NOTHING, "limit": 1}
    state = {"types": [MEMBER]} if since else _NOTHING
    room = {"timeline": timeline, "state": state, "ephemeral": _NOTHING, "account_data": _NOTHING}
    return {"presence": _NOTHING, "account_data": _NOTHING, "room": room}


def _sources(events: Sequence[Any]) -> list[Event]:
    return [event.source for event in events]


def _arrival(events: Sequence[Event], me: str) -> int | None:
    """Return the index of the event with which the bot entered the room, or None."""
    found = None
    for place, event in enumerate(events):
        step = _step(event, me)
        if step == "accept" and found is not None and _step(events[found], me) == "invite":
            continue
        found = place if step else found
    return found


def _step(event: Event, me: str) -> str:
    """Return how this event changes the bot's membership in the room, or an empty string."""
    if not (event.get("type") == MEMBER and event.get("state_key") == me):
        return ""
    before = words(event, "unsigned", "prev_content", "membership")
    match words(event, "content", "membership"):
        case "invite":
            return "invite"
        case "join" if before == "invite":
            return "accept"
        case "join" if before != "join":
            return "join"
        case _:
            return ""


LIMIT = 100
"""How many batches may be in progress before reading pauses."""


@dataclass(slots=True)
class _Batch:
    since: str
    """The homeserver's position after the batch."""
    rooms: int
    """How many of the batch's rooms are unfinished."""


class _Said(NamedTuple):
    batch: _Batch
    heard: Sequence[Heard]


class Batches:
    """Passes events on in order within each room; rooms do not wait for each other."""

    def __init__(self, hear: Hear, *, bookmark: Bookmark) -> None:
        self._hear = hear
        self._bookmark = bookmark
        self._open: deque[_Batch] = deque()
        self._settled = anyio.Event()
        # No lane is ever full, because a room has at most one item per batch.
        self._rooms: Lanes[str, _Said] = Lanes(self._hand_over, limit=LIMIT, name="matrix room")

    async def __aenter__(self) -> Self:
        await self._rooms.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._rooms.__aexit__(*exc)

    async def put(self, since: str, rooms: Mapping[str, Sequence[Heard]]) -> None:
        """Pass on the messages up to this position, waiting if too many batches are in progress."""
        while len(self._open) >= LIMIT:
            self._settled = anyio.Event()
            await self._settled.wait()
        batch = _Batch(since, len(rooms))
        self._open.append(batch)
        for room, heard in rooms.items():
            self._rooms.put_nowait(room, _Said(batch, heard))
        self._settle()

    async def _hand_over(self, _: str, said: _Said) -> None:
        await self._hear(*said.heard)
        said.batch.rooms -= 1
        self._settle()

    def _settle(self) -> None:
        """Move the bookmark past finished batches; after a restart, the rest is read again."""
        while self._open and not self._open[0].rooms:
            self._bookmark.move(self._open.popleft().since)
            self._settled.set()


class Bookmark:
    """Remembers how far the homeserver's updates have been read."""

    def __init__(self, file: Path | None = None) -> None:
        """Create the bookmark; without a file, it lasts only as long as the process."""
        self._file = file
        self._user = ""
        self.since: str | None = None
        """The homeserver's own position; None if nothing has been read yet."""
        self.to_join: list[str] = []
        """Rooms to join because their invitations were accepted."""
        self.told: list[str] = []
        """Encrypted rooms whose members were told that the bot can't read them."""
        self.load()

    def load(self) -> None:
        """Reload the file, because another process may have read further."""
        if self._file is not None:
            # If the file can't be read, start over.
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._learn(json.loads(load_file(self._file)))

    def belongs_to(self, user: str) -> None:
        """Start over if the bookmark belongs to a different account."""
        if self._user not in ("", user):
            self.since, self.to_join, self.told = None, [], []
        self._user = user

    def move(self, since: str) -> None:
        """Record that everything before this position was passed on."""
        if since != self.since:
            self.since = since
            self.save()

    def save(self) -> None:
        """Write the bookmark to its file, if it has one."""
        if self._file is None:
            return
        known = {
            "user": self._user,
            "since": self.since,
            "to_join": self.to_join,
            "told": self.told,
        }
        save_json(self._file, known)

    def _learn(self, known: dict[str, Any]) -> None:
        self._user, self.since = known["user"], known["since"]
        self.to_join, self.told = [*known["to_join"]], [*known["told"]]
