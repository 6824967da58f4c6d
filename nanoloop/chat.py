"""The chats: one worker for each does what is owed there.

A worker remembers nothing: it asks its session what is next, does that, and asks again. A restart,
an edit and an interruption are the same to it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio

from nanoloop.errors import NanoloopError, SessionNotFound, StoreError, TurnLost
from nanoloop.events import UnansweredFound, about, announce
from nanoloop.exchange import Begun, Exchange, ExchangeParts
from nanoloop.fairness import FairLimiter
from nanoloop.intake import inbound_of
from nanoloop.lanes import Lanes
from nanoloop.sending import Notices, question_in, reply_to, send_owed
from nanoloop.session.entry import Entry
from nanoloop.session.queue import (
    Ask,
    Next,
    PassOn,
    Run,
    Send,
    Think,
    first_of,
    is_for_loop,
    messages_among,
    said_first,
)
from nanoloop.session.session import Session
from nanoloop.writing import is_away, leave_alone

if TYPE_CHECKING:
    from nanoloop.commands import Commands
    from nanoloop.turn import Answer


@dataclass(slots=True)
class _Running:
    """A turn that is going on."""

    scope: anyio.CancelScope
    is_amended: bool = False
    """Its question has changed: whatever comes of it is dropped."""


class Chats:
    """Every chat's worker."""

    def __init__(
        self,
        *,
        parts: ExchangeParts,
        commands: Commands,
        notices: Notices,
        limiter: FairLimiter,
        waiting_limit: int,
        answer_unanswered: bool,
    ) -> None:
        self._parts = parts
        self._sessions = parts.sessions
        self._bus = parts.bus
        self._commands = commands
        self._notices = notices
        self._limiter = limiter
        self._waiting_limit = waiting_limit
        self._answers_unanswered = answer_unanswered
        self._workers: Lanes[str, str] = Lanes(self._work, limit=waiting_limit, name="lane")
        self._turns: dict[str, _Running] = {}
        self._begun: dict[str, int] = {}
        """The question that this process has begun last in a session, until it is answered."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._workers)
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._stack.__aexit__(*exc)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """How many chats are being answered or wait."""
        return len(self._workers)

    # What goes on

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this chat; False where there is none."""
        running = self._turns.get(key)
        if running is not None:
            running.scope.cancel()
        return running is not None

    def drop_turn(self, key: str) -> None:
        """Stop the turn that is going on in this chat, if one is, and keep nothing of it."""
        running = self._turns.get(key)
        if running is not None:
            running.is_amended = True
            running.scope.cancel()

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this chat."""
        return key in self._turns

    def is_busy(self, key: str) -> bool:
        """Whether this chat's worker has something to do."""
        return self._workers.is_busy(key)

    async def idle(self) -> None:
        """Wait until no worker has anything to do."""
        await self._workers.idle()

    # What is owed

    def wake(self, key: str, session_id: str) -> None:
        """Have the chat's worker look at this session."""
        with suppress(RuntimeError):  # the loop has ended: its turn comes after the next start
            self._workers.put_nowait(key, session_id, bounded=False)

    def note(self, session: Session, begun: Begun) -> None:
        """Go on behind a question that this process has begun, durable by now."""
        self._begun[session.id] = begun.seq
        self._parts.begun(session, begun)

    async def take_up(self, key: str, session_id: str) -> None:
        """Have what an earlier process left in this session done."""
        try:
            session = await self._sessions.open(session_id)
        except SessionNotFound:  # deleted meanwhile
            return
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            self._notices.apology(session_id, error)
            return
        self._parts.summarizer.fire_and_forget(session)
        self.wake(key, session_id)

    async def _work(self, key: str, session_id: str) -> None:
        with about(session_id=session_id):
            try:
                await self._do_all(key, session_id)
            # Deleted meanwhile, and nothing is revived; or answered by another, who goes on here.
            except (SessionNotFound, TurnLost):
                return
            except Exception as error:  # noqa: BLE001 - as above
                self._notices.apology(session_id, error)

    async def _do_all(self, key: str, session_id: str) -> None:
        """Do all that is owed, however long the store is away; the chat is told of that once."""
        session, is_told = None, False
        while True:
            try:
                if session is not None and session.has_expired():
                    if session.waiting:
                        self.wake(key, (await self._sessions.outlive(session, key)).id)
                    return
                session = await self._sessions.open(session_id)
                if not await self._do_next(key, session):
                    return
                is_told = False
            except SessionNotFound:
                if session is None or not session.has_expired():
                    raise
            except StoreError as error:
                if not is_away(error):
                    raise
                said = session and question_in((*session.window, *session.waiting[:1]))
                if said and not is_told:
                    await self._notices.apologise(said, error)
                is_told = True
                await leave_alone()

    async def _do_next(self, key: str, session: Session) -> bool:
        """Do what is owed first; False where nothing is, or nothing can be done about it."""
        # Not before what is being written is durable.
        todo = await self._sessions.writer.look(session, self.first)
        match todo:
            case Send():
                await send_owed(session, todo.seq, bus=self._bus, sessions=self._sessions)
            case Think(seq=seq):
                await self._think(key, session, seq)
            case PassOn():
                self.wake(key, (await self._sessions.follow(session)).id)
            case Run(entry=entry):
                await self._run(key, session, entry)
            case Ask(entry=entry):
                await self._ask(session, entry)
            case None:
                self._begun.pop(session.id, None)  # it was taken back
                return False
        return True

    def first(self, session: Session) -> Next:
        """What is owed first; what came by a channel that is not there is passed over."""
        todo = session.next(self._sessions.sent_of(session.id))
        match todo:
            case Think(seq=seq):
                asked = session.entry_at(seq)
                is_ours = asked is None or self._begun.get(session.id) == seq
                is_ours = is_ours or (session.key or session.id) in self._turns
            case Ask(entry=entry):
                asked, is_ours = entry, False
            case _:
                return todo
        if is_ours or self._is_here(asked):
            return todo
        here = (entry for entry in session.waiting if is_for_loop(entry) or self._is_here(entry))
        return PassOn(session.moved) if session.moved and session.waiting else first_of(here)

    def _is_here(self, entry: Entry | None) -> bool:
        return entry is not None and entry.metadata.get("channel") in self._bus.channels

    async def _run(self, key: str, session: Session, entry: Entry) -> None:
        """Run a command, and answer it."""
        message = inbound_of(entry, key=key)
        try:
            text = await self._commands.answer(message, claim=entry.id)
        except Exception as error:  # noqa: BLE001 - as above
            apology = self._notices.apology(session.id, error)
            said = reply_to(message, apology.text, "error", incident=apology.incident)
        else:
            said = reply_to(message, text)
        await self._sessions.change(session, lambda now: now.let_go_held(entry.id))
        await self._notices.publish(said)
        if session.moved:
            self.wake(key, session.moved)

    async def _ask(self, session: Session, entry: Entry) -> None:
        """Make a message that waits the question that is answered next."""

        def act(now: Session) -> Begun | None:
            return self._parts.begin(now, entry) if self.first(now) == Ask(entry) else None

        begun = await self._sessions.change(session, act)
        if begun is not None:
            self.note(session, begun)

    async def _think(self, key: str, session: Session, seq: int) -> None:
        """Answer the question with this number."""
        entry = session.entry_at(seq)
        if entry is None:  # it was answered together with a newer one, or erased
            return await self._sessions.change(session, partial(_drop_question, seq=seq))
        message = inbound_of(entry, key=session.key)
        is_resumed = self._begun.pop(session.id, 0) != seq
        exchange = Exchange(session, message, seq=seq, parts=self._parts)
        if is_resumed:
            action = "answer" if self._answers_unanswered else "report"
            announce(UnansweredFound(action=action))
            if not self._answers_unanswered:
                return await exchange.fail(self._notices.text("interrupted"))
            await exchange.pick_up()
        return await self._answer(key, exchange, is_resumed=is_resumed)

    async def _answer(self, key: str, exchange: Exchange, *, is_resumed: bool) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = running = _Running(scope)
            try:
                exchange = await self._with_burst(exchange)
                async with self._limiter.turn(exchange.message.owner):
                    answer = await exchange.think(resumed=is_resumed)
            except Exception as error:  # noqa: BLE001 - as above
                failure = error
            finally:
                del self._turns[key]
        # Outside the scope: what came of it is kept and told, /stop or not.
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
                await exchange.deliver(answer, notices=self._notices)
            except NanoloopError as error:
                failure = error
            else:
                return
        if failure and (isinstance(failure, SessionNotFound | TurnLost) or is_away(failure)):
            raise failure  # it is somebody else's, or still owed
        if failure is not None:
            said = self._notices.apology(
                session.id, failure, turn_id=exchange.turn_id, is_kept=True
            )
            await exchange.fail(said.text, said.incident)
        elif running.scope.cancelled_caught:
            await exchange.stop(waiting=len(messages_among(session.waiting)))

    async def _with_burst(self, exchange: Exchange) -> Exchange:
        """What is said within a short time is heard together; the last one is answered."""
        session, seconds = exchange.session, exchange.message.burst_seconds
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
        return Exchange(session, message, seq=begun.seq, parts=self._parts)

    def _join(self, session: Session) -> tuple[Entry, Begun] | None:
        """Let all that waits before a command be asked together with the question."""
        said = said_first(session.waiting)
        return (said[-1], self._parts.begin(session, *said)) if said else None


def _drop_question(session: Session, *, seq: int) -> None:
    if session.awaiting == seq:
        session.awaiting = 0
