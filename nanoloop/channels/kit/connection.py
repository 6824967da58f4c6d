"""Keeps a platform's connection open, reconnecting with backoff."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import uniform
from typing import Literal

import anyio

from nanoloop.channels.kit.platform import Hear, Platform, Refused
from nanoloop.errors import SendLater, reason_of
from nanoloop.events import (
    ChannelConnected,
    ChannelConnecting,
    ChannelLost,
    ChannelRefused,
    announce,
)

LONGEST_REST_SECONDS = 300.0
STEADY_SECONDS = 60.0
"""A connection that lasts this long counts as good and resets the backoff."""
PATIENCE_SECONDS = 30.0
"""How long an outgoing message waits for the connection before it is postponed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a connection."""

    name: Literal["connecting", "connected", "waiting", "refused"]
    reason: str = ""

    def __str__(self) -> str:
        return self.name  # /status shows the state to any chat, and the reason only to the operator


class Connection:
    """Listens to a platform, and reconnects after a delay whenever the connection ends."""

    def __init__(
        self,
        platform: Platform,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._platform = platform
        self._sleep = sleep
        self._clock = clock
        self._is_up = anyio.Event()
        self._since = 0.0
        self.state = State(name="connecting")

    async def keep(self, hear: Hear) -> None:
        """Stay connected until cancelled, or until the platform rejects the bot's token."""
        tries = 0
        while True:
            self._begin()
            try:
                failure = await self._failure(hear)
            finally:
                held = 0.0
                if self._is_up.is_set():  # tasks are waiting for an unset event
                    held, self._is_up = self._clock() - self._since, anyio.Event()
            if isinstance(failure, Refused):
                self._refuse(str(failure))
                return
            tries = 1 if held >= STEADY_SECONDS else tries + 1
            await self._rest(failure, tries)

    @property
    def is_up(self) -> bool:
        """Whether the platform is connected."""
        return self._is_up.is_set()

    async def ready(self) -> None:
        """Return once connected; raises `SendLater` if that takes too long."""
        with anyio.move_on_after(PATIENCE_SECONDS if self.state.name != "refused" else 0):
            await self._is_up.wait()
        if not self._is_up.is_set():
            raise SendLater("not connected")

    async def _failure(self, hear: Hear) -> Exception:
        try:
            await self._platform.listen(hear, self._connected)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, reconnect
            return _cause(error)
        return SendLater("the connection was closed")

    def _begin(self) -> None:
        self.state = State(name="connecting")
        announce(ChannelConnecting(channel=self._platform.name))

    def _connected(self) -> None:
        if self._is_up.is_set():
            return
        self._since = self._clock()
        self._is_up.set()
        self.state = State(name="connected")
        announce(ChannelConnected(channel=self._platform.name))

    def _refuse(self, reason: str) -> None:
        self.state = State(name="refused", reason=reason)
        announce(ChannelRefused(channel=self._platform.name, reason=reason))

    async def _rest(self, failure: Exception, tries: int) -> None:
        known = failure.seconds if isinstance(failure, SendLater) else None
        backoff = min(LONGEST_REST_SECONDS, 2.0 ** min(tries - 1, 20)) * uniform(0.5, 1)  # noqa: S311 - jitter
        seconds = max(known or 0, backoff)
        reason = reason_of(failure)
        self.state = State(name="waiting", reason=f"{reason}; retrying in {seconds:.0f} s")
        announce(
            ChannelLost(
                channel=self._platform.name, reason=reason, seconds=round(seconds, 3), tries=tries
            )
        )
        await self._sleep(seconds)


def _cause(error: Exception) -> Exception:
    """Return the most informative error inside the exception groups that task groups raise."""
    if not isinstance(error, ExceptionGroup):
        return error
    refused = error.subgroup(Refused)
    return _cause((refused or error).exceptions[0])
