"""Fairness: what can be done at once is shared out by owner, however much one of them asks for."""

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
    """Whose turn it is that runs here; empty outside of one."""
    return _owner.get()


class FairLimiter:
    """Lets so many work at once, and draws who is next by owner, as `RoundRobin` does."""

    def __init__(self, capacity: int) -> None:
        self._order: RoundRobin[anyio.Event] = RoundRobin(capacity)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._order)

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for this owner's turn, and have it; who is cancelled meanwhile loses the place."""
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
    """Counts what each owner has of something that is bounded.

    Some of it is kept for owners that have nothing yet: a quarter, where `reserved` doesn't say how
    much, and one place at least where there are two or more.
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
        """Have one of this owner's back."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]


class RoundRobin(Generic[T]):
    """Says who is next, and counts what each owner has by then; it waits for nobody itself.

    Of the owners that have the least it is the one whose turn was longest ago; of what one owner
    has waiting, the oldest. A draw costs the same however much waits.
    """

    def __init__(self, capacity: int, *, reserved: int | None = None) -> None:
        self._shares = Shares(capacity, reserved=reserved)
        self._waiting: dict[str, OrderedDict[T, None]] = {}
        self._ranks: dict[int, OrderedDict[str, None]] = {}
        """The owners that wait, by how much they have: few numbers, as their sum is bounded."""

    def __len__(self) -> int:
        """How much waits."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_busy(self) -> bool:
        """Whether anything waits, or was drawn and has not ended."""
        return bool(self._waiting or len(self._shares))

    def join(self, owner: str, item: T) -> None:
        """Let this wait; it differs from all else that waits."""
        if owner not in self._waiting:
            self._waiting[owner] = OrderedDict()
            self._rank(owner)
        self._waiting[owner][item] = None

    def leave(self, owner: str, item: T) -> None:
        """Let this wait no more."""
        del self._waiting[owner][item]
        if not self._waiting[owner]:
            del self._waiting[owner]
            self._unrank(owner)

    def draw(self) -> T | None:
        """What may begin now; None where there is no room, or nothing waits."""
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
        """One of this owner's has ended."""
        is_waiting = owner in self._waiting
        if is_waiting:
            self._unrank(owner)
        self._shares.give_back(owner)
        if is_waiting:
            self._rank(owner)

    def _rank(self, owner: str) -> None:
        """Put the owner behind those that have as much."""
        self._ranks.setdefault(self._shares.of(owner), OrderedDict())[owner] = None

    def _unrank(self, owner: str) -> None:
        rank = self._shares.of(owner)
        del self._ranks[rank][owner]
        if not self._ranks[rank]:
            del self._ranks[rank]
