"""The sweep: remove expired data every few minutes, and count what remains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from nanoloop.errors import StoreError
from nanoloop.events import SessionsCounted, announce
from nanoloop.protocols import Store

SWEEP_SECONDS = 300
"""The pause between two sweeps for expired data."""


async def sweep(
    store: Store,
    *,
    every_seconds: float = SWEEP_SECONDS,
    expired: int = 0,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> None:
    """Announce at once what the store holds; every few minutes, sweep it and announce again.

    `expired` is the number of sessions removed just before. This returns when the store is closed;
    a store without `wait_closed` is swept until cancelled.
    """

    async def sweeps() -> None:
        removed = expired
        while True:
            with suppress(StoreError):  # retried in the next round, unless closed
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


async def _counted(store: Store, expired: int) -> SessionsCounted:
    sessions = entries = pending = 0
    async for info in store.list():
        sessions += 1
        entries += info.entries
        pending += info.pending
    return SessionsCounted(sessions=sessions, entries=entries, pending=pending, expired=expired)
