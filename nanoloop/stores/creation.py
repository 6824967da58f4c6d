"""Making a session by its options, the same in every store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from nanoloop.errors import StoreError
from nanoloop.session.changes import ABOUT, Changes
from nanoloop.session.session import Session


class _Adding(Protocol):
    clock: Callable[[], datetime]

    async def add(self, session: Session, *, replace: bool = False) -> None: ...


class Creation:
    """For a store that can add a session: creates one too."""

    async def create(
        self: _Adding,
        *,
        id: str | None = None,  # noqa: A002 - the seeds' name for it
        key: str | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        replace: bool = False,
    ) -> Session:
        """Make a session, durable when this returns; raises `SessionExists` unless `replace`."""
        session = Session(
            id=id,
            key=key,
            ttl=ttl,
            sliding=sliding,
            metadata=metadata,
            agent=agent,
            clock=self.clock,
        )
        await self.add(session, replace=replace)
        return session


def first_changes(session: Session, changes: Changes | None) -> Changes:
    """All there is of a session that no store has yet; raises `StoreError` where one has it."""
    if changes is None or ABOUT not in changes.sections or changes.revision:
        raise StoreError(f"session {session.id!r} is kept by a store already: fork it")
    return changes
