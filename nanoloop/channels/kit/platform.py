"""The seam between a chat platform and all that nanoloop does for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol, runtime_checkable

from nanoloop.errors import NanoloopError
from nanoloop.events import SenderRefused, announce


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the platform allows."""

    text: int = 4000
    """How long one message may be, as `size` counts; what `rendered` returns counts too."""
    size: Callable[[str], int] = len
    """How the platform counts: characters, UTF-16 units (`splitting.utf16`), bytes."""
    edit_seconds: float | None = 1.0
    """How long to wait between two edits in a chat; None where messages can't be edited."""
    group_edit_seconds: float | None = None
    """The same where several talk; None where that makes no difference."""
    typing_seconds: float | None = None
    """How long "is typing" is shown for one call of `typing`; None where there is no such."""
    file_bytes: int = 20_000_000
    """How large a file may be that is fetched or sent."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to post: a chat, or a thread in it. `str(place)` is what crosses the bus."""

    chat: str
    thread: str = ""

    def __str__(self) -> str:
        return f"{self.chat} {self.thread}" if self.thread else self.chat

    @classmethod
    def of(cls, text: str) -> Place:
        """The place that `str` has written; a chat's id holds no space."""
        chat, _, thread = text.partition(" ")
        return cls(chat, thread)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Something that came with a message, not fetched yet."""

    kind: Literal["image", "audio", "video", "file"]
    """A voice note is `audio`."""
    fetch: Callable[[], Awaitable[bytes]]
    """Fetches it; the kit calls it once, where the size is right, and survives its failure."""
    name: str = ""
    mime_type: str = ""
    size: int | None = None
    """Bytes, where the platform says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file on its way to a chat."""

    name: str
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One thing that the platform heard: a message, an edit, or a deletion."""

    chat: str
    """The chat's id, as `Place.chat` takes it: no spaces in it."""
    id: str
    """The platform's own id of this message or event: the same one if it is delivered again.

    For an edit that has no id of its own, the message's id with its edit time is one.
    """
    sender: str
    """The id of who said it: what allow-lists name, so nothing that people can choose freely."""
    name: str = ""
    """What people call the sender."""
    roles: tuple[str, ...] = ()
    """Roles or groups of the sender, as allow-lists name them."""
    text: str = ""
    private: bool = True
    """Whether nobody but this person and the bot is in the chat."""
    addressed: bool = False
    """In a group: whether it names the bot, answers one of its messages, or is a command for it."""
    mention: str = ""
    """The very words in `text` that name the bot, such as `<@U12>`: they are taken out."""
    thread: str = ""
    """The thread it was said in; empty in the chat itself."""
    reply_to: str | None = None
    """The id of the message that this one answers."""
    quote: str = ""
    """The words of that message, where the platform gives them."""
    files: tuple[File, ...] = ()
    edits: str | None = None
    """The id of the earlier message that says `text` now; an unchanged text is passed over."""
    deletes: str | None = None
    """The id of the earlier message that was taken back."""
    burst_seconds: float = 0
    """What else is said in its chat within so short a time belongs to it: the rest of an album."""
    is_bot: bool = False
    """Whether a program said it, this bot among them: it is never answered."""
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


class Hear(Protocol):
    """Takes what a platform heard."""

    async def __call__(self, *heard: Heard) -> None:
        """Return once all of it is durable or was refused: only then acknowledge it.

        In one chat the order is that of the calls; different chats don't wait for each other
        within one call. It never raises, but for being cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One message as it is to be posted; it fits `Limits.text`."""

    plain: str
    """As the model wrote it, Markdown included; never empty."""
    formatted: str | None = None
    """In the platform's own form, from `rendered`; None where it is to be sent as plain text."""

    @property
    def best(self) -> str:
        """What to send where the platform takes one form only."""
        return self.plain if self.formatted is None else self.formatted


@runtime_checkable
class Platform(Protocol):
    """A chat platform. `PlatformChannel` makes a channel of it.

    `post`, `edit`, `remove`, `typing` and `upload` are called only after `connected()`, side by
    side for different answers, in order for the parts of one. Besides what `errors.py` names they
    may raise anything: the text is then given up. A network that fails and a rate limit are
    `SendLater`, with the platform's retry-after as its `seconds`.

    One that has a method `meet` is given its `Host` by it, once, before `listen`.
    """

    @property
    def name(self) -> str:
        """What the channel is called in settings, logs and session keys."""
        ...

    @property
    def limits(self) -> Limits:
        """What the platform allows."""
        ...

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Connect, call `connected()`, and hand over what is said until the connection is lost.

        Called again after a rest when it returned or raised, save for `Refused`; a `SendLater`
        says how long to rest. Begins where it stood, where the platform can replay. When it is
        cancelled, it closes what it opened.
        """
        ...

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - what platforms call it
        """Post a message and return its id there.

        `id` stays the same when the same is posted again: for a transaction id or a nonce.
        """
        ...

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Let one of our messages say this; one that says it already is fine."""
        ...

    async def remove(self, place: Place, message: str) -> None:
        """Take one of our messages back; one that is gone is fine."""
        ...

    async def typing(self, place: Place) -> None:
        """Show that an answer is being written, for `Limits.typing_seconds`."""
        ...

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file, shown as an image if it is one, and return the message's id."""
        ...

    def rendered(self, markdown: str) -> str | None:
        """This Markdown in the platform's own form; None where it takes plain text only."""
        ...


class Refused(NanoloopError):
    """A wrong token or a missing right; the text is a sentence with the next step, and no token."""


class FormatRefused(NanoloopError):
    """The platform doesn't take a text that is formatted like this."""


class TooLong(NanoloopError):
    """The platform takes no message of that length."""


class MessageGone(NanoloopError):
    """The message that was to be edited is not there, or may not be edited any more."""


def nobody(_: Heard) -> bool:
    """Whom a platform lets in that was told of no one."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The channel, as its platform sees it."""

    channel: str = ""
    """Its name."""
    welcomes: Callable[[Heard], bool] = nobody
    """Whether who says this may talk, by the rules of this moment, or may ask to."""

    def refuse(self, heard: Heard, reason: str) -> None:
        """Tell that this sender was refused something."""
        announce(
            SenderRefused(channel=self.channel, chat=heard.chat, sender=heard.sender, reason=reason)
        )
