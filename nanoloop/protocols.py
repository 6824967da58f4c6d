"""The seams: the contracts for providers, tools, stores, channels and the bus."""

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
"""A message in OpenAI's chat format: role, content, tool_calls, tool_call_id."""


FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call made by the model."""

    id: str
    name: str
    arguments: str
    """The JSON text from the model, which may be invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the provider reports them; 0 if unknown."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """How many of `tokens_in` were read from the provider's prefix cache."""

    def __add__(self, other: Usage) -> Usage:
        """Add two counts."""
        return Usage(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            tokens_cached=self.tokens_cached + other.tokens_cached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """A model's reasoning, in the form that its vendor expects back."""

    vendor: str
    """The only vendor that receives this reasoning."""
    blocks: tuple[Mapping[str, Any], ...]
    """JSON data that nanoloop passes on without reading it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's reply to one request."""

    text: str = field(default="", kw_only=False)
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    """The reasoning text, if the model reveals it."""
    finish_reason: FinishReason = "stop"
    """Why the reply ended; `length` means that it was cut off."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    reasoning: Reasoning | None = None
    """Reasoning to send back with the results of these tool calls, if the vendor expects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool's description for the model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON schema of type object."""


OnText = Callable[[str], None]
"""Called with each piece of an answer as it arrives; it must not block."""


@runtime_checkable
class Provider(Protocol):
    """A source of model answers."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Return the reply; `on_text` gets it in pieces too. Raise only `ProviderError`."""
        ...

    async def close(self) -> None:
        """Close all connections; closing twice is allowed."""
        ...


def vendor_of(provider: Provider, model: str | None) -> str:
    """Return the vendor that gets the model's reasoning back; "" if there is none."""
    said: Callable[[str | None], str] | None = getattr(provider, "vendor_of", None)
    return "" if said is None else said(model)


def in_background(provider: Provider) -> Provider:
    """Return the provider's variant for work that can wait, or the provider itself."""
    apart = getattr(provider, "in_background", None)
    return provider if apart is None else apart()


Effect = Literal["reads", "writes"]


@runtime_checkable
class Tool(Protocol):
    """A function that the model may call.

    A tool may also have the attributes `effect` (an `Effect`), `approve` (an `Approve`),
    `repeatable`, `idempotent`, `settle` and `timeout_seconds`, as in `@tool`. A tool without an
    effect counts as writing. A method `check(arguments)` may raise `ToolError` before anyone is
    asked to approve the call.
    """

    @property
    def spec(self) -> ToolSpec:
        """The description for the model, which is always the same, byte for byte."""
        ...

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run the tool with arguments decoded from JSON; exceptions are reported to the model."""
        ...


def effect_of(tool: Tool) -> Effect:
    """Return the effect that the tool declares; anything but "reads" counts as "writes"."""
    return "reads" if getattr(tool, "effect", "writes") == "reads" else "writes"


Approve = Literal["never", "writes", "always"]
"""Which calls a person has to approve before they run."""


def approve_of(tool: Tool) -> Approve:
    """Return which calls of the tool need approval, whatever the settings say."""
    said = getattr(tool, "approve", None)
    return said if said in {"writes", "always"} else "never"


def is_repeatable(tool: Tool) -> bool:
    """Return True if a repeated call with the same arguments should run again."""
    return bool(getattr(tool, "repeatable", False))


Settle = Callable[[str], Any]
"""Finds out whether the call with this id took effect, as in `@tool`."""


def runs_again(tool: Tool) -> bool:
    """Return True if it is safe to run an interrupted call again."""
    return effect_of(tool) == "reads" or bool(getattr(tool, "idempotent", False))


def settle_of(tool: Tool) -> Settle | None:
    """Return the tool's `settle`, or None if the tool has none or doesn't need one."""
    settle: Settle | None = getattr(tool, "settle", None)
    return None if runs_again(tool) else settle


ARCHIVED = "archived"
"""The metadata key that marks a session as archived."""
LOGINS = "web.logins"
"""The session whose metadata holds the web page's logins, so that every store can keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session's overview, read without its history."""

    id: str
    key: str | None
    title: str
    agent: str | None
    entries: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    awaiting: int
    """The number of a user message that has no answer yet, or 0."""
    pending: int
    """How many entries have left the window but are not in the summary yet."""
    size: int
    """The session's size in the store, in bytes."""
    archived: bool = False
    """True if the session is archived: kept, but shown only on request."""
    waiting: int = 0
    """How many stored messages wait for their turn."""
    unsent: int = 0
    """The number of answers that might not have reached their chat."""
    erasures: int = 0
    """How many times entries of the session were erased."""
    tokens_in: int = 0
    """The tokens of all turns so far; tokens for summaries are counted separately."""
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedSession:
    """A session with pending work, as a store's index lists it."""

    id: str
    revision: int
    """How many times the session was committed."""
    by: str
    """The process that answers in the session, or ""."""
    erasing: bool = True
    """False only if the index shows that no copies of erased entries are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process that answers chats, as a store knows it."""

    id: str
    place: str = ""
    """The scope in which the process id is valid: the machine and its process namespace."""
    pid: int = 0
    holds: frozenset[str] = frozenset()
    """The chat platform accounts that only this process may use now."""
    age: float = 0.0
    """Seconds since the last heartbeat, by the store's own clock."""


class Seal(Protocol):
    """Encrypts each stored text for its place, so that it can't be decrypted in any other place."""

    names: tuple[str, ...]
    """Public names for the keys, safe to show; the first key encrypts."""

    def seal(self, data: bytes, place: bytes) -> str:
        """Encrypt these bytes into a text that begins with a mark and the key's name."""
        ...

    def open(self, text: str, place: bytes) -> bytes:
        """Decrypt text; raise ValueError if no key fits or the text belongs to another place."""
        ...

    def open_former(self, text: str) -> bytes:
        """Decrypt text from a version without places; raise ValueError if no key fits."""
        ...


class Store(Protocol):
    """Keeps sessions durably; writes only new data, in one commit with the session's head."""

    async def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the original API's name
        key: str | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        replace: bool = False,
        new_id: Callable[[], str] = ...,
    ) -> Session:
        """Create a durable session; raise `SessionExists` if the id is taken, unless `replace`.

        Without an id, `new_id` supplies one, with -01, -02 … appended if it is taken.
        """
        ...

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Make a session created elsewhere durable in this store; same errors as `create`."""
        ...

    async def get(self, session_id: str) -> Session:
        """Return a session with its history; raise `SessionNotFound`, also if it expired."""
        ...

    async def load(self, session_id: str) -> Session:
        """Return a session with only its window, however long its history; same errors as `get`."""
        ...

    async def save(self, session: Session) -> None:
        """Make all changes to the session durable together, or none of them.

        All changes between two awaits belong to one commit. Raise `SessionNotFound` after a delete
        or expiry, since a save never creates a session again, and `StoreConflict` if another writer
        was first.
        """
        ...

    async def revision(self, session_id: str) -> int:
        """Return how many times the session was committed; same errors as `get`."""
        ...

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    def list(self) -> AsyncIterator[SessionInfo]:
        """Yield every session that has not expired, the most recently active first."""
        ...

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Save the session and remove all content of these entries from the session and the store.

        The entries keep their numbers. Raise the same errors as `save`; don't use the object
        afterwards.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Delete a session permanently; a missing session is ignored."""
        ...

    async def delete_expired(self) -> int:
        """Delete expired sessions and return how many; message ids expire after 72 hours."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """Bind this key to a session; the binding is durable on return."""
        ...

    async def bound(self, key: str) -> str | None:
        """Return the id of the session bound to this key, or None."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Return True if the chat received a message with this id within the last 72 hours."""
        ...

    def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Yield the sessions with pending work, at a cost independent of all other sessions.

        Pending work is an unanswered question, a waiting message, an unsent answer or erased
        entries that may still be indexed; with `pending`, also an outdated summary.
        """
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """Record that this process is alive, and return all recent processes with their ages.

        In the same step, the process gets each account in `holds` that no other living process has.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is ignored."""
        ...

    async def close(self) -> None:
        """Close files and connections; closing twice is allowed."""
        ...


class Channel(Protocol):
    """A connection to chats, which knows only the bus.

    If a channel has a method `take_no_more`, a shutdown calls it to stop new messages, and the
    channel keeps sending until the loop has ended; other channels are cancelled. If it has a method
    `bind`, that method starts listening before everything else and returns the address, or raises
    `SettingsError`.
    """

    @property
    def name(self) -> str:
        """The value of `Inbound.channel` in this channel's messages."""
        ...

    @property
    def streams(self) -> bool:
        """True if `send` also wants pieces of an answer before the whole answer."""
        ...

    async def run(self, bus: Bus) -> None:
        """Put incoming messages on the bus, until cancelled or disconnected."""
        ...

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Send one item to its chat; calls for the same chat arrive in order, one at a time.

        Raise `SendLater` to have the item sent again, and any other error to give up. A channel
        with `confirms = True` returns only once the text has really arrived.
        """
        ...


class Bus(Protocol):
    """The bus between channels and the loop. No method waits for a model."""

    def put_nowait(self, message: Inbound) -> None:
        """Accept a message, or raise `BusFull`."""
        ...

    async def put(self, message: Inbound) -> None:
        """Accept a message as soon as there is room."""
        ...

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Yield the messages to answer until the bus is closed; each stays until acknowledged."""
        ...

    async def hand_in(self, message: Inbound) -> Outcome:
        """Accept a message and return its outcome; same errors as `put_nowait`.

        If the caller is cancelled while waiting, the message stays in the bus and is still stored.
        """
        ...

    async def publish(
        self,
        message: Outbound,
        *,
        arrived: Callable[[], Awaitable[None]] | None = None,
        may_go: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Queue a text for its chat, waiting only while too many of the chat's texts are unsent.

        `may_go` is called before each attempt; if it returns False, the text is dropped. `arrived`
        is called once the text has arrived or has failed permanently, and must not raise.
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
        """Serve this channel's chats from now on."""
        ...

    def streams(self, channel: str) -> bool:
        """Return True if the channel wants answers in pieces."""
        ...

    def confirms(self, channel: str) -> bool:
        """Return True if the channel confirms delivery; until then, an answer is pending."""
        ...

    async def __aenter__(self) -> Self:
        """Start delivering outgoing texts."""
        ...

    async def __aexit__(self, *exc: object) -> bool | None:
        """Stop delivering; unsent texts stay unsent (call `flush` first)."""
        ...

    def close(self) -> None:
        """Accept no more messages; `deliveries` ends once all have been taken."""
        ...

    async def flush(self) -> None:
        """Wait until everything published has been sent or has failed."""
        ...
