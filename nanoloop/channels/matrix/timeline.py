"""What was said since the bookmark, in every room: nothing is missed, and nothing older is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.channels.matrix.event import (
    ENCRYPTED,
    MEMBER,
    MESSAGE,
    REDACTION,
    STICKER,
    TOMBSTONE,
    Event,
    words,
)
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.errors import Declined

WAIT_SECONDS = 30
PAGE = 100
"""Events of one room that come at once."""
PAGES = 100
"""How far back a gap is filled in one room, at most."""
_NOTHING: Mapping[str, Any] = {"types": []}
_TOLD = {"types": [MESSAGE, STICKER, REDACTION, ENCRYPTED, TOMBSTONE, MEMBER], "limit": PAGE}


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What there is since the last time."""

    since: str
    """The mark behind it."""
    rooms: Mapping[str, Sequence[Event]]
    """What was said, by room, oldest first."""
    invitations: Mapping[str, Sequence[Event]]
    """Rooms that the bot is asked into, with what is told of them."""


class Timeline:
    """Reads all rooms."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver

    async def read(self, since: str | None) -> News:
        """Wait for news, for a while; with no mark, only what stands now, and nothing said."""
        try:
            answer = await self._sync(since)
        except Declined:
            if since is None:
                raise
            return await self.read(None)  # a mark that isn't known any more never will be
        rooms = answer.rooms.join if since else {}
        return News(
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
            # What was said since an invitation is news, also where that is older than the mark.
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
    """What to tell: no presence, no receipts, no reactions; at first nothing but a mark."""
    timeline = _TOLD if since else {**_NOTHING, "limit": 1}
    state = {"types": [MEMBER]} if since else _NOTHING
    room = {"timeline": timeline, "state": state, "ephemeral": _NOTHING, "account_data": _NOTHING}
    return {"presence": _NOTHING, "account_data": _NOTHING, "room": room}


def _sources(events: Sequence[Any]) -> list[Event]:
    return [event.source for event in events]


def _arrival(events: Sequence[Event], me: str) -> int | None:
    """Where the bot's own way into the room begins; None where it was in it all the time."""
    found = None
    for place, event in enumerate(events):
        step = _step(event, me)
        if step == "accept" and found is not None and _step(events[found], me) == "invite":
            continue
        found = place if step else found
    return found


def _step(event: Event, me: str) -> str:
    """What it is on the bot's own way into the room; empty where it is nothing of that."""
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
