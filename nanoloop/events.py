"""What happened: a closed set of facts, each one log line and one metric.

A fact carries ids and numbers, never message text; the one that carries text is not logged. Which
session and turn it is of, the context says (`about`); it names a session itself if it is another.
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
    """A fact. Its log name is its class name in snake case."""

    level: ClassVar[Level] = "info"
    logged: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """`TurnFinished` is logged as `turn_finished`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


Observer = Callable[[Event], None]
"""Who hears of facts; it must not wait. What it raises costs nothing but its own hearing."""

_OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def announce(event: Event) -> None:
    """Tell everyone who hears in this context, tasks and threads begun there among it.

    It never waits and never raises: whoever watches must not break what is watched.
    """
    for hear in _OBSERVERS.get():
        try:
            hear(event)
        except Exception as error:  # noqa: BLE001 - as above
            if not isinstance(event, ObserverFailed):  # it fails at that too
                about_it = {"error": type(error).__name__, "where": place_of(error)}
                announce(ObserverFailed(heard=event.name(), **about_it))


@contextmanager
def hearing(observer: Observer) -> Iterator[None]:
    """Let it hear what is told meanwhile, here and in tasks begun here; those hear on behind it."""
    before = _OBSERVERS.set((*_OBSERVERS.get(), observer))
    try:
        yield
    finally:
        _OBSERVERS.reset(before)


# Made here and not by structlog, which takes 89 ms to load: it adds to each line of the log every
# variable of the context whose name begins so, but for those that are `...`.
_SESSION: ContextVar[str | EllipsisType] = ContextVar("structlog_session_id")
_TURN: ContextVar[str | EllipsisType] = ContextVar("structlog_turn_id")


class about:  # noqa: N801 - it reads as `with about(...)`; a generator costs twice the calls
    """What is told meanwhile, here and in tasks begun here, is of this session and this turn.

    None is none, also where there was one before.
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
    """The id of the session that the event which is heard now is of; "" where it is of none."""
    found = _SESSION.get("")
    return found if isinstance(found, str) else ""


def current_turn() -> str:
    """The same for its turn."""
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
    """A piece of an answer on its way; may be dropped, the whole text follows as `Outbound`."""

    level: ClassVar[Level] = "debug"
    logged: ClassVar[bool] = False
    channel: str
    chat: str
    session_id: str
    text: str
    reply_to: str | None = None
    """The id of the message that is being answered."""


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
    """The model had more to say than it was allowed tokens for; the chat got what there is."""

    level: ClassVar[Level] = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded(Event):
    """A model on this machine can be asked from now on."""

    model: str
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLost(Event):
    """Its process ended by itself; it is started anew when it is asked again."""

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
    """The model asked again for what had been done in this turn; it was not run again."""

    tool: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShrunk(Event):
    """The model said the request was too long; the window was cut harder, once."""

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
class TurnFailed(Event):
    """The chat was told a sentence and the incident's id. `error` is a class name.

    `said` is what the operator may read: our own error's text, of any other only class and place.
    """

    level: ClassVar[Level] = "error"
    incident: str
    error: str
    where: str
    said: str


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
    """The receipt of one folded batch."""

    first_seq: int
    last_seq: int
    messages: int
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float
    tries: int = 1
    """Calls it took: parts of a long message, a second model, and those that came to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPostponed(Event):
    """What is pending stays so for now; `reason` is breaker, budget or small."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    """The model failed so often in a row that it is left alone; then one call is let through."""

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
    """The old summary stays, the batch stays pending."""

    level: ClassVar[Level] = "warning"
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryDropped(Event):
    """It came back after a reset or a delete, and was thrown away."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallFailed(Event):
    """What was said is not findable for now; nothing else depends on it."""

    level: ClassVar[Level] = "warning"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSetAside(Event):
    """A damaged index was put beside its place, and is made anew from the store."""

    level: ClassVar[Level] = "warning"
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(Event):
    session_id: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReset(Event):
    """`/new`: the key has a fresh session, the old one stays stored."""

    key: str
    old_session_id: str
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsCounted(Event):
    """What the store holds now, and how many sessions the sweep before removed as expired."""

    level: ClassVar[Level] = "debug"
    sessions: int
    entries: int
    pending: int
    expired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextNearLimit(Event):
    """A conversation takes most of what the model can read; told once for each crossing."""

    level: ClassVar[Level] = "warning"
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUnknown(Event):
    """A session names an agent that there is not; another one answers."""

    level: ClassVar[Level] = "warning"
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed(Event):
    """The answer was given all the same. `error` is a class name."""

    level: ClassVar[Level] = "error"
    error: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeFailed(Event):
    """The memo stays as it was; a window that a handler of the user's was to cut too.

    `error` is a class name.
    """

    level: ClassVar[Level] = "warning"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepaired(Event):
    """A torn last line was set aside, and cut off before the next append."""

    level: ClassVar[Level] = "warning"
    session_id: str
    bytes_cut: int
    file: str
    """Where these are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSetAside(Event):
    """An unreadable line was copied to a file beside the log, which keeps it as it is."""

    level: ClassVar[Level] = "error"
    session_id: str
    line: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberMended(Event):
    """A place or a count that was stored or imported made no sense; the conversation is kept."""

    level: ClassVar[Level] = "warning"
    session_id: str
    number: str
    """What of the session it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUnreadable(Event):
    """A stored session makes no sense and was passed over; `nanoloop store check` says what."""

    level: ClassVar[Level] = "error"
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSetAside(Event):
    """A damaged file of sessions was kept under this name, and a new, empty one was begun.

    `sqlite3 FILE .recover` may get sessions out of it.
    """

    level: ClassVar[Level] = "error"
    file: str
    reason: str
    """A sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUnreadable(Event):
    """A file among the sessions could not be looked at, and was passed over."""

    level: ClassVar[Level] = "error"
    file: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStarted(Event):
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFailed(Event):
    level: ClassVar[Level] = "error"
    channel: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHeld(Event):
    """Another process that lives has the channel's account; it opens here when that one ends."""

    level: ClassVar[Level] = "warning"
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFailed(Event):
    """What hears of events raised at one; all went on without it."""

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
    """The connection is gone, or did not come about; it is tried again in so many seconds."""

    level: ClassVar[Level] = "warning"
    channel: str
    reason: str
    seconds: float
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRefused(Event):
    """The platform doesn't let this bot in; `reason` says what to do. The others go on."""

    level: ClassVar[Level] = "error"
    channel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NobodyMayTalk(Event):
    """A channel serves nobody yet; `advice` says what to do."""

    level: ClassVar[Level] = "warning"
    channel: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRefused(Event):
    """A message was not taken: of someone who may not talk, or who talks too much."""

    channel: str
    chat: str
    sender: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingAsked(Event):
    """An unknown person got a code; the operator may approve it."""

    channel: str
    sender: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingApproved(Event):
    channel: str
    sender: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingFailed(Event):
    """A bug in taking a message in: it is not answered, the others are."""

    level: ClassVar[Level] = "error"
    channel: str
    chat: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLeftOut(Event):
    """A file that came with a message was not kept; the model is told that there was one."""

    level: ClassVar[Level] = "warning"
    channel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLeftOut(Event):
    """A model was asked without pictures: it refused so many, or could not read one."""

    level: ClassVar[Level] = "warning"
    model: str
    reason: Literal["refused", "unreadable"]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReloaded(Event):
    """The settings were read again; what is `left` needs a restart."""

    taken: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRefused(Event):
    """The settings were read again and are wrong; those of before stay."""

    level: ClassVar[Level] = "error"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestServed(Event):
    """One request to the web; `path` is the operation's, without what stood in it."""

    method: str
    path: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed(Event):
    """A request failed on our side; the client was told as a chat is. The rest as `TurnFailed`."""

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
    """It is tried again; what follows for that chat waits, other chats don't."""

    level: ClassVar[Level] = "warning"
    channel: str
    chat: str
    reason: str
    seconds: float
    tries: int
