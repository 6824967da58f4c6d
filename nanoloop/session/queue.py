"""What waits in a session: messages for their turn, answers for their arrival."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from types import NoneType

from nanoloop.session.entry import Entry

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry that names the channel's message."""

COMMAND = "command"
"""The origin of an entry that is a command; it waits like any other, and gets into no log."""
STEERS, BURST, NOT_BEFORE = "steers", "burst", "not_before"
"""The metadata keys of a message: it is told to the turn going on; what is said so soon after it
is answered with it; the moment, in seconds of Unix, before which it is not answered."""

NODE = "node"
"""The metadata key of a message that waits: the process that has heard it, and is to answer it."""


@dataclass(frozen=True, slots=True)
class Send:
    """An answer is to be sent; this process has not done so."""

    seq: int


@dataclass(frozen=True, slots=True)
class Think:
    """A question of the log is to be answered."""

    seq: int


@dataclass(frozen=True, slots=True)
class Run:
    """A command is to be run."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Ask:
    """A message that waits is to become the next question."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class PassOn:
    """What waits is to wait where the chat goes on."""

    session_id: str


Next = Send | Think | PassOn | Run | Ask | None
"""What a chat owes first."""
Stage = type[Send] | type[Think] | type[PassOn] | type[Run] | type[Ask] | type[None]
"""Where a chat stands: what is next in it, answers on their way last, as nothing waits for them."""

FOLLOWS: Mapping[Stage, Mapping[Stage, str]] = {
    NoneType: {
        Ask: "a message arrives",
        Run: "a command arrives",
        Think: "a message arrives and begins",
        PassOn: "something is passed through",
        Send: "an answer outlives its session",
    },
    Send: {
        NoneType: "it has arrived",
        Ask: "a message arrives",
        Run: "a command arrives",
        Think: "a message arrives and begins",
        PassOn: "something is passed through",
    },
    Ask: {
        NoneType: "it is taken back",
        Send: "it is taken back",
        Run: "it is taken back",
        Think: "it begins",
        PassOn: "the chat goes on elsewhere",
    },
    Run: {
        NoneType: "it is run",
        Send: "it is run",
        Ask: "it is run, or changed to a message",
        PassOn: "it is run, and the chat goes on elsewhere",
    },
    Think: {
        NoneType: "it is answered, stopped or taken back",
        Send: "it is answered",
        Ask: "it is answered, stopped or taken back",
        Run: "it is answered, stopped or taken back",
        PassOn: "it is answered, and the chat goes on elsewhere",
    },
    PassOn: {
        NoneType: "it is passed on",
        Send: "it is passed on",
        Ask: "the chat comes back",
        Run: "the chat comes back",
    },
}
"""What may follow what, and by what. No other step of a chat is written."""


class Queue:
    """Messages of a chat before their turn, and answers before they have arrived."""

    __slots__ = ("unsent", "waiting")

    def __init__(self) -> None:
        self.waiting: tuple[Entry, ...] = ()
        """What was said while an answer was under way, oldest first; in no log yet."""
        self.unsent: tuple[int, ...] = ()
        """The numbers of answers that their chat may not have got, oldest first."""

    def hold(self, entry: Entry) -> None:
        """Keep a message until its turn comes."""
        self.waiting = (*self.waiting, entry)

    def next(self, awaiting: int, sent: Container[int], moved: str) -> Next:
        """What is owed first: an answer that is not sent, a question without one, what waits.

        What waits in a session that its chat has `moved` from is passed on.
        """
        unsent = next((seq for seq in self.unsent if seq not in sent), None)
        if unsent is not None:
            return Send(unsent)
        if awaiting:
            return Think(awaiting)
        if not self.waiting:
            return None
        if moved:
            return PassOn(moved)
        return first_of(self.waiting)

    def stage(self, awaiting: int, moved: str) -> Stage:
        """Where the chat stands."""
        if awaiting:
            return Think
        if self.waiting:
            return PassOn if moved else type(first_of(self.waiting))
        return Send if self.unsent else NoneType

    def let_go(self, entry_id: str) -> bool:
        """Let that message wait no more; False if it didn't."""
        left = tuple(entry for entry in self.waiting if entry.id != entry_id)
        has_left = len(left) < len(self.waiting)
        self.waiting = left
        return has_left

    def amend(self, message_id: str, text: str | None) -> bool:
        """Give a waiting message other words, or with None take it back; False if none waits."""
        mine = {entry.id for entry in self.waiting if message_id_of(entry) == message_id}
        if text is None:
            self.waiting = tuple(entry for entry in self.waiting if entry.id not in mine)
        else:
            self.waiting = tuple(_asking(e, text) if e.id in mine else e for e in self.waiting)
        return bool(mine)

    def restored(self, entries: Sequence[Entry]) -> None:
        """Drop what is in the log already, as after a torn commit."""
        there = {entry.id for entry in entries}
        self.waiting = tuple(entry for entry in self.waiting if entry.id not in there)


def first_of(waiting: Iterable[Entry]) -> Run | Ask | None:
    """What is to be done with the oldest of these."""
    oldest = next(iter(waiting), None)
    if oldest is None:
        return None
    return Run(oldest) if is_for_loop(oldest) else Ask(oldest)


def said_first(waiting: Iterable[Entry]) -> list[Entry]:
    """What waits before the first command."""
    return list(takewhile(lambda entry: not is_for_loop(entry), waiting))


def seconds_before(entry: Entry, waiting: Iterable[Entry], now: datetime) -> float:
    """How long this one has to wait for its time; not while somebody else waits behind it."""
    due = entry.metadata.get(NOT_BEFORE)
    if not isinstance(due, (int, float)) or now < entry.timestamp:  # the clock was set back
        return 0
    who = entry.metadata.get("sender")
    if any(behind.metadata.get("sender") != who for behind in waiting):
        return 0
    return max(0.0, due - now.timestamp())


def is_command_text(text: str) -> bool:
    """Whether these words are for the loop and not for the model."""
    return text.startswith("/") and not text.startswith("//") and len(text) > 1


def _asking(waiting: Entry, text: str) -> Entry:
    """It with other words; no command any more where they are none."""
    entry = reworded(waiting, text)
    if not is_for_loop(entry) or is_command_text(text):
        return entry
    metadata = {name: value for name, value in entry.metadata.items() if name != "origin"}
    return replace(entry, metadata=metadata)


def is_for_loop(entry: Entry) -> bool:
    """Whether it is a command."""
    return bool(entry.metadata.get("origin") == COMMAND)


def hearer_of(entry: Entry) -> str:
    """The process that has heard what waits; "" for none."""
    return str(entry.metadata.get(NODE) or "")


def heard_by(entry: Entry, node: str) -> Entry:
    """The same, noted as heard by this process; "" for none."""
    if hearer_of(entry) == node:
        return entry
    metadata = {name: value for name, value in entry.metadata.items() if name != NODE}
    return replace(entry, metadata=metadata | ({NODE: node} if node else {}))


def messages_among(waiting: Iterable[Entry]) -> list[Entry]:
    """What waits for an answer; commands wait too."""
    return [entry for entry in waiting if not is_for_loop(entry)]


def message_id_of(entry: Entry) -> str | None:
    """The channel's id of what a user said."""
    return entry.metadata.get(MESSAGE_ID)


AMENDMENT = "amendment"
"""The origin of an entry that is a note."""
AMENDS = "amends"
"""The metadata key of a note that names the channel's message it is about."""


def is_asked(entry: Entry) -> bool:
    """Whether it is a user's message, and no note about one."""
    return entry.role == "user" and entry.metadata.get("origin") != AMENDMENT


def last_exchange(entries: Sequence[Entry]) -> list[Entry]:
    """The newest message of a user with all that came of it; notes on earlier ones left out."""
    first = next((i for i in reversed(range(len(entries))) if is_asked(entries[i])), None)
    if first is None:
        return []
    said = entries[first:]
    names = {None, *map(message_id_of, said)}
    return [entry for entry in said if entry.metadata.get(AMENDS) in names]


def reworded(entry: Entry, text: str) -> Entry:
    """The same message with other words; what came with it stays."""
    content = {**entry.content, "text": text}
    parts = content.pop("parts", None)
    if parts:
        rest = [part for part in parts if part.get("type") != "text"]
        content["parts"] = [{"type": "text", "text": text}, *rest]
    return replace(entry, content=content)
