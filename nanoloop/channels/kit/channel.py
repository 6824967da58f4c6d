"""Turns any chat platform into a channel, and creates channels from their settings."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from pydantic import SecretStr

from nanoloop import plugins
from nanoloop.attachments import Attachments
from nanoloop.channels.kit.access import AccessControl, Pairing
from nanoloop.channels.kit.connection import Connection, State
from nanoloop.channels.kit.drafts import Drafts, Progress, notes_of
from nanoloop.channels.kit.intake import Files, Intake, Transcriber, Typist
from nanoloop.channels.kit.platform import Host, Platform
from nanoloop.channels.kit.questions import Questions, questions_file
from nanoloop.channels.kit.uploads import FileSender
from nanoloop.errors import SettingsError
from nanoloop.events import TextStreamed
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus, Channel
from nanoloop.sentences import Sentences
from nanoloop.settings.channels import PlatformSettings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nanoloop.settings import Settings


class PlatformChannel:
    """Serves a chat platform over the bus."""

    confirms = True
    """Holds answers until the platform has accepted them."""

    def __init__(
        self,
        platform: Platform,
        *,
        rules: PlatformSettings | None = None,
        folder: Path | None = None,
        attachments: Attachments | None = None,
        transcriber: Transcriber | None = None,
        sentences: Sentences | None = None,
        account: str = "",
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Create a channel for this platform.

        With an `account`, only one of the processes that share a store serves it at a time. With
        the data folder as `folder`, pairings and half-sent answers survive a restart. `attachments`
        stores incoming files and looks up the files that an answer links to; `transcriber`
        transcribes voice messages.
        """
        self.platform = platform
        self.name = platform.name
        self.account = account
        self._connection = Connection(platform, sleep=sleep)
        self._typist = Typist(platform)
        self._pairing = Pairing(folder)
        self.access = AccessControl(
            self.name,
            rules=rules or PlatformSettings(),
            pairing=self._pairing,
            sentences=sentences,
        )
        """Decides who may talk to the bot; without rules, nobody may."""
        notes = None if folder is None else notes_of(folder, self.name)
        progress = Progress(notes, data=folder)
        say = self.access.say
        self._questions = Questions(questions_file(notes))
        self._drafts = Drafts(
            platform,
            connection=self._connection,
            progress=progress,
            files=FileSender(platform, progress=progress, attachments=attachments, say=say),
            asked=self._questions.keep,
        )
        self._files = Files(
            channel=self.name,
            limit_bytes=platform.limits.file_bytes,
            attachments=attachments,
            transcriber=transcriber,
        )
        if hasattr(platform, "meet"):
            host = Host(channel=self.name, welcomes=self.access.welcomes, say=self.access.say)
            platform.meet(host)
        self._taking: Intake | None = None

    @property
    def state(self) -> State:
        """The state of the channel's connection."""
        return self._connection.state

    @property
    def streams(self) -> bool:
        """Whether answers are shown while they are being written."""
        return self.access.rules.stream and self.platform.limits.edit_seconds is not None

    async def run(self, bus: Bus) -> None:
        """Serve the platform until cancelled, or until it rejects the bot's token."""
        self.access.announce_closed()
        self._drafts.load()
        try:
            async with anyio.create_task_group() as group, self._intake(bus) as self._taking:
                self._drafts.group = self._typist.group = group
                await self._connection.keep(self._taking.hear)
                group.cancel_scope.cancel()
        finally:
            self._taking = self._drafts.group = self._typist.group = None
            self._drafts.close()
            self._pairing.close()
            self._questions.close()

    def take_no_more(self) -> None:
        """Stop accepting messages; answers are still sent until `run` is cancelled."""
        if self._taking is not None:
            self._taking.take_no_more()

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Send one item to its chat; raises `SendLater` if it should be sent again later."""
        if isinstance(item, TextStreamed):
            self._drafts.grow(item)
            return
        self._typist.stop(item.chat, item.reply_to)
        await self._drafts.finish(item)

    def _intake(self, bus: Bus) -> Intake:
        return Intake(
            self.name,
            bus=bus,
            access=self.access,
            drafts=self._drafts,
            questions=self._questions,
            files=self._files,
            typist=self._typist,
        )


def wanted(settings: Settings) -> Iterator[tuple[str, BaseModel]]:
    """Yield each plugin channel to serve, with its settings."""
    for name, own in settings.channels.of_plugins.items():
        if getattr(own, "is_wanted", True):
            yield name, own


def make_channel(
    name: str,
    own: BaseModel,
    *,
    folder: Path,
    attachments: Attachments | None = None,
    transcriber: Transcriber | None = None,
    sentences: Sentences | None = None,
) -> Channel:
    """Create the channel with this name, importing its library only now; raises `SettingsError`.

    Without `attachments`, the model sees only the names of the files that people send.
    """
    made: Platform | Channel = plugins.load("channels", name).make(own, folder)
    if not isinstance(made, Platform):
        return made
    if not isinstance(own, PlatformSettings):
        raise SettingsError(f"the channel {name!r} needs settings derived from PlatformSettings")
    return PlatformChannel(
        made,
        rules=own,
        folder=folder,
        attachments=attachments,
        transcriber=transcriber,
        sentences=sentences,
        account=account_of(name, own),
    )


def account_of(name: str, own: BaseModel) -> str:
    """Return an identifier of the bot's account that does not reveal its secrets."""
    secrets = [
        value.get_secret_value()
        for _, value in sorted(own)
        if isinstance(value, SecretStr) and value.get_secret_value()
    ]
    digest = hashlib.sha256("\0".join(secrets).encode()).hexdigest()[:16]
    return f"{name} {digest}" if secrets else ""
