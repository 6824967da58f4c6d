"""What happens in a session as server-sent events: resumable, for any number of readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp

from nanoloop.channels.web.conversations import SESSION
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.feed import Feed, frame_bytes
from nanoloop.channels.web.number import number_in
from nanoloop.channels.web.operation import Call, Operation
from nanoloop.channels.web.stream import EventStream, Watched
from nanoloop.session.session import Session


class Reading(BaseModel):
    """What else to tell."""

    list: bool = False
    """Changes of the list of sessions too."""


async def of_session(call: Call) -> ASGIApp:
    """The events of one session."""
    session = await call.desk.shop.sessions.open(call.session_id)
    feed = call.desk.feeds.of(session.id)
    watched = Watched(feed, after=_last_event_id(call))
    first = frame_bytes(watched.place, "hello", _hello(call.desk, session, feed))
    if watched.has_gap:
        first += frame_bytes(watched.place, "reset", {})
    every = [watched]
    if call.query.list:
        every.append(Watched(call.desk.feeds.changes, sees=call.who.sees))
    return EventStream(call.desk.streams, every, first=first)


def _hello(desk: Desk, session: Session, feed: Feed) -> dict[str, Any]:
    """How the session stands: what an answer that is going on has said so far."""
    key, running = session.key or session.id, feed.running
    return {
        "session": session.id,
        "busy": desk.shop.runner.is_busy(key),
        "waiting": desk.shop.runner.waiting(key),
        "message_id": running.message_id if running else None,
        "text": running.text if running else "",
    }


async def of_all(call: Call) -> ASGIApp:
    """Which sessions of the caller have changed."""
    watched = Watched(call.desk.feeds.changes, sees=call.who.sees)
    first = frame_bytes(None, "hello", {})
    return EventStream(call.desk.streams, [watched], first=first)


def _last_event_id(call: Call) -> int | None:
    """The id of the last event that the reader had, where it says so."""
    return number_in(call.request.headers.get("last-event-id", ""))


OPERATIONS: Sequence[Operation] = (
    Operation(
        method="GET",
        path=f"{SESSION}/events",
        says="What happens in a session, as it happens; resumable by Last-Event-ID",
        run=of_session,
        query=Reading,
        produces="text/event-stream",
    ),
    Operation(
        method="GET",
        path="/api/events",
        says="Which sessions have changed, as it happens",
        run=of_all,
        produces="text/event-stream",
    ),
)
