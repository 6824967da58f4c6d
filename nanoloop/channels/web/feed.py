"""Keeps each session's latest events for its readers, who can resume by id."""

from __future__ import annotations

import json
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from starlette.types import Receive, Scope, Send

from nanoloop.bounded import BoundedDict
from nanoloop.channels.server import PATIENCE_SECONDS
from nanoloop.channels.web.access import try_later
from nanoloop.errors import StoreError
from nanoloop.events import (
    Event,
    FailureTold,
    SessionReset,
    SessionStarted,
    SummaryCommitted,
    SummaryDropped,
    SummaryFailed,
    SummaryPostponed,
    SummaryStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    TurnStopped,
    WindowTrimmed,
    current_session,
)
from nanoloop.fairness import Shares
from nanoloop.files import connection_limit
from nanoloop.messages import Choice, Outbound
from nanoloop.session.entry import SCHEME, rfc3339

if TYPE_CHECKING:
    from nanoloop.channels.web.watch import Sight

EVENTS_KEPT = 512
"""How many events a feed keeps for returning readers; those that missed more start over."""
BYTES_KEPT = 256_000
"""How many bytes a feed's events may take; the newest is kept whatever its size."""
EVENT_BYTES = 100
"""The approximate size of an event without its text."""
TOLD_KEPT = 100
"""How many reported messages and answers a feed remembers."""


class Wake(Protocol):
    """Wakes a reader when there are new events."""

    def set(self) -> None:
        """Signal that there are new events; never waits."""
        ...


@dataclass(slots=True)
class FeedEvent:
    """One event, encoded once for all readers when it is first sent."""

    id: int
    name: str
    data: Mapping[str, Any]
    about: str = ""
    """The session that the event belongs to."""
    is_place: bool = True
    """Whether a returning reader can resume from this event."""
    _frame: bytes | None = field(default=None, init=False)

    @property
    def frame(self) -> bytes:
        """The event in `text/event-stream` format."""
        if self._frame is None:
            place = f"id: {self.id}\n" if self.is_place else ""
            data = json.dumps(self.data)
            self._frame = f"{place}event: {self.name}\ndata: {data}\n\n".encode()
        return self._frame

    @property
    def size(self) -> int:
        """The event's approximate size in bytes."""
        texts = (value for value in self.data.values() if isinstance(value, str))
        # Non-ASCII characters take up to six bytes each when escaped.
        return EVENT_BYTES + sum(len(text) * (1 if text.isascii() else 6) for text in texts)


@dataclass(slots=True)
class RunningAnswer:
    """The current answer so far."""

    message_id: str | None
    pieces: list[str] = field(default_factory=list)
    length: int = 0

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return "".join(self.pieces)


class Feed:
    """The latest events of one session, and the readers to wake when new ones arrive."""

    def __init__(self, ids: Iterator[int], *, is_resumable: bool = True) -> None:
        self._ids = ids
        self._is_resumable = is_resumable
        self._events: deque[FeedEvent] = deque()
        self._size = 0
        self._readers: set[Wake] = set()
        self.last = next(ids)
        """The newest event's id."""
        self._floor = self.last
        """Events up to this id have been dropped."""
        self.running: RunningAnswer | None = None
        self.sight: Sight | None = None
        """The session's state when readers were last told what other processes wrote."""
        self._told: BoundedDict[tuple[str, str], None] = BoundedDict(TOLD_KEPT)

    @property
    def is_read(self) -> bool:
        """Whether the feed has any readers."""
        return bool(self._readers)

    @property
    def is_idle(self) -> bool:
        """Whether the feed has no readers and no answer is being written."""
        return not self._readers and self.running is None

    def add(self, name: str, data: Mapping[str, Any], *, about: str = "") -> None:
        """Add an event and wake all readers, without waiting for any of them."""
        self.last = next(self._ids)
        event = FeedEvent(self.last, name, data, about, self._is_resumable)
        self._events.append(event)
        self._size += event.size
        while len(self._events) > EVENTS_KEPT or (
            self._size > BYTES_KEPT and len(self._events) > 1
        ):
            gone = self._events.popleft()
            self._size -= gone.size
            self._floor = gone.id
        for reader in self._readers:
            reader.set()

    def is_news(self, name: str, of: str) -> bool:
        """Return whether this is the first report of this name, and remember it.

        Both the process that receives a message and one that finds it in the store report it.
        """
        is_told = (name, of) in self._told
        self._told[name, of] = None
        return not is_told

    def has_since(self, event_id: int) -> bool:
        """Return whether all events after this id are still available."""
        return self._floor <= event_id <= self.last

    def since(self, event_id: int) -> list[FeedEvent]:
        """Return the events after this id."""
        found: list[FeedEvent] = []
        for event in reversed(self._events):
            if event.id <= event_id:
                break
            found.append(event)
        return found[::-1]

    def watch(self, wake: Wake) -> None:
        """Add a reader to wake whenever there are new events."""
        self._readers.add(wake)

    def unwatch(self, wake: Wake) -> None:
        """Remove a reader."""
        self._readers.discard(wake)


class Feeds:
    """One feed for each session that is read or active, and one for changes to all sessions."""

    def __init__(self, *, limit: int = 1000) -> None:
        # Ids start at the time, so that they are larger than those of earlier processes.
        self._ids = count(time.time_ns() // 1000)
        self._limit = limit
        self._feeds: OrderedDict[str, Feed] = OrderedDict()
        self.changes = Feed(self._ids, is_resumable=False)
        """Reports which sessions have changed, for lists of sessions."""

    def __len__(self) -> int:
        return len(self._feeds)

    def of(self, session_id: str) -> Feed:
        """Return this session's feed, creating it if necessary."""
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = Feed(self._ids)
            self._let_go()
        self._feeds.move_to_end(session_id)
        return feed

    def known(self, session_id: str) -> Feed | None:
        """Return this session's feed, or None if it has none."""
        return self._feeds.get(session_id)

    def being_read(self) -> list[str]:
        """Return the ids of the sessions that someone is reading now."""
        return [session_id for session_id, feed in self._feeds.items() if feed.is_read]

    def _let_go(self) -> None:
        """Drop the least recently used idle feeds, checking a few each time."""
        for session_id in list(self._feeds)[: max(0, len(self._feeds) - self._limit)][:8]:
            if self._feeds[session_id].is_idle:
                del self._feeds[session_id]
            else:
                self._feeds.move_to_end(session_id)


_TURN: Mapping[type[Event], str] = {
    TurnStarted: "started",
    TurnFinished: "finished",
    FailureTold: "failed",
    TurnStopped: "stopped",
}
_MEMORY: Mapping[type[Event], str] = {
    WindowTrimmed: "trimmed",
    SummaryStarted: "summary_started",
    SummaryCommitted: "summary_committed",
    SummaryFailed: "summary_failed",
    SummaryPostponed: "summary_postponed",
    SummaryDropped: "summary_dropped",
}

_FACTS = ("error", "seconds", "tokens_in", "tokens_out", "tokens_cached")
"""The fields of a turn's event that are reported in addition to its state."""


class FeedWriter:
    """Converts the loop's messages and events into events for readers; never waits."""

    def __init__(self) -> None:
        self.feeds = Feeds()
        self.receipts = Receipts()

    def take(self, item: Outbound | TextStreamed) -> None:
        """Report an answer or a piece of one."""
        feed = self.feeds.of(item.chat)
        if isinstance(item, TextStreamed):
            _take_piece(feed, item)
            return
        if feed.running is not None and feed.running.message_id == item.reply_to:
            feed.running = None
        if item.id is not None and not feed.is_news("answer", item.id):
            return
        answer: dict[str, Any] = {"message_id": item.reply_to, "text": item.text, "kind": item.kind}
        if item.attachments:
            answer["attachments"] = [shown_attachment(asdict(file)) for file in item.attachments]
        if item.choices:
            answer["choices"] = [shown_choice(choice) for choice in item.choices]
        feed.add("answer", answer)

    def hear(self, event: Event) -> None:
        """Report an event from the loop."""
        kind = type(event)
        if kind in _TURN:
            self._hear_turn(event, _TURN[kind])
        elif kind in _MEMORY:
            self._hear_memory(event, _MEMORY[kind])
        elif isinstance(event, (ToolStarted, ToolFinished)):
            self._tell(current_session(), "tool", _tool(event))
        elif isinstance(event, (SessionStarted, SessionReset)):
            self._hear_session(event)

    def _hear_turn(self, event: Any, state: str) -> None:
        facts = {name: getattr(event, name) for name in _FACTS if hasattr(event, name)}
        self._tell(current_session(), "turn", {"state": state, **facts})
        if state != "started":
            self._tell_changed(current_session())

    def _hear_memory(self, event: Any, reason: str) -> None:
        if isinstance(event, SummaryCommitted):
            self.receipts.add(event)
        self._tell(current_session(), "memory", {"reason": reason})

    def _hear_session(self, event: SessionStarted | SessionReset) -> None:
        if isinstance(event, SessionReset):
            self._tell(event.old_session_id, "session", {"moved_to": event.session_id})
        self._tell_changed(event.session_id)

    def _tell(self, session_id: str, name: str, data: Mapping[str, Any]) -> None:
        # A session with no feed has no readers, so nothing needs to be reported.
        feed = self.feeds.known(session_id)
        if feed is not None:
            feed.add(name, data)

    def _tell_changed(self, session_id: str) -> None:
        self.feeds.changes.add("sessions", {"id": session_id}, about=session_id)


def shown_attachment(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file from a message or an answer, with its address."""
    ref = str(file.get("ref") or "")
    is_here = ref.startswith(SCHEME)
    url = f"/api/attachments/{ref.removeprefix(SCHEME)}" if is_here else None
    known = {name: file.get(name) for name in ("kind", "name", "mime_type", "size")}
    return {**known, "url": url}


def shown_choice(choice: Choice) -> dict[str, str]:
    """Return an answer that a person can choose."""
    return {"label": choice.label, "text": choice.text}


def _take_piece(feed: Feed, piece: TextStreamed) -> None:
    running = feed.running
    if running is None or running.message_id != piece.reply_to:
        running = feed.running = RunningAnswer(piece.reply_to)
    data = {"message_id": piece.reply_to, "piece": piece.text, "at": running.length}
    running.pieces.append(piece.text)
    running.length += len(piece.text)
    feed.add("text", data)


def _tool(event: ToolStarted | ToolFinished) -> dict[str, Any]:
    told = {"call_id": event.call_id, "tool": event.tool}
    if isinstance(event, ToolStarted):
        return {**told, "state": "started"}
    return {**told, "state": "finished", "success": event.success, "seconds": event.seconds}


RECEIPT_SESSIONS = 1000
RECEIPTS_OF_ONE = 20


class Receipts:
    """The latest summary receipts for the most recently summarised sessions."""

    def __init__(self) -> None:
        self._kept: BoundedDict[str, deque[dict[str, Any]]] = BoundedDict(RECEIPT_SESSIONS)

    def add(self, event: SummaryCommitted) -> None:
        """Keep a receipt for the current session."""
        session_id = current_session()
        receipt = {**asdict(event), "time": rfc3339(datetime.now(timezone.utc))}
        self._kept[session_id] = kept = self._kept.get(session_id, deque(maxlen=RECEIPTS_OF_ONE))
        kept.append(receipt)

    def of(self, session_id: str) -> list[dict[str, Any]]:
        """Return a session's receipts, newest last."""
        return list(self._kept.get(session_id, ()))

    def forget(self, session_id: str) -> None:
        """Drop a session's receipts."""
        self._kept.pop(session_id, None)


KEEP_ALIVE_SECONDS = 15
"""After this much silence, a comment is sent to check whether the reader is still connected."""
LOGIN_SECONDS = 2
"""How often to ask the store which readers are still logged in."""
TOGETHER_SECONDS = 0.02
"""How long to collect more text after a piece, because nobody reads that fast."""
RETRY = b"retry: 1000\n\n"
"""Tells browsers to reconnect after this many milliseconds."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class FeedCursor:
    """A position in a feed that advances as events are taken from it."""

    def __init__(
        self, feed: Feed, *, after: int | None = None, sees: Callable[[str], bool] | None = None
    ) -> None:
        """Start after the event with id `after`, if given; skip text that was already streamed."""
        self.feed = feed
        self.has_gap = after is not None and not feed.has_since(after)
        self._after = feed.last if after is None or self.has_gap else after
        self._missed_upto = feed.last
        self._sees = sees

    @property
    def place(self) -> int:
        """The id of the latest event that was taken."""
        return self._after

    def take(self) -> list[FeedEvent]:
        """Take the new events, or a single `reset` if some have been dropped."""
        before, self._after = self._after, self.feed.last
        if before == self.feed.last:
            return []
        if not self.feed.has_since(before):
            return [FeedEvent(self.feed.last, "reset", {})]
        return [event for event in self.feed.since(before) if self._shows(event)]

    def _shows(self, event: FeedEvent) -> bool:
        # A new reader gets the text so far at once, so earlier pieces would repeat it.
        if event.name == "text" and event.id <= self._missed_upto:
            return False
        return self._sees is None or self._sees(event.about)


class Waker:
    """Wakes one reader."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self.is_over = False
        self.is_dismissed = False

    def set(self) -> None:
        """Signal that there is something new."""
        self._event.set()

    def end(self) -> None:
        """Signal that nothing more will follow."""
        self.is_over = True
        self._event.set()

    def dismiss(self) -> None:
        """Signal that the reader is no longer allowed to read."""
        self.is_dismissed = True
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a signal; return False if the time ran out."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        if not self._event.is_set():
            return False
        self._event = anyio.Event()
        return True


STREAMS = 2000
"""How many event streams may be open at once, on all pages together."""
SHARE_OF_CONNECTIONS = 3 / 8
"""The share of all connections that streams may use; one address may use a larger share."""


class OpenStreams:
    """The open event streams of all readers, limited in number and ended together."""

    def __init__(self) -> None:
        self._open: dict[Waker, str] = {}
        self._logins: dict[Waker, str] = {}
        self._shares = Shares(min(STREAMS, int(connection_limit() * SHARE_OF_CONNECTIONS)))
        self._is_over = False

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def enter(self, waker: Waker, *, owner: str, login: str = "") -> None:
        """Add a stream; raises `Refusal` if too many are open, in total or for this owner.

        `login` is the cookie that admitted the reader, if any.
        """
        if self._is_over or not self._shares.has_room(owner):
            raise try_later(503, "too many event streams are open: try again soon", seconds=5)
        self._shares.take(owner)
        self._open[waker] = owner
        if login:
            self._logins[waker] = login

    def leave(self, waker: Waker) -> None:
        """Remove a stream."""
        self._shares.give_back(self._open.pop(waker))
        self._logins.pop(waker, None)

    def end_login(self, login: str) -> None:
        """End the streams of readers admitted by this cookie."""
        for waker, admitted_by in self._logins.items():
            if admitted_by == login:
                waker.dismiss()

    async def end_logged_out(self, valid_of: Callable[[set[str]], Awaitable[set[str]]]) -> None:
        """End the streams whose logins another process has ended; runs until cancelled.

        `valid_of` returns the given cookies that are still valid.
        """
        while True:
            await anyio.sleep(LOGIN_SECONDS)
            if logins := {*self._logins.values()}:
                with suppress(StoreError):  # can't be checked now, so readers may stay
                    for login in logins - await valid_of(logins):
                        self.end_login(login)

    def end(self) -> None:
        """End all streams and accept no more."""
        self._is_over = True
        for waker in self._open:
            waker.end()


class EventStream:
    """Sends a feed's events until the reader disconnects or all streams end."""

    def __init__(
        self,
        streams: OpenStreams,
        watched: Sequence[FeedCursor],
        *,
        first: Sequence[FeedEvent],
        owner: str,
        login: str,
    ) -> None:
        """Create the response; `first` is sent before anything new.

        Raise `Refusal` if too many streams are open. The stream ends when the reader's `login`
        does.
        """
        self._streams = streams
        self._watched = watched
        self._first = first
        self._waker = Waker()
        streams.enter(self._waker, owner=owner, login=login)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the reader."""
        if scope["method"] == "HEAD":
            self._waker.end()
        with ExitStack() as stack:
            stack.callback(self._streams.leave, self._waker)
            for watched in self._watched:
                watched.feed.watch(self._waker)
                stack.callback(watched.feed.unwatch, self._waker)
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._serve(receive, send)

    async def _serve(self, receive: Receive, send: Send) -> None:
        data, events = RETRY, [*self._first, *self._taken()]
        while True:
            data += b"".join(event.frame for event in events)
            if data and not await send_body(send, data):
                return
            if self._waker.is_over:
                await send_body(send, b"", more=False)
                return
            if any(event.name == "text" for event in events):  # fast pieces are sent together
                await anyio.sleep(TOGETHER_SECONDS)
            data = b""
            if not await self._waker.wait(KEEP_ALIVE_SECONDS):
                if await _has_left(receive):
                    return
                data = b":\n\n"
            if self._waker.is_dismissed:
                await send_body(send, data, more=False)
                return
            events = self._taken()

    def _taken(self) -> list[FeedEvent]:
        return [event for watched in self._watched for event in watched.take()]


async def send_body(send: Send, body: bytes, *, more: bool = True) -> bool:
    """Send part of a body; return False if the client took too long to receive it."""
    with anyio.move_on_after(PATIENCE_SECONDS) as patience:
        await send({"type": "http.response.body", "body": body, "more_body": more})
    return not patience.cancelled_caught


async def _has_left(receive: Receive) -> bool:
    """Return whether the client has disconnected, without waiting."""
    while True:
        message = None
        with anyio.CancelScope() as scope:
            scope.cancel()
            message = await receive()
        if message is None or message["type"] == "http.disconnect":
            return message is not None
