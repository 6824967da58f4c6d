"""The interface between a chat platform and everything that nanoloop does for it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol, runtime_checkable

from nanoloop.errors import NanoloopError
from nanoloop.events import SenderRefused, announce
from nanoloop.messages import Choice, Quote
from nanoloop.sentences import Say, in_english


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Describes what a platform allows."""

    text: int = 4000
    """The maximum length of a message, as counted by `size`; it applies to formatted text too."""
    size: Callable[[str], int] = len
    """How the platform counts length: characters, UTF-16 units (`markdown.utf16`) or bytes."""
    edit_seconds: float | None = 1.0
    """The minimum delay between two edits in a chat; None if messages can't be edited."""
    group_edit_seconds: float | None = None
    """The minimum delay between two edits in a group; None if groups have no limit of their own."""
    typing_seconds: float | None = None
    """How long one call to `typing` shows the bot as typing; None if the platform can't show it."""
    file_bytes: int = 20_000_000
    """The largest file that is downloaded or sent."""
    caption: int = 0
    """The longest text that can be sent in the same message as files; 0 if none can."""
    album: int = 1
    """How many files can be sent in one message; if more than 1, there is a method `album`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A chat or a thread to post in. `str(place)` is the form used on the bus."""

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
    """A file attached to a message, not downloaded yet."""

    kind: Literal["image", "audio", "video", "file"]
    """The kind of file; a voice note is `audio`."""
    fetch: Callable[[], Awaitable[bytes]]
    """Downloads the file; called at most once. The kit checks the size and handles failures."""
    name: str = ""
    mime_type: str = ""
    size: int | None = None
    """The size in bytes, if the platform reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file to be posted in a chat."""

    name: str
    mime_type: str
    data: bytes
    caption: Text | None = None
    """The text to send in the same message; never longer than `Limits.caption`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An event that the platform reports: a message, an edit, or a deletion."""

    chat: str
    """The chat's id, as in `Place.chat`; it contains no spaces."""
    id: str
    """The platform's id for this message or event, which stays the same on redelivery.

    If an edit has no id of its own, combine the message's id with the time of the edit.
    """
    sender: str
    """The sender's id, as used in access lists; never a name that people can choose freely."""
    name: str = ""
    """The sender's display name."""
    roles: tuple[str, ...] = ()
    """The sender's roles or groups, as used in access lists."""
    text: str = ""
    """The text that the sender typed, without quotes."""
    private: bool = True
    """True if only this person and the bot are in the chat."""
    addressed: bool = False
    """True if a message in a group mentions the bot, replies to it, or is a command for it."""
    mention: str = ""
    """The exact words in `text` that mention the bot, such as `<@U12>`; they are removed."""
    thread: str = ""
    """The id of the thread that the message was sent in; empty outside threads."""
    reply_to: str | None = None
    """The id of the message that this one replies to."""
    quote: str = ""
    """The text of the quoted message, if its author is unknown; otherwise use `quotes`."""
    quotes: tuple[Quote, ...] = ()
    """The quoted or forwarded messages with their authors; leave them out of `text`."""
    files: tuple[File, ...] = ()
    edits: str | None = None
    """The id of the earlier message whose text is now `text`; unchanged text is ignored.

    Only the sender may edit a message: check this if the platform doesn't.
    """
    deletes: str | None = None
    """The id of the earlier message that was deleted."""
    burst_seconds: float = 0
    """Messages sent to a chat within this time belong together, such as photos in an album."""
    is_bot: bool = False
    """True if a program (perhaps this bot) sent the message; such messages are never answered."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


class Hear(Protocol):
    """Accepts the events that a platform reports."""

    async def __call__(self, *heard: Heard) -> None:
        """Return once every event has been stored or refused; acknowledge the events only then.

        Events in one chat are handled in the order of the calls; different chats don't wait for
        each other. Never raises, except when cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One message to post; its length is within `Limits.text`."""

    plain: str
    """The text as the model wrote it, with Markdown; never empty."""
    formatted: str | None = None
    """The result of `rendered`, in the platform's own format; None to send plain text."""
    choices: tuple[Choice, ...] = ()
    """The answers to show as buttons below the message; a platform without buttons ignores them.

    Pass a pressed button on as a `Heard` with its text, if `is_choice` accepts the text.
    """

    @property
    def best(self) -> str:
        """The formatted text if there is one, otherwise the plain text."""
        return self.plain if self.formatted is None else self.formatted


_CHOICE = re.compile(r"/(?:yes|no) [0-9]{1,9} [0-9a-f]{14}")


def is_choice(text: object) -> bool:
    """Return whether this has the form of a choice's text; clients can send any data."""
    return isinstance(text, str) and _CHOICE.fullmatch(text) is not None


@runtime_checkable
class Platform(Protocol):
    """A chat platform, which `PlatformChannel` turns into a channel.

    `post`, `edit`, `remove`, `typing` and `upload` are called only after `connected()`: in parallel
    for different answers, in order for the parts of one answer. Raise `SendLater` for a network
    error or a rate limit, with the platform's retry-after as its `seconds`. Any other error is
    allowed too, but the text is then not sent again.

    If the platform has a method `meet`, it is called once with the `Host` before `listen`.

    If `Limits.album` is more than 1, it has a method `album(place, files, *, reply_to, id)`, which
    posts up to that many files of the same kind in one message, with the first file's caption.
    """

    @property
    def name(self) -> str:
        """The channel's name in settings, logs and session keys."""
        ...

    @property
    def limits(self) -> Limits:
        """The platform's limits."""
        ...

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Connect, call `connected()`, and pass on messages until the connection is lost.

        When this returns or raises, it is called again after a delay, except after `Refused`; a
        `SendLater` sets the delay. Resume at the last message if the platform can replay messages.
        Close everything you opened when cancelled.
        """
        ...

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - what platforms call it
        """Post a message and return its id on the platform.

        `id` stays the same if the same message is posted again: use it as a transaction id or
        nonce.
        """
        ...

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of the bot's messages; it is not an error if the text is already the same."""
        ...

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of the bot's messages; it is not an error if the message is already gone."""
        ...

    async def typing(self, place: Place) -> None:
        """Show for `Limits.typing_seconds` that the bot is typing."""
        ...

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file, displayed inline if it is an image, and return the message's id.

        If the platform will never take it, raise `Declined`: the text is sent without it.
        """
        ...

    def rendered(self, markdown: str) -> str | None:
        """Convert Markdown to the platform's format; return None if it accepts only plain text."""
        ...


class Refused(NanoloopError):
    """The token is wrong or lacks a permission; the text says what to do, but not the token."""


class FormatRefused(NanoloopError):
    """The platform does not accept this formatting."""


class TooLong(NanoloopError):
    """The platform does not accept a message of this length."""


class MessageGone(NanoloopError):
    """The message to edit does not exist or can no longer be edited."""


def nobody(_: Heard) -> bool:
    """Reject every sender; the default for `Host.welcomes`."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Gives a platform access to parts of its channel."""

    channel: str = ""
    """The channel's name."""
    welcomes: Callable[[Heard], bool] = nobody
    """Returns whether the sender may talk to the bot or ask for access."""
    say: Say = in_english
    """Looks up a sentence by its name, in the channel's language."""

    def refuse(self, heard: Heard, reason: str) -> None:
        """Log that this sender was refused."""
        announce(
            SenderRefused(channel=self.channel, chat=heard.chat, sender=heard.sender, reason=reason)
        )
