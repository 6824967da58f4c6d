"""The seams: what a provider, a tool, a store, a channel and a bus promise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from nanoloop.events import TextStreamed
    from nanoloop.messages import Delivery, Inbound, Outbound, Outcome
    from nanoloop.session.entry import Entry
    from nanoloop.session.session import Session

ChatMessage = Mapping[str, Any]
"""One message of the OpenAI chat form: role, content, tool_calls, tool_call_id."""


FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What the model asks a tool for."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it; it may be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, as the provider counts them; 0 when it doesn't say."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """The part of `tokens_in` that came from the provider's prefix cache."""

    def __add__(self, other: Usage) -> Usage:
        """Add two receipts up."""
        return Usage(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            tokens_cached=self.tokens_cached + other.tokens_cached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What a model thought, in the form in which its vendor wants it back."""

    vendor: str
    """Nobody else is sent it."""
    blocks: tuple[Mapping[str, Any], ...]
    """JSON that nothing here looks into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model said."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    """Reasoning text, where the model shows it."""
    finish_reason: FinishReason = "stop"
    """Why it ended there; `length`: it was cut off."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    reasoning: Reasoning | None = None
    """What goes back to the vendor with the results of these tool calls, where it wants that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the model is told of a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON schema of type object."""


OnText = Callable[[str], None]
"""Hears each piece of an answer as it comes; it never waits."""


@runtime_checkable
class Provider(Protocol):
    """A model that answers."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer; with `on_text` the text comes in pieces too. Raises `ProviderError` only."""
        ...

    async def close(self) -> None:
        """Let go of connections; closing twice is fine."""
        ...


def vendor_of(provider: Provider, model: str | None) -> str:
    """Whose reasoning it takes back for that model, by its method of this name; "" for nobody's."""
    said: Callable[[str | None], str] | None = getattr(provider, "vendor_of", None)
    return "" if said is None else said(model)


Effect = Literal["reads", "writes"]


@runtime_checkable
class Tool(Protocol):
    """Something the model may call.

    It may have `effect` (of the type `Effect`), `repeatable` and `timeout_seconds` too, as `@tool`
    takes them. One that says nothing of its effect writes.
    """

    @property
    def spec(self) -> ToolSpec:
        """What the model is told; the same bytes every time."""
        ...

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run with arguments decoded from JSON; any exception is told to the model."""
        ...


def effect_of(tool: Tool) -> Effect:
    """What it says that its calls do; anything but "reads" is "writes"."""
    return "reads" if getattr(tool, "effect", "writes") == "reads" else "writes"


def is_repeatable(tool: Tool) -> bool:
    """Whether it says that equal calls are meant to run each."""
    return bool(getattr(tool, "repeatable", False))


ARCHIVED = "archived"
"""The key of a session's metadata that says it was put away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session at a glance, read without its history."""

    id: str
    key: str | None
    title: str
    agent: str | None
    entries: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    awaiting: int
    """The seq of a user's message that has no answer yet, or 0."""
    pending: int
    """Entries that left the window and no summary covers yet."""
    size: int
    """Bytes the session takes in the store."""
    archived: bool = False
    """Whether it was put away: kept, and shown only to who asks for it."""
    waiting: int = 0
    """Messages that were kept before their turn and wait for it."""
    unsent: int = 0
    """Answers that may not have arrived in their chat."""
    tokens_in: int = 0
    """What all its turns have taken so far; summaries have receipts of their own."""
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedSession:
    """A session in which something is owed, as a store's index has it."""

    id: str
    revision: int
    """How many commits it has seen."""
    by: str
    """The process that answers there; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process that answers chats, as a store knows it."""

    id: str
    place: str = ""
    """Where its number means something: the machine, and what it counts processes in."""
    pid: int = 0
    holds: frozenset[str] = frozenset()
    """The accounts at chat platforms that no other may use meanwhile."""
    age: float = 0.0
    """Seconds since it was last heard of, by the store's own clock."""


class Seal(Protocol):
    """What makes stored text unreadable for whoever has no key."""

    def seal(self, data: bytes) -> str:
        """These bytes as a text that says nothing without a key."""
        ...

    def open(self, text: str) -> bytes:
        """The bytes again; raises ValueError where no key fits."""
        ...


class Store(Protocol):
    """Where sessions last. Only additions are written, and the head is committed with them."""

    async def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the seeds' name for it
        key: str | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        replace: bool = False,
        new_id: Callable[[], str] = ...,
    ) -> Session:
        """Make a session, durable when this returns; raises `SessionExists` unless `replace`.

        Without an id it has one that `new_id` makes, with -01, -02 … behind it if that is taken.
        """
        ...

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Make a session that was made elsewhere durable here; raises as `create`."""
        ...

    async def get(self, session_id: str) -> Session:
        """The session with its whole history; raises `SessionNotFound`, also when it expired."""
        ...

    async def load(self, session_id: str) -> Session:
        """The session with its window only, at a cost that history doesn't raise; as `get`."""
        ...

    async def save(self, session: Session) -> None:
        """Make all that is new in it durable at once, or nothing.

        What is changed between two awaits is in one commit, or in none. Raises `SessionNotFound`
        after a delete or expiry (nothing is revived) and `StoreConflict` when another writer was
        first.
        """
        ...

    async def revision(self, session_id: str) -> int:
        """How many commits it has seen; raises as `get`."""
        ...

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    def list(self) -> AsyncIterator[SessionInfo]:
        """Every session that has not expired, the last active first."""
        ...

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Save the session with nothing left of these entries, in it or in what is stored.

        They keep their numbers. Raises as `save`, and the object is of no more use then.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Remove it for good; a missing one is fine."""
        ...

    async def delete_expired(self) -> int:
        """Remove what expired; returns how many sessions. Ids of messages last for 72 hours."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session; durable when this returns."""
        ...

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Whether a commit of the last 72 hours, at least, took a message of this id there."""
        ...

    def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Each in which a question has no answer, something waits, or an answer isn't sent.

        With `pending` also those whose summary is behind. What it costs doesn't grow with the
        sessions that owe nothing.
        """
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """Note that this process lives; returns all that were heard of lately, with their ages.

        Of what it wants to hold it gets what no other living one holds, in one step.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is fine."""
        ...

    async def close(self) -> None:
        """Let go of files and connections; closing twice is fine."""
        ...


class Channel(Protocol):
    """A way in and out for chats. It knows the bus and nothing else.

    One that has a method `take_no_more` is told by it to acknowledge nothing that comes in from
    now on, and then goes on sending until the loop has ended; any other is cancelled. One that
    has a method `bind` listens from there on, before anything has begun, and says where; it raises
    `SettingsError` where that can't be.
    """

    @property
    def name(self) -> str:
        """What `Inbound.channel` says."""
        ...

    @property
    def streams(self) -> bool:
        """Whether `send` wants pieces of an answer before the whole."""
        ...

    async def run(self, bus: Bus) -> None:
        """Put what comes in on the bus, until cancelled or the other side has left."""
        ...

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Bring one item to its chat; calls for one chat come one at a time, in order.

        Raises `SendLater` for what is worth another try, and anything else for what is not. A
        channel that has `confirms = True` returns only when the text is really there.
        """
        ...


class Bus(Protocol):
    """Between channels and the loop. Nothing here waits for a model."""

    def put_nowait(self, message: Inbound) -> None:
        """Take a message in; raises `BusFull` when it was not taken."""
        ...

    async def put(self, message: Inbound) -> None:
        """Take a message in as soon as there is room."""
        ...

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Messages to answer, each gone only when acknowledged; ends when the bus is closed."""
        ...

    async def hand_in(self, message: Inbound) -> Outcome:
        """Take a message in, and return what became of it; as `put_nowait`.

        Left before that, the message stays in the bus, and is kept as soon as it can be.
        """
        ...

    async def publish(
        self,
        message: Outbound,
        *,
        arrived: Callable[[], Awaitable[None]] | None = None,
        may_go: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Send a text to its chat; waits only while that same chat has too many unsent.

        `arrived` is called once it is there, or can never be; it must not raise.
        """
        ...

    def publish_nowait(self, piece: TextStreamed) -> None:
        """Send a piece of an answer, or drop it where there is no room."""
        ...

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels that are attached."""
        ...

    @property
    def states(self) -> Mapping[str, str]:
        """How each attached channel stands, of those that can tell by a `state`."""
        ...

    def attach(self, channel: Channel) -> None:
        """From now on that channel's chats are served by it."""
        ...

    def streams(self, channel: str) -> bool:
        """Whether that channel wants pieces."""
        ...

    def confirms(self, channel: str) -> bool:
        """Whether that channel knows what has arrived: until then an answer is owed."""
        ...

    async def __aenter__(self) -> Self:
        """Begin to carry what goes out."""
        ...

    async def __aexit__(self, *exc: object) -> bool | None:
        """Stop carrying; what is unsent then stays unsent (`flush` first)."""
        ...

    def close(self) -> None:
        """Take nothing more in; `deliveries` ends once it is empty."""
        ...

    async def flush(self) -> None:
        """Wait until everything published has been sent or given up."""
        ...
