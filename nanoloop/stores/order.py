"""Writes of one session: one after the other, and whatever has begun is finished."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio

T = TypeVar("T")


class Order:
    """First come, first served, for each session in each event loop.

    No event loop waits for another, which may be waiting for it; nor is a write waited for whose
    task asyncio cancelled. A store tells by the revision what was taken for a write before such.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[AbstractEventLoop, str], anyio.Lock] = (
            WeakValueDictionary()
        )

    async def write(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do this when its turn has come; from then on it is finished, and heard of."""
        lock = self._locks.setdefault((asyncio.get_running_loop(), session_id), anyio.Lock())
        try:
            lock.acquire_nowait()  # also where the task is cancelled: its turn has come
        except anyio.WouldBlock:
            await lock.acquire()
        try:
            with anyio.CancelScope(shield=True):
                result = await work()
        finally:
            lock.release()
        return result
