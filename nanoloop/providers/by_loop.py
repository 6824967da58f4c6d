"""One client for each event loop: connections can't be used in another loop than their own."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """What holds connections."""

    def close(self) -> Awaitable[Any]:
        """Let go of them."""
        ...


T = TypeVar("T", bound=Closable)


class ByLoop(Generic[T]):
    """Code that can't await asks in a loop of its own, beside the one of the program."""

    def __init__(self, connect: Callable[[], T]) -> None:
        self._connect = connect
        self._clients: dict[AbstractEventLoop, T] = {}
        self.is_closed = False

    def here(self) -> T:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            for old in [old for old in list(self._clients) if old.is_closed()]:
                del self._clients[old]
            self._clients[loop] = self._connect()
        return self._clients[loop]

    async def close(self) -> None:
        """Close them all, each in its loop; closing twice is fine."""
        self.is_closed = True
        while self._clients:
            loop, client = self._clients.popitem()
            if loop is asyncio.get_running_loop():
                await client.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_closed(client), loop)
                await asyncio.wrap_future(closing)


async def _closed(client: Closable) -> None:
    await client.close()
