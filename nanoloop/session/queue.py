"""A session's pending work: messages waiting for their turn, and answers not yet delivered."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from types import NoneType
from typing import Any

from nanoloop.session.entry import TOOL_CALL, TOOL_RESULT, Entry
from nanoloop.session.speech import FILES, SPEECH, files_of, sender_of

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry for the channel's message id."""

COMMAND = "command"
"""The origin of a command's entry, which waits like any other but is never logged."""
STEERS, BURST, NOT_BEFORE = "steers", "burst", "not_before"
"""The metadata keys for when a message is answered.

They say whether it joins the current turn, within how many seconds other messages join it, and the
Unix time before which it must wait.
"""

LAG = "lag"
"""The metadata key for how many seconds after it was written a message arrived, if that is many.

It includes the difference between the platform's clock and ours.
"""

AGAIN = "again"
"""The metadata key for the entry that a waiting message repeats and replaces."""

_ANSWERS = frozenset({"/yes", "/no", "/always", "/answer"})

NODE = "node"
"""The metadata key for the process that received a waiting message and is going to answer it."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send an answer that this process has not sent yet."""

    seq: int


@dataclass(frozen=True, slots=True)
class Think:
    """Answer a question in the log."""

    seq: int


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Ask:
    """Make a waiting message the next question."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class PassOn:
    """Pass a waiting message on to the session in which the chat continues."""

    session_id: str


Next = Send | Think | PassOn | Run | Ask | None
"""The next step in a chat."""
Stage = type[Send] | type[Think] | type[PassOn] | type[Run] | type[Ask] | type[None]
"""A chat's state, named after its next step; unsent answers come last."""

FOLLOWS: Mapping[Stage, Mapping[Stage, str]] = {
    NoneType: {
        Ask: "a message arrives",
        Run: "a command arrives",
        Think: "a message arrives and its turn begins",
        PassOn: "a message is passed through",
        Send: "an answer outlives its session",
    },
    Send: {
        NoneType: "the answer has arrived",
        Ask: "a message arrives",
        Run: "a command arrives",
        Think: "a message arrives and its turn begins",
        PassOn: "a message is passed through",
    },
    Ask: {
        NoneType: "the message is withdrawn",
        Send: "the message is withdrawn",
        Run: "the message is withdrawn",
        Think: "its turn begins",
        PassOn: "the chat moves to another session",
    },
    Run: {
        NoneType: "the command is run",
        Send: "the command is run",
        Ask: "the command is run, or edited into a message",
        Think: "the command answers a question about a tool call",
        PassOn: "the command moves the chat to another session",
    },
    Think: {
        NoneType: "the question is answered, stopped or withdrawn",
        Send: "the question is answered",
        Ask: "the question is answered, stopped or withdrawn",
        Run: "the question is answered, stopped or withdrawn",
        PassOn: "the question is answered after the chat has moved",
    },
    PassOn: {
        NoneType: "the messages are passed on",
        Send: "the messages are passed on",
        Ask: "the chat returns",
        Run: "the chat returns",
    },
}
"""The stages that may follow each stage, with the reasons; a chat takes no other steps."""


class Queue:
    """A chat's messages waiting for their turn, and its answers that are not yet delivered."""

    __slots__ = ("senders", "unsent", "waiting")

    def __init__(self) -> None:
        self.waiting: tuple[Entry, ...] = ()
        """The messages sent during an answer, oldest first; they are not in the log yet."""
        self.senders: Mapping[int, str] = {}
        """The process that sends an answer, if another process answers now."""
        self.unsent: tuple[int, ...] = ()
        """The numbers of answers that might not have arrived, oldest first."""

    def hold(self, entry: Entry) -> None:
        """Queue a message until its turn comes."""
        self.waiting = (*self.waiting, entry)

    def next(self, awaiting: int, sent: Container[int], moved: str) -> Next:
        """Return the next step: send an answer, answer a question, or take a waiting message.

        If the chat has `moved` to another session, the waiting messages are passed on.
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
        """Return the chat's current stage."""
        if awaiting:
            return Think
        if self.waiting:
            return PassOn if moved else type(first_of(self.waiting))
        return Send if self.unsent else NoneType

    def leave_sending_to(self, node: str) -> None:
        """Record that this process still sends its answers, whichever process answers now."""
        self.senders = {seq: self.senders.get(seq, node) for seq in self.unsent}

    def owe(self, seq: int) -> None:
        """Record that this answer is still to be delivered, by the process that answers now."""
        if seq not in self.unsent:  # otherwise it keeps its place
            self.unsent = (*self.unsent, seq)
        self._forget_sender(seq)

    def arrived(self, seq: int) -> bool:
        """Record that this answer was delivered or failed; return False if it wasn't pending."""
        was_owed = seq in self.unsent
        self.unsent = tuple(owed for owed in self.unsent if owed != seq)
        self._forget_sender(seq)
        return was_owed

    def _forget_sender(self, seq: int) -> None:
        if seq in self.senders:
            self.senders = {owed: node for owed, node in self.senders.items() if owed != seq}

    def let_go(self, entry_id: str) -> bool:
        """Remove a message from the queue; return False if it wasn't queued."""
        left = tuple(entry for entry in self.waiting if entry.id != entry_id)
        has_left = len(left) < len(self.waiting)
        self.waiting = left
        return has_left

    def amend(self, message_id: str, text: str | None) -> bool:
        """Change a waiting message's text, or delete the message if None; False if not found."""
        mine = {entry.id for entry in self.waiting if message_id_of(entry) == message_id}
        if text is None:
            self.waiting = tuple(entry for entry in self.waiting if entry.id not in mine)
        else:
            self.waiting = tuple(_asking(e, text) if e.id in mine else e for e in self.waiting)
        return bool(mine)

    def restored(self, entries: Sequence[Entry]) -> None:
        """Drop waiting messages that are already in the log, as after an incomplete commit."""
        there = {entry.id for entry in entries}
        self.waiting = tuple(entry for entry in self.waiting if entry.id not in there)


def first_of(waiting: Iterable[Entry]) -> Run | Ask | None:
    """Return the step for the oldest of these entries."""
    oldest = next(iter(waiting), None)
    if oldest is None:
        return None
    return Run(oldest) if is_for_loop(oldest) else Ask(oldest)


def said_first(waiting: Iterable[Entry]) -> list[Entry]:
    """Return the messages that are queued ahead of the first command."""
    return list(takewhile(lambda entry: not is_for_loop(entry), waiting))


def seconds_before(entry: Entry, waiting: Iterable[Entry], now: datetime) -> float:
    """Return how long this message must wait; 0 if another sender's message is waiting too."""
    due = entry.metadata.get(NOT_BEFORE)
    if not isinstance(due, (int, float)) or now < entry.timestamp:  # the clock was set back
        return 0
    if any(sender_of(behind) != sender_of(entry) for behind in waiting):
        return 0
    return max(0.0, due - now.timestamp())


def is_command_text(text: str) -> bool:
    """Return True if this text is for the loop rather than for the model."""
    return text.startswith("/") and not text.startswith("//") and len(text) > 1


def _asking(waiting: Entry, text: str) -> Entry:
    """Return the message with a new text; it is no longer a command unless the text is one."""
    entry = reworded(waiting, text)
    if not is_for_loop(entry) or is_command_text(text):
        return entry
    return without(entry, "origin")


def is_for_loop(entry: Entry) -> bool:
    """Return True if the entry is a command."""
    return bool(entry.metadata.get("origin") == COMMAND)


def is_for_turn(entry: Entry) -> bool:
    """Return True for a command that continues a turn, which only the chat's channel can tell.

    If the message was erased, its channel is unknown, and any process may refuse the command.
    """
    words = str(entry.content.get("text") or "").split(maxsplit=1)
    is_answer = bool(words) and words[0].partition("@")[0] in _ANSWERS
    return is_for_loop(entry) and is_answer and bool(entry.metadata.get("channel"))


def hearer_of(entry: Entry) -> str:
    """Return the process that received a waiting message, or ""."""
    return str(entry.metadata.get(NODE) or "")


def without(entry: Entry, *names: str) -> Entry:
    """Return the entry without these metadata keys."""
    left = {name: value for name, value in entry.metadata.items() if name not in names}
    return replace(entry, metadata=left) if len(left) < len(entry.metadata) else entry


def heard_by(entry: Entry, node: str) -> Entry:
    """Return the entry marked as received by this process; for "", return it unmarked."""
    if hearer_of(entry) == node:
        return entry
    bare = without(entry, NODE)
    return replace(bare, metadata={**bare.metadata, NODE: node}) if node else bare


def messages_among(waiting: Iterable[Entry]) -> list[Entry]:
    """Return the entries that are waiting for an answer, except commands."""
    return [entry for entry in waiting if not is_for_loop(entry)]


def message_id_of(entry: Entry) -> str | None:
    """Return the channel's id for a user's message."""
    return entry.metadata.get(MESSAGE_ID)


def erased_name(message_id: str) -> str:
    """Return the id under which a chat records that its message with this id was erased."""
    return f"erased {message_id}"


AMENDMENT = "amendment"
"""The origin of an entry that notes a change to an earlier message."""
AMENDS = "amends"
"""The metadata key for the id of the message that a note is about."""


def is_asked(entry: Entry) -> bool:
    """Return True for a user's message, but not for a note about one."""
    return entry.role == "user" and entry.metadata.get("origin") != AMENDMENT


def last_exchange(entries: Sequence[Entry]) -> list[Entry]:
    """Return the newest user message and what came after it, without what older messages need.

    That is notes on these messages, and results of their calls that a person approved since.
    """
    first = next((i for i in reversed(range(len(entries))) if is_asked(entries[i])), None)
    if first is None:
        return []
    said = entries[first:]
    names = {None, *map(message_id_of, said)}
    calls = {entry.call_id for entry in said if entry.type == TOOL_CALL}
    return [
        entry
        for entry in said
        if entry.metadata.get(AMENDS) in names and not _is_of_earlier(entry, calls)
    ]


def _is_of_earlier(entry: Entry, calls: Container[str | None]) -> bool:
    """Return True for the result of an approved call that was made before these calls."""
    return entry.type == TOOL_RESULT and "approved" in entry.metadata and entry.call_id not in calls


def asked_again(entry: Entry, known: Sequence[Entry]) -> Entry | None:
    """Return the message as a repeat of the newest known question, or None if there is none.

    It replaces that question and inherits its attachments and quotes and, if it has no text of its
    own, its text.
    """
    asked = next((e for e in reversed(known) if is_asked(e) and not is_for_loop(e)), None)
    if asked is None:
        return None
    text = str(entry.content.get("text") or "")
    content = reworded(asked, text).content if text.strip() else asked.content
    taken = {name: asked.metadata[name] for name in (FILES, SPEECH) if name in asked.metadata}
    if text.strip() and SPEECH in taken:  # the sender of a new text is its speaker
        own = entry.metadata.get(SPEECH) or {"by": None}
        taken[SPEECH] = {**taken[SPEECH], **own}
    return replace(entry, content=content, metadata={**entry.metadata, **taken, AGAIN: asked.id})


def reworded(entry: Entry, text: str) -> Entry:
    """Return the message with a new text, and the same attachments and quotes."""
    parts = entry.content.get("parts")
    if not parts:
        return replace(entry, content={**entry.content, "text": text})
    files = [part for _, part in files_of(entry)]
    rest = files or [part for part in parts if part.get("type") != "text"]
    said: list[Any] = [{"type": "text", "text": text}, *rest] if text else rest
    return replace(entry, content=Entry.message(str(entry.role), said).content)
