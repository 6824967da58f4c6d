"""Fairness: capacity is shared out by owner, however much one of them asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")

_owner: ContextVar[str] = ContextVar("owner", default="")


def current_owner() -> str:
    """The owner of the turn that runs here; empty outside a turn."""
    return _owner.get()


class FairLimiter:
    """Lets a limited number work at once, and chooses the next by owner, as `RoundRobin` does."""

    def __init__(self, capacity: int) -> None:
        self._order: RoundRobin[anyio.Event] = RoundRobin(capacity)

    @property
    def waiting(self) -> int:
        """How many are waiting for their turn."""
        return len(self._order)

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for this owner's turn, and take it; if cancelled while waiting, lose the place."""
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
        token = _owner.set(owner)
        try:
            yield
        finally:
            _owner.reset(token)
            self._end(owner)

    def _end(self, owner: str) -> None:
        self._order.end(owner)
        self._draw()

    def _draw(self) -> None:
        while (drawn := self._order.draw()) is not None:
            drawn.set()


class Shares:
    """Counts how much each owner has of something limited.

    Some of it is reserved for owners that have nothing yet: a quarter unless `reserved` says how
    much, and at least one place if there are two or more.
    """

    def __init__(self, capacity: int, *, reserved: int | None = None) -> None:
        self._capacity = self._free = capacity
        quarter = max(1, capacity // 4) if capacity > 1 else 0
        self._reserved = quarter if reserved is None else reserved
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """How much all owners have together."""
        return self._capacity - self._free

    def of(self, owner: str) -> int:
        """How much this owner has."""
        return self._held.get(owner, 0)

    def has_room(self, owner: str) -> bool:
        """Whether this owner may have one more."""
        return self._free > (self._reserved if owner in self._held else 0)

    def take(self, owner: str) -> None:
        """Give this owner one more."""
        self._free -= 1
        self._held[owner] = self.of(owner) + 1

    def give_back(self, owner: str) -> None:
        """Take one back from this owner."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]


class RoundRobin(Generic[T]):
    """Chooses who is next, and counts what each owner has; it never waits itself.

    Of the owners with the least, it chooses the one whose turn was longest ago; of one owner's
    items, the oldest. A choice costs the same no matter how much is waiting.
    """

    def __init__(self, capacity: int, *, reserved: int | None = None) -> None:
        self._shares = Shares(capacity, reserved=reserved)
        self._waiting: dict[str, OrderedDict[T, None]] = {}
        self._ranks: dict[int, OrderedDict[str, None]] = {}
        """The waiting owners, by how much they have: few numbers, because their sum is limited."""

    def __len__(self) -> int:
        """How many items are waiting."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_busy(self) -> bool:
        """Whether anything is waiting, or was chosen and has not ended."""
        return bool(self._waiting or len(self._shares))

    def join(self, owner: str, item: T) -> None:
        """Queue this item; it must differ from everything else that waits."""
        if owner not in self._waiting:
            self._waiting[owner] = OrderedDict()
            self._rank(owner)
        self._waiting[owner][item] = None

    def leave(self, owner: str, item: T) -> None:
        """Remove it from the queue."""
        del self._waiting[owner][item]
        if not self._waiting[owner]:
            del self._waiting[owner]
            self._unrank(owner)

    def draw(self) -> T | None:
        """The item that may begin now; None if there is no room or nothing waits."""
        if not self._ranks:
            return None
        owner = next(iter(self._ranks[min(self._ranks)]))
        if not self._shares.has_room(owner):  # nor for any other: this one has the least
            return None
        item = next(iter(self._waiting[owner]))
        self._unrank(owner)
        self._shares.take(owner)
        self._rank(owner)
        self.leave(owner, item)
        return item

    def end(self, owner: str) -> None:
        """Note that one of this owner's items has ended."""
        is_waiting = owner in self._waiting
        if is_waiting:
            self._unrank(owner)
        self._shares.give_back(owner)
        if is_waiting:
            self._rank(owner)

    def _rank(self, owner: str) -> None:
        """Put the owner behind those that have the same amount."""
        self._ranks.setdefault(self._shares.of(owner), OrderedDict())[owner] = None

    def _unrank(self, owner: str) -> None:
        rank = self._shares.of(owner)
        del self._ranks[rank][owner]
        if not self._ranks[rank]:
            del self._ranks[rank]
