"""Expired sessions leave on their own: a sweep now and then, until the store is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

from nanoloop.errors import StoreError
from nanoloop.events import Announce, SessionsCounted, silent
from nanoloop.protocols import SessionInfo


class Sweepable(Protocol):
    """A store whose sessions may expire."""

    async def delete_expired(self) -> int:
        """Remove what expired; returns how many."""
        ...

    def list(self) -> AsyncIterator[SessionInfo]:
        """Every session that has not expired."""
        ...


async def sweep(
    store: Sweepable,
    *,
    every_seconds: float = 300,
    expired: int = 0,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    announce: Announce = silent,
) -> None:
    """Remove what expired every few minutes, and tell what is left, at once for the first time.

    `expired` were removed just before. It returns when the store is closed; a store without
    `wait_closed` is swept until this is cancelled.
    """

    async def sweeps() -> None:
        removed = expired
        while True:
            with suppress(StoreError):  # a full disk, or closed: the next round, or none, will tell
                announce(await _counted(store, removed))
            await sleep(every_seconds)
            removed = 0
            with suppress(StoreError):
                removed = await store.delete_expired()

    wait_closed = getattr(store, "wait_closed", anyio.sleep_forever)
    async with anyio.create_task_group() as group:
        group.start_soon(sweeps)
        await wait_closed()
        group.cancel_scope.cancel()


async def _counted(store: Sweepable, expired: int) -> SessionsCounted:
    sessions = entries = pending = 0
    async for info in store.list():
        sessions += 1
        entries += info.entries
        pending += info.pending
    return SessionsCounted(sessions=sessions, entries=entries, pending=pending, expired=expired)
