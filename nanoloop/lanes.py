"""Lanes: serial per key, parallel across keys, bounded, and removed when idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from functools import partial
from typing import Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from nanoloop.errors import LaneFull

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Then = Callable[[], Awaitable[None]]
"""Work that a lane's task does after the lane has closed."""


class Lanes(Generic[K, T]):
    """Pass each item to `handle`, in order and one at a time per key.

    `handle` must not raise an error: it would end every lane. If the last call for a key returns a
    function, the same task calls that function after the lane has gone.
    """

    def __init__(
        self, handle: Callable[[K, T], Awaitable[Then | None]], *, limit: int, name: str = "lane"
    ) -> None:
        self._handle = handle
        self._limit = limit
        self._name = name
        self._waiting: dict[K, deque[T]] = {}
        self._room: dict[K, anyio.Event] = {}
        self._idle = anyio.Event()
        self._group: TaskGroup | None = None
        self._context = copy_context()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        self._context = copy_context()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        assert self._group is not None  # noqa: S101 - entered before it is left
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(*exc)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """Return how many keys have work."""
        return len(self._waiting)

    def waiting(self, key: K) -> int:
        """Return how many of this key's items are waiting behind the current one."""
        return len(self._waiting.get(key, ()))

    def items(self, key: K) -> list[T]:
        """Return the items waiting in this lane behind the current one, in order."""
        return list(self._waiting.get(key, ()))

    def is_busy(self, key: K) -> bool:
        """Return True if an item of this key is being handled or waiting."""
        return key in self._waiting

    def put_nowait(self, key: K, item: T, *, bounded: bool = True) -> None:
        """Add an item to its lane; raise `LaneFull` if the lane is full and `bounded` is set."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._open(key, item)
        elif bounded and len(waiting) >= self._limit:
            raise LaneFull(str(key), self._limit)
        else:
            waiting.append(item)

    async def work_here(self, key: K, item: T) -> None:
        """Add an item, however many wait; if the lane is idle, do its work in the calling task."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(item)
            return
        self._begin(key, item)
        await self._work(key)

    async def put(self, key: K, item: T) -> None:
        """Add an item as soon as its lane has room."""
        while self.waiting(key) >= self._limit:
            await self._room.setdefault(key, anyio.Event()).wait()
        self.put_nowait(key, item)

    def _open(self, key: K, item: T) -> None:
        if self._group is None or self._group.cancel_scope.cancel_called:
            raise RuntimeError("lanes are open only inside `async with`")
        self._begin(key, item)
        # Run in the context of the lanes' owner, not of the caller that happens to add the first
        # item.
        name = f"{self._name} {key}"
        self._context.run(partial(self._group.start_soon, self._work, key, name=name))

    def _begin(self, key: K, item: T) -> None:
        self._waiting[key] = deque((item,))

    async def _work(self, key: K) -> None:
        waiting, then = self._waiting[key], None
        try:
            while waiting:
                item = waiting.popleft()
                self._tell_of_room(key)
                then = await self._handle(key, item)
        finally:
            # No await between the last check and this line, so that a later item opens a new lane.
            del self._waiting[key]
            self._tell_of_room(key)
            if not self._waiting:
                self._idle.set()
        if then is not None:
            await then()

    def _tell_of_room(self, key: K) -> None:
        room = self._room.pop(key, None)
        if room is not None:
            room.set()

    def take(self, key: K, wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Remove those wanted items that are waiting in one lane, and return them in order."""
        taken = [item for item in self.items(key) if wanted(item)]
        for item in taken:
            self._waiting[key].remove(item)
        self._tell_of_room(key)
        return taken

    def take_waiting(self) -> list[T]:
        """Remove and return all items that are not being handled yet."""
        taken = [item for waiting in self._waiting.values() for item in waiting]
        for waiting in self._waiting.values():
            waiting.clear()
        return taken

    async def idle(self) -> None:
        """Wait until no key has any work."""
        while self._waiting:
            if self._idle.is_set():  # shared by all callers, so that each one wakes up
                self._idle = anyio.Event()
            await self._idle.wait()
