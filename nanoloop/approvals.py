"""Approvals in chats: /yes, /no and /always answer questions about tool calls."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from nanoloop.events import about, announce
from nanoloop.intake import LATE_SECONDS, RANK, user_entry
from nanoloop.messages import Inbound
from nanoloop.sentences import Say
from nanoloop.session import approvals
from nanoloop.session.approvals import (
    Approval,
    Closed,
    Permission,
    asker_of,
    call_in,
    is_same_person,
    permissions_of,
    result_of,
    waiting_in,
)
from nanoloop.session.entry import APPROVAL, ERASED, Entry, utc_now
from nanoloop.session.queue import BURST, NOT_BEFORE, STEERS, without
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.tools.approval import ApprovalAnswered
from nanoloop.tools.questions import DECLINE, accepted, fields_text

if TYPE_CHECKING:
    from nanoloop.agents import Agents

Word = Literal["yes", "no", "always", "answer"]
_GIVEN = re.compile(
    r"#?(?P<number>[1-9][0-9]{0,8})(?:\s+(?P<code>[0-9a-f]{14}))?(?:\s+(?P<rest>.*))?", re.DOTALL
)
REASON_CHARS = 500
"""How many characters of the reason for a refusal the model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A person's answer, and the question it is for."""

    word: Word
    message: Inbound
    number: int = 0
    """The number given; 0 if none."""
    code: str = ""
    """The code of a button; "" if the person typed the number."""
    rest: str = ""
    """Further words: the reason for a refusal, or the patterns for /always."""

    @classmethod
    def of(cls, word: Word, message: Inbound, text: str) -> ApprovalAnswer:
        """Read the text after the command."""
        given = _GIVEN.fullmatch(text)
        if given is None:
            return cls(word=word, message=message, rest=text)
        number, code, rest = int(given["number"]), given["code"] or "", given["rest"] or ""
        return cls(word=word, message=message, number=number, code=code, rest=rest.strip())

    @property
    def sender(self) -> Mapping[str, Any]:
        """The person, in a form that can be compared with the asker."""
        return asker_of(user_entry(self.message))

    def entry(self, approval: Approval, given: Mapping[str, Any] | None = None) -> Entry:
        """Return the log entry that records the answer; a turn continues from it."""
        content = {
            "answer": "no" if self.word == "no" else "yes",
            "number": approval.number,
            "call": approval.seq,
            "question": approval.question,
            "asker": dict(approval.asker),
            **({} if given is None else {"given": given}),
        }
        # Without what says when it is answered: other messages must not join a yes.
        timing = (BURST, STEERS, NOT_BEFORE)
        metadata = without(user_entry(self.message), "origin", RANK, *timing).metadata
        return Entry(type=APPROVAL, content=content, metadata=metadata)


class ApprovalCommands:
    """Checks and records people's answers to questions about tool calls."""

    def __init__(self, *, sessions: Sessions, agents: Agents, node: str) -> None:
        """Create the commands; `node` is the process that will run the approved calls."""
        self._sessions = sessions
        self._agents = agents
        self._node = node

    async def yes(self, message: Inbound, rest: str, say: Say) -> str:
        """Approve a call; return "" if a turn will run it, otherwise the reply for the chat."""
        return await self._answer(ApprovalAnswer.of("yes", message, rest), say)

    async def no(self, message: Inbound, rest: str, say: Say) -> str:
        """Refuse a call; return the same as `yes`."""
        return await self._answer(ApprovalAnswer.of("no", message, rest), say)

    async def answer(self, message: Inbound, rest: str, say: Say) -> str:
        """Answer a question of a running call with words; return as `yes`."""
        return await self._answer(ApprovalAnswer.of("answer", message, rest), say)

    async def always(self, message: Inbound, rest: str, say: Say) -> str:
        """Approve a call and equal future ones; list or revoke such permissions."""
        session = await self._sessions.current_fresh(message.session_key)
        if not rest:
            rows = [_row(each, say) for each in permissions_of(session)]
            return "\n".join(rows) or say("always_none")
        if rest == "off":
            count = await self._sessions.change(session, approvals.forbid_all)
            return say("always_off", count=count)
        answer = ApprovalAnswer.of("always", message, rest)
        return await self._answer(answer, say) if answer.number else say("always_usage")

    async def _answer(self, answer: ApprovalAnswer, say: Say) -> str:
        session = await self._sessions.current_fresh(answer.message.session_key)
        approval = _chosen(session, answer, say)
        if isinstance(approval, str):
            return approval
        call = await self._call_of(session, approval)
        permission = None if call is None else self._permission(session, answer, approval, call)
        if answer.word == "always" and permission is None and call is not None:
            names = ", ".join(call.content.get("parameters") or ())
            return say("always_arguments", tool=approval.tool, names=names)
        if permission and permission.patterns is not None and answer.message.rank == "user":
            return say("operators_only")
        given = await self._given(session, answer, approval, say)
        if isinstance(given, str):
            return given
        act = partial(
            self._decide,
            answer=answer,
            approval=approval,
            call=call,
            permission=permission,
            given=given,
        )
        void: str | None = await self._sessions.change(session, act)
        with about(session_id=session.id):
            announce(
                ApprovalAnswered(
                    word=answer.word, number=approval.number, tool=approval.tool, void=void or ""
                )
            )
        return say(f"void_{void}", number=approval.number) if void else ""

    async def _call_of(self, session: Session, approval: Approval) -> Entry | None:
        """Return the stored call, or None if it or the message that led to it was erased."""
        store = self._sessions.store
        asked = await store.entries(session.id, after=approval.question - 1, upto=approval.question)
        if not asked or asked[0].type == ERASED:
            return None
        calls = await store.entries(session.id, after=approval.seq - 1, upto=approval.seq)
        return call_in(calls, approval)

    async def _given(
        self, session: Session, answer: ApprovalAnswer, approval: Approval, say: Say
    ) -> Mapping[str, Any] | str | None:
        """Return what the call's form gets; None without one, or what to tell the chat."""
        if not approval.form:
            return say("form_none", number=approval.number) if answer.word == "answer" else None
        if answer.word == "always":
            return say("always_usage")
        between = {"after": approval.form - 1, "upto": approval.form}
        forms = await self._sessions.store.entries(session.id, **between)
        form = forms[0].content.get("form") if forms else None
        if answer.word == "no" or form is None:
            return DECLINE
        words = answer.rest if answer.word == "answer" else ""
        said = accepted(form, words)
        return said or say("form_needs", number=approval.number, fields=fields_text(form))

    def _permission(
        self, session: Session, answer: ApprovalAnswer, approval: Approval, call: Entry
    ) -> Permission | None:
        """Return what /always allows; None for another command, or if its patterns don't fit."""
        if answer.word != "always":
            return None
        if not answer.rest:
            return Permission(
                tool=approval.tool,
                digest=approval.digest,
                asker=approval.asker,
                who=approval.who,
            )
        patterns = _patterns(answer.rest)
        digest = self._agents.of(session).toolbox.digest_of(approval.tool)
        parameters = dict(call.content.get("parameters") or {})
        if patterns is None or patterns.keys() != parameters.keys() or digest is None:
            return None
        return Permission(tool=approval.tool, digest=digest, patterns=patterns, who="operators")

    def _decide(
        self,
        session: Session,
        *,
        answer: ApprovalAnswer,
        approval: Approval,
        call: Entry | None,
        permission: Permission | None,
        given: Mapping[str, Any] | None,
    ) -> str | None:
        """Record the answer; if it doesn't count, return why, as in the `void_` sentences."""
        now = session.approvals.numbered(approval.number)
        if now is None or now.code != approval.code or now.state != "asked":
            return "answered"
        if (refused := _refused(approval, answer)) is not None:
            return refused
        if (why := self._why_void(session, approval, call)) is not None:
            approvals.withdraw(session, why, lambda each: each.number == approval.number)
            return why
        if permission is not None:
            approvals.allow(session, permission)
        session.awaiting = session.add_entry(answer.entry(approval, given)).seq
        if answer.word == "no" and given is None:
            reason = f": {answer.rest[:REASON_CHARS]}" if answer.rest else ""
            session.add_entry(result_of(approval, f"not run: the user said no{reason}"))
            approvals.close(session, approval.number)
        else:
            approvals.change(session, approval.number, state="given")
        session.claim(self._node)
        return None

    def _why_void(self, session: Session, approval: Approval, call: Entry | None) -> Closed | None:
        """Return why the call can't be approved any more, or None."""
        if utc_now().timestamp() > approval.expires_at:
            return "expired"
        if call is None or not session.has_entry(approval.seq):
            return "erased"
        arguments = call.content.get("parameters")
        digest = self._agents.of(session).toolbox.digest_of(approval.tool, arguments)
        return None if digest == approval.digest else "changed"


def _chosen(session: Session, answer: ApprovalAnswer, say: Say) -> Approval | str:
    """Return the approval that is meant; if that is unclear, return the reply for the chat."""
    known, waiting = session.approvals, waiting_in(session)
    if not answer.number and not waiting:
        return say("approval_none")
    if answer.word == "yes" and answer.rest:  # a yes to something else than what was shown
        return say("yes_usage")
    if not answer.number:
        if len(waiting) > 1:
            rows = (f"/{answer.word} {each.number}: {each.tool}" for each in waiting)
            return "\n".join((say("approval_which"), *rows))
        return waiting[0]
    found = known.numbered(answer.number)
    if found is not None and answer.code in {"", found.code}:
        return found
    why = known.why_closed(answer.number, answer.code)
    return say(f"void_{why or 'elsewhere'}", number=answer.number)


def _refused(approval: Approval, answer: ApprovalAnswer) -> str | None:
    """Return why this person may not answer, or not yet; return None if they may."""
    rank = answer.message.rank
    if approval.who == "operators" and rank == "user":
        return "operators"
    is_asker = is_same_person(approval.asker, answer.sender)
    if approval.who == "asker" and rank != "owner" and not is_asker:
        return "others"
    # The code is known to nobody who has not seen the question.
    return "early" if not answer.code and _is_early(approval, answer.message) else None


def _is_early(approval: Approval, message: Inbound) -> bool:
    """Return True if the message was written before the question, as far as clocks can tell."""
    written_at = message.time.timestamp() + approval.lag  # by our clock, not the platform's
    return written_at + (LATE_SECONDS if approval.lag else 0) < approval.asked_at


def _patterns(text: str) -> dict[str, str] | None:
    """Read patterns as `name=glob`, with quotes around spaces; None if they have another form."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    pairs = [word.partition("=") for word in words]
    return {name: glob for name, _, glob in pairs} if all(mark for _, mark, _ in pairs) else None


def _row(permission: Permission, say: Say) -> str:
    if permission.patterns is None:
        return say("always_same", tool=permission.tool)
    globs = ", ".join(f"{name}={glob}" for name, glob in permission.patterns.items())
    return f"{permission.tool}({globs})"
