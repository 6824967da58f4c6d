"""The events that nanoloop announces: a closed set, each with a log line and a metric.

Events carry ids and numbers and never message text, except for one that is not logged. The context
(`about`) supplies an event's session and turn; an event only names a session if it is a different
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import EllipsisType
from typing import ClassVar, Literal

from nanoloop.errors import place_of

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. The event's log name is its class name in snake case."""

    level: ClassVar[Level] = "info"
    logged: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """Return the name in logs: `TurnFinished` is logged as `turn_finished`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


Observer = Callable[[Event], None]
"""Called with each event; it must not block. An exception in it affects nothing else."""

_OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def announce(event: Event) -> None:
    """Tell all observers in this context, which includes tasks and threads started in it.

    This never waits and never raises: an observer must not break what it observes.
    """
    for hear in _OBSERVERS.get():
        try:
            hear(event)
        except Exception as error:  # noqa: BLE001 - as above
            if not isinstance(event, ObserverFailed):  # it would fail at that event too
                about_it = {"error": type(error).__name__, "where": place_of(error)}
                announce(ObserverFailed(heard=event.name(), **about_it))


@contextmanager
def hearing(observer: Observer) -> Iterator[None]:
    """Call the observer with all events from this block and from tasks started in the block."""
    before = _OBSERVERS.set((*_OBSERVERS.get(), observer))
    try:
        yield
    finally:
        _OBSERVERS.reset(before)


# Defined here because structlog takes 89 ms to load. structlog adds every context variable with
# this prefix to each log line, except those set to `...`.
_SESSION: ContextVar[str | EllipsisType] = ContextVar("structlog_session_id")
_TURN: ContextVar[str | EllipsisType] = ContextVar("structlog_turn_id")


class about:  # noqa: N801 - it reads as `with about(...)`; a generator costs twice the calls
    """Bind events from this block, and from tasks started in it, to a session and a turn.

    None removes a value that was set before.
    """

    __slots__ = ("_before", "_session", "_turn")

    def __init__(self, *, session_id: str | None = None, turn_id: str | None = None) -> None:
        self._session = ... if session_id is None else session_id
        self._turn = ... if turn_id is None else turn_id

    def __enter__(self) -> None:
        self._before = _SESSION.set(self._session), _TURN.set(self._turn)

    def __exit__(self, *_: object) -> None:
        session, turn = self._before
        _TURN.reset(turn)
        _SESSION.reset(session)


def current_session() -> str:
    """Return the session of the event being observed, or "" if it has none."""
    found = _SESSION.get("")
    return found if isinstance(found, str) else ""


def current_turn() -> str:
    """Return the turn of the event being observed, or "" if it has none."""
    found = _TURN.get("")
    return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStarted(Event):
    channels: tuple[str, ...]
    max_concurrent_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStopped(Event):
    unfinished_turns: int
    unfinished_summaries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """The event loop was blocked for this long at this place; nothing was answered meanwhile."""

    level: ClassVar[Level] = "error"
    seconds: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAccepted(Event):
    level: ClassVar[Level] = "debug"
    key: str
    message_id: str | None
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRefused(Event):
    level: ClassVar[Level] = "warning"
    key: str
    message_id: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRepeated(Event):
    key: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    level: ClassVar[Level] = "debug"
    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(Event):
    """A piece of an answer. Pieces may be dropped, since the whole text follows as `Outbound`."""

    level: ClassVar[Level] = "debug"
    logged: ClassVar[bool] = False
    channel: str
    chat: str
    session_id: str
    text: str
    reply_to: str | None = None
    """The id of the message being answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked(Event):
    level: ClassVar[Level] = "debug"
    step: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered(Event):
    level: ClassVar[Level] = "debug"
    step: int
    model: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCut(Event):
    """The answer reached its token limit; the chat received the incomplete text."""

    level: ClassVar[Level] = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded(Event):
    """A local model is ready."""

    model: str
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLost(Event):
    """The model's process ended unexpectedly; the next request restarts it."""

    level: ClassVar[Level] = "warning"
    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    level: ClassVar[Level] = "debug"
    tool: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(Event):
    tool: str
    call_id: str
    success: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNotRepeated(Event):
    """The model repeated a call that had succeeded in this turn; it was not run again."""

    tool: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShrunk(Event):
    """The model rejected the request as too long; the window was cut further, once."""

    level: ClassVar[Level] = "warning"
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(Event):
    steps: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTold(Event):
    """The chat received a sentence with the incident's id.

    `error` is a class name. `said` is text for the operator: the text of our own errors, or the
    class and place of others.
    """

    level: ClassVar[Level] = "error"
    incident: str
    error: str
    where: str
    said: str

    @classmethod
    def name(cls) -> str:
        """Return the name that logs have always used; in code, `TurnFailed` is already an error."""
        return "turn_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStopped(Event):
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredFound(Event):
    level: ClassVar[Level] = "warning"
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTrimmed(Event):
    evicted: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryStarted(Event):
    first_seq: int
    last_seq: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCommitted(Event):
    """A batch of messages was summarised."""

    first_seq: int
    last_seq: int
    messages: int
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float
    tries: int = 1
    """How many calls were made, including failed calls, other models and parts of long messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPostponed(Event):
    """Pending entries are waiting; `reason` is breaker, budget or small."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    """The model failed too many times in a row and is paused; a single call will test it later."""

    level: ClassVar[Level] = "error"
    model: str
    failures: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    """The model answers again."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFailed(Event):
    """The summary call failed. The old summary remains, and the batch stays pending."""

    level: ClassVar[Level] = "warning"
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryDropped(Event):
    """A summary arrived after a reset or a delete, and was discarded."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallFailed(Event):
    """Messages can't be searched for now; nothing else is affected."""

    level: ClassVar[Level] = "warning"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSetAside(Event):
    """A damaged search index was set aside, and is being rebuilt from the store."""

    level: ClassVar[Level] = "warning"
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(Event):
    session_id: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReset(Event):
    """`/new` gave the chat a fresh session; the old one stays stored."""

    key: str
    old_session_id: str
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsCounted(Event):
    """The store's contents were counted after a sweep for expired sessions."""

    level: ClassVar[Level] = "debug"
    sessions: int
    entries: int
    pending: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextNearLimit(Event):
    """A conversation uses most of the model's context; logged each time that it becomes so full."""

    level: ClassVar[Level] = "warning"
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUnknown(Event):
    """A session names an unknown agent, so another one answers."""

    level: ClassVar[Level] = "warning"
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed(Event):
    """A hook raised an exception; the answer was sent anyway. `error` is a class name."""

    level: ClassVar[Level] = "error"
    error: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeFailed(Event):
    """Resizing failed: the memo is unchanged, and so is a window that a user's handler trims."""

    level: ClassVar[Level] = "warning"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepaired(Event):
    """An incomplete last line was copied to a file, and removed before the next append."""

    level: ClassVar[Level] = "warning"
    session_id: str
    bytes_cut: int
    file: str
    """The file that now contains the bytes that were cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSetAside(Event):
    """An unreadable line was copied to a separate file; the log itself is unchanged."""

    level: ClassVar[Level] = "error"
    session_id: str
    line: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberMended(Event):
    """A stored or imported number was invalid and was corrected; the conversation is intact."""

    level: ClassVar[Level] = "warning"
    session_id: str
    number: str
    """The name of the session's value that was corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUnreadable(Event):
    """A stored session is damaged and was skipped; `nanoloop store check` gives the details."""

    level: ClassVar[Level] = "error"
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreJoined(Event):
    """This data folder now uses a store that another data folder also uses."""

    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSetAside(Event):
    """A damaged database file was renamed to `file`, and a new, empty one was created.

    `sqlite3 FILE .recover` may recover its sessions.
    """

    level: ClassVar[Level] = "error"
    file: str
    reason: str
    """A readable sentence that says what is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUnreadable(Event):
    """A file among the sessions or uploads could not be read, and was skipped."""

    level: ClassVar[Level] = "error"
    file: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStarted(Event):
    """A channel started; a web page has an `address`, and a `token_file` if we made its token."""

    channel: str
    address: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFailed(Event):
    level: ClassVar[Level] = "error"
    channel: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHeld(Event):
    """Another process uses the channel's account; the channel opens here when that process ends."""

    level: ClassVar[Level] = "warning"
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFailed(Event):
    """An observer raised an exception; everything else continued."""

    level: ClassVar[Level] = "error"
    heard: str
    error: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConnecting(Event):
    level: ClassVar[Level] = "debug"
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConnected(Event):
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLost(Event):
    """The connection was lost or could not be made; it is retried after this many seconds."""

    level: ClassVar[Level] = "warning"
    channel: str
    reason: str
    seconds: float
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRefused(Event):
    """The platform rejects this bot; `reason` says what to do. Other channels continue."""

    level: ClassVar[Level] = "error"
    channel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NobodyMayTalk(Event):
    """Nobody has access to the channel yet; `advice` says what to do."""

    level: ClassVar[Level] = "warning"
    channel: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTokenMade(Event):
    """The page had no token, so one was saved in `file`; `advice` says how to use it."""

    level: ClassVar[Level] = "warning"
    file: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRefused(Event):
    """A message was refused because its sender has no access, or has sent too many messages."""

    channel: str
    chat: str
    sender: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingAsked(Event):
    """A stranger received a pairing code, which the operator may approve."""

    channel: str
    sender: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingApproved(Event):
    channel: str
    sender: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingFailed(Event):
    """A bug occurred while a message was being received; only that message goes unanswered."""

    level: ClassVar[Level] = "error"
    channel: str
    chat: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLeftOut(Event):
    """A message's file was not stored or read, or an answer's file not sent; the text says so."""

    level: ClassVar[Level] = "warning"
    channel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLeftOut(Event):
    """A model was called without some pictures: it accepts fewer, or could not read one."""

    level: ClassVar[Level] = "warning"
    model: str
    reason: Literal["refused", "unreadable"]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNarrowed(Event):
    """Other users of this machine could access one of our files; the file is now private."""

    file: str
    mode: str
    """The previous mode, as `chmod` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReloaded(Event):
    """The settings were reloaded; some changes were applied, others need a restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRefused(Event):
    """The reloaded settings are invalid; the previous ones stay in force."""

    level: ClassVar[Level] = "error"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestServed(Event):
    """A web request was served; `path` is the route, without its values."""

    method: str
    path: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed(Event):
    """A web request failed, and the client was told. It has the same fields as `turn_failed`."""

    level: ClassVar[Level] = "error"
    path: str
    incident: str
    error: str
    where: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed(Event):
    level: ClassVar[Level] = "error"
    channel: str
    chat: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPostponed(Event):
    """A send was postponed and will be retried. The chat's later texts wait; other chats don't."""

    level: ClassVar[Level] = "warning"
    channel: str
    chat: str
    reason: str
    seconds: float
    tries: int
