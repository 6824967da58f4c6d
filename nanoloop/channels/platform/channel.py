"""A channel made of a platform: who may talk, what is answered, and answers that always arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.platform.connection import Connection, State
from nanoloop.channels.platform.door import Door
from nanoloop.channels.platform.drafts import Drafts
from nanoloop.channels.platform.enclosures import Fetch
from nanoloop.channels.platform.files import Files, Keep
from nanoloop.channels.platform.host import Guest, Host
from nanoloop.channels.platform.intake import Intake
from nanoloop.channels.platform.pairing import Pairing
from nanoloop.channels.platform.platform import Platform
from nanoloop.channels.platform.progress import Progress
from nanoloop.channels.platform.rules import Rules
from nanoloop.channels.platform.transcriber import Transcriber
from nanoloop.channels.platform.typist import Typist
from nanoloop.events import Announce, TextStreamed, silent
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus


class PlatformChannel:
    """Serves a chat platform over the bus."""

    confirms = True
    """An answer is owed until the platform has taken it."""

    def __init__(
        self,
        platform: Platform,
        *,
        rules: Rules | None = None,
        folder: Path | None = None,
        agent: str | None = None,
        keep: Keep | None = None,
        transcriber: Transcriber | None = None,
        fetch: Fetch | None = None,
        announce: Announce = silent,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """With a `folder`, the data folder, pairings and half-sent answers outlast the process.

        `keep` keeps files that come in, `fetch` finds those that an answer names; `transcriber`
        tells what is said in voice messages.
        """
        self.platform = platform
        self.name = platform.name
        self.rules = rules or Rules()
        """May be set anew while it runs."""
        self._connection = Connection(platform, announce=announce, sleep=sleep)
        file = None if folder is None else folder / "channels" / f"{self.name}.jsonl"
        self._drafts = Drafts(
            platform, connection=self._connection, progress=Progress(file), fetch=fetch
        )
        self._typist = Typist(platform)
        self._pairing = Pairing(folder)
        self._door = Door(
            self.name, rules=lambda: self.rules, pairing=self._pairing, announce=announce
        )
        self._files = Files(
            channel=self.name,
            limit_bytes=platform.limits.file_bytes,
            keep=keep,
            transcriber=transcriber,
            announce=announce,
        )
        self._agent = agent
        self._announce = announce
        if isinstance(platform, Guest):
            platform.meet(Host(channel=self.name, welcomes=self._door.welcomes, announce=announce))
        self._group: TaskGroup | None = None
        self._taking: Intake | None = None

    @property
    def state(self) -> State:
        """How its connection stands."""
        return self._connection.state

    @property
    def closed(self) -> str | None:
        """What to do so that someone may talk; None where someone may."""
        return self._door.closed

    @property
    def streams(self) -> bool:
        """Whether answers are shown as they grow."""
        return self.rules.stream and self.platform.limits.edit_seconds is not None

    async def run(self, bus: Bus) -> None:
        """Serve the platform until cancelled, or until it refuses the bot for good."""
        self._door.announce_closed()
        try:
            async with anyio.create_task_group() as self._group, self._intake(bus) as self._taking:
                await self._connection.keep(self._taking.hear)
                self._group.cancel_scope.cancel()
        finally:
            self._group = self._taking = None
            self._drafts.close()
            self._pairing.close()

    def take_no_more(self) -> None:
        """Take nothing more in; answers still go out, until `run` is cancelled."""
        if self._taking is not None:
            self._taking.take_no_more()

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Bring one item to its chat; raises `SendLater` where it is worth another try."""
        if isinstance(item, TextStreamed):
            if self._group is not None:
                self._drafts.grow(item, self._group)
            return
        self._typist.stop(item.chat, item.reply_to)
        await self._drafts.finish(item)

    def _intake(self, bus: Bus) -> Intake:
        return Intake(
            self.name,
            bus=bus,
            rules=lambda: self.rules,
            agent=self._agent,
            door=self._door,
            drafts=self._drafts,
            files=self._files,
            waits=self._wait_for,
            drop=self._typist.drop,
            announce=self._announce,
        )

    def _wait_for(self, chat: str, question: str) -> None:
        """Show that an answer to this is on its way."""
        if self._group is not None:
            self._typist.start(chat, question, self._group)
