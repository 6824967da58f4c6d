"""How sessions are laid out in Redis: the format's number, and the way from an older one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio

from nanoloop.errors import StoreError
from nanoloop.stores.redis.keys import Keys
from nanoloop.stores.redis.server import Server

FORMAT = 1
Upgrade = Callable[[Server, Keys], Awaitable[None]]
UPGRADES: Mapping[int, Upgrade] = {}
"""From each older format to the next; two processes may run one at a time, or again."""


class Layout:
    """Looked at once, before the first call."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._server = server
        self._keys = keys
        self._is_ready = False
        self._one_at_a_time = anyio.Lock()
        self.may_expire = False
        """Whether Redis may be told when a session expires: not where it would drop it earlier."""

    async def ready(self) -> None:
        """Refuse what can't be worked with, and bring an older layout up to this one."""
        if self._is_ready:
            return
        with anyio.CancelScope(shield=True):
            async with self._one_at_a_time:
                if not self._is_ready:
                    self.may_expire = await self._server.check()
                    await self._upgrade()
                    self._is_ready = True

    async def _upgrade(self) -> None:
        _, found = await self._server.ask(
            ("SET", self._keys.format, FORMAT, "NX"), ("GET", self._keys.format)
        )
        if int(found) > FORMAT:
            raise StoreError(
                f"the sessions in Redis are of format {int(found)}, and this version knows "
                f"{FORMAT}: install a newer nanoloop, or choose another prefix or database"
            )
        for number in range(int(found), FORMAT):
            await UPGRADES[number](self._server, self._keys)
            await self._server.ask(("SET", self._keys.format, number + 1))
