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
    """A call that the model makes."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, as the provider counts them; 0 if it doesn't say."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """The part of `tokens_in` that came from the provider's prefix cache."""

    def __add__(self, other: Usage) -> Usage:
        """Add up two receipts."""
        return Usage(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            tokens_cached=self.tokens_cached + other.tokens_cached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What a model thought, in the form its vendor wants back."""

    vendor: str
    """The only vendor it is sent to."""
    blocks: tuple[Mapping[str, Any], ...]
    """JSON that nothing here examines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model said."""

    text: str = field(default="", kw_only=False)
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    """Reasoning text, if the model shows it."""
    finish_reason: FinishReason = "stop"
    """Why the answer ended; `length` means it was cut off."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    reasoning: Reasoning | None = None
    """Sent back to the vendor with the results of these tool calls, if it wants that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """How the model sees a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON schema of type object."""


OnText = Callable[[str], None]
"""Called with each piece of an answer as it comes; it never blocks."""


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
        """Answer; with `on_text` the text also comes in pieces. Raises `ProviderError` only."""
        ...

    async def close(self) -> None:
        """Close connections; closing twice is fine."""
        ...


def vendor_of(provider: Provider, model: str | None) -> str:
    """The vendor whose reasoning the provider takes back for that model; "" for none."""
    said: Callable[[str | None], str] | None = getattr(provider, "vendor_of", None)
    return "" if said is None else said(model)


def in_background(provider: Provider) -> Provider:
    """The provider for work that can wait, if it makes a difference."""
    apart = getattr(provider, "in_background", None)
    return provider if apart is None else apart()


Effect = Literal["reads", "writes"]


@runtime_checkable
class Tool(Protocol):
    """Something the model may call.

    It may also have `effect` (of the type `Effect`), `repeatable` and `timeout_seconds`, as `@tool`
    takes them. Without an effect it counts as writing.
    """

    @property
    def spec(self) -> ToolSpec:
        """What the model sees; the same bytes every time."""
        ...

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run with arguments decoded from JSON; any exception is reported to the model."""
        ...


def effect_of(tool: Tool) -> Effect:
    """The effect that the tool declares; anything other than "reads" counts as "writes"."""
    return "reads" if getattr(tool, "effect", "writes") == "reads" else "writes"


def is_repeatable(tool: Tool) -> bool:
    """Whether equal calls should each run."""
    return bool(getattr(tool, "repeatable", False))


ARCHIVED = "archived"
"""The key of a session's metadata that says it is archived."""
LOGINS = "web.logins"
"""The session whose metadata keeps the logins to the page: every store can do that."""


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
    """Entries that have left the window but are not in a summary yet."""
    size: int
    """Bytes the session takes in the store."""
    archived: bool = False
    """Whether it is archived: kept, but shown only on request."""
    waiting: int = 0
    """Messages that are stored and wait for their turn."""
    unsent: int = 0
    """Answers that may not have arrived in their chat."""
    erasures: int = 0
    """How many times entries of it were erased."""
    tokens_in: int = 0
    """The tokens of all its turns so far; summaries have receipts of their own."""
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedSession:
    """A session that owes something, from a store's index."""

    id: str
    revision: int
    """How many commits it has seen."""
    by: str
    """The process that answers there; "" for none."""
    erasing: bool = True
    """Whether copies of what was erased in it may be left: False only if the index tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process that answers chats, as a store knows it."""

    id: str
    place: str = ""
    """Where its number is valid: the machine, and its process namespace."""
    pid: int = 0
    holds: frozenset[str] = frozenset()
    """The accounts on chat platforms that no other process may use meanwhile."""
    age: float = 0.0
    """Seconds since its last heartbeat, by the store's own clock."""


class Seal(Protocol):
    """Encrypts each stored text for its place: it can't be opened anywhere else."""

    names: tuple[str, ...]
    """What its keys are called where they must not be shown; the first one seals."""

    def seal(self, data: bytes, place: bytes) -> str:
        """These bytes as an encrypted text, which begins with a mark and the key's name."""
        ...

    def open(self, text: str, place: bytes) -> bytes:
        """The bytes again; raises ValueError if no key fits, or it was sealed for another place."""
        ...

    def open_former(self, text: str) -> bytes:
        """What an earlier version encrypted, for no place; raises ValueError if no key fits."""
        ...


class Store(Protocol):
    """Keeps sessions durably. Only additions are written, and the head is committed with them."""

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
        """Create a session, durable when this returns; raises `SessionExists` unless `replace`.

        Without an id it gets one from `new_id`, with -01, -02 … appended if that is taken.
        """
        ...

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Make a session that was created elsewhere durable here; raises like `create`."""
        ...

    async def get(self, session_id: str) -> Session:
        """The session with its whole history; raises `SessionNotFound`, also if it expired."""
        ...

    async def load(self, session_id: str) -> Session:
        """The session with its window only, at a cost independent of history; raises like `get`."""
        ...

    async def save(self, session: Session) -> None:
        """Make everything new in it durable at once, or nothing.

        Changes between two awaits are in one commit, or in none. Raises `SessionNotFound` after a
        delete or expiry (nothing is revived) and `StoreConflict` if another writer was first.
        """
        ...

    async def revision(self, session_id: str) -> int:
        """How many commits it has seen; raises like `get`."""
        ...

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    def list(self) -> AsyncIterator[SessionInfo]:
        """Every session that has not expired, the most recently active first."""
        ...

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Save the session with nothing left of these entries, in it or in the store.

        They keep their numbers. Raises like `save`; the object must not be used after that.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Delete it for good; a missing one is fine."""
        ...

    async def delete_expired(self) -> int:
        """Delete what has expired; returns how many sessions. Message ids last for 72 hours."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session; durable when this returns."""
        ...

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Whether a commit within at least the last 72 hours took a message with this id there."""
        ...

    def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Sessions with an unanswered question, a waiting message, or an unsent answer.

        Also those whose erased entries may still be in an index.

        With `pending` also those whose summary is behind. The cost does not grow with the sessions
        that owe nothing.
        """
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """Note that this process is alive; returns all recent ones, with their ages.

        Of the accounts it wants to hold, it gets those that no other living process holds, in one
        step.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is fine."""
        ...

    async def close(self) -> None:
        """Close files and connections; closing twice is fine."""
        ...


class Channel(Protocol):
    """Connects chats. It knows the bus and nothing else.

    If it has a method `take_no_more`, that is called when it should acknowledge no more messages,
    and it continues sending until the loop has ended; any other channel is cancelled. If it has a
    method `bind`, that listens before anything has started, and returns the address; it raises
    `SettingsError` if that is not possible.
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
        """Put incoming messages on the bus, until cancelled or the other side has left."""
        ...

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Send one item to its chat; calls for one chat come one at a time, in order.

        Raises `SendLater` if it should be retried, and anything else if not. A channel that has
        `confirms = True` returns only when the text has really arrived.
        """
        ...


class Bus(Protocol):
    """Between channels and the loop. Nothing here waits for a model."""

    def put_nowait(self, message: Inbound) -> None:
        """Accept a message; raises `BusFull` if it was not accepted."""
        ...

    async def put(self, message: Inbound) -> None:
        """Accept a message as soon as there is room."""
        ...

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Messages to answer, each gone only when acknowledged; ends when the bus is closed."""
        ...

    async def hand_in(self, message: Inbound) -> Outcome:
        """Accept a message, and return what became of it; raises like `put_nowait`.

        If the caller is cancelled before that, the message stays in the bus and is stored as soon
        as possible.
        """
        ...

    async def publish(
        self,
        message: Outbound,
        *,
        arrived: Callable[[], Awaitable[None]] | None = None,
        may_go: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Send a text to its chat; waits only while that chat has too many unsent texts.

        `arrived` is called once it has arrived, or never will; it must not raise.
        """
        ...

    def publish_nowait(self, piece: TextStreamed) -> None:
        """Send a piece of an answer, or drop it if there is no room."""
        ...

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the attached channels."""
        ...

    @property
    def states(self) -> Mapping[str, str]:
        """The state of each attached channel that has a `state`."""
        ...

    def attach(self, channel: Channel) -> None:
        """From now on this channel serves its chats."""
        ...

    def streams(self, channel: str) -> bool:
        """Whether that channel wants pieces of answers."""
        ...

    def confirms(self, channel: str) -> bool:
        """Whether that channel reports what has arrived: until then an answer is owed."""
        ...

    async def __aenter__(self) -> Self:
        """Begin to deliver outgoing texts."""
        ...

    async def __aexit__(self, *exc: object) -> bool | None:
        """Stop delivering; unsent texts stay unsent (`flush` first)."""
        ...

    def close(self) -> None:
        """Accept nothing more; `deliveries` ends once it is empty."""
        ...

    async def flush(self) -> None:
        """Wait until everything published has been sent or given up."""
        ...
