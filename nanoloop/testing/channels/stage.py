"""The interface to a platform under test, and a bot to run on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar
from unittest import SkipTest

import anyio

from nanoloop.agents import Agent
from nanoloop.attachments import Attachments
from nanoloop.bus import InProcessBus
from nanoloop.channels.kit.channel import PlatformChannel
from nanoloop.channels.kit.intake import Transcriber
from nanoloop.channels.kit.platform import Platform
from nanoloop.events import Event, hearing
from nanoloop.loop import AgentLoop
from nanoloop.protocols import Provider
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings.channels import PlatformSettings
from nanoloop.stores.sqlite import SqliteStore

Skill = Literal[
    "bots",
    "cut",
    "delete",
    "edit",
    "files",
    "formatting",
    "group",
    "ids",
    "limit",
    "lose",
    "repeat",
    "replies",
    "threads",
    "token",
    "typing",
]
"""The abilities that a stage may have; each is a method or an argument of `Stage`."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleMessage:
    """A message as people see it."""

    id: str
    text: str
    """The text that people see, without the platform's markup if that is easy to remove."""
    is_bots: bool
    """Whether the bot under test sent the message."""
    reply_to: str | None = None


class Stage(Protocol):
    """A platform, real or fake, with a bot and the people Ann and Bob."""

    @property
    def skills(self) -> frozenset[Skill]:
        """The stage's abilities; tests that need others are skipped."""
        ...

    @property
    def group(self) -> str:
        """The id of a chat with Ann, Bob and the bot."""
        ...

    def platform(self) -> Platform:
        """Return a new connection for the same bot account; each start of a bot uses one."""
        ...

    async def people(self, count: int) -> Sequence[tuple[str, str]]:
        """Return this many private chats, as (chat, sender); the first two are Ann's and Bob's."""
        ...

    def naming(self, text: str) -> str:
        """Return the text as people write it to mention the bot, such as `@bot text`."""
        ...

    async def say(
        self,
        chat: str,
        text: str,
        *,
        sender: str,
        reply_to: str | None = None,
        files: Mapping[str, bytes] | None = None,
        thread: str = "",
        is_bot: bool = False,
    ) -> str:
        """Send a message as a person; return the message's id, as in `Heard.id`."""
        ...

    async def edit(self, chat: str, message: str, text: str, *, sender: str) -> None:
        """Change the text of a person's message."""
        ...

    async def delete(self, chat: str, message: str, *, sender: str) -> None:
        """Delete a person's message."""
        ...

    async def repeat(self) -> None:
        """Deliver the last message to the bot once more."""
        ...

    async def shown(self, chat: str) -> Sequence[VisibleMessage]:
        """Return the messages that are visible in the chat, oldest first."""
        ...

    async def typed(self, chat: str) -> bool:
        """Return whether a typing indicator was shown in the chat."""
        ...

    async def cut(self) -> None:
        """Cut the bot's connection; a new connection works."""
        ...

    async def limit(self, calls: int, *, seconds: float) -> None:
        """Reject the bot's next posts and edits as too many, with this retry-after."""
        ...

    async def lose(self, calls: int, *, taken: bool) -> None:
        """Make the bot's next posts fail; with `taken`, only after the platform accepted them."""
        ...

    async def refuse_formatting(self) -> None:
        """Accept only plain text from now on."""
        ...

    async def refuse_token(self) -> None:
        """Reject the bot's token from now on."""
        ...


async def comes_to(
    look: Callable[[], Awaitable[T]], wanted: T | Callable[[T], bool], *, seconds: float = 20
) -> T:
    """Call `look` until it returns this; otherwise, raise AssertionError with its last result."""
    found = None
    with anyio.move_on_after(seconds):
        while True:
            found = await look()
            if wanted(found) if callable(wanted) else found == wanted:
                return found
            await anyio.sleep(0.005)
    aim = "what was wanted" if callable(wanted) else repr(wanted)
    raise AssertionError(f"after {seconds} s the result is {found!r}, not {aim}")


async def says(stage: Stage, chat: str, *wanted: str) -> None:
    """Wait until the bot's messages in a chat are exactly these, in this order."""

    async def look() -> list[str]:
        return [shown.text for shown in await stage.shown(chat) if shown.is_bots]

    await comes_to(look, [*wanted])


async def answers(stage: Stage, chat: str, count: int) -> list[str]:
    """Wait until the bot has sent this many messages to a chat, and return them."""

    async def look() -> list[str]:
        return [shown.text for shown in await stage.shown(chat) if shown.is_bots]

    return await comes_to(look, lambda said: len(said) == count)


def needs(stage: Stage, *skills: Skill) -> None:
    """Skip the test if the stage lacks one of these skills."""
    if missing := sorted({*skills} - stage.skills):
        raise SkipTest(f"the stage can't do {', '.join(missing)}")


def check(so: object, otherwise: str) -> None:
    """Raise AssertionError with this text unless the condition holds."""
    if not so:
        raise AssertionError(otherwise)


def open_to_all(**said: Any) -> PlatformSettings:
    """Return settings that let everyone talk without limits, except for those given here."""
    return PlatformSettings(**{"users": ("*",), "per_minute": 100_000, **said})


_HASTE = 100
"""The factor by which pauses are shortened."""


async def hurry(seconds: float) -> None:
    """Sleep for only a fraction of this time."""
    await anyio.sleep(seconds / _HASTE)


class Bot:
    """Serves one platform inside `async with`; leaving the block kills the bot at once."""

    def __init__(
        self,
        platform: Platform,
        folder: Path,
        *,
        provider: Provider | None = None,
        agent: Agent | None = None,
        rules: PlatformSettings | None = None,
        attachments: Attachments | None = None,
        transcriber: Transcriber | None = None,
        sleep: Callable[[float], Awaitable[None]] = hurry,
    ) -> None:
        """Create the bot; without `rules`, everyone may talk to it."""
        self.events: list[Event] = []
        """The events so far."""
        self.provider = provider or ScriptedProvider()
        self.channel = PlatformChannel(
            platform,
            rules=rules or open_to_all(),
            folder=folder,
            attachments=attachments,
            transcriber=transcriber,
            sleep=sleep,
        )
        self._store = SqliteStore(folder / "bot.sqlite", durability="flush")
        self.loop = AgentLoop(
            provider=self.provider,
            agent=agent or Agent(),
            store=self._store,
            bus=InProcessBus(sleep=sleep),
        )
        self.loop.sessions.attachments = attachments
        self.loop.bus.attach(self.channel)
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._store.delete_expired()
        await self._group.__aenter__()
        with hearing(self.events.append):
            await self._group.start(self.loop.run, name="loop")
            await self.loop.recover()
            self._group.start_soon(self.channel.run, self.loop.bus, name="channel")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._group.cancel_scope.cancel()
        try:
            # A test's own failure must not be wrapped in an exception group.
            is_cancelled = exc[1] is not None and not isinstance(exc[1], Exception)
            await self._group.__aexit__(*(exc if is_cancelled else (None, None, None)))  # type: ignore[arg-type]
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.close()
