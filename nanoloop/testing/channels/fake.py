"""A fake chat platform in memory, which can inject faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import get_args

import anyio

from nanoloop.channels.kit.platform import (
    File,
    FormatRefused,
    Hear,
    Heard,
    Limits,
    MessageGone,
    Place,
    Refused,
    Text,
    TooLong,
    Upload,
)
from nanoloop.errors import SendLater
from nanoloop.messages import Choice, Quote, Speaker
from nanoloop.testing.channels.stage import Skill, VisibleMessage


class FakePlatform:
    """A bot's connection to the fake chats."""

    def __init__(self, chats: FakeChats) -> None:
        self._chats = chats
        self.name = chats.name
        self.limits = chats.limits

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Deliver unacknowledged events until the connection is cut."""
        await self._chats.listen(hear, connected)

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam\'s name
        """Post a message."""
        return await self._chats.take_post(place, text, reply_to, id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit a message."""
        await self._chats.take_edit(place, message, text)

    async def remove(self, place: Place, message: str) -> None:
        """Remove a message."""
        self._chats.take_back(place, message)

    async def typing(self, place: Place) -> None:
        """Show that the bot is typing."""
        self._chats.typing.append(str(place))

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file."""
        self._chats.uploads.append(file)
        text = Text(plain=f"[{file.name}]")
        return await self._chats.take_post(place, text, reply_to, id)

    def rendered(self, markdown: str) -> str | None:
        """Convert bold text to this platform's format."""
        return markdown.replace("**", "*")


BOT = "bot"
LIMITS = Limits(text=400, edit_seconds=0.005, typing_seconds=5)
NAMED = "@bot"
"""How people mention the bot in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message in a chat."""

    id: str
    sender: str
    text: str
    reply_to: str | None = None
    versions: int = 1
    """How many times the message was posted or edited."""
    formatted: bool = False
    choices: tuple[Choice, ...] = ()
    """The buttons below the message."""


@dataclass(slots=True)
class _Faults:
    """The faults to inject next."""

    refused: bool = False
    lost: int = 0
    unconfirmed: int = 0
    limited: int = 0
    limited_seconds: float = 0.0
    formatting: bool = False


class FakeChats:
    """The platform's side, a `Stage`: its chats outlive the bots, and it can inject faults."""

    name = "fake"

    def __init__(self, *, limits: Limits = LIMITS, knows_ids: bool = True) -> None:
        """Create the chats; with `knows_ids`, a message posted again under its id is shown once."""
        self.limits = limits
        self.typing: list[str] = []
        """The chats in which typing was shown."""
        self.uploads: list[Upload] = []
        self.calls = 0
        """The number of posts and edits so far, including failed ones."""
        self._knows_ids = knows_ids
        self._numbers = count(1)
        self._chats: dict[str, dict[str, Message]] = defaultdict(dict)
        self._events: list[Heard] = []
        self._acknowledged = 0
        self._by_id: dict[str, str] = {}
        self._faults = _Faults()
        self._cuts: set[anyio.Event] = set()
        self._news = anyio.Event()

    skills: frozenset[Skill] = frozenset(get_args(Skill))
    group = "group"
    """The prefix of group ids."""

    def platform(self) -> FakePlatform:
        """Return a connection for a bot, which needs a new one each time it starts."""
        return FakePlatform(self)

    async def people(self, count: int) -> Sequence[tuple[str, str]]:
        """Return this many private chats, each with its person."""
        names = ["ann", "bob", *(f"person{number}" for number in range(2, count))]
        return [(f"with-{name}", name) for name in names[:count]]

    def naming(self, text: str) -> str:
        """Return the text with a mention of the bot."""
        return f"{NAMED} {text}"

    # Actions of people

    async def say(
        self,
        chat: str,
        text: str,
        *,
        sender: str = "ann",
        reply_to: str | None = None,
        files: Mapping[str, bytes] | None = None,
        thread: str = "",
        is_bot: bool = False,
    ) -> str:
        """Send a message to a chat as this person; return the message's id."""
        message = self._show(chat, sender, text, reply_to)
        event = replace(
            self._event(chat, message),
            id=message.id,
            text=text,
            thread=thread,
            reply_to=reply_to,
            quotes=tuple(self._quoted(chat, reply_to)),
            files=tuple(_file(name, data) for name, data in (files or {}).items()),
            is_bot=is_bot,
        )
        self._tell(event)
        return message.id

    async def edit(
        self,
        chat: str,
        message: str,
        text: str,
        *,
        sender: str = "ann",  # noqa: ARG002 - as the stage has it
    ) -> None:
        """Change the text of a message."""
        edited = replace(self._chats[chat][message], text=text)
        self._chats[chat][message] = edited
        self._tell(replace(self._event(chat, edited), text=text, edits=message))

    async def delete(
        self,
        chat: str,
        message: str,
        *,
        sender: str = "ann",  # noqa: ARG002 - as above
    ) -> None:
        """Delete a message."""
        gone = self._chats[chat].pop(message)
        self._tell(replace(self._event(chat, gone), deletes=message))

    async def repeat(self) -> None:
        """Deliver the most recent event once more."""
        self._tell(self._events[-1])

    async def shown(self, chat: str) -> Sequence[VisibleMessage]:
        """Return the messages that are visible in a chat, oldest first."""
        return [
            VisibleMessage(id=m.id, text=m.text, is_bots=m.sender == BOT, reply_to=m.reply_to)
            for m in self._chats[chat].values()
        ]

    async def typed(self, chat: str) -> bool:
        """Return whether typing was shown in a chat."""
        return chat in self.typing

    def messages(self, chat: str) -> list[Message]:
        """Return all messages in a chat, oldest first."""
        return [*self._chats[chat].values()]

    # Actions of the platform

    async def cut(self) -> None:
        """Cut the connection."""
        for cut in self._cuts:
            cut.set()

    async def refuse_token(self) -> None:
        """Reject the bot's token from now on."""
        self._faults.refused = True

    async def lose(self, calls: int = 1, *, taken: bool = False) -> None:
        """Lose the next posts and edits; with `taken`, lose only the replies to them."""
        if taken:
            self._faults.unconfirmed = calls
        else:
            self._faults.lost = calls

    async def limit(self, calls: int = 1, *, seconds: float = 0.01) -> None:
        """Rate-limit the next posts and edits."""
        self._faults.limited, self._faults.limited_seconds = calls, seconds

    async def refuse_formatting(self) -> None:
        """Accept only plain text from now on."""
        self._faults.formatting = True

    def heal(self) -> None:
        """Stop injecting faults."""
        self._faults = _Faults()

    # Actions of the bot

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Deliver unacknowledged events until the connection is cut."""
        if self._faults.refused:
            raise Refused("the fake platform refuses the token: get another one")
        cut = anyio.Event()
        self._cuts.add(cut)
        try:
            connected()
            async with anyio.create_task_group() as group:
                group.start_soon(self._deliver, hear, name="deliver")
                await cut.wait()
                group.cancel_scope.cancel()
        finally:
            self._cuts.discard(cut)

    async def _deliver(self, hear: Hear) -> None:
        while True:
            self._news = anyio.Event()
            batch = self._events[self._acknowledged :]
            if batch:
                end = len(self._events)
                await hear(*batch)
                self._acknowledged = max(self._acknowledged, end)
            else:
                await self._news.wait()

    async def take_post(self, place: Place, text: Text, reply_to: str | None, name: str) -> str:
        """Show a message from the bot."""
        await self._fail_first(text)
        known = self._by_id.get(name) if self._knows_ids else None
        message = known or self._show(str(place), BOT, text.best, reply_to, text.choices).id
        self._by_id[name] = message
        self._fail_then()
        return message

    async def take_edit(self, place: Place, message: str, text: Text) -> None:
        """Show the new text of a message from the bot."""
        await self._fail_first(text)
        chat = self._chats[str(place)]
        if message not in chat:
            raise MessageGone(message)
        chat[message] = replace(
            chat[message],
            text=text.best,
            versions=chat[message].versions + 1,
            formatted=text.formatted is not None,
            choices=text.choices,
        )
        self._fail_then()

    def take_back(self, place: Place, message: str) -> None:
        """Stop showing a message."""
        self._chats[str(place)].pop(message, None)

    async def _fail_first(self, text: Text) -> None:
        await anyio.lowlevel.checkpoint()
        self.calls += 1
        faults = self._faults
        if not self._cuts:
            raise SendLater("not connected")
        if faults.limited:
            faults.limited -= 1
            raise SendLater("rate limit", seconds=faults.limited_seconds)
        if faults.lost:
            faults.lost -= 1
            raise SendLater("the network failed")
        if faults.formatting and text.formatted is not None:
            raise FormatRefused
        if self.limits.size(text.best) > self.limits.text:
            raise TooLong

    def _fail_then(self) -> None:
        if self._faults.unconfirmed:
            self._faults.unconfirmed -= 1
            raise SendLater("the network failed")

    # Internals

    def _show(
        self,
        chat: str,
        sender: str,
        text: str,
        reply_to: str | None,
        choices: tuple[Choice, ...] = (),
    ) -> Message:
        name = f"m{next(self._numbers)}"
        message = Message(id=name, sender=sender, text=text, reply_to=reply_to, choices=choices)
        self._chats[chat][name] = message
        return message

    def _quoted(self, chat: str, message: str | None) -> Iterator[Quote]:
        if (found := self._chats[chat].get(message or "")) is not None:
            is_me = found.sender == BOT
            by = Speaker(id=found.sender, name=found.sender.title(), is_me=is_me)
            yield Quote(text=found.text, speaker=by)

    def _tell(self, heard: Heard) -> None:
        self._events.append(heard)
        self._news.set()

    def _event(self, chat: str, message: Message) -> Heard:
        """Return an event about this message."""
        is_named = NAMED in message.text
        answered = self._chats[chat].get(message.reply_to or "")
        return Heard(
            chat=chat,
            id=f"e{next(self._numbers)}",
            sender=message.sender,
            name=message.sender.title(),
            private=not chat.startswith(self.group),
            addressed=is_named or (answered is not None and answered.sender == BOT),
            mention=NAMED if is_named else "",
        )


def _file(name: str, data: bytes) -> File:
    async def fetch() -> bytes:
        return data

    kind = "image" if name.endswith(".png") else "audio" if name.endswith(".ogg") else "file"
    return File(kind=kind, name=name, size=len(data), fetch=fetch)  # type: ignore[arg-type]
