"""Catching up after a connection was lost: what was said meanwhile, before what is said now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.platform.platform import Place
from nanoloop.channels.platform.seen import Seen
from nanoloop.errors import NanoloopError, SendLater

AT_ONCE = 4
"""Places that are asked about side by side."""
E = TypeVar("E")
REST_SECONDS = 5.0
Job = Callable[[], Awaitable[None]]
Put = Callable[[str, Job], Awaitable[None]]


@dataclass(slots=True)
class _Gap:
    place: Place
    last: str
    tried: anyio.Event = field(default_factory=anyio.Event)
    rest_seconds: float | None = None
    """How long to wait before it is tried again, if it has to be."""


class Gaps(Generic[E]):
    """Closes the gaps of one connection, for a platform that can be asked what was said."""

    def __init__(
        self,
        seen: Seen,
        *,
        since: Callable[[Place, str], Awaitable[Sequence[E]]],
        take: Callable[[E], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """`since` raises `SendLater` to be asked again; what else it raises ends the asking."""
        self._seen = seen
        self._since = since
        self._take = take
        self._sleep = sleep
        self._open: set[Place] = set()
        self._is_cut = False
        self._limiter = anyio.CapacityLimiter(AT_ONCE)

    def note(self, place: Place, message: str) -> None:
        """That message has been taken in, and all before it, unless a gap is still open."""
        if not self._is_cut and place not in self._open:
            self._seen.note(place, message)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """While something is taken in; where that is cut short, nothing is noted any more."""
        try:
            yield
        except BaseException:
            # Tasks that run for a moment longer would note what stands behind it.
            self._is_cut = True
            raise

    async def close(self, put: Put, group: TaskGroup) -> None:
        """Have them closed by tasks of the group.

        `put` brings a job into the order of a chat; when this returns, each stands there already,
        before what is heard from now on.
        """
        places = self._seen.places()
        self._open = {place for place, _ in places}
        for place, last in places:
            gap = _Gap(place, last)
            await put(place.chat, partial(self._try, gap))
            group.start_soon(self._end, gap, put, name=f"gap {place}")

    async def _end(self, gap: _Gap, put: Put) -> None:
        await gap.tried.wait()
        while gap.rest_seconds is not None:
            await self._sleep(gap.rest_seconds)
            gap.tried = anyio.Event()
            await put(gap.place.chat, partial(self._try, gap))
            await gap.tried.wait()

    async def _try(self, gap: _Gap) -> None:
        gap.rest_seconds = None
        try:
            async with self._limiter:
                found = await self._since(gap.place, gap.last)
            for one in found:
                await self._take(one)
        except SendLater as later:
            gap.rest_seconds = REST_SECONDS if later.seconds is None else later.seconds
        except NanoloopError:
            pass  # the bot is not in there any more
        if gap.rest_seconds is None:
            self._open.discard(gap.place)
        gap.tried.set()
