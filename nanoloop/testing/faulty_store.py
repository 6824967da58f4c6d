"""A store whose saves fail, before or after they were written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, Literal

from nanoloop.errors import StoreError
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

SaveFault = Literal["fine", "before", "after"]
"""How a save goes: `before` writes nothing, `after` writes all; both raise `StoreError`."""


class FaultyStore:
    """Passes everything on to a store, and lets each save go as the plan has it."""

    def __init__(self, store: Store, plan: Iterable[SaveFault] = ()) -> None:
        self._store = store
        self._plan = iter(plan)
        self.saves: list[SaveFault] = []
        """How each save so far went."""

    async def save(self, session: Session) -> None:
        """Save, or fail; raises as the store's own does too."""
        fault: SaveFault = next(self._plan, "fine")
        self.saves.append(fault)
        if fault != "before":
            await self._store.save(session)
        if fault != "fine":
            raise StoreError(f"this save failed {fault} it wrote: the fault was injected by a test")

    async def create(self, **given: Any) -> Session:
        """As the store's."""
        return await self._store.create(**given)

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """As the store's."""
        await self._store.add(session, replace=replace)

    async def get(self, session_id: str) -> Session:
        """As the store's."""
        return await self._store.get(session_id)

    async def load(self, session_id: str) -> Session:
        """As the store's."""
        return await self._store.load(session_id)

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """As the store's."""
        return await self._store.entries(session_id, after=after, upto=upto, limit=limit)

    def list(self) -> AsyncIterator[SessionInfo]:
        """As the store's."""
        return self._store.list()

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """As the store's."""
        await self._store.erase(session, seqs)

    async def delete(self, session_id: str) -> None:
        """As the store's."""
        await self._store.delete(session_id)

    async def delete_expired(self) -> int:
        """As the store's."""
        return await self._store.delete_expired()

    async def bind(self, key: str, session_id: str) -> None:
        """As the store's."""
        await self._store.bind(key, session_id)

    async def bound(self, key: str) -> str | None:
        """As the store's."""
        return await self._store.bound(key)

    async def close(self) -> None:
        """As the store's."""
        await self._store.close()
