"""What crosses the bus: an incoming message, an outgoing answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol

Language = Literal["en", "de", "es", "fr", "ja", "zh"]
"""The languages that have a table of sentences."""


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with a message: stored by reference, never by content."""

    kind: str
    """`image`, `audio`, `video` or `file`."""
    ref: str
    """Its place: a URL, a path or the platform's own id."""
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None
    """Bytes, when known."""
    text: str | None = None
    """What the model reads of it, if it is a text: stored with the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Someone who said something."""

    name: str = ""
    """The name that others see; anyone may choose any name."""
    id: str = ""
    """The platform's own id, which nobody can choose freely: it alone tells people apart."""
    platform: str = ""
    """Where that id is from; by default the channel."""
    is_me: bool = False
    """Whether it is the bot itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What someone else said, in a message of its sender."""

    text: str
    speaker: Speaker | None = None
    """Who said it, if the platform says so."""
    kind: Literal["quote", "forward", "overheard"] = "quote"
    """Quoted or forwarded by the sender, or said in the same chat before."""
    files: tuple[str, ...] = ()
    """The kinds of the files that came with it, which are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """One message from one chat."""

    channel: str
    """The channel that it came from and its answer goes to."""
    chat: str
    """The chat within the channel."""
    text: str
    """What the sender typed, and nothing else."""
    sender: str = ""
    """The sender's name."""
    speaker: Speaker | None = None
    """The sender, for a channel that tells people apart by an id."""
    quotes: tuple[Quote, ...] = ()
    """What others said in it or before it, oldest first."""
    message_id: str | None = None
    """The channel's own id: the same id in the same session is answered once."""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    """The id of the message that this one answers."""
    origin: Literal["user", "system"] = "user"
    """`system`: a background job reports back; stored as a user turn marked with its sender."""
    group: bool = False
    """Whether several people talk in this chat: the model is then told who said what."""
    key: str | None = None
    """The lane and session to use instead of channel and chat."""
    agent: str | None = None
    """The agent for a session that has none yet."""
    agents: tuple[str, ...] | None = None
    """The agents that its sender may choose: any by default, with () only the loop's default."""
    language: Language | None = None
    """The language of what the loop tells this chat, if its agent has none."""
    edits: str | None = None
    """The id of an earlier message whose text is now `text`; nothing new is asked."""
    deletes: str | None = None
    """The id of an earlier message that was deleted."""
    again: bool = False
    """Whether it asks the previous message again: that exchange is taken back as this one begins,
    and if this message has no words, it has those of the previous one."""
    burst_seconds: float = 0
    """Other messages within this time are answered together with it."""
    steers: bool = False
    """Whether it is added to a turn in progress, at its next step, instead of waiting."""
    not_before: datetime | None = None
    """The earliest time at which it may be answered; until then it waits."""
    account: str = ""
    """The owner whose share it uses: a token's, a person's, a group's. By default, its chat's."""
    time: datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        # Here, where the sender of a wrong one hears of it: the loop serves all the others too.
        if not isinstance(self.text, str):
            raise TypeError(f"a message's text is {type(self.text).__name__}: pass a str")

    @property
    def session_key(self) -> str:
        """The key of the lane that this message waits in."""
        return self.key or f"{self.channel}:{self.chat}"

    @property
    def early_seconds(self) -> float:
        """How long it must wait before it may be answered."""
        return max(0.0, (self.not_before - _now()).total_seconds()) if self.not_before else 0

    @property
    def owner(self) -> str:
        """The owner that waits while others have their turn."""
        return self.account or self.session_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """One whole text for one chat."""

    channel: str
    chat: str
    text: str
    kind: Literal["answer", "notice", "error"] = "answer"
    """An answer of the model, a notice of the loop, or an apology."""
    reply_to: str | None = None
    """The id of the message that this one answers."""
    session_id: str | None = None
    incident: str | None = None
    """For an apology, the id by which the operator finds out what happened."""
    id: str | None = None
    """Its own name, unchanged on a repeat: platforms with such ids show it only once."""


Outcome = Literal["kept", "repeated", "full", "failed"]
"""What became of an incoming message.

It is durable or answered, it already was, or its chat was told why it was refused: too much is
waiting there, or it could not be stored.
"""


class Ack(Protocol):
    """Tells the bus that a message is durable elsewhere, or was refused."""

    async def __call__(self, outcome: Outcome = "kept") -> None:
        """Let the bus forget the message, which had this outcome."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message taken from the bus; it leaves the bus only when it is acknowledged."""

    message: Inbound
    ack: Ack
    """Call it when the message is durable elsewhere, or was refused and its sender told."""
