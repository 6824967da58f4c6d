"""What is pending in a session: messages until their turn, answers until they arrive."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from types import NoneType
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.session.speech import FILES, SPEECH, files_of, sender_of

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry that names the channel's message."""

COMMAND = "command"
"""The origin of an entry that is a command; it waits like any other, but is never logged."""
STEERS, BURST, NOT_BEFORE = "steers", "burst", "not_before"
"""The metadata keys of a message: whether it is added to the current turn; how soon after it others
must come to be answered with it; the Unix time in seconds before which it is not answered."""

AGAIN = "again"
"""The metadata key for the entry that a waiting message asks again and replaces."""

NODE = "node"
"""The metadata key for the process that received a waiting message and is to answer it."""


@dataclass(frozen=True, slots=True)
class Send:
    """An answer is to be sent; this process has not sent it yet."""

    seq: int


@dataclass(frozen=True, slots=True)
class Think:
    """A question in the log is to be answered."""

    seq: int


@dataclass(frozen=True, slots=True)
class Run:
    """A command is to be run."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Ask:
    """A waiting message is to become the next question."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class PassOn:
    """A waiting message is to be passed on to where the chat continues."""

    session_id: str


Next = Send | Think | PassOn | Run | Ask | None
"""What a chat owes first."""
Stage = type[Send] | type[Think] | type[PassOn] | type[Run] | type[Ask] | type[None]
"""The state of a chat: what is next in it; answers on their way come last."""

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
"""Which stage may follow which, and why; no other step of a chat is written."""


class Queue:
    """Messages of a chat before their turn, and answers before they have arrived."""

    __slots__ = ("senders", "unsent", "waiting")

    def __init__(self) -> None:
        self.waiting: tuple[Entry, ...] = ()
        """What was said while an answer was being written, oldest first; not in the log yet."""
        self.senders: Mapping[int, str] = {}
        """Who sends an answer, if it isn't the process that answers now."""
        self.unsent: tuple[int, ...] = ()
        """The numbers of answers that may not have arrived, oldest first."""

    def hold(self, entry: Entry) -> None:
        """Keep a message until its turn comes."""
        self.waiting = (*self.waiting, entry)

    def next(self, awaiting: int, sent: Container[int], moved: str) -> Next:
        """What is owed first: an unsent answer, a question without one, or what waits.

        If the chat has `moved` to another session, what waits here is passed on.
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
        """The stage that the chat is in."""
        if awaiting:
            return Think
        if self.waiting:
            return PassOn if moved else type(first_of(self.waiting))
        return Send if self.unsent else NoneType

    def leave_sending_to(self, node: str) -> None:
        """Note that this process still sends its answers, whichever process answers from now on."""
        self.senders = {seq: self.senders.get(seq, node) for seq in self.unsent}

    def owe(self, seq: int) -> None:
        """Note that this answer has to arrive, sent by the process that answers now."""
        if seq not in self.unsent:  # else it keeps its place
            self.unsent = (*self.unsent, seq)
        self._forget_sender(seq)

    def arrived(self, seq: int) -> bool:
        """Note that this answer has arrived, or never will; False if it isn't owed."""
        was_owed = seq in self.unsent
        self.unsent = tuple(owed for owed in self.unsent if owed != seq)
        self._forget_sender(seq)
        return was_owed

    def _forget_sender(self, seq: int) -> None:
        if seq in self.senders:
            self.senders = {owed: node for owed, node in self.senders.items() if owed != seq}

    def let_go(self, entry_id: str) -> bool:
        """Remove that message from the queue; False if it wasn't there."""
        left = tuple(entry for entry in self.waiting if entry.id != entry_id)
        has_left = len(left) < len(self.waiting)
        self.waiting = left
        return has_left

    def amend(self, message_id: str, text: str | None) -> bool:
        """Give a waiting message a new text, or delete it if that is None; False if none waits."""
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
    """What to do with the oldest of these."""
    oldest = next(iter(waiting), None)
    if oldest is None:
        return None
    return Run(oldest) if is_for_loop(oldest) else Ask(oldest)


def said_first(waiting: Iterable[Entry]) -> list[Entry]:
    """The messages that wait before the first command."""
    return list(takewhile(lambda entry: not is_for_loop(entry), waiting))


def seconds_before(entry: Entry, waiting: Iterable[Entry], now: datetime) -> float:
    """How long this one has to wait; 0 if another sender's message waits behind it."""
    due = entry.metadata.get(NOT_BEFORE)
    if not isinstance(due, (int, float)) or now < entry.timestamp:  # the clock was set back
        return 0
    if any(sender_of(behind) != sender_of(entry) for behind in waiting):
        return 0
    return max(0.0, due - now.timestamp())


def is_command_text(text: str) -> bool:
    """Whether this text is for the loop and not for the model."""
    return text.startswith("/") and not text.startswith("//") and len(text) > 1


def _asking(waiting: Entry, text: str) -> Entry:
    """The message with a new text; no longer a command if the text isn't one."""
    entry = reworded(waiting, text)
    if not is_for_loop(entry) or is_command_text(text):
        return entry
    return without(entry, "origin")


def is_for_loop(entry: Entry) -> bool:
    """Whether it is a command."""
    return bool(entry.metadata.get("origin") == COMMAND)


def hearer_of(entry: Entry) -> str:
    """The process that received a waiting message; "" if there is none."""
    return str(entry.metadata.get(NODE) or "")


def without(entry: Entry, *names: str) -> Entry:
    """The same entry without these metadata keys."""
    left = {name: value for name, value in entry.metadata.items() if name not in names}
    return replace(entry, metadata=left) if len(left) < len(entry.metadata) else entry


def heard_by(entry: Entry, node: str) -> Entry:
    """The same entry, noted as received by this process; "" means by none."""
    if hearer_of(entry) == node:
        return entry
    bare = without(entry, NODE)
    return replace(bare, metadata={**bare.metadata, NODE: node}) if node else bare


def messages_among(waiting: Iterable[Entry]) -> list[Entry]:
    """The messages among these that wait for an answer, without the commands."""
    return [entry for entry in waiting if not is_for_loop(entry)]


def message_id_of(entry: Entry) -> str | None:
    """The channel's id for what a user said."""
    return entry.metadata.get(MESSAGE_ID)


def erased_name(message_id: str) -> str:
    """The id by which a chat knows that its message with this id was erased."""
    return f"erased {message_id}"


AMENDMENT = "amendment"
"""The origin of an entry that is a note."""
AMENDS = "amends"
"""The metadata key of a note that names the channel's message it is about."""


def is_asked(entry: Entry) -> bool:
    """Whether it is a user's message, and not a note about one."""
    return entry.role == "user" and entry.metadata.get("origin") != AMENDMENT


def last_exchange(entries: Sequence[Entry]) -> list[Entry]:
    """The newest message of a user with everything after it; without notes on earlier ones."""
    first = next((i for i in reversed(range(len(entries))) if is_asked(entries[i])), None)
    if first is None:
        return []
    said = entries[first:]
    names = {None, *map(message_id_of, said)}
    return [entry for entry in said if entry.metadata.get(AMENDS) in names]


def asked_again(entry: Entry, known: Sequence[Entry]) -> Entry | None:
    """This message as one that replaces the newest of these: with its text, if it has none.

    The other one's attachments and quotes are taken over. None if there is nothing to ask again.
    """
    asked = next((e for e in reversed(known) if is_asked(e) and not is_for_loop(e)), None)
    if asked is None:
        return None
    text = str(entry.content.get("text") or "")
    content = reworded(asked, text).content if text.strip() else asked.content
    taken = {name: asked.metadata[name] for name in (FILES, SPEECH) if name in asked.metadata}
    if text.strip() and SPEECH in taken:  # new words are those of whoever asks again
        own = entry.metadata.get(SPEECH) or {"by": None}
        taken[SPEECH] = {**taken[SPEECH], **own}
    return replace(entry, content=content, metadata={**entry.metadata, **taken, AGAIN: asked.id})


def reworded(entry: Entry, text: str) -> Entry:
    """The same message with a new text; its attachments and quotes stay."""
    parts = entry.content.get("parts")
    if not parts:
        return replace(entry, content={**entry.content, "text": text})
    files = [part for _, part in files_of(entry)]
    rest = files or [part for part in parts if part.get("type") != "text"]
    said: list[Any] = [{"type": "text", "text": text}, *rest] if text else rest
    return replace(entry, content=Entry.message(str(entry.role), said).content)
