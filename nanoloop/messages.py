"""What crosses the bus: a message that comes in, an answer that goes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Something that came with a message: kept by reference, never by content."""

    kind: str
    """`image`, `audio`, `video` or `file`."""
    ref: str
    """Where it is: a URL, a path or the platform's own id."""
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None
    """Bytes, when known."""
    text: str | None = None
    """What the model is to read of it, where it is a text: kept with the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """One message from one chat."""

    channel: str
    """The channel it came by, and the one its answer leaves by."""
    chat: str
    """The chat within the channel."""
    text: str
    sender: str = ""
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
    edits: str | None = None
    """The id of an earlier message that says `text` now; nothing new is asked."""
    deletes: str | None = None
    """The id of an earlier message that was taken back."""
    burst_seconds: float = 0
    """What else is said within so short a time is answered together with it."""
    steers: bool = False
    """Whether it is told to a turn that is going on, at its next step, instead of waiting."""
    not_before: datetime | None = None
    """When it may be answered at the earliest; until then it waits."""
    account: str = ""
    """Whose share of what can be done at once it takes: a token's, a person's, a group's. Left out,
    its chat's."""
    time: datetime = field(default_factory=_now)

    @property
    def session_key(self) -> str:
        """Whose lane this message waits in."""
        return self.key or f"{self.channel}:{self.chat}"

    @property
    def early_seconds(self) -> float:
        """How long it has to wait before it may be answered."""
        return max(0.0, (self.not_before - _now()).total_seconds()) if self.not_before else 0

    @property
    def owner(self) -> str:
        """Who waits while others have their turn."""
        return self.account or self.session_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """One whole text for one chat."""

    channel: str
    chat: str
    text: str
    kind: Literal["answer", "notice", "error"] = "answer"
    """An answer of the model, a word of the loop itself, or an apology."""
    reply_to: str | None = None
    """The id of the message that this one answers."""
    session_id: str | None = None
    incident: str | None = None
    """Of an apology: the id by which the operator finds out what happened."""
    id: str | None = None
    """Its own name, the same when it is sent again: a platform that knows such shows it once."""


Outcome = Literal["kept", "repeated", "full", "failed"]
"""What became of a message that came in: it is durable or answered, it was so before, or its chat
was told why it was refused: too much waits there, or it could not be kept."""


class Ack(Protocol):
    """Tells the bus that a message is durable elsewhere, or was refused."""

    async def __call__(self, outcome: Outcome = "kept") -> None:
        """It may be forgotten: this became of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message taken from the bus; it is only gone from there once it is acknowledged."""

    message: Inbound
    ack: Ack
    """Call it when the message is durable elsewhere, or was refused and its sender told."""
