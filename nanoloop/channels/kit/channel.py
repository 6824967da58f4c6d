"""A channel over any platform, and how one is made from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from nanoloop.attachments import Attachments
from nanoloop.channels.kit.access import AccessControl, Pairing, Rules
from nanoloop.channels.kit.connection import Connection, State
from nanoloop.channels.kit.drafts import Drafts, Fetch, Progress, fetched_from
from nanoloop.channels.kit.intake import Files, Intake, Keep, Transcriber, kept_in
from nanoloop.channels.kit.platform import Guest, Host, Place, Platform
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.events import Announce, TextStreamed, silent
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus, Channel

if TYPE_CHECKING:
    from nanoloop.settings import Settings
    from nanoloop.settings.channels import PlatformSettings


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
        self._door = AccessControl(
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


OURS = ("telegram", "matrix", "discord", "slack")
"""Each is in `nanoloop.channels.NAME.making`, with a library that is an extra of that name."""
GROUP = "nanoloop.channels"
"""The entry points of other packages; each is a `Make`, given the table's `options`."""

Make = Callable[[Any, Path], Platform | Channel]
"""Given a channel's own settings and the data folder, makes it; raises `SettingsError`."""


def wanted(settings: Settings) -> Iterator[tuple[str, PlatformSettings]]:
    """The channels that are to be served, each with its settings."""
    for name in OURS:
        own: PlatformSettings = getattr(settings.channels, name)
        if own.is_wanted:
            yield name, own
    for name, other in settings.channels.others.items():
        if other.is_wanted:
            yield name, other


def make_channel(
    name: str,
    own: PlatformSettings,
    *,
    folder: Path,
    attachments: Attachments,
    transcriber: Transcriber | None = None,
    announce: Announce,
) -> Channel:
    """The channel of that name; its library is loaded only now. Raises `SettingsError`."""
    make, given = _ours(name) if name in OURS else _other(name), getattr(own, "options", own)
    made = make(given, folder)
    if not isinstance(made, Platform):
        return made
    return PlatformChannel(
        made,
        rules=rules_of(own),
        folder=folder,
        agent=own.agent,
        keep=kept_in(attachments, owner=f"{name}:"),
        transcriber=transcriber,
        fetch=fetched_from(attachments),
        announce=announce,
    )


def rules_of(own: PlatformSettings) -> Rules:
    """What its settings say of who may talk, and how much."""
    said: dict[str, Any] = {field.name: getattr(own, field.name) for field in fields(Rules)}
    said |= {name: frozenset(value) for name, value in said.items() if isinstance(value, tuple)}
    return Rules(**said)


def _ours(name: str) -> Make:
    try:
        make: Make = import_module(f"nanoloop.channels.{name}").make
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("nanoloop"):
            raise
        raise SettingsError(
            f"channels.{name} needs {missing.name}, which is not installed: {how_to_install(name)}"
        ) from None
    return make


def _other(name: str) -> Make:
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise SettingsError(
            f"channels.others.{name} names no channel: install the package that has it "
            f"(there are: {known})"
        )
    make: Make = next(iter(found)).load()
    return make


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
