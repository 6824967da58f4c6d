"""Expired sessions leave on their own: a sweep now and then, until the store is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from nanoloop.errors import StoreError


class Sweepable(Protocol):
    """A store whose sessions may expire."""

    async def delete_expired(self) -> int:
        """Remove what expired; returns how many."""
        ...


async def sweep(
    store: Sweepable,
    *,
    every_seconds: float = 300,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> None:
    """Remove what expired every few minutes; returns when the store is closed.

    A store without `wait_closed` is swept until this is cancelled.
    """
    wait_closed = getattr(store, "wait_closed", anyio.sleep_forever)
    async with anyio.create_task_group() as group:
        group.start_soon(_sweeps, store, every_seconds, sleep)
        await wait_closed()
        group.cancel_scope.cancel()


async def _sweeps(
    store: Sweepable, every_seconds: float, sleep: Callable[[float], Awaitable[None]]
) -> None:
    while True:
        await sleep(every_seconds)
        try:
            await store.delete_expired()
        except StoreError:  # a full disk or a closed store: the next round, or none, will tell
            continue
