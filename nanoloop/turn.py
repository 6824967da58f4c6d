"""Run one turn: ask the model, run its tools, store the results, until there is an answer.

A turn works on a session and follows two policies: what is stored (`Keeping`) and what is cut
(`Cutting`). Only these differ between the daemon, `Agent.ask` and the API without a session.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from nanoloop.context import View
from nanoloop.errors import ContextTooLong, EmptyAnswer
from nanoloop.events import (
    AnswerCut,
    ContextShrunk,
    ModelAnswered,
    ModelAsked,
    WindowTrimmed,
    about,
    announce,
)
from nanoloop.protocols import (
    OnText,
    Provider,
    Reply,
    Store,
    ToolSpec,
    Usage,
)
from nanoloop.recording import Recording
from nanoloop.sentences import Sentences
from nanoloop.session import approvals
from nanoloop.session.approvals import APPROVED, Approval
from nanoloop.session.chat import REASONING, WAITS_FOR
from nanoloop.session.entry import APPROVAL, Entry, fresh_id, utc_now
from nanoloop.session.log import message_count
from nanoloop.session.queue import STEERS, is_asked
from nanoloop.session.resize import ReadEntries
from nanoloop.session.session import Session
from nanoloop.tools.approval import question_entry, question_text
from nanoloop.tools.call import CLAIM, Tell
from nanoloop.tools.effects import RESUMES, UNKNOWN, Effects, close_calls
from nanoloop.tools.toolbox import here

if TYPE_CHECKING:
    from nanoloop.agents import Agent
    from nanoloop.attachments import Attachments

SAME_CALLS = 4
"""How often in a row a model may request the same calls; the last time, they are not run.

A repeatable tool may be called as often as a turn has steps.
"""
MOST_READ = 1000
"""How many entries before an approved call are read to find out what its turn has done."""
INTERRUPTED = "interrupted by a restart; it is unknown whether it took effect"
BUFFER_SEVERITY = 30
"""The severity of the resize rule on full windows, higher than that of the rule on turns."""


T = TypeVar("T")
Act = Callable[[Session], Any]
"""A change to a session. It never waits, and may be run again after a conflict."""


async def _in_memory(session: Session, act: Act) -> Any:
    return act(session)


def _no_change(_: Session) -> None:
    """Do nothing, so that only earlier changes are written."""


def _nothing(_: Session) -> Sequence[Entry]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The rules for what a turn stores, and where."""

    change: Callable[[Session, Act], Awaitable[Any]] = _in_memory
    """Applies a change to the session, durably if the session is in a store."""
    store: Store | None = None
    """The store to read older entries from; None if the session has all of them."""
    files: Attachments | None = None
    """The files in which large tool results are stored whole; None if they are not."""
    recording: Recording | None = None
    """How much of the question and answer is stored; None means everything."""
    steering: Callable[[Session], Sequence[Entry]] = _nothing
    """Returns the messages to add to the conversation between two steps."""
    asks: bool = False
    """True if the chat can be asked to approve tool calls."""

    @property
    def is_held(self) -> bool:
        """True if the session stays unchanged until a handler decides at the end what to add."""
        return self.recording is not None and self.recording.handler is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """The rules for cutting a session's window, and the functions to call afterwards."""

    limit: int
    """The number of messages above which a window is cut."""
    keep: int
    """Roughly how many of the newest messages remain."""
    by_defaults: bool = True
    """Apply the session's default limits after an answer, even if none are set."""
    heard: Callable[[], object] = lambda: None
    """Called after a request or an answer cuts the window, so that a summary can start."""
    follow: Callable[[str], object] = lambda _: None
    """Called with the session's id after each cut, so that the index can be updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a turn."""

    text: str
    entries: tuple[Entry, ...]
    """The entries that are not stored yet: the last reasoning, and the answer."""
    steps: int
    usage: Usage
    finish_reason: str
    calls: tuple[Entry, ...] = ()
    """The calls of the client's own tools, if they ended the turn."""
    then: Act = _no_change
    """A change to apply in the commit that stores the entries."""


def trimmed(session: Session, limit: int, keep: int) -> int:
    """Cut a full window to about its last `keep` messages; return how many were cut."""
    buffer = _buffer_of(session, limit)
    return len(session.trim_if_needed(limit=buffer, min_keep=keep)[0]) if buffer else 0


def _buffer_of(session: Session, limit: int) -> int:
    # A message limit set for the session itself overrides this one.
    return 0 if session.settings.is_set and session.settings.messages > 0 else limit


class Turn:
    """Handles one question in a session, from its arrival to its answer."""

    def __init__(
        self,
        session: Session,
        *,
        agent: Agent,
        provider: Provider,
        view: View,
        keeping: Keeping,
        cutting: Cutting | None,
        theirs: Collection[ToolSpec] = (),
        on_text: OnText | None = None,
        sentences: Sentences | None = None,
        tell: Tell | None = None,
    ) -> None:
        """Create a turn. Without `cutting`, nothing is left out.

        The client runs the tools in `theirs`. `tell` sends the chat whatever a tool says while it
        is running.
        """
        self.session = session
        self._agent = agent
        self._provider = agent.hooks.before(provider, agent)
        self._view = view
        self._keeping = keeping
        self._cutting = cutting
        self._theirs = {spec.name for spec in theirs}
        self._tools = (*agent.toolbox.specs, *theirs)
        self._on_text = on_text
        self._say = (sentences or Sentences().speaking(agent.language)).text
        self.id = fresh_id()[8:20]  # made from the time and random bits
        self.said = ""
        """The text that the model has written in this step so far."""
        self._running = 0
        """How many tools of the step are still running."""
        self._finished: list[Entry] = []
        """The results of this step's tools; some may still have to be stored."""
        files = None if keeping.is_held else keeping.files
        self._effects = Effects(agent.toolbox, session, files=files, tell=tell, asks=keeping.asks)
        self._asked = 0
        """The question's number; 0 while the session doesn't contain the question."""
        self._left = 0
        """How many entries left the window when the answer was added."""
        self._usage = Usage()
        self._may_shrink = cutting is not None
        self._spoke_before = False
        self._calls = ""
        """The tool calls that the last step requested."""
        self._repeats = 0

    def about(self) -> AbstractContextManager[None]:
        """Attach this turn's id to events announced in the context."""
        return about(session_id=self.session.id, turn_id=self.id)

    # The question

    async def begin(
        self, *questions: Entry, shown: Entry | None = None, then: Act = _no_change
    ) -> int:
        """Store the questions, cut the window if it is full, and apply `then`, in one commit.

        Return the last question's number; the model sees that question as `shown`, if given. While
        a handler decides what to store, the session is left unchanged, and the number is 0.
        """
        if self._keeping.is_held:
            self._view.beside += [shown] if shown else questions

        def act(session: Session) -> tuple[int, int]:
            kept = () if self._keeping.is_held else questions
            seqs = [session.add_entry(question).seq for question in kept]
            then(session)
            return (seqs[-1] if seqs else 0), self._trim(session)

        with self.about():
            seq, evicted = await self.change(act)
            self._asked = seq
            if evicted:
                self._tell_trimmed(evicted)
        if shown is not None and seq:
            self._view.instead[seq] = shown
        return seq

    def _trim(self, session: Session) -> int:
        cutting = self._cutting
        return 0 if cutting is None else trimmed(session, cutting.limit, cutting.keep)

    def _tell_trimmed(self, evicted: int) -> None:
        announce(WindowTrimmed(evicted=evicted, kept=len(self.session.window)))
        if self._cutting is not None:
            self._cutting.follow(self.session.id)

    async def change(self, act: Callable[[Session], T]) -> T:
        """Apply a change to the session, durably if the session is in a store."""
        done: T = await self._keeping.change(self.session, act)
        return done

    # The answer

    async def run(self) -> Answer:
        """Ask the model until it answers; raise `ProviderError` if it can't."""
        here.set(self.session)
        await self._resume()
        if paused := self._paused(0):  # interrupted before the chat was asked
            return paused
        for step in range(1, self._agent.limits.steps + 1):
            reply = await self._ask(step)
            if not reply.tool_calls:
                return self._answer(reply, step)
            calls = self._effects.asked(reply.tool_calls)
            if self._goes_in_circles(calls):
                return self._given_up(step, "same_calls", self._circle(calls, step))
            if theirs := [call for call in calls if call.content["tool"] in self._theirs]:
                return self._ended(reply.text, "tool_calls", step, calls=tuple(theirs))
            # Stored before they run, so that the log shows who asked for a tool's effects.
            self._spoke_before = self._spoke_before or bool(self.said)
            # Cleared before the wait, so that a stop during the save doesn't add the text again.
            self.said = ""
            await self._keep([*_words(reply), *calls])
            await self._run_tools([call for call in calls if WAITS_FOR not in call.metadata])
            if paused := self._paused(step):
                return paused
        steps = self._agent.limits.steps
        return self._given_up(steps, "max_steps", self._say("gave_up", steps=steps))

    async def _resume(self) -> None:
        """Restore the record of tool effects after a restart, and run the interrupted calls."""
        if since := self._asked or self.session.awaiting:
            asked = self.session.entry_at(since)
            if asked is not None and asked.type == APPROVAL:
                left = await self._approved(asked)
            else:
                known = self.session.entries_between(since - 1, self.session.last_seq)
                left = self._effects.recall(list(_of_turn(known, since)))
            await self._run_tools(left)

    # Calls that a person has to approve

    def _paused(self, step: int) -> Answer | None:
        """If calls wait for approval, return the question for the chat, which ends the turn."""
        if not (untold := self._effects.untold):
            return None
        entry, first = question_entry(untold), untold[0].seq
        calls = {e.seq: e for e in self.session.entries_between(first - 1, self.session.last_seq)}

        def tell(session: Session) -> None:
            now = utc_now().timestamp()  # a yes from before this was not to this question
            for approval in untold:
                approvals.change(session, approval.number, is_told=True, asked_at=now)

        text = question_text(entry, calls, self._say)
        ended = self._ended(text, "approval", step, entries=(entry,))
        return replace(ended, then=tell)

    async def _approved(self, answer: Entry) -> list[Entry]:
        """Continue the turn that paused for this answer; return the calls to run."""
        said, session = answer.content, self.session
        question, call_seq = int(said["question"]), int(said["call"])
        known = await self._entries(max(question - 1, call_seq - MOST_READ), answer.seq - 1)
        known += session.entries_between(answer.seq - 1, session.last_seq)
        left = self._effects.recall(list(_of_turn(known, question)))
        approval = session.approvals.numbered(int(said["number"]))
        if approval is None or approval.state == "asked":  # refused, or already has a result
            return left
        call = approvals.call_in(known, approval)
        if call is not None and approval.form:
            call = await self._resuming(call, approval, answer)
        return [*left, *await self._started(approval, call)]

    async def _resuming(self, call: Entry, approval: Approval, answer: Entry) -> Entry | None:
        """Return the call with the person's answer to its question, or None if that is gone."""
        forms = await self._entries(approval.form - 1, approval.form)
        if not forms or "form" not in forms[0].content:
            return None
        resumes = {"state": forms[0].content["state"], "answer": answer.content.get("given")}
        return replace(call, metadata={**call.metadata, RESUMES: resumes})

    async def _entries(self, after: int, upto: int) -> list[Entry]:
        store = self._keeping.store
        if store is None:
            return self.session.entries_between(after, upto)
        return list(await store.entries(self.session.id, after=after, upto=upto))

    async def _started(self, approval: Approval, call: Entry | None) -> list[Entry]:
        """Return the approved call if it should run now; otherwise, store the reason why not."""
        if call is None or not self._effects.is_unchanged(approval, call):
            why = approvals.NOT_RUN["changed"]
            if approval.state == "started":
                why = INTERRUPTED
            await self._give_up(approval, why)
        elif approval.state == "given":
            # Durable before the tool runs, so that a call interrupted by a kill is not started
            # again.
            claim = await self.change(partial(_start, number=approval.number))
            return [_claimed(call, claim)]
        elif self._effects.is_resumed(self.session, call):
            return [_claimed(call, approval.claim)]
        else:
            await self._give_up(approval, INTERRUPTED)
        return []

    async def _give_up(self, approval: Approval, why: str) -> None:
        unknown = {UNKNOWN: True} if approval.state == "started" else {}
        await self._keep([approvals.result_of(approval, why, **unknown)])

    async def _keep(self, entries: Sequence[Entry]) -> None:
        """Add these entries to the session durably."""
        if self._keeping.is_held:
            self._view.beside.extend(entries)
            return

        def act(session: Session) -> None:
            for entry in entries:
                self._effects.ask(session, _added(session, entry))

        await self.change(act)

    async def _ask(self, step: int) -> Reply:
        try:
            return await self._ask_once(step)
        except ContextTooLong:
            if not self._may_shrink or not self._view.shrink():
                raise
            self._may_shrink = False
            self._tell_shrunk()
            return await self._ask_once(step)

    def _tell_shrunk(self) -> None:
        self._hear_of_cut()
        announce(ContextShrunk(kept=len(self.session.window)))

    def _hear_of_cut(self) -> None:
        if self._cutting is not None:
            self._cutting.heard()

    def _request(self) -> list[dict[str, Any]]:
        before = self.session.log.window_length
        messages = self._view.request()
        if evicted := before - self.session.log.window_length:
            self._tell_trimmed(evicted)
            self._hear_of_cut()
        return messages

    async def _ask_once(self, step: int) -> Reply:
        messages = self._request()
        self.said = ""
        announce(ModelAsked(step=step, messages=len(messages)))
        listening: dict[str, Any] = {"on_text": self._hear} if self._on_text else {}
        started = time.monotonic()
        reply = await self._provider.chat(
            messages=messages, tools=self._offered(), model=self._agent.model, **listening
        )
        self._usage += reply.usage
        announce(self._receipt(reply, step, time.monotonic() - started))
        return reply

    def _offered(self) -> Sequence[ToolSpec] | None:
        return (*self._tools, *self._effects.offered) or None

    def _hear(self, piece: str) -> None:
        if self._spoke_before and not self.said and self._on_text is not None:
            self._on_text("\n\n")
        self.said += piece
        if self._on_text is not None:
            self._on_text(piece)

    def _receipt(self, reply: Reply, step: int, seconds: float) -> ModelAnswered:
        return ModelAnswered(
            step=step,
            model=reply.model,
            finish_reason=reply.finish_reason,
            tokens_in=reply.usage.tokens_in,
            tokens_out=reply.usage.tokens_out,
            tokens_cached=reply.usage.tokens_cached,
            seconds=round(seconds, 3),
        )

    def _answer(self, reply: Reply, step: int) -> Answer:
        if not reply.text.strip():
            raise EmptyAnswer(_empty_because(reply.finish_reason))
        if reply.finish_reason == "length":
            announce(AnswerCut())
        return self._ended(reply.text, reply.finish_reason, step, entries=tuple(_words(reply)))

    def _given_up(self, steps: int, finish_reason: str, text: str) -> Answer:
        said = Entry.message("assistant", text, metadata={"finish_reason": finish_reason})
        return self._ended(text, finish_reason, steps, entries=(said,))

    def _ended(
        self,
        text: str,
        finish_reason: str,
        steps: int,
        *,
        entries: tuple[Entry, ...] = (),
        calls: tuple[Entry, ...] = (),
    ) -> Answer:
        return Answer(
            text=text,
            entries=entries,
            steps=steps,
            usage=self._usage,
            finish_reason=finish_reason,
            calls=calls,
        )

    def _goes_in_circles(self, calls: Sequence[Entry]) -> bool:
        if any(self._agent.toolbox.is_repeatable(call.content["tool"]) for call in calls):
            self._repeats, self._calls = 0, ""
            return False
        asked = repr([(call.content["tool"], call.content["parameters"]) for call in calls])
        self._repeats = self._repeats + 1 if asked == self._calls else 1
        self._calls = asked
        return self._repeats == SAME_CALLS

    def _circle(self, calls: Sequence[Entry], steps: int) -> str:
        # Only existing tools, because a model's server could make up any other name.
        asked = {call.content["tool"] for call in calls}
        names = ", ".join(spec.name for spec in self._tools if spec.name in asked)
        named = f" ({names})" if names else ""
        return self._say("in_a_circle", steps=steps, times=SAME_CALLS, tools=named)

    async def _run_tools(self, calls: Sequence[Entry]) -> None:
        """Run the tools in parallel, and store their results and then any steering messages."""
        if not calls:
            return
        self._running = len(calls)
        async with self._effects.running() as group:
            for call in calls:
                group.start_soon(self._run_tool, call, name=f"tool {call.content['tool']}")
        # A turn that ends with a question accepts no more messages.
        await self._keep_finished(steers=not (self._keeping.is_held or self._effects.untold))

    async def _run_tool(self, call: Entry) -> None:
        result = await self._effects.run(call)
        self._finished.append(result)
        self._running -= 1
        # The last result is stored together with steering messages, once all tools have returned.
        if self._running:
            # A failing store must not interrupt the other tools: the next commit tries again.
            with suppress(Exception):
                await self._keep_finished()

    async def _keep_finished(self, *, steers: bool = False) -> None:
        """Store the results that are available; with `steers`, also add steering messages."""

        def act(session: Session) -> list[Entry]:
            finished = self._add_finished(session)
            for entry in self._keeping.steering(session) if steers else ():
                session.add_entry(entry)
            return finished

        kept = {entry.id for entry in await self.change(act)}
        self._finished = [entry for entry in self._finished if entry.id not in kept]

    def _add_finished(self, session: Session) -> list[Entry]:
        """Add the available results, except those that an earlier attempt has added."""
        add = self._view.beside.append if self._keeping.is_held else partial(_added, session)
        there = {entry.id for entry in (*session.window, *self._view.beside)}
        for entry in self._finished:
            if entry.id not in there:
                added = add(entry)
                if entry.type == APPROVAL and added is not None:
                    self._effects.ask_form(session, added)
        return list(self._finished)

    # Ending without an answer

    async def break_off(
        self, why: str, *, since: int = 0, half_said: bool = False, then: Act = _no_change
    ) -> None:
        """Store the available results, and close the calls since `since` that have none.

        `half_said` also stores the beginning of an answer; `then` is applied in the same commit.
        """
        said = Entry.message("assistant", self.said, metadata={"stopped": True})
        close = self.closing(why, since=since)

        def act(session: Session) -> None:
            close(session)
            if half_said and self.said.strip():
                session.add_entry(said)
            then(session)

        await self.change(act)

    def closing(self, why: str, *, since: int = 0, resumes: bool = False) -> Act:
        """Add the available results, and record why the other calls have none.

        With `resumes`, the calls that may be run again stay open, because `run` does them first.
        """

        def act(session: Session) -> None:
            self._add_finished(session)
            but = partial(self._effects.is_resumed, session) if resumes else None
            close_calls(session, why, since=since, but=but)

        return act

    # After the answer

    def cut_with_answer(self, session: Session) -> None:
        """Resize in the same commit as the answer, if only built-in rules decide."""
        self._left = 0
        if self._may_resize(session) and not session.has_resize_handlers:
            self._left = session.cut_by_rules(least_severity=self._least_severity(session))

    def tell_cut(self) -> bool:
        """Announce the entries that left the window; return True if any did."""
        if self._left:
            self._tell_trimmed(self._left)
            self._hear_of_cut()
        return self._left > 0

    @property
    def owes_resize(self) -> bool:
        """True if `resize` has work to do."""
        session = self.session
        return self._may_resize(session) and (session.has_resize_handlers or session.is_memo_due)

    async def resize(self) -> None:
        """Do the work that an answer doesn't wait for, durably; same errors as `async_resize`.

        This updates the memo and, if the user has handlers for it, resizes the history.
        """
        session, store = self.session, self._keeping.store
        read = partial(store.entries, session.id) if store else None
        if session.has_resize_handlers:
            await self._resize_by_handlers(read)
        while session.is_memo_due:
            if not await session.update_memo(change=self.change, read=read):
                break  # another writer was first: continue after the next answer

    def _may_resize(self, session: Session) -> bool:
        cutting = self._cutting
        return cutting is not None and (cutting.by_defaults or session.has_resize_rules)

    async def _resize_by_handlers(self, read: ReadEntries | None) -> None:
        session, least = self.session, self._least_severity(self.session)
        before = {entry.seq for entry in session.window}
        decision = await session.async_judge_resize(read=read) if least else None
        if decision is None or decision.get("severity", least) >= least:
            await session.async_resize(read=read)
        if evicted := before - {entry.seq for entry in session.window}:
            self._tell_trimmed(len(evicted))  # before the wait, in case of a request during it
        await self.change(_no_change)  # repeated later if another writer was first

    def _least_severity(self, session: Session) -> int:
        """Return the least severity at which rules apply; higher if the window is full."""
        limit = 0 if self._cutting is None else _buffer_of(session, self._cutting.limit)
        return BUFFER_SEVERITY if 0 < limit < message_count(session.window) else 0


def _added(session: Session, entry: Entry) -> Entry:
    """Add an entry; the result of an approved call closes its approval."""
    if APPROVED in entry.metadata:
        approvals.close(session, int(entry.metadata[APPROVED]))
    return session.append(entry)


def _of_turn(entries: Iterable[Entry], question: int) -> Iterator[Entry]:
    """Yield the entries of the turn that answers this question; the turn may have paused."""
    is_own = False
    for entry in entries:
        if entry.type == APPROVAL and "question" in entry.content:
            is_own = entry.content["question"] == question
        elif is_asked(entry) and (entry.seq == question or not entry.metadata.get(STEERS)):
            is_own = entry.seq == question
        if is_own:
            yield entry


def _start(session: Session, *, number: int) -> int:
    approvals.change(session, number, state="started", claim=session.claims)
    return session.claims


def _claimed(call: Entry, claim: int) -> Entry:
    """Return an approved call as if it had been made when it was started."""
    return replace(call, metadata={**call.metadata, CLAIM: claim})


def _words(reply: Reply) -> list[Entry]:
    thought = _thought(reply)
    if not reply.text:
        return thought
    ended_oddly = reply.finish_reason not in {"stop", "tool_calls"}
    metadata = {"finish_reason": reply.finish_reason} if ended_oddly else None
    return [*thought, Entry.message("assistant", reply.text, metadata=metadata)]


def _thought(reply: Reply) -> list[Entry]:
    """Return the reasoning as entries; the vendor expects it back only before a call."""
    own = reply.reasoning if reply.tool_calls else None
    if own is None:
        return [Entry.thinking(reply.thinking)] if reply.thinking else []
    metadata = {REASONING: {"vendor": own.vendor, "blocks": own.blocks}}
    return [Entry.thinking(reply.thinking, metadata=metadata)]


def _empty_because(finish_reason: str) -> str:
    if finish_reason == "length":
        return (
            "the model ran out of tokens before its answer began: "
            "allow more tokens, or ask for something shorter"
        )
    return f"the model gave an empty answer (finish reason {finish_reason!r}): ask again"
