"""A channel over any platform, and how one is made from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from nanoloop import plugins
from nanoloop.attachments import Attachments
from nanoloop.channels.kit.access import AccessControl, Pairing
from nanoloop.channels.kit.connection import Connection, State
from nanoloop.channels.kit.drafts import Drafts, Progress
from nanoloop.channels.kit.intake import Files, Intake, Transcriber
from nanoloop.channels.kit.platform import Guest, Host, Place, Platform
from nanoloop.errors import SettingsError
from nanoloop.events import Announce, TextStreamed, silent
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus, Channel
from nanoloop.settings.channels import PlatformSettings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nanoloop.settings import Settings


class PlatformChannel:
    """Serves a chat platform over the bus."""

    confirms = True
    """An answer is owed until the platform has taken it."""

    def __init__(
        self,
        platform: Platform,
        *,
        rules: PlatformSettings | None = None,
        folder: Path | None = None,
        attachments: Attachments | None = None,
        transcriber: Transcriber | None = None,
        announce: Announce = silent,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """With a `folder`, the data folder, pairings and half-sent answers outlast the process.

        `attachments` keeps files that come in, and has those that an answer names; `transcriber`
        tells what is said in voice messages.
        """
        self.platform = platform
        self.name = platform.name
        self.rules = rules or PlatformSettings()
        """Who may talk and how; may be set anew while it runs. With none, nobody may talk."""
        self._connection = Connection(platform, announce=announce, sleep=sleep)
        file = None if folder is None else folder / "channels" / f"{self.name}.jsonl"
        self._drafts = Drafts(
            platform, connection=self._connection, progress=Progress(file), attachments=attachments
        )
        self._typist = Typist(platform)
        self._pairing = Pairing(folder)
        self._door = AccessControl(
            self.name, rules=lambda: self.rules, pairing=self._pairing, announce=announce
        )
        self._files = Files(
            channel=self.name,
            limit_bytes=platform.limits.file_bytes,
            attachments=attachments,
            transcriber=transcriber,
            announce=announce,
        )
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


def wanted(settings: Settings) -> Iterator[tuple[str, BaseModel]]:
    """The channels of plugins that are to be served, each with its settings."""
    for name, own in settings.channels.of_plugins.items():
        if getattr(own, "is_wanted", True):
            yield name, own


def make_channel(
    name: str,
    own: BaseModel,
    *,
    folder: Path,
    attachments: Attachments,
    transcriber: Transcriber | None = None,
    announce: Announce,
) -> Channel:
    """The channel of that name; its library is loaded only now. Raises `SettingsError`."""
    made: Platform | Channel = plugins.load("channels", name).make(own, folder)
    if not isinstance(made, Platform):
        return made
    if not isinstance(own, PlatformSettings):
        raise SettingsError(f"the channel {name!r} has to have settings that are PlatformSettings")
    return PlatformChannel(
        made,
        rules=own,
        folder=folder,
        attachments=attachments,
        transcriber=transcriber,
        announce=announce,
    )


LONGEST_SECONDS = 600.0
_RENEWED_AT = 0.8
"""What part of its time has passed when it is shown again."""


class Typist:
    """Types in all chats where something waits for an answer."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._waiting: dict[str, list[str]] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    def start(self, chat: str, question: str, group: TaskGroup) -> None:
        """Type until this question is answered."""
        seconds = self._platform.limits.typing_seconds
        if seconds is None:
            return
        self._waiting.setdefault(chat, []).append(question)
        if chat not in self._scopes:
            self._scopes[chat] = scope = anyio.CancelScope()
            group.start_soon(self._type, chat, scope, seconds, name=f"typist {chat}")

    def stop(self, chat: str, question: str | None) -> None:
        """This question is answered, and so are those before it."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[: waiting.index(question) + 1]
        self._end(chat)

    def drop(self, chat: str, question: str) -> None:
        """This question gets no answer; others may, itself if it was asked before."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[~waiting[::-1].index(question)]
        self._end(chat)

    def _end(self, chat: str) -> None:
        if not self._waiting.get(chat) and (scope := self._scopes.get(chat)):
            scope.cancel()

    async def _type(self, chat: str, scope: anyio.CancelScope, seconds: float) -> None:
        try:
            with scope, anyio.move_on_after(LONGEST_SECONDS):
                while self._waiting.get(chat):
                    with suppress(Exception):  # it is only a courtesy
                        await self._platform.typing(Place.of(chat))
                    await anyio.sleep(seconds * _RENEWED_AT)
        finally:
            self._scopes.pop(chat, None)
            self._waiting.pop(chat, None)
