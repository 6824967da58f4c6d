"""A session's approvals: the tool calls that run only once a person has agreed.

A call is `asked` in the commit that stores it, `given` in the commit that stores the person's yes,
and `started` in a separate commit right before it runs. The commit that stores its result closes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from nanoloop.session.entry import TOOL_CALL, Entry, copied, short_id
from nanoloop.session.head import APPROVALS
from nanoloop.session.speech import GROUP, Person, name_of, sender_in, speaker_of

if TYPE_CHECKING:
    from nanoloop.session.conversation import Conversation

APPROVED = "approved"
"""The metadata key of an approved call's result, for the number of the approval."""
MOST_OPEN = 20
"""How many of a session's calls may wait for approval at a time."""
MOST_CLOSED = 50
"""How many closed approvals are remembered, to explain why an answer to one is too late."""
MOST_ALLOWED = 100
"""How many permissions a conversation may have."""

Who = Literal["asker", "operators"]
State = Literal["asked", "given", "started"]
Closed = Literal["answered", "edited", "erased", "expired", "left", "stopped", "changed"]
"""Why an approval is no longer open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that is waiting for a person's yes, or has it but no result yet."""

    number: int
    """The number by which people refer to the call; unique in the chat."""
    code: str = field(default_factory=short_id)
    """A random text in each button, so that an old button can't approve another call."""
    call: str
    """The id of the call's entry."""
    seq: int
    """The number of the call's entry."""
    call_id: str | None
    """The id by which the model pairs the call with its result."""
    tool: str
    digest: str
    """The digest of the tool and the arguments that the person was shown."""
    question: int
    """The number of the message that the call's turn answers."""
    messages: tuple[str, ...] = ()
    """The channel's ids of the messages that the turn answers, and of those that joined it."""
    lag: float = 0.0
    """How late the question's message arrived, by the platform's clock; a yes may be as late."""
    who: Who
    """Who may answer."""
    asker: Mapping[str, Any]
    """The sender of the message, as `asker_of` describes it."""
    asked_at: float
    """When the model made the call and, once `is_told`, when its question was stored."""
    expires_at: float
    state: State = "asked"
    is_told: bool = False
    """True once the question about the call is in the log."""
    claim: int = 0
    """The session's number of claims when the call was started."""
    form: int = 0
    """The number of the entry with the question that the running call asks; 0 for an approval."""

    def dump(self) -> dict[str, Any]:
        """Return the stored form."""
        return {name: copied(getattr(self, name)) for name in _NAMES}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Approval:
        """Read the stored form; unknown fields are ignored."""
        known = {name: copied(stored[name]) for name in _NAMES if name in stored}
        return cls(**known | {"messages": tuple(known.get("messages") or ())})


_NAMES = tuple(each.name for each in fields(Approval))


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """All approvals of a session, and the permissions that people gave for equal calls."""

    open: tuple[Approval, ...] = ()
    """The calls that are waiting for a yes or for their result, oldest first."""
    closed: tuple[tuple[int, str, Closed], ...] = ()
    """The number, code and reason of each recently closed approval."""
    allowed: tuple[Mapping[str, Any], ...] = ()
    """The permissions, as `Permission` describes them."""
    last: int = 0
    """The newest number."""

    def numbered(self, number: int) -> Approval | None:
        """Return the open approval with this number, or None."""
        return next((each for each in self.open if each.number == number), None)

    def of(self, call: str) -> Approval | None:
        """Return the open approval of the call with this entry id, or None."""
        return next((each for each in self.open if each.call == call), None)

    @property
    def asked(self) -> tuple[Approval, ...]:
        """The calls that are waiting for a person's answer."""
        return tuple(each for each in self.open if each.state == "asked")

    def why_closed(self, number: int, code: str = "") -> Closed | None:
        """Return why the approval with this number is no longer open, or None if unknown."""
        known = {one: why for one, its, why in self.closed if not code or its == code}
        return known.get(number)

    def dump(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "open": [each.dump() for each in self.open],
            "closed": [list(each) for each in self.closed],
            "allowed": [copied(each) for each in self.allowed],
            "last": self.last,
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Approvals:
        """Read the stored form."""
        return cls(
            open=tuple(map(Approval.load, stored.get("open") or ())),
            closed=tuple((int(n), str(c), why) for n, c, why in stored.get("closed") or ()),
            allowed=tuple(copied(stored.get("allowed") or ())),
            last=int(stored.get("last") or 0),
        )


# Acts


def ask(
    session: Conversation,
    call: Entry,
    *,
    messages: Sequence[Entry],
    who: Who,
    seconds: float,
    digest: str,
    form: Entry | None = None,
) -> Approval:
    """Record that this call, which is already in the log, is waiting for a person's yes.

    The first of the `messages` is the turn's question; the others were answered with it, or joined
    it. With a `form`, the call has begun and waits for the answer to the question in that entry.
    """
    question, ids = messages[0], (each.metadata.get("message_id") for each in messages)
    now = (form or call).timestamp.timestamp()
    approval = Approval(
        number=session.approvals.last + 1,
        call=call.id,
        seq=call.seq,
        call_id=call.call_id,
        tool=str(call.content.get("tool")),
        digest=digest,
        question=question.seq,
        messages=tuple(each for each in ids if each),
        lag=float(question.metadata.get("lag") or 0),
        who=who,
        asker=asker_of(question),
        asked_at=now,
        expires_at=now + seconds,
        form=0 if form is None else form.seq,
    )
    known = session.approvals
    _set(session, replace(known, open=(*known.open, approval), last=approval.number))
    return approval


def change(session: Conversation, number: int, **changed: Any) -> None:
    """Change an open approval, such as its state; do nothing if it is closed."""
    known = session.approvals
    told = tuple(replace(a, **changed) if a.number == number else a for a in known.open)
    if told != known.open:
        _set(session, replace(known, open=told))


def close(session: Conversation, number: int, why: Closed = "answered") -> None:
    """Close an approval because its call has a result now; do nothing if it is closed."""
    known = session.approvals
    if gone := known.numbered(number):
        left = tuple(each for each in known.open if each is not gone)
        closed = (*known.closed, (gone.number, gone.code, why))[-MOST_CLOSED:]
        _set(session, replace(known, open=left, closed=closed))


UNSURE = "interrupted; it is unknown whether it took effect"
"""What the model is told about a call that started and that no turn will finish."""
NOT_RUN: Mapping[Closed, str] = {
    "edited": "not run: the message that led to it was edited or deleted before anyone agreed",
    "expired": "not run: nobody agreed in time",
    "left": "not run: the conversation was left before anyone agreed",
    "changed": "not run: the tool is gone or has changed since it was asked about",
    "stopped": "not run: it was stopped before it started",
}
"""What the model is told about a call that was withdrawn."""


def withdraw(
    session: Conversation, why: Closed, which: Callable[[Approval], bool] = lambda _: True
) -> int:
    """Close these approvals without running their calls; return how many there were.

    Calls that have started are not affected.
    """
    gone = [each for each in session.approvals.open if each.state != "started" and which(each)]
    for approval in gone:
        session.add_entry(result_of(approval, NOT_RUN.get(why, NOT_RUN["stopped"])))
        close(session, approval.number, why)
    return len(gone)


def expire(session: Conversation, now: float) -> None:
    """Withdraw the approvals that nobody has given in time."""
    withdraw(session, "expired", lambda each: each.state == "asked" and each.expires_at <= now)


def settle(session: Conversation) -> None:
    """Close what no turn will finish, such as a call whose yes was erased or taken back.

    Call this while no turn is in progress in the session.
    """
    for each in session.approvals.open:
        if not session.has_entry(each.seq):
            close(session, each.number, "erased")
        elif each.state == "started":
            session.add_entry(result_of(each, UNSURE, unknown=True))
            close(session, each.number, "stopped")
    withdraw(session, "stopped", lambda each: each.state == "given")


def forget(session: Conversation, person: Person) -> None:
    """Close the calls that this person's messages led to, and drop the person's permissions."""
    asker = dict(zip(("platform", "id"), person, strict=True))
    known = session.approvals
    allowed = tuple(each for each in known.allowed if each.get("asker") != asker)
    if len(allowed) < len(known.allowed):
        _set(session, replace(known, allowed=allowed))
    for each in known.open:
        if dict(each.asker) == asker:
            close(session, each.number, "erased")


def waiting_in(session: Conversation) -> list[Approval]:
    """Return the calls that wait for an answer, without those that were taken back."""
    return [each for each in session.approvals.asked if session.has_entry(each.seq)]


def take_along(session: Conversation, before: Conversation) -> None:
    """Continue a chat's numbers and permissions in another conversation.

    Those of the conversation that is left count, since it has the newest: a permission that was
    revoked there must not come back.
    """
    known, old = session.approvals, before.approvals
    told = replace(known, allowed=old.allowed, last=max(known.last, old.last))
    if told != known:
        _set(session, told)


def allow(session: Conversation, permission: Permission) -> None:
    """Let equal calls run from now on without asking."""
    known, new = session.approvals, permission.dump()
    if new not in known.allowed:
        _set(session, replace(known, allowed=(*known.allowed, new)[-MOST_ALLOWED:]))


def forbid_all(session: Conversation) -> int:
    """Revoke all permissions; return how many there were."""
    known = session.approvals
    if known.allowed:
        _set(session, replace(known, allowed=()))
    return len(known.allowed)


def _set(session: Conversation, approvals: Approvals) -> None:
    with session.lock:
        session.approvals = approvals
        session.touch(APPROVALS)


def result_of(approval: Approval, error: str, **metadata: Any) -> Entry:
    """Return the result for a call that can't be run, or that may have been interrupted."""
    return Entry.tool_result(
        approval.tool,
        None,
        error,
        call_id=approval.call_id,
        metadata={APPROVED: approval.number, **metadata},
    )


# People and permissions


def asker_of(entry: Entry) -> dict[str, Any]:
    """Describe the sender of a message, so that another message's sender can be compared.

    If the platform gives ids, names don't count, and in a group only ids count.
    """
    metadata = entry.metadata
    if (person := sender_in(metadata)) is not None:
        return dict(zip(("platform", "id"), person, strict=True))
    if metadata.get(GROUP):
        return {}
    names = ("channel", "chat", "sender", "account")
    return {name: str(metadata[name]) for name in names if metadata.get(name)}


def is_same_person(asker: Mapping[str, Any], sender: Mapping[str, Any]) -> bool:
    """Return True if both are known and are the same person."""
    return bool(asker) and dict(asker) == dict(sender)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A person's yes for future calls of one tool, with the same or with matching arguments."""

    tool: str
    digest: str
    """The digest of the tool and, unless there are patterns, of the arguments."""
    patterns: Mapping[str, str] | None = None
    """A glob for each argument, as an operator wrote it; None for exactly the same arguments."""
    asker: Mapping[str, Any] = field(default_factory=dict)
    """Whose messages it applies to; one with patterns applies to everyone's."""
    who: Who = "asker"
    """Who had to give it: one by an asker does not replace an operator's yes."""

    def dump(self) -> dict[str, Any]:
        """Return the stored form."""
        said = {"tool": self.tool, "digest": self.digest, "asker": dict(self.asker)}
        said["who"] = self.who
        return said if self.patterns is None else {**said, "patterns": dict(self.patterns)}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Permission:
        """Read the stored form."""
        return cls(
            tool=str(stored.get("tool")),
            digest=str(stored.get("digest")),
            patterns=stored.get("patterns"),
            asker=stored.get("asker") or {},
            who="operators" if stored.get("who") == "operators" else "asker",
        )


def permissions_of(session: Conversation) -> list[Permission]:
    """Return the session's permissions, oldest first."""
    return [Permission.load(each) for each in session.approvals.allowed]


def told_of(entry: Entry) -> str:
    """Return in a few words what an approval entry records, for transcripts."""
    content = entry.content
    if "asks" in content:
        return "asked: " + ", ".join(f"{a.get('number')} {a.get('tool')}" for a in content["asks"])
    if "answer" not in content:
        return "a question of a tool"
    said = f"{content['answer']} to {content.get('number')}"
    return f"{said}, by {name}" if (name := name_of(speaker_of(entry))) else said


def call_in(entries: Iterable[Entry], approval: Approval) -> Entry | None:
    """Return the approval's call among these entries, or None if it is gone or was erased."""
    found = (each for each in entries if each.seq == approval.seq and each.id == approval.call)
    return next((each for each in found if each.type == TOOL_CALL), None)
