"""Process chats, each with one worker that handles the chat's pending work.

A worker keeps no state: it asks its session for the next step, performs it, and asks again. So it
needs no special handling of restarts, edits and interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Self

import anyio

from nanoloop.errors import (
    IndexUnusable,
    NanoloopError,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
    StoreError,
    TurnLost,
)
from nanoloop.events import UnansweredFound, about, announce
from nanoloop.exchange import Begun, Exchange, ExchangeParts
from nanoloop.fairness import FairLimiter
from nanoloop.intake import inbound_of
from nanoloop.lanes import Lanes
from nanoloop.protocols import OwedSession
from nanoloop.sending import question_in, reply_to, send_owed
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.queue import (
    AGAIN,
    Ask,
    Next,
    PassOn,
    Run,
    Send,
    Think,
    first_of,
    heard_by,
    hearer_of,
    is_for_loop,
    is_for_turn,
    messages_among,
    said_first,
    seconds_before,
)
from nanoloop.session.session import Session
from nanoloop.writing import Claim, claiming, is_away, leave_alone

AWAY = "away"
"""Marks a session whose store was unavailable."""
if TYPE_CHECKING:
    from nanoloop.commands import Commands
    from nanoloop.turn import Answer


@dataclass(slots=True)
class _Running:
    """A turn in progress."""

    scope: anyio.CancelScope
    exchange: Exchange
    is_amended: bool = False
    """True if the result must be discarded: the question changed, or another process has it."""


class Chats:
    """Runs one worker per chat, which processes the chat's pending work."""

    def __init__(
        self,
        *,
        parts: ExchangeParts,
        commands: Commands,
        limiter: FairLimiter,
        waiting_limit: int,
        answer_unanswered: bool,
    ) -> None:
        self._parts = parts
        self._sessions = parts.sessions
        self._bus = parts.bus
        self._commands = commands
        self._notices = parts.notices
        self._limiter = limiter
        self._waiting_limit = waiting_limit
        self._answers_unanswered = answer_unanswered
        self._workers: Lanes[str, str] = Lanes(self._work, limit=waiting_limit, name="lane")
        self._pauses: Lanes[str, tuple[str, float]] = Lanes(
            self._pause, limit=waiting_limit, name="pause"
        )
        self._turns: dict[str, _Running] = {}
        self._begun: dict[str, Begun] = {}
        """Each session's last question that this process has started but not yet answered."""
        self._nodes = parts.nodes
        self._looked: dict[str, Hashable] = {}
        """For each session with pending work, its commit and the living processes when checked."""
        self._holding: dict[str, object] = {}
        """The sessions with waiting messages received here; each message gets a new object."""
        self._watches: Callable[[str], bool] = _is_not_wanted
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        group = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(group.cancel_scope.cancel)
        group.start_soon(self._watch, name="watch")
        for lanes in (self._pauses, self._workers):
            await self._stack.enter_async_context(lanes)
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._stack.__aexit__(*exc)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """Return how many chats are waiting or being answered."""
        return len(self._workers)

    # Work in progress

    def stop(self, key: str, *, question: str | None = None) -> bool:
        """Stop the chat's turn in progress; return False if there is none.

        Given a message's id, stop only the turn that answers this message.
        """
        running = self._turns.get(key)
        if running is None or (question and running.exchange.message.message_id != question):
            return False
        running.scope.cancel()
        return True

    async def stop_anywhere(self, key: str) -> bool:
        """Like `stop`, but also ask other processes to stop; they notice within seconds."""
        if self.stop(key):
            return True
        with suppress(SessionNotFound):
            session = await self._sessions.fresh(await self._sessions.current_id(key))
            return await self._sessions.change(session, self._ask_to_stop)
        return False

    def _ask_to_stop(self, session: Session) -> bool:
        goes_on = bool(session.awaiting) and self._nodes.is_other(session.by)
        if goes_on:
            session.ask_to_stop()
        return goes_on

    def drop_turn(self, key: str) -> None:
        """Stop the chat's turn in progress, if any, and store nothing from it."""
        running = self._turns.get(key)
        if running is not None:
            running.is_amended = True
            running.scope.cancel()

    def is_answering(self, key: str) -> bool:
        """Return True if a turn is in progress in this chat."""
        return key in self._turns

    def is_busy(self, key: str) -> bool:
        """Return True if this process's worker, or another process, has work for this chat."""
        return self._workers.is_busy(key) or self._is_busy_elsewhere(self._sessions.known(key))

    def _is_busy_elsewhere(self, session: Session | None) -> bool:
        """Return True if another process had work in the session when it was last read."""
        if session is None:
            return False
        others = (session.by if session.awaiting else "", *map(hearer_of, session.waiting))
        return any(map(self._nodes.is_other, others))

    async def idle(self) -> None:
        """Wait until no worker has anything to do."""
        await self._workers.idle()

    # Pending work

    def wake(self, key: str, session_id: str) -> None:
        """Make the chat's worker check this session."""
        with suppress(RuntimeError):  # the loop has ended: the work is done after the next start
            self._workers.put_nowait(key, session_id, bounded=False)

    async def work_here(self, key: str, session_id: str) -> None:
        """Like `wake`, but do the work in the calling task if the worker is idle."""
        await self._workers.work_here(key, session_id)

    def note(self, session: Session, begun: Begun) -> None:
        """Record a question that this process has started and stored."""
        self._begun[session.id] = begun
        self._parts.begun(session, begun)

    # Other processes, and work left over from earlier ones

    async def _watch(self) -> None:
        """Watch for other processes' changes, and take over the work of processes that died."""
        while True:
            others = self._nodes.living
            await anyio.sleep(self._nodes.look_seconds)
            with suppress(StoreError):  # unavailable: check again next time
                await self.look()
                if dead := others - self._nodes.living:
                    await self.take_up_summaries(left_by=dead)

    def watch_over(self, is_wanted: Callable[[str], bool]) -> None:
        """Take over leftover work in the sessions whose ids `is_wanted` accepts."""
        self._watches = is_wanted
        self._looked = {}

    async def look(self) -> None:
        """Check every session with pending work that has changed since the last check."""
        looked: dict[str, Hashable] = {}
        owing: list[Session] = []
        holding = dict(self._holding)  # later messages may be missing from the store's list
        for owed in [owed async for owed in self._sessions.store.owing()]:
            looked[owed.id] = mark = (owed.revision, self._nodes.living)
            if self._looked.get(owed.id) != mark and await self._is_of_interest(owed):
                try:
                    owing += await self._looked_at(owed)
                except Exception as error:  # noqa: BLE001 - one chat's error must not stop the others
                    looked[owed.id] = self._told_of(owed, error)
        for running in list(self._turns.values()):
            if running.exchange.session.id not in looked:  # its question was withdrawn
                await self._heed_now(running)
        self._looked = looked
        await self._follow_holding(holding, owing=looked)
        for session in sorted(owing, key=attrgetter("updated_at")):  # a chat's older session first
            key = session.key or session.id
            if session.id not in self._workers.items(key):
                self.wake(key, session.id)

    async def _follow_holding(
        self, holding: Mapping[str, object], *, owing: Container[str]
    ) -> None:
        """Watch the new sessions if other processes have moved messages received here."""
        for session_id, noted in holding.items():
            if session_id in owing or self._holding.get(session_id) is not noted:
                continue
            with suppress(SessionNotFound, StoreError):
                read = self._sessions.fresh if self._nodes.living else self._sessions.open
                if moved := (await read(session_id)).moved:
                    self._holding[moved] = object()
                    self._looked.pop(moved, None)
            if self._holding.get(session_id) is noted:
                del self._holding[session_id]

    async def take_up_summaries(self, *, left_by: Container[str] | None = None) -> None:
        """Start pending summaries that no process is writing, or that `left_by` didn't finish."""
        for owed in [owed async for owed in self._sessions.store.owing(pending=True)]:
            await self._nodes.ask_after(owed.by)
            is_left = not self._nodes.is_other(owed.by) if left_by is None else owed.by in left_by
            if is_left and self._watches(owed.id):
                with suppress(SessionNotFound, StoreError):  # one failure must not stop the others
                    self._parts.summarizer.fire_and_forget(await self._sessions.open(owed.id))

    async def _is_of_interest(self, owed: OwedSession) -> bool:
        """Return True if this process may have work in the session."""
        if owed.id in self._holding or owed.by == self._nodes.me:
            return True
        await self._nodes.ask_after(owed.by)
        return not self._nodes.is_other(owed.by) and self._watches(owed.id)

    async def _looked_at(self, owed: OwedSession) -> Sequence[Session]:
        """Return a list with the session if this process has work in it, else an empty list."""
        try:
            session = await self._sessions.seen_at(owed.id, owed.revision)
            await self._ask_after(session)
        except SessionNotFound:  # deleted meanwhile
            return ()
        if session.erasing and not self._workers.is_busy(session.key or session.id):
            with suppress(IndexUnusable):  # the next commit here, or the next start, will try again
                await self._sessions.finish_erasing(session)
        self._note_holding(session)
        running = self._turns.get(session.key or session.id)
        if running is not None and running.exchange.session is session:
            self._heed(running)
            return ()
        return () if self.first(session) is None else (session,)

    def _told_of(self, owed: OwedSession, error: Exception) -> Hashable:
        """Log an unreadable session once, and return the value that marks it as checked."""
        if self._looked.get(owed.id) != AWAY:
            self._notices.apology(owed.id, error)
        return AWAY if is_away(error) else (owed.revision, self._nodes.living)

    def _is_holding(self, session: Session) -> bool:
        return any(hearer_of(entry) == self._nodes.me for entry in session.waiting)

    def _note_holding(self, session: Session) -> None:
        if self._is_holding(session):
            self._holding[session.id] = object()
        elif not session.moved:
            self._holding.pop(session.id, None)

    async def _ask_after(self, session: Session) -> None:
        queue = session.queue
        if session.by == self._nodes.me and not queue.waiting and not queue.senders:
            return
        senders = queue.senders.values()
        await self._nodes.ask_after(session.by, *senders, *map(hearer_of, session.waiting))

    async def _heed_now(self, running: _Running) -> None:
        with suppress(SessionNotFound):  # deleted: the turn finds that out
            await self._sessions.fresh(running.exchange.session.id)
        self._heed(running)

    def _heed(self, running: _Running) -> None:
        """Apply another process's requests to a turn in this process."""
        exchange = running.exchange
        session = exchange.session
        if (session.claims, session.awaiting) != (exchange.claim, exchange.seq):
            running.is_amended = True
            running.scope.cancel()
        elif session.stopped == exchange.claim:
            running.scope.cancel()

    async def _work(self, key: str, session_id: str) -> None:
        with about(session_id=session_id):
            try:
                await self._do_all(key, session_id)
            # Deleted meanwhile, so don't create it again; or answered by another process, which
            # continues.
            except (SessionNotFound, TurnLost):
                return
            except Exception as error:  # noqa: BLE001 - as above
                self._notices.apology(session_id, error)

    async def _do_all(self, key: str, session_id: str) -> None:
        """Do all pending work; if the store is unavailable, tell the chat once, and wait."""
        session = None
        while True:
            try:
                if session is not None and session.has_expired():
                    if session.waiting:
                        self.wake(key, (await self._sessions.outlive(session, key)).id)
                    return
                session = await self._sessions.open(session_id)
                await self._ask_after(session)
                if not await self._do_next(key, session):
                    self._notices.store_is_back(key)
                    return
            except SessionNotFound:
                if session is None or not session.has_expired():
                    raise
            except StoreError as error:
                if not is_away(error):
                    raise
                said = session and question_in((*session.window, *session.waiting[:1]))
                if said:
                    await self._notices.store_is_away(key, said, error)
                await leave_alone()

    async def _do_next(self, key: str, session: Session) -> bool:
        """Do the next piece of pending work; return False if none can be done now."""
        # Writes in progress must be durable first.
        todo = await self._sessions.writer.look(session, self.first)
        match todo:
            case Send():
                await send_owed(
                    session,
                    todo.seq,
                    bus=self._bus,
                    sessions=self._sessions,
                    nodes=self._nodes,
                    sentences=self._notices.speaking,
                )
            case Think(seq=seq):
                await self._think(key, session, seq)
            case PassOn():
                self.wake(key, (await self._sessions.follow(session)).id)
            case Ask(entry=entry) | Run(entry=entry) if early := _early_seconds(session, entry):
                self._look_later(key, session.id, early)
                return False
            case Run(entry=entry):
                await self._run(key, session, entry)
            case Ask(entry=entry):
                await self._ask(session, entry)
            case None:
                self._begun.pop(session.id, None)  # the question was withdrawn
                self._note_holding(session)  # up to date now, unlike an earlier check
                return False
        return True

    def _look_later(self, key: str, session_id: str, seconds: float) -> None:
        if not self._pauses.is_busy(session_id):
            self._pauses.put_nowait(session_id, (key, seconds))

    async def _pause(self, session_id: str, later: tuple[str, float]) -> None:
        key, seconds = later
        await anyio.sleep(seconds)
        self.wake(key, session_id)

    def first(self, session: Session) -> Next:
        """Return the next piece of pending work for this process.

        A living process keeps its current question and the messages that it received. Work for a
        channel that this process doesn't serve is skipped.
        """
        is_anothers = self._nodes.is_other(session.by)
        todo = session.next(self._sent_of(session) if session.unsent else ())
        match todo:
            case Think() if is_anothers:
                return None
            case Think(seq=seq):
                asked, begun = session.entry_at(seq), self._begun.get(session.id)
                is_ours = asked is None or (begun is not None and begun.seq == seq)
                is_ours = is_ours or (session.key or session.id) in self._turns
                if is_ours or self._is_here(asked):
                    return todo
            case Send() | PassOn() | None:
                return todo
        is_elsewhere = bool(session.moved and session.waiting)
        return PassOn(session.moved) if is_elsewhere else self._first_of(session.waiting)

    def _sent_of(self, session: Session) -> Sequence[int]:
        """Return the numbers of the answers that this or another living process is sending."""
        is_other, sender = self._nodes.is_other, self._sender
        elsewhere = [seq for seq in session.unsent if is_other(sender(session, seq))]
        return (*self._sessions.sent_of(session.id), *elsewhere)

    def _sender(self, session: Session, seq: int) -> str:
        made_by = session.queue.senders.get(seq, session.by)
        lives = made_by == self._nodes.me or self._nodes.is_other(made_by)
        return made_by if lives else session.by

    def _first_of(self, waiting: Sequence[Entry]) -> Run | Ask | None:
        for entry in waiting:
            if self._nodes.is_other(hearer_of(entry)):
                return None
            if self._is_here(entry) or (is_for_loop(entry) and not is_for_turn(entry)):
                return first_of([entry])
        return None

    def is_free(self, session: Session) -> bool:
        """Return True if a new message can become a question in this session at once."""
        return self.first(session) is None and not self._is_busy_elsewhere(session)

    def hold(self, session: Session, entry: Entry) -> None:
        """Queue a message in this session, marked as received by this process."""
        session.hold(heard_by(entry, self._nodes.me))
        self._holding[session.id] = object()

    def _is_here(self, entry: Entry | None) -> bool:
        return entry is not None and entry.metadata.get("channel") in self._bus.channels

    async def _run(self, key: str, session: Session, entry: Entry) -> None:
        """Run a command and send its answer."""
        message = inbound_of(entry, key=key)
        self._sessions.note_current(key, session.id)
        with claiming(Claim(session.id, entry.id)) as claim:
            try:
                said = reply_to(message, await self._commands.answer(message))
            except TurnLost:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                apology = self._notices.apology(session.id, error, to=message)
                said = reply_to(message, apology.text, "error", incident=apology.incident)
            if not claim.is_let_go:
                session = await self._sessions.open(session.id)  # erasing may have dropped it
                await self._sessions.change(session, lambda _: None)
        if said.text:
            await self._notices.publish(said)
        if session.awaiting and session.by == self._nodes.me:  # a turn continues where it paused
            self.note(session, Begun(seq=session.awaiting, claim=session.claims, evicted=0))
        if session.moved:
            self.wake(key, session.moved)

    async def _ask(self, session: Session, entry: Entry) -> None:
        """Make a waiting message the session's next question."""

        def act(now: Session) -> Begun | None:
            return self._parts.begin(now, entry) if self.first(now) == Ask(entry) else None

        if AGAIN in entry.metadata:
            await self._sessions.ready_to_undo(session)
        begun = await self._sessions.change(session, act)
        if begun is not None:
            self.note(session, begun)

    async def _think(self, key: str, session: Session, seq: int) -> None:
        """Run the turn that answers the question with this number."""
        entry = session.entry_at(seq)
        if entry is None:  # it was answered together with a newer one, or erased
            return await self._sessions.change(session, partial(_drop_question, seq=seq))
        message = inbound_of(entry, key=session.key)
        begun = self._begun.pop(session.id, None)
        is_resumed = begun is None or (begun.seq, begun.claim) != (seq, session.claims)
        exchange = Exchange(session, message, seq=seq, claim=session.claims, parts=self._parts)
        if is_resumed:
            action = "answer" if self._answers_unanswered else "report"
            announce(UnansweredFound(action=action))
            if not self._answers_unanswered:
                return await exchange.fail(self._notices.text(message, "interrupted"))
            await exchange.pick_up()
        return await self._answer(key, exchange, is_resumed=is_resumed)

    async def _answer(self, key: str, exchange: Exchange, *, is_resumed: bool) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = running = _Running(scope, exchange)
            try:
                running.exchange = exchange = await self._with_burst(exchange)
                async with self._limiter.turn(exchange.message.owner):
                    answer = await exchange.think(resumed=is_resumed)
            except Exception as error:  # noqa: BLE001 - as above
                failure = error
            finally:
                del self._turns[key]
        # Outside the scope, so that the outcome is stored and sent even after /stop.
        if not running.is_amended:
            await self._end(exchange, running, answer, failure)

    async def _end(
        self,
        exchange: Exchange,
        running: _Running,
        answer: Answer | None,
        failure: Exception | None,
    ) -> None:
        session = exchange.session
        if answer is not None:
            try:
                await exchange.deliver(answer)
            except NanoloopError as error:
                failure = error
            else:
                return
        if failure and (isinstance(failure, SessionNotFound | TurnLost) or is_away(failure)):
            raise failure  # another process has the question, or it is still unanswered
        if failure is not None:
            said = self._notices.apology(
                session.id, failure, to=exchange.message, turn_id=exchange.turn_id, is_kept=True
            )
            if isinstance(failure, SessionDamaged | NotReadable):  # nothing can be stored here
                await exchange.say(said.text, kind="error", incident=said.incident)
            else:
                await exchange.fail(said.text, said.incident)
        elif running.scope.cancelled_caught:
            await exchange.stop(waiting=len(messages_among(session.waiting)))

    async def _with_burst(self, exchange: Exchange) -> Exchange:
        """Merge messages that arrive within a short time, and return the exchange for the last.

        A question that a turn has already worked on is not merged with later messages.
        """
        session = exchange.session
        seconds = exchange.message.burst_seconds if session.last_seq == exchange.seq else 0
        while seconds:
            count = len(session.waiting)
            await anyio.sleep(seconds)
            if len(session.waiting) in {count, self._waiting_limit}:
                break
        kept = await self._sessions.change(session, self._join) if seconds else None
        if kept is None:
            return exchange
        last, begun = kept
        self._parts.begun(session, begun)
        message = inbound_of(last, key=session.key)
        return Exchange(session, message, seq=begun.seq, claim=begun.claim, parts=self._parts)

    def _join(self, session: Session) -> tuple[Entry, Begun] | None:
        """Merge the waiting messages before the first command into the current question."""
        said = said_first(session.waiting)
        return (said[-1], self._parts.begin(session, *said)) if said else None


def _is_not_wanted(_: str) -> bool:
    """Always return False: no session is watched until `watch_over` is called."""
    return False


def _early_seconds(session: Session, entry: Entry) -> float:
    return seconds_before(entry, session.waiting, utc_now())


def _drop_question(session: Session, *, seq: int) -> None:
    if session.awaiting == seq:
        session.awaiting = 0
