"""What was read and is not durable yet: rooms side by side, the bookmark behind all of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import anyio

from nanoloop.channels.matrix.bookmark import Bookmark
from nanoloop.channels.platform.platform import Hear, Heard
from nanoloop.lanes import Lanes

LIMIT = 100
"""Batches that may be on their way: then nothing more is read for now."""


@dataclass(slots=True)
class _Batch:
    since: str
    """The mark behind it."""
    rooms: int
    """How many of its rooms are not done."""


class _Said(NamedTuple):
    batch: _Batch
    heard: Sequence[Heard]


class Batches:
    """Hands them over: in order in each room, and no room waits for another one's."""

    def __init__(self, hear: Hear, *, bookmark: Bookmark) -> None:
        self._hear = hear
        self._bookmark = bookmark
        self._open: deque[_Batch] = deque()
        self._settled = anyio.Event()
        # No lane is ever full: a room has at most one item of each batch.
        self._rooms: Lanes[str, _Said] = Lanes(self._hand_over, limit=LIMIT, name="matrix room")

    async def __aenter__(self) -> Self:
        await self._rooms.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._rooms.__aexit__(*exc)

    async def put(self, since: str, rooms: Mapping[str, Sequence[Heard]]) -> None:
        """Hand over what was said up to that mark, as soon as there is room for it."""
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
        """Move the bookmark behind all that is done: who is stopped reads the rest again."""
        while self._open and not self._open[0].rooms:
            self._bookmark.move(self._open.popleft().since)
            self._settled.set()
