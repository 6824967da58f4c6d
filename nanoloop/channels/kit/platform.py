"""The interface between a chat platform and everything that nanoloop does for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol, runtime_checkable

from nanoloop.errors import NanoloopError
from nanoloop.events import SenderRefused, announce
from nanoloop.messages import Quote
from nanoloop.sentences import Say, in_english


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a platform allows."""

    text: int = 4000
    """The longest message, as counted by `size`; applies to the result of `rendered` too."""
    size: Callable[[str], int] = len
    """How the platform counts: characters, UTF-16 units (`splitting.utf16`), bytes."""
    edit_seconds: float | None = 1.0
    """How long to wait between two edits in a chat; None if messages can't be edited."""
    group_edit_seconds: float | None = None
    """The same in groups; None if it makes no difference."""
    typing_seconds: float | None = None
    """How long one call of `typing` shows "is typing"; None if the platform can't show it."""
    file_bytes: int = 20_000_000
    """The size of the largest file that is downloaded or sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to post: a chat, or a thread in it. `str(place)` is its form on the bus."""

    chat: str
    thread: str = ""

    def __str__(self) -> str:
        return f"{self.chat} {self.thread}" if self.thread else self.chat

    @classmethod
    def of(cls, text: str) -> Place:
        """Parse the result of `str(place)`; a chat's id contains no spaces."""
        chat, _, thread = text.partition(" ")
        return cls(chat, thread)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that came with a message, not downloaded yet."""

    kind: Literal["image", "audio", "video", "file"]
    """A voice note is `audio`."""
    fetch: Callable[[], Awaitable[bytes]]
    """Downloads it; the kit calls this once, if the size is allowed, and handles failures."""
    name: str = ""
    mime_type: str = ""
    size: int | None = None
    """Its size in bytes, if the platform reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file on its way to a chat."""

    name: str
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An event that the platform reports: a message, an edit, or a deletion."""

    chat: str
    """The chat's id, as in `Place.chat`: without spaces."""
    id: str
    """The platform's id for this message or event; unchanged if it is delivered again.

    For an edit without an id of its own, combine the message's id and the time of the edit.
    """
    sender: str
    """The sender's id, as used in access lists: never something that people can choose freely."""
    name: str = ""
    """The sender's display name."""
    roles: tuple[str, ...] = ()
    """The sender's roles or groups, as used in access lists."""
    text: str = ""
    """What the sender typed, and nothing else."""
    private: bool = True
    """Whether only this person and the bot are in the chat."""
    addressed: bool = False
    """Whether, in a group, it mentions the bot, replies to it, or is a command for it."""
    mention: str = ""
    """The exact words in `text` that mention the bot, such as `<@U12>`: they are removed."""
    thread: str = ""
    """The thread it was sent in; empty if it was sent in the chat itself."""
    reply_to: str | None = None
    """The id of the message that this one replies to."""
    quote: str = ""
    """The text of that message, if the platform doesn't say who wrote it; else use `quotes`."""
    quotes: tuple[Quote, ...] = ()
    """What it quotes or forwards, each with who said it; none of that belongs in `text`."""
    files: tuple[File, ...] = ()
    edits: str | None = None
    """The id of the earlier message whose text is now `text`; ignored if the text is unchanged.

    Only its sender may edit a message: check that if the platform doesn't.
    """
    deletes: str | None = None
    """The id of the earlier message that was deleted."""
    burst_seconds: float = 0
    """Other messages in its chat within this time belong to it, such as the rest of an album."""
    is_bot: bool = False
    """Whether it was sent by a program, including this bot; such messages are never answered."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


class Hear(Protocol):
    """Accepts what a platform reports."""

    async def __call__(self, *heard: Heard) -> None:
        """Return once everything is durable or was refused; acknowledge it only then.

        Within a chat, the order of the calls is kept; different chats in one call don't wait for
        each other. Never raises, except when cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One message to post; it fits `Limits.text`."""

    plain: str
    """As the model wrote it, with Markdown; never empty."""
    formatted: str | None = None
    """In the platform's own format, from `rendered`; None to send it as plain text."""

    @property
    def best(self) -> str:
        """The text for a platform that accepts only one form."""
        return self.plain if self.formatted is None else self.formatted


@runtime_checkable
class Platform(Protocol):
    """A chat platform, which `PlatformChannel` turns into a channel.

    `post`, `edit`, `remove`, `typing` and `upload` are called only after `connected()`: in parallel
    for different answers, in order for the parts of one. They may raise anything besides the errors
    in `errors.py`: the text is then given up. Raise `SendLater` for a network error or a rate
    limit, with the platform's retry-after as its `seconds`.

    If it has a method `meet`, that is called once with the `Host`, before `listen`.
    """

    @property
    def name(self) -> str:
        """The name of the channel in settings, logs and session keys."""
        ...

    @property
    def limits(self) -> Limits:
        """What the platform allows."""
        ...

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Connect, call `connected()`, and pass on messages until the connection is lost.

        Called again after a delay when it returns or raises, except for `Refused`; a `SendLater`
        sets the delay. It resumes where it left off if the platform supports replay. When it is
        cancelled, it closes what it opened.
        """
        ...

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - what platforms call it
        """Post a message and return its id on the platform.

        `id` stays the same if the same message is posted again: use it as a transaction id or
        nonce.
        """
        ...

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of our messages; it is not an error if it already has this text."""
        ...

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of our messages; it is not an error if it is already gone."""
        ...

    async def typing(self, place: Place) -> None:
        """Show that an answer is being written, for `Limits.typing_seconds`."""
        ...

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file, displayed inline if it is an image, and return the message's id."""
        ...

    def rendered(self, markdown: str) -> str | None:
        """The Markdown in the platform's own format; None if it accepts only plain text."""
        ...


class Refused(NanoloopError):
    """A wrong token or a missing permission; the text says what to do, without the token."""


class FormatRefused(NanoloopError):
    """The platform does not accept this formatting."""


class TooLong(NanoloopError):
    """The platform does not accept a message of this length."""


class MessageGone(NanoloopError):
    """The message to edit does not exist, or can no longer be edited."""


def nobody(_: Heard) -> bool:
    """Reject every sender; the default for `Host.welcomes`."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The channel, as its platform sees it."""

    channel: str = ""
    """The channel's name."""
    welcomes: Callable[[Heard], bool] = nobody
    """Whether, under the current rules, the sender may talk to the bot or ask for access."""
    say: Say = in_english
    """Looks up the text for people in this channel, by the name of the sentence."""

    def refuse(self, heard: Heard, reason: str) -> None:
        """Log that this sender was refused something."""
        announce(
            SenderRefused(channel=self.channel, chat=heard.chat, sender=heard.sender, reason=reason)
        )
