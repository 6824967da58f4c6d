"""A whole bot on a platform, with a store in a folder: started, killed and started again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import anyio

from nanoloop.agents import Agent
from nanoloop.bus.in_process import InProcessBus
from nanoloop.channels.platform.channel import PlatformChannel
from nanoloop.channels.platform.platform import Platform
from nanoloop.channels.platform.rules import Rules
from nanoloop.events import Event
from nanoloop.loop import AgentLoop
from nanoloop.protocols import Provider
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.sqlite import SqliteStore

OPEN = Rules(users=frozenset({"*"}), per_minute=100_000)
"""Everyone may talk, as much as they like."""
_HASTE = 100
"""How many times faster rests are than in life."""


async def hurry(seconds: float) -> None:
    """Rest, but not for long."""
    await anyio.sleep(seconds / _HASTE)


class Bot:
    """Serves one platform while it is entered; leaving it is a kill at that instant."""

    def __init__(
        self,
        platform: Platform,
        folder: Path,
        *,
        provider: Provider | None = None,
        rules: Rules = OPEN,
        sleep: Callable[[float], Awaitable[None]] = hurry,
        **channel: Any,
    ) -> None:
        """What more a `PlatformChannel` takes can be given too."""
        self.events: list[Event] = []
        """What happened."""
        self.provider = provider or ScriptedProvider()
        announce = self.events.append
        self.channel = PlatformChannel(
            platform, rules=rules, folder=folder, announce=announce, sleep=sleep, **channel
        )
        self._store = SqliteStore(folder / "bot.sqlite", durability="flush")
        self.loop = AgentLoop(
            provider=self.provider,
            agent=Agent(),
            store=self._store,
            bus=InProcessBus(announce=announce, sleep=sleep),
            announce=announce,
        )
        self.loop.bus.attach(self.channel)
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._store.delete_expired()
        await self._group.__aenter__()
        await self._group.start(self.loop.run, name="loop")
        await self.loop.recover()
        self._group.start_soon(self.channel.run, self.loop.bus, name="channel")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._group.cancel_scope.cancel()
        try:
            # A test's own failure goes on as it is, in no group.
            is_cancelled = exc[1] is not None and not isinstance(exc[1], Exception)
            await self._group.__aexit__(*(exc if is_cancelled else (None, None, None)))  # type: ignore[arg-type]
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.close()
