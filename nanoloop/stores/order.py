"""Writes of one session: one after the other, and whatever has begun is finished."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")
Place = tuple[AbstractEventLoop, str]


class Order:
    """First come, first served, for each session in each event loop.

    No event loop waits for another, which may be waiting for it; nor is a write waited for whose
    task asyncio cancelled. A store tells by the revision what was taken for a write before such.
    """

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[anyio.Event]] = {}
        """Who waits behind a write, where one goes on."""

    async def write(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do this when its turn has come; from then on it is finished, and heard of."""
        place = asyncio.get_running_loop(), session_id
        if place in self._waiting:
            await self._turn(place)
        else:
            self._waiting[place] = deque()
        try:
            with anyio.CancelScope(shield=True):
                result = await work()
        finally:
            self._pass_on(place)
        return result

    async def _turn(self, place: Place) -> None:
        mine = anyio.Event()
        self._waiting[place].append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._pass_on(place)
            else:
                self._waiting[place].remove(mine)
            raise

    def _pass_on(self, place: Place) -> None:
        waiting = self._waiting[place]
        if waiting:
            waiting.popleft().set()
        else:
            del self._waiting[place]
