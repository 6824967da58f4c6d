"""A response that never ends by itself: events as they happen, one task and few bytes a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import anyio
from starlette.types import Receive, Scope, Send

from nanoloop.channels.web.feed import Feed, Frame, frame_bytes
from nanoloop.channels.web.refusal import try_later

KEEP_ALIVE_SECONDS = 15
"""After so much silence a comment is sent, and a look taken whether anyone is there."""
PATIENCE_SECONDS = 30
"""How long a reader may take nothing in before it is let go."""
TOGETHER_SECONDS = 0.02
"""After a piece of text, how long to gather further ones; nobody reads as fast."""
RETRY = b"retry: 1000\n\n"
"""How soon a browser comes back, in milliseconds."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Watched:
    """A place in a feed that moves on as its events are taken."""

    def __init__(
        self, feed: Feed, *, after: int | None = None, sees: Callable[[str], bool] | None = None
    ) -> None:
        """With `after`, an event's id, what came since is told too, except pieces of text."""
        self.feed = feed
        self.has_gap = after is not None and not feed.has_since(after)
        self._after = feed.last if after is None or self.has_gap else after
        self._missed_upto = feed.last
        self._sees = sees

    @property
    def place(self) -> int:
        """The id of the last event that was taken."""
        return self._after

    def take(self) -> list[bytes]:
        """What is new, as bytes; a `reset` in its place where some of it is gone."""
        before, self._after = self._after, self.feed.last
        if before == self.feed.last:
            return []
        if not self.feed.has_since(before):
            return [frame_bytes(self.feed.last, "reset", {})]
        return [frame.data for frame in self.feed.since(before) if self._shows(frame)]

    def _shows(self, frame: Frame) -> bool:
        # What was said so far is told when a reader comes, pieces from before would be twice.
        if frame.name == "text" and frame.id <= self._missed_upto:
            return False
        return self._sees is None or self._sees(frame.about)


class Waker:
    """Wakes one reader."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self.is_over = False

    def set(self) -> None:
        """There is something new."""
        self._event.set()

    def end(self) -> None:
        """There will be nothing more."""
        self.is_over = True
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until there is something new; False where so much time went by without."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        if not self._event.is_set():
            return False
        self._event = anyio.Event()
        return True


STREAMS = 2000
"""How many may be open at once, all pages together."""


class Streams:
    """All readers there are: bounded, and ended together."""

    def __init__(self) -> None:
        self._open: set[Waker] = set()
        self._is_over = False

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def enter(self, waker: Waker) -> None:
        """One more; raises a refusal where there are too many."""
        if len(self._open) >= STREAMS or self._is_over:
            raise try_later(503, "too many event streams are open: try again soon", seconds=5)
        self._open.add(waker)

    def leave(self, waker: Waker) -> None:
        """One less."""
        self._open.discard(waker)

    def end(self) -> None:
        """Let all of them end, and take no further ones."""
        self._is_over = True
        for waker in self._open:
            waker.end()


class EventStream:
    """Sends what feeds tell, until its reader has left or all streams end."""

    def __init__(self, streams: Streams, watched: Sequence[Watched], *, first: bytes) -> None:
        self._streams = streams
        self._watched = watched
        self._first = first
        self._waker = Waker()
        streams.enter(self._waker)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve this reader."""
        if scope["method"] == "HEAD":
            self._waker.end()
        with ExitStack() as stack:
            stack.callback(self._streams.leave, self._waker)
            for watched in self._watched:
                watched.feed.watch(self._waker)
                stack.callback(watched.feed.unwatch, self._waker)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._serve(receive, send)

    async def _serve(self, receive: Receive, send: Send) -> None:
        news = RETRY + self._first
        while True:
            news += b"".join(self._taken())
            if news and not await _send(send, news):
                return
            if self._waker.is_over:
                await _send(send, b"", more=False)
                return
            if b"\nevent: text\n" in news:  # words that come fast go out together
                await anyio.sleep(TOGETHER_SECONDS)
            news = b""
            if not await self._waker.wait(KEEP_ALIVE_SECONDS):
                if await _has_left(receive):
                    return
                news = b":\n\n"

    def _taken(self) -> Iterable[bytes]:
        for watched in self._watched:
            yield from watched.take()


async def _send(send: Send, body: bytes, *, more: bool = True) -> bool:
    """Send it; False where it was not taken in for too long."""
    with anyio.move_on_after(PATIENCE_SECONDS) as patience:
        await send({"type": "http.response.body", "body": body, "more_body": more})
    return not patience.cancelled_caught


async def _has_left(receive: Receive) -> bool:
    """Whether the other side is gone; looks, and waits for nothing."""
    while True:
        message = None
        with anyio.CancelScope() as scope:
            scope.cancel()
            message = await receive()
        if message is None or message["type"] == "http.disconnect":
            return message is not None
