"""An answer in pieces, for who reads them with `async for`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from nanoloop.protocols import OnText

Ask = Callable[[OnText], Awaitable[str]]
"""Asks, and lets each piece be heard."""


class _Flow:
    """What has come and was not read yet."""

    def __init__(self) -> None:
        self.pieces: deque[str] = deque()
        self.text: str | None = None
        self.error: Exception | None = None
        self.is_over = False
        self.news = anyio.Event()

    async def run(self, ask: Ask) -> None:
        try:
            self.text = await ask(self._hear)
        except Exception as error:  # noqa: BLE001 - whoever reads gets it
            self.error = error
        finally:
            self.is_over = True
            self.news.set()

    def _hear(self, piece: str) -> None:
        self.pieces.append(piece)
        self.news.set()


class Stream:
    """Asks when the first piece is wanted. Leaving it early stops the answer.

    `async with agent.stream(…) as pieces` waits, on leaving, until it has stopped.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._flow = _Flow()
        self._task: asyncio.Task[None] | None = None

    @property
    def text(self) -> str | None:
        """The whole answer, once it has come to its end."""
        return self._flow.text

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        flow = self._started()
        while not flow.pieces:
            if flow.is_over:
                return self._end()
            flow.news = anyio.Event()
            try:
                await flow.news.wait()
            except BaseException:
                self._stop()
                raise
        return flow.pieces.popleft()

    def _started(self) -> _Flow:
        if self._task is None:
            # No task group: left half-way, its scope would stay open around whoever reads, and
            # cancel them. This object owns the task, and ends it when nobody reads any more.
            work = self._flow.run(self._ask)
            self._task = asyncio.get_running_loop().create_task(work, name="answer in pieces")
        return self._flow

    def _end(self) -> str:
        error, self._flow.error = self._flow.error, None
        if error is not None:
            raise error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the answer where it has not come to its end, and wait until it has stopped."""
        self._stop()
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _stop(self) -> None:
        if self._task is not None and not self._flow.is_over:
            self._task.cancel()

    def __del__(self) -> None:
        self._stop()
