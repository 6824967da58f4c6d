"""Remember what a turn's tool calls did, so that none runs twice, even after a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from nanoloop.events import ToolFinished, ToolNotRepeated, ToolStarted, announce
from nanoloop.protocols import ToolCall, ToolSpec
from nanoloop.session import approvals
from nanoloop.session.approvals import (
    APPROVED,
    MOST_OPEN,
    Approval,
    asker_of,
    permissions_of,
)
from nanoloop.session.chat import WAITS_FOR, decoded, open_calls, result_text, results_by_call
from nanoloop.session.entry import APPROVAL, Entry, copied
from nanoloop.session.queue import STEERS, is_asked
from nanoloop.session.session import Session
from nanoloop.session.speech import FILES
from nanoloop.tools.approval import WAITS, is_allowed
from nanoloop.tools.call import CLAIM, CurrentCall, Outlet, Tell, asked_by, call_of, calling
from nanoloop.tools.questions import DECLINE
from nanoloop.tools.results import READ_RESULT, Results
from nanoloop.tools.toolbox import Toolbox, ToolOutcome

if TYPE_CHECKING:
    from nanoloop.attachments import Attachments

UNKNOWN = "unknown"
"""The metadata key for the result of an interrupted call, which may have taken effect."""
AGAIN = "again"
"""The metadata key for the result of a failed call that may still have had an effect.

The value has the call's id and its number of attempts, which an equal call takes over.
"""
RESUMES = "resumes"
"""The metadata key of a call that goes on: what its tool stored, and the person's answer."""
MOST_ATTEMPTS = 10
"""How often an interrupted call may be started, since the call itself may end the process."""
_DONE = (
    "Already done: the same call, with the same arguments, succeeded earlier in this turn and was "
    "not run again. Its result was:\n"
)
_NOBODY = "not run: a person has to approve it first, and nobody can be asked here"
_FULL = f"not run: {MOST_OPEN} calls already wait for a person's approval, and no more can"
_WAITS_ALREADY = "not run again: the same call already waits for a person's approval (number {})"
_NOT_KNOWN = (
    "not run: the same call was interrupted earlier in this turn, and it is unknown whether it "
    "took effect; find out before you repeat it, or leave it to the user"
)


class Effects:
    """Runs one turn's tool calls, and keeps track of which must not run again."""

    def __init__(
        self,
        toolbox: Toolbox,
        session: Session,
        *,
        files: Attachments | None = None,
        tell: Tell | None = None,
        asks: bool = False,
    ) -> None:
        """Create it; `files` stores large results, and `tell` sends tools' texts to the chat.

        `asks` is True if the chat can be asked to approve calls.
        """
        self._toolbox = toolbox
        self._session = session
        self._results = None if files is None else Results(files, session)
        self._outlet = None if tell is None else Outlet(tell)
        self._asks = asks
        self._refusals: dict[str, str] = {}
        """Why calls can't wait for approval, by the ids of their entries."""
        self._asking: dict[str, Entry] = {}
        """The calls that asked the person something, by the ids of their entries."""
        self._question: Entry | None = None
        self._first: dict[str, Entry] = {}
        """The results of calls that must not be repeated, by tool and arguments."""
        self._running: dict[str, anyio.Lock] = {}
        self._unsure: dict[str, tuple[str, int]] = {}
        """The `AGAIN` metadata of failed calls, by tool and arguments."""

    @property
    def offered(self) -> Sequence[ToolSpec]:
        """The specs of tools that are offered now in addition to the agent's."""
        is_taken = any(spec.name == READ_RESULT for spec in self._toolbox.specs)
        results = None if is_taken else self._results
        reading = (results.spec,) if results is not None and results.is_offered else ()
        return (*reading, *self._toolbox.found(self._session.window))

    def recall(self, entries: Sequence[Entry]) -> list[Entry]:
        """Record the turn's question and the calls made for it; return the calls to resume."""
        self._question = next((entry for entry in entries if entry.role == "user"), None)
        for call, result in results_by_call(entries).items():
            said = entries[call].content
            self._note(str(said.get("tool")), said.get("parameters"), entries[result])
            if isinstance(again := entries[result].metadata.get(AGAIN), list):
                key = _key(str(said.get("tool")), said.get("parameters"))
                self._unsure[key] = (str(again[0]), int(again[1]))
        left = [call for call in open_calls(entries) if self._approval_of(call) is None]
        return [call for call in left if self.is_resumed(self._session, call)]

    def _approval_of(self, call: Entry) -> Approval | None:
        return self._session.approvals.of(call.id) if self._session.approvals.open else None

    def is_resumed(self, session: Session, call: Entry) -> bool:
        """Return True if an open call can still be run, run again or settled."""
        tool = str(call.content.get("tool"))
        is_safe = self._is_resumable(tool) or (tool == READ_RESULT and bool(self.offered))
        if (approval := session.approvals.of(call.id)) is not None:
            attempt = session.claims - approval.claim + 1
            return approval.state != "started" or (is_safe and attempt <= MOST_ATTEMPTS)
        attempt = call_of(call, claims=session.claims).attempt
        return is_safe and session.awaiting < call.seq and attempt <= MOST_ATTEMPTS

    def _is_resumable(self, tool: str) -> bool:
        return self._toolbox.runs_again(tool) or self._toolbox.settles(tool)

    def asked(self, calls: Sequence[ToolCall]) -> list[Entry]:
        """Return the log entries for a step's calls."""
        claims = self._session.claims
        taken = {each.call_id for each in self._session.approvals.open}
        entries = [
            Entry.tool_call(
                call.name,
                decoded(call.arguments),
                call_id=call.id,
                metadata={CLAIM: claims} if claims else None,
            )
            for call in with_ids(calls, taken=taken)
        ]
        wait = self._waiting_among(entries)
        return [_waiting(call) if call.id in wait else call for call in entries]

    # Calls that a person has to approve

    def _waiting_among(self, calls: Sequence[Entry]) -> Collection[str]:
        """Return the ids of the new calls that have to wait for a person's approval."""
        asked = {a.digest: f"{a.number}" for a in approvals.waiting_in(self._session)}
        wait = set()
        for call in calls:
            tool, arguments = str(call.content.get("tool")), call.content.get("parameters")
            if self._may_run(call) or _key(tool, arguments) in self._first:
                continue
            digest = self._toolbox.digest_of(tool, arguments) or ""
            if (why := self._objection(tool, arguments, len(asked), asked.get(digest))) is None:
                asked[digest] = "see above"
                wait.add(call.id)
            else:
                self._refusals[call.id] = why
        return wait

    def _objection(self, tool: str, arguments: Any, count: int, twin: str | None) -> str | None:
        if not self._asks or self._question is None:
            return _NOBODY
        if twin is not None:
            return _WAITS_ALREADY.format(twin)
        return _FULL if count >= MOST_OPEN else self._toolbox.objection(tool, arguments)

    def _may_run(self, call: Entry) -> bool:
        """Return True if the call needs no approval, or has it."""
        tool, arguments = str(call.content.get("tool")), call.content.get("parameters")
        if not self._toolbox.asks_first(tool):
            return True
        if (approval := self._session.approvals.of(call.id)) is not None:
            return approval.state == "started" and self.is_unchanged(approval, call)
        return is_allowed(
            permissions_of(self._session),
            self._toolbox.tools[tool],
            arguments,
            asker=self._asker(),
            who=self._toolbox.approval.who,
        )

    def _messages(self) -> list[Entry]:
        """Return the question, and then the messages answered with it or that joined its turn."""
        question, session = self._question, self._session
        if question is None:
            return []
        before = reversed(session.entries_between(0, question.seq - 1))
        with_it = takewhile(lambda entry: entry.role == "user", before)
        later = session.entries_between(question.seq, session.last_seq)
        joined = (entry for entry in later if is_asked(entry) and entry.metadata.get(STEERS))
        return [question, *with_it, *joined]

    def _asker(self) -> Mapping[str, Any]:
        """Return the person who asked, or {} if several did or if that is not known."""
        is_known = self._question and self._session.entries_between(
            self._question.seq - 1, self._question.seq
        )
        askers = [asker_of(each) for each in self._messages()] if is_known else []
        return askers[0] if askers and all(each == askers[0] for each in askers) else {}

    def ask(self, session: Session, call: Entry) -> None:
        """Record that a stored call waits for approval, if it does."""
        if WAITS_FOR in call.metadata and self._question is not None:
            tool, rules = str(call.content.get("tool")), self._toolbox.approval
            approvals.ask(
                session,
                call,
                messages=self._messages(),
                who=rules.who,
                seconds=rules.seconds,
                digest=self._toolbox.digest_of(tool, call.content.get("parameters")) or "",
            )

    @property
    def untold(self) -> Sequence[Approval]:
        """This turn's calls that need approval and that the chat has not been asked about yet."""
        if self._question is None:
            return ()
        asked = self._session.approvals.asked
        return [a for a in asked if not a.is_told and a.question == self._question.seq]

    def is_unchanged(self, approval: Approval, call: Entry) -> bool:
        """Return True if the tool and the arguments are those that the person was shown."""
        tool, arguments = str(call.content.get("tool")), call.content.get("parameters")
        return self._toolbox.digest_of(tool, arguments) == approval.digest

    # Running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TaskGroup]:
        """Open a task group for a step's calls, which may send texts to the chat."""
        group = anyio.create_task_group() if self._outlet is None else self._outlet.open()
        async with group as calls:
            yield calls

    async def run(self, call: Entry) -> Entry:
        """Return the call's result; if the same call was made before, return the earlier result."""
        tool, arguments = str(call.content.get("tool")), call.content.get("parameters")
        async with self._alone(tool, arguments):
            if first := self._first.get(_key(tool, arguments)):
                result = _not_repeated(call, tool, first)
            else:
                result = await self._result(call, tool)
                self._note(tool, arguments, result)
            if (approval := self._approval_of(call)) is None:
                return result
            return replace(result, metadata={**result.metadata, APPROVED: approval.number})

    def _alone(self, tool: str, arguments: Any) -> AbstractAsyncContextManager[Any]:
        """Return a lock that makes an equal call wait, if only one of them may run."""
        if not self._runs_once(tool):
            return nullcontext()
        return self._running.setdefault(_key(tool, arguments), anyio.Lock())

    async def _result(self, call: Entry, tool: str) -> Entry:
        which = {"tool": tool, "call_id": call.call_id or ""}
        announce(ToolStarted(**which))
        key = _key(tool, call.content.get("parameters"))
        with calling(self._current(call, key)) as current:
            outcome = await self._outcome(call, current)
        announce(ToolFinished(**which, success=outcome.success, seconds=round(outcome.seconds, 3)))
        if (question := outcome.question) is not None:
            self._asking[call.id] = call
            told = {"wants": call.id, "form": question.form, "state": question.state}
            return Entry(type=APPROVAL, content=copied(told))
        text, metadata = outcome.text, dict[str, Any]()
        if outcome.whole and self._results is not None:
            text, metadata = await self._results.keep(outcome, call=call.id)
            text = "\n".join(filter(None, (text, outcome.files_told)))
        if outcome.files:
            metadata[FILES] = [*metadata.get(FILES, ()), *outcome.files]
        if outcome.is_unsure and self._runs_once(tool) and self._is_resumable(tool):
            self._unsure[key] = current.call, current.attempt
            metadata[AGAIN] = [current.call, current.attempt]
        return Entry.tool_result(
            tool,
            text if outcome.success else None,
            None if outcome.success else outcome.error,
            call_id=call.call_id,
            metadata=metadata | ({UNKNOWN: True} if outcome.is_unknown else {}),
        )

    def _current(self, call: Entry, key: str) -> CurrentCall:
        current = call_of(call, claims=self._session.claims)
        current = replace(current, session=self._session.id, outlet=self._outlet)
        if before := self._unsure.get(key):
            current = replace(current, call=before[0], attempt=before[1] + current.attempt)
        return current if self._question is None else asked_by(current, self._question)

    async def _outcome(self, call: Entry, current: CurrentCall) -> ToolOutcome:
        asked = ToolCall(
            id=call.call_id or call.id, name=current.tool, arguments=_as_written(current.arguments)
        )
        if not self._may_run(call):  # every call of a tool passes here
            why = self._refusals.get(call.id, _NOBODY)
            return ToolOutcome(call=asked, success=False, text=why, error=why, is_refused=True)
        if asked.name == READ_RESULT and self._results is not None and self.offered:
            return await Toolbox([self._results]).run(asked)
        can_settle = self._toolbox.settles(asked.name)
        if can_settle and call_of(call, claims=self._session.claims).attempt > 1:
            return await self._toolbox.settle(asked, current.call)
        outcome = await self._answered(call, asked)
        if outcome.question is not None and not self._can_ask:
            outcome = await self._toolbox.resume(asked, outcome.question.state, DECLINE)
        if outcome.success or outcome.question is not None or outcome.is_refused or not can_settle:
            return outcome
        # The reply may have been lost, so the call may still have taken effect.
        return await self._toolbox.settle(asked, current.call)

    async def _answered(self, call: Entry, asked: ToolCall) -> ToolOutcome:
        """Run a call, or let it go on with the person's answer."""
        resumes = call.metadata.get(RESUMES)
        if not isinstance(resumes, Mapping):
            return await self._toolbox.run(asked)
        return await self._toolbox.resume(asked, resumes["state"], resumes["answer"])

    @property
    def _can_ask(self) -> bool:
        is_full = len(approvals.waiting_in(self._session)) >= MOST_OPEN
        return self._asks and self._question is not None and not is_full

    def ask_form(self, session: Session, form: Entry) -> None:
        """Record that a call waits for the answer to its question, which is in this entry."""
        call = self._asking.get(str(form.content.get("wants")))
        if call is not None and self._question is not None:
            # As the log has it, with its number; one that left the window has it already.
            call = next((e for e in reversed(session.window) if e.id == call.id), call)
            tool, rules = str(call.content.get("tool")), self._toolbox.approval
            approvals.ask(
                session,
                call,
                messages=self._messages(),
                who="asker",
                seconds=rules.seconds,
                digest=self._toolbox.digest_of(tool, call.content.get("parameters")) or "",
                form=form,
            )

    def _note(self, tool: str, arguments: Any, result: Entry) -> None:
        """Record this result, unless the call failed and may be tried again."""
        may_have_happened = result.content.get("success") or result.metadata.get(UNKNOWN)
        if may_have_happened and self._runs_once(tool):
            self._first.setdefault(_key(tool, arguments), result)

    def _runs_once(self, tool: str) -> bool:
        return self._toolbox.writes(tool) and not self._toolbox.is_repeatable(tool)


def with_ids(calls: Sequence[ToolCall], *, taken: Collection[str | None] = ()) -> list[ToolCall]:
    """Return the calls, giving each a unique id.

    A call gets a new id if the server sent none or sent one already in `taken`.
    """
    seen = set(taken)
    distinct = []
    for call in calls:
        call_id = call.id if call.id and call.id not in seen else f"call_{uuid4().hex[:24]}"
        seen.add(call_id)
        distinct.append(ToolCall(id=call_id, name=call.name, arguments=call.arguments))
    return distinct


def close_calls(
    session: Session, why: str, *, since: int = 0, but: Callable[[Entry], bool] | None = None
) -> None:
    """Record why those calls from `since` on that have no result have none.

    Calls that `but` accepts stay open, and so do those that wait for a person's approval.
    """
    for call in open_calls([e for e in session.window if e.seq >= since]):
        if (but is None or not but(call)) and session.approvals.of(call.id) is None:
            name, unknown = call.content.get("tool", ""), {UNKNOWN: True}
            session.add_entry(
                Entry.tool_result(name, None, why, call_id=call.call_id, metadata=unknown)
            )
    if but is None:
        _close_approvals(session, why)


def _close_approvals(session: Session, why: str) -> None:
    """Close the approvals that a turn leaves behind when it ends without an answer."""
    for approval in session.approvals.open:
        if approval.state == "started":
            session.add_entry(approvals.result_of(approval, why, **{UNKNOWN: True}))
            approvals.close(session, approval.number, "stopped")
    # A question that the chat was never asked must not be answered by chance.
    approvals.withdraw(session, "stopped", lambda each: each.state == "given" or not each.is_told)


def _waiting(call: Entry) -> Entry:
    return replace(call, metadata={**call.metadata, WAITS_FOR: WAITS})


def _as_written(arguments: Any) -> str:
    """Return the arguments as JSON; invalid arguments are already text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _not_repeated(call: Entry, tool: str, first: Entry) -> Entry:
    announce(ToolNotRepeated(tool=tool, call_id=call.call_id or ""))
    if first.metadata.get(UNKNOWN):
        return Entry.tool_result(tool, None, _NOT_KNOWN, call_id=call.call_id)
    return Entry.tool_result(tool, _DONE + result_text(first), call_id=call.call_id)


def _key(tool: str, arguments: Any) -> str:
    return json.dumps([tool, arguments], sort_keys=True, default=str)
