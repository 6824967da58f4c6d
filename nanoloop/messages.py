"""The messages that cross the bus: incoming messages and outgoing answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal, Protocol

Language = Literal["en", "de", "es", "fr", "ja", "zh"]
"""The languages that have a table of sentences."""


Rank = Literal["user", "operator", "owner"]
"""The settings name the operators; the owner works on the machine that the bot runs on."""


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that was sent with a message or an answer, given as a reference, not as content."""

    kind: str
    """`image`, `audio`, `video` or `file`."""
    ref: str
    """The file's location: a URL, a path or the platform's own id."""
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None
    """The size in bytes, if known."""
    text: str | None = None
    """The file's text for the model, if it is a text file; stored with the message."""
    chars: int | None = None
    """How many characters the file has, if `text` has only some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A person or bot that said something."""

    name: str = ""
    """The displayed name, which anyone may choose freely."""
    id: str = ""
    """The platform's id. Only this identifies a person, because nobody can choose it freely."""
    platform: str = ""
    """The platform that the id belongs to; by default the channel."""
    is_me: bool = False
    """True if the speaker is the bot itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Another person's words inside a message."""

    text: str
    speaker: Speaker | None = None
    """The quoted person, if the platform names one."""
    kind: Literal["quote", "forward", "overheard"] = "quote"
    """Whether the words were quoted, forwarded, or said earlier in the same chat."""
    files: tuple[str, ...] = ()
    """The kinds of files that were attached to the quote; the files are not stored."""
    time: datetime | None = None
    """When the quoted words were said, if known and different from the time of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A message from a chat."""

    channel: str
    """The channel that the message came from, which also gets the answer."""
    chat: str
    """The chat within the channel."""
    text: str
    """What the sender typed, and nothing else."""
    sender: str = ""
    """The sender's name."""
    speaker: Speaker | None = None
    """The sender, in channels that identify people by an id."""
    quotes: tuple[Quote, ...] = ()
    """Other people's words quoted in the message or said before it, oldest first."""
    message_id: str | None = None
    """The channel's id for the message; the same id in the same session is answered once."""
    attachments: tuple[Attachment, ...] = ()
    reply_to: str | None = None
    """The id of the message that this one replies to."""
    origin: Literal["user", "system"] = "user"
    """`system` marks a report from a background job, stored as a user turn with its sender."""
    group: bool = False
    """True if several people talk in the chat; the model is then told who said what."""
    key: str | None = None
    """The key of the lane and session; by default, it consists of channel and chat."""
    agent: str | None = None
    """The agent for a session that has none yet."""
    agents: tuple[str, ...] | None = None
    """The agents that the sender may choose: None means any, () only the default agent."""
    language: Language | None = None
    """The language of the loop's own messages to this chat, if the agent has none."""
    edits: str | None = None
    """The id of an earlier message whose text is now `text`; no new question is asked."""
    deletes: str | None = None
    """The id of an earlier message that was deleted."""
    again: bool = False
    """Ask the previous question again. The earlier exchange is undone when this one begins; a
    message without text reuses the previous question's text.
    """
    burst_seconds: float = 0
    """Other messages that arrive within this time are answered together with this one."""
    steers: bool = False
    """Add the message to a turn in progress at the next step, instead of letting it wait."""
    not_before: datetime | None = None
    """The earliest time at which the message may be answered."""
    rank: Rank = "user"
    """The sender's rights over the bot, as far as the channel knows them."""
    account: str = ""
    """Whose share the message uses, such as a token, person or group; by default, the chat's."""
    time: datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        # Checked here, so that the sender gets the error; the loop has everyone else to serve.
        if not isinstance(self.text, str):
            raise TypeError(f"a message's text is {type(self.text).__name__}: pass a str")

    @property
    def session_key(self) -> str:
        """The key of the message's lane."""
        return self.key or f"{self.channel}:{self.chat}"

    @property
    def early_seconds(self) -> float:
        """The seconds left until the message may be answered."""
        return max(0.0, (self.not_before - _now()).total_seconds()) if self.not_before else 0

    @property
    def owner(self) -> str:
        """The owner that the message counts against, so that capacity is shared fairly."""
        return self.account or self.session_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An answer that a person can choose, shown as a button where the platform has buttons."""

    label: str
    """The text on the button."""
    text: str
    """The message that choosing it sends, in the person's name."""
    is_only: bool = False
    """True if the question asks nothing else, so that a reply of one word means this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """A complete text for one chat."""

    channel: str
    chat: str
    text: str
    kind: Literal["answer", "notice", "error"] = "answer"
    """An answer from the model, a notice from the loop, or an apology."""
    reply_to: str | None = None
    """The id of the message that this text replies to."""
    session_id: str | None = None
    incident: str | None = None
    """The id under which the operator finds the failure that an apology reports."""
    attachments: tuple[Attachment, ...] = ()
    """The files that belong to an answer, in order; its text doesn't name them."""
    id: str | None = None
    """The text's id, the same if it is sent again; some platforms then show it only once."""
    choices: tuple[Choice, ...] = ()
    """The answers to choose from, if the text is a question about a tool call."""


Outcome = Literal["kept", "repeated", "full", "failed"]
"""The outcome of an incoming message.

"kept": durable or answered. "repeated": already accepted before. "full" and "failed": the chat was
told that too many messages are waiting, or that storing failed.
"""


class Ack(Protocol):
    """A callback that tells the bus that a message is durable elsewhere, or was refused."""

    async def __call__(self, outcome: Outcome = "kept") -> None:
        """Tell the bus the outcome, so that it can drop the message."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message taken from the bus, which keeps it until it is acknowledged."""

    message: Inbound
    ack: Ack
    """Call this once the message is durable elsewhere, or was refused and the sender told."""
