"""Share capacity fairly among owners, however much a single owner asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

T = TypeVar("T")

_owner: ContextVar[str] = ContextVar("owner", default="")


def current_owner() -> str:
    """Return the owner of the current turn, or "" outside a turn."""
    return _owner.get()


class FairLimiter:
    """Limits concurrent work, and picks the next owner in the order of `RoundRobin`."""

    def __init__(self, capacity: int) -> None:
        self._order: RoundRobin[anyio.Event] = RoundRobin(capacity)

    @property
    def waiting(self) -> int:
        """The number of owners' requests that are waiting for their turn."""
        return len(self._order)

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for this owner's turn and hold it; if cancelled, leave the queue."""
        has_begun = self._order.begin(owner)
        if not has_begun:
            await self._drawn(owner)
        token = _owner.set(owner)
        try:
            if has_begun:  # whoever handed the message in hears first that it was accepted
                await checkpoint()
            yield
        finally:
            _owner.reset(token)
            self._end(owner)

    async def _drawn(self, owner: str) -> None:
        mine = anyio.Event()
        self._order.join(owner, mine)
        self._draw()
        try:
            await mine.wait()
        except BaseException:
            if not mine.is_set():
                self._order.leave(owner, mine)
            else:
                self._end(owner)
            raise

    def _end(self, owner: str) -> None:
        self._order.end(owner)
        self._draw()

    def _draw(self) -> None:
        while (drawn := self._order.draw()) is not None:
            drawn.set()


class Shares:
    """Counts how much each owner uses of a limited resource.

    A part is reserved for owners that use nothing yet. This is `reserved`, or by default a quarter,
    but at least one slot if there are two or more.
    """

    def __init__(self, capacity: int, *, reserved: int | None = None) -> None:
        self._capacity = self._free = capacity
        quarter = max(1, capacity // 4) if capacity > 1 else 0
        self._reserved = quarter if reserved is None else reserved
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how much all owners use together."""
        return self._capacity - self._free

    def of(self, owner: str) -> int:
        """Return how much this owner uses."""
        return self._held.get(owner, 0)

    def has_room(self, owner: str) -> bool:
        """Return True if this owner may take one more slot."""
        return self._free > (self._reserved if owner in self._held else 0)

    def take(self, owner: str) -> None:
        """Give this owner one more slot."""
        self._free -= 1
        self._held[owner] = self.of(owner) + 1

    def give_back(self, owner: str) -> None:
        """Release one of this owner's slots."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]


class RoundRobin(Generic[T]):
    """Chooses the next item, and counts the usage of each owner; it never waits itself.

    Of the owners with the lowest usage, it chooses the one chosen longest ago, and takes that
    owner's oldest item. A choice takes the same time however many items are waiting.
    """

    def __init__(self, capacity: int, *, reserved: int | None = None) -> None:
        self._shares = Shares(capacity, reserved=reserved)
        self._waiting: dict[str, OrderedDict[T, None]] = {}
        self._ranks: dict[int, OrderedDict[str, None]] = {}
        """The waiting owners by how much they use; few groups, because the total is limited."""

    def __len__(self) -> int:
        """Return how many items are waiting."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_busy(self) -> bool:
        """True while an item is waiting, or was chosen and has not ended."""
        return bool(self._waiting or len(self._shares))

    def begin(self, owner: str) -> bool:
        """Begin without an item if there is room and nothing waits; return False otherwise."""
        can_begin = not self._ranks and self._shares.has_room(owner)
        if can_begin:
            self._shares.take(owner)
        return can_begin

    def join(self, owner: str, item: T) -> None:
        """Queue an item, which must differ from all other waiting items."""
        if owner not in self._waiting:
            self._waiting[owner] = OrderedDict()
            self._rank(owner)
        self._waiting[owner][item] = None

    def leave(self, owner: str, item: T) -> None:
        """Remove an item from the queue."""
        del self._waiting[owner][item]
        if not self._waiting[owner]:
            del self._waiting[owner]
            self._unrank(owner)

    def draw(self) -> T | None:
        """Return the item that may begin now, or None if there is no room or nothing waits."""
        if not self._ranks:
            return None
        owner = next(iter(self._ranks[min(self._ranks)]))
        if not self._shares.has_room(owner):  # others use as much or more
            return None
        item = next(iter(self._waiting[owner]))
        self._unrank(owner)
        self._shares.take(owner)
        self._rank(owner)
        self.leave(owner, item)
        return item

    def end(self, owner: str) -> None:
        """Record that one of this owner's items has ended."""
        is_waiting = owner in self._waiting
        if is_waiting:
            self._unrank(owner)
        self._shares.give_back(owner)
        if is_waiting:
            self._rank(owner)

    def _rank(self, owner: str) -> None:
        """Put the owner behind the others that use the same amount."""
        self._ranks.setdefault(self._shares.of(owner), OrderedDict())[owner] = None

    def _unrank(self, owner: str) -> None:
        rank = self._shares.of(owner)
        del self._ranks[rank][owner]
        if not self._ranks[rank]:
            del self._ranks[rank]
