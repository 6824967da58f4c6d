"""Long polling: what is new is asked for, and confirmed once it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
from telegram import Bot

from nanoloop.channels.platform.platform import Hear
from nanoloop.channels.telegram.failures import explained
from nanoloop.channels.telegram.request import POLL
from nanoloop.channels.telegram.updates import KINDS, Read

POLL_SECONDS = 30
"""How long Telegram waits for something new before it answers that there is nothing."""
PATIENCE_SECONDS = 1.0
"""How long what was heard may take before others are asked for what they say meanwhile."""


class Polling:
    """Listens by asking."""

    def __init__(self) -> None:
        self._offset = 0
        self._handed: dict[int, anyio.Event] = {}
        """Updates that are not confirmed yet, and whether they are taken."""
        self._has_begun = False

    async def listen(self, bot: Bot, read: Read, hear: Hear, connected: Callable[[], None]) -> None:
        """Hand over what is said until the connection is lost."""
        self._handed.clear()  # what is not confirmed comes again
        await self._begin(bot)
        seconds = 0
        async with anyio.create_task_group() as group:
            while True:
                updates = await self._updates(bot, seconds)
                connected()
                fresh = [update for update in updates if update["update_id"] not in self._handed]
                if fresh:
                    taken = anyio.Event()
                    self._handed |= {update["update_id"]: taken for update in fresh}
                    heard = [one for one in map(read, fresh) if one is not None]
                    group.start_soon(_hand_over, hear, heard, taken, name="telegram updates")
                await self._confirm()
                seconds = 0 if self._handed else POLL_SECONDS

    async def _begin(self, bot: Bot) -> None:
        if self._has_begun:
            return
        with explained():
            # Once, as nothing comes while a webhook is set. One that is set later is someone
            # else's: the two would take the bot from each other for ever.
            await bot.delete_webhook()
        self._has_begun = True

    async def _updates(self, bot: Bot, seconds: int) -> Sequence[Any]:
        """All that is not confirmed; where that is nothing, it waits so long."""
        asked = {"offset": self._offset, "timeout": seconds, "allowed_updates": KINDS}
        with explained():
            # Not `get_updates`: one update that the library can't read would cost all of them.
            updates: Sequence[Any] = await bot.do_api_request(
                POLL.removeprefix("/"), api_kwargs=asked, read_timeout=1.5 * POLL_SECONDS
            )
        return updates

    async def _confirm(self) -> None:
        """Move the offset past what is taken; what takes long does not hold up the others."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            for taken in [*self._handed.values()]:
                await taken.wait()
        for update, taken in [*self._handed.items()]:
            if not taken.is_set():
                break
            del self._handed[update]
            self._offset = update + 1


async def _hand_over(hear: Hear, heard: Sequence[Any], taken: anyio.Event) -> None:
    await hear(*heard)
    taken.set()
