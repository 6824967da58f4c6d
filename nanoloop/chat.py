"""The chats: what arrives is kept in its session, and one worker a chat does what is owed there.

A worker remembers nothing: it asks its session what is next, does that, and asks again. A restart,
an edit and an interruption are the same to it.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio

from nanoloop.errors import (
    HistoryNotLoaded,
    LaneFull,
    NanoloopError,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
    StoreConflict,
    StoreError,
    TurnLost,
)
from nanoloop.events import (
    MessageAccepted,
    MessageRefused,
    MessageRepeated,
    TurnFailed,
    UnansweredFound,
    about,
    announce,
)
from nanoloop.exchange import STORE_SECONDS, Begun, Exchange, ExchangeParts
from nanoloop.intake import amended_by, amendment, inbound_of, is_command, user_entry
from nanoloop.lanes import Lanes
from nanoloop.messages import Delivery, Inbound, Outbound, Outcome
from nanoloop.sending import question_in, reply_to, send_owed
from nanoloop.sentences import Apology, Sentences
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
    message_id_of,
    messages_among,
    reworded,
    said_first,
)
from nanoloop.session.session import Session
from nanoloop.turn import close_calls

if TYPE_CHECKING:
    from nanoloop.commands import Commands
    from nanoloop.turn import Answer

WAITING_BYTES = 1_000_000
"""How much may wait in one chat."""
INTERRUPTED = "interrupted before it finished: a message was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What became of a message."""

    session: Session
    outcome: Outcome = "kept"
    begun: Begun | None = None
    """The question that it is, where nothing else was owed."""
    ends_turn: bool = False
    """Whether it changed the question that is being answered."""


@dataclass(slots=True)
class _Running:
    """A turn that is going on."""

    scope: anyio.CancelScope
    is_amended: bool = False
    """Its question has changed: whatever comes of it is dropped."""


class Chats:
    """Every chat's arrivals and its worker."""

    def __init__(
        self,
        *,
        parts: ExchangeParts,
        commands: Commands,
        limiter: anyio.Semaphore,
        waiting_limit: int,
        answer_unanswered: bool,
        sentences: Sentences,
    ) -> None:
        self._parts = parts
        self._sessions = parts.sessions
        self._bus = parts.bus
        self._commands = commands
        self._limiter = limiter
        self._waiting_limit = waiting_limit
        self._answers_unanswered = answer_unanswered
        self._sentences = sentences
        self._arrivals: Lanes[str, Delivery] = Lanes(
            self._arrive, limit=waiting_limit, name="arrival"
        )
        self._asides: Lanes[str, Delivery] = Lanes(
            self._answer_aside, limit=waiting_limit, name="aside"
        )
        self._workers: Lanes[str, str] = Lanes(self._work, limit=waiting_limit, name="lane")
        self._turns: dict[str, _Running] = {}
        self._begun: dict[str, int] = {}
        """The question that this process has begun last in a session, until it is answered."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for lanes in (self._asides, self._workers, self._arrivals):
            await self._stack.enter_async_context(lanes)
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

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this chat."""
        return key in self._turns

    def waiting(self, key: str) -> int:
        """Messages that wait in this chat."""
        session = self._sessions.known(key)
        return self._arrivals.waiting(key) + (
            0 if session is None else len(messages_among(session.waiting))
        )

    def is_busy(self, key: str) -> bool:
        """Whether this chat works on a message in any way, or one waits."""
        return self._workers.is_busy(key) or self._arrivals.is_busy(key)

    async def idle(self) -> None:
        """Wait until no chat has work."""
        await self._arrivals.idle()
        await self._workers.idle()
        await self._asides.idle()

    async def keep_arriving(self) -> int:
        """Make durable what has not been taken yet; returns how many turns are unfinished."""
        unfinished = len(self._workers)
        for delivery in self._arrivals.take_waiting():
            message = delivery.message
            entry = amendment(message) if amended_by(message) else user_entry(message)
            try:
                arrival = await self._kept(message, entry)
            except NanoloopError as error:
                if _is_away(error):  # for all others too: nobody waits for it once for each
                    break
            else:
                await delivery.ack(arrival.outcome)
        return unfinished

    # What arrives

    async def take(self, delivery: Delivery) -> None:
        """Put a message where it will be handled; waits for nobody."""
        message = delivery.message
        key = message.session_key
        try:
            if is_command(message) and self._commands.is_at_once(message.text):
                # /stop waits for no other command, which may take long.
                lane = f"{key} stop" if message.text.split()[:1] == ["/stop"] else key
                self._asides.put_nowait(lane, delivery)
            else:
                self._arrivals.put_nowait(key, delivery)
        except LaneFull:
            await self._refuse(delivery)
        else:
            waiting, name = self.waiting(key), message.message_id
            announce(MessageAccepted(key=key, message_id=name, waiting=waiting))

    async def _refuse(self, delivery: Delivery) -> None:
        message = delivery.message
        announce(
            MessageRefused(key=message.session_key, message_id=message.message_id, reason="full")
        )
        await delivery.ack("full")
        await self._publish(reply_to(message, self._sentences.text("busy"), "notice"))

    async def _answer_aside(self, _: str, delivery: Delivery) -> None:
        """Answer what only reads, whatever else goes on."""
        try:
            text = await self._commands.answer(delivery.message)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            await self._apologise(delivery, error)
        else:
            await delivery.ack()
            await self._publish(reply_to(delivery.message, text, "notice"))

    async def _arrive(self, key: str, delivery: Delivery) -> None:
        try:
            arrival = await self._kept_in_the_end(delivery)
        except (SessionDamaged, NotReadable) as unreadable:
            if is_command(delivery.message):  # /new is the way out
                await self._answer_aside(key, delivery)
            else:
                await self._apologise(delivery, unreadable)
            return
        except Exception as error:  # noqa: BLE001 - as above
            await self._apologise(delivery, error)
            return
        if arrival.outcome == "full":
            await self._refuse(delivery)
            return
        if arrival.outcome == "repeated":
            name = delivery.message.message_id or ""
            announce(MessageRepeated(key=key, message_id=name))
        if arrival.begun is not None:
            self._note(arrival.session, arrival.begun)
        running = self._turns.get(key)
        if arrival.ends_turn and running is not None:
            running.is_amended = True
            running.scope.cancel()
        await delivery.ack(arrival.outcome)
        self.wake(key, arrival.session.id)

    async def _kept_in_the_end(self, delivery: Delivery) -> Arrival:
        """The same, however long the store is away; the chat is told of that once."""
        message, is_told = delivery.message, False
        entry = amendment(message) if amended_by(message) else user_entry(message)
        while True:
            try:
                return await self._kept(message, entry)
            except StoreError as error:
                if not _is_away(error):
                    raise
                if not is_told:
                    await self._sorry(message, error)
                is_told = True
                await anyio.sleep(STORE_SECONDS)

    async def _kept(self, message: Inbound, entry: Entry) -> Arrival:
        """Have it in its chat's session, durable when this returns."""
        act = partial(self._take_in, message=message, entry=entry)
        while True:
            with suppress(SessionNotFound):  # deleted by another process: the chat begins anew
                session = await self._sessions.current(message.session_key, agent=message.agent)
                arrival = await self._sessions.change(session, act)
                if arrival is not None:
                    return arrival

    def _take_in(self, session: Session, *, message: Inbound, entry: Entry) -> Arrival | None:
        """Have the session take it in; None where its chat has moved on."""
        if session.moved:
            return None
        name = message.message_id
        if (kept := _tried_before(session, entry)) is not None:
            return kept
        # A change may come under the name of what it changes.
        if name is not None and name != amended_by(message) and session.has_seen(name):
            return Arrival(session=session, outcome="repeated")
        if amended_by(message):
            return self._amend(session, message, entry)
        return self._queue(session, message, entry)

    def _queue(self, session: Session, message: Inbound, entry: Entry) -> Arrival:
        """Have it wait for its turn, which comes at once where nothing else is owed."""
        is_idle = self._first(session, self._sessions.sent_of(session.id)) is None
        waits = is_command(message) or not is_idle
        if waits and not self._has_room(session, entry):
            return Arrival(session=session, outcome="full")
        if message.agent and not is_command(message):
            self._parts.agents.choose(session, wanted=message.agent, channel=message.channel)
        if waits:
            session.hold(entry)
            if is_command(message) and message.message_id is not None:
                session.know([message.message_id])  # it will be in no log
            return Arrival(session=session)
        return Arrival(session=session, begun=self._parts.begin(session, entry))

    def _amend(self, session: Session, message: Inbound, told: Entry) -> Arrival:
        """Change what waits or is being asked; of anything older the model is told."""
        name, begun, ends_turn = amended_by(message) or "", None, False
        if not session.amend_held(name, None if message.deletes else message.text):
            if not session.has_seen(name):
                return Arrival(session=session)
            question = _entry_at(session, session.awaiting)
            ends_turn = question is not None and message_id_of(question) == name
            if question is None or not ends_turn:
                session.add_entry(told)
            elif not _take_back(session):  # what was done for it must not be forgotten
                close_calls(session, INTERRUPTED)
                session.add_entry(told)
                session.awaiting = 0 if message.deletes else session.awaiting
            elif not message.deletes:
                again = replace(reworded(question, message.text), id=told.id)
                begun = self._parts.begin(session, again)
        if message.message_id is not None:
            session.know([message.message_id])
        return Arrival(session=session, begun=begun, ends_turn=ends_turn)

    def _has_room(self, session: Session, entry: Entry) -> bool:
        waiting = session.waiting
        used = sum(map(_size, waiting))
        return len(waiting) < self._waiting_limit and used + _size(entry) <= WAITING_BYTES

    # What is owed

    def wake(self, key: str, session_id: str) -> None:
        """Have the chat's worker look at this session."""
        with suppress(RuntimeError):  # the loop has ended: its turn comes after the next start
            self._workers.put_nowait(key, session_id, bounded=False)

    async def take_up(self, key: str, session_id: str) -> None:
        """Have what an earlier process left in this session done."""
        try:
            session = await self._sessions.open(session_id)
        except SessionNotFound:  # deleted meanwhile
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._apology(session_id, error)
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
                self._apology(session_id, error)

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
                if not _is_away(error):
                    raise
                said = session and question_in((*session.window, *session.waiting[:1]))
                if said and not is_told:
                    await self._sorry(said, error)
                is_told = True
                await anyio.sleep(STORE_SECONDS)

    async def _do_next(self, key: str, session: Session) -> bool:
        """Do what is owed first; False where nothing is, or nothing can be done about it."""
        sent = self._sessions.sent_of(session.id)
        # Not before what is being written is durable.
        todo = await self._sessions.writer.look(session, lambda now: self._first(now, sent))
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

    def _first(self, session: Session, sent: Container[int]) -> Next:
        """What is owed first; what came by a channel that is not there is passed over."""
        todo = session.next(sent)
        match todo:
            case Think(seq=seq):
                asked = _entry_at(session, seq)
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
            apology = self._apology(session.id, error)
            said = reply_to(message, apology.text, "error", incident=apology.incident)
        else:
            said = reply_to(message, text)
        await self._sessions.change(session, lambda now: now.let_go_held(entry.id))
        await self._publish(said)
        if session.moved:
            self.wake(key, session.moved)

    async def _ask(self, session: Session, entry: Entry) -> None:
        """Make a message that waits the question that is answered next."""

        def act(now: Session) -> Begun | None:
            waits = self._first(now, self._sessions.sent_of(now.id)) == Ask(entry)
            return self._parts.begin(now, entry) if waits else None

        begun = await self._sessions.change(session, act)
        if begun is not None:
            self._note(session, begun)

    def _note(self, session: Session, begun: Begun) -> None:
        self._begun[session.id] = begun.seq
        self._parts.begun(session, begun)

    async def _think(self, key: str, session: Session, seq: int) -> None:
        """Answer the question with this number."""
        entry = _entry_at(session, seq)
        if entry is None:  # it was answered together with a newer one, or erased
            return await self._sessions.change(session, partial(_drop_question, seq=seq))
        message = inbound_of(entry, key=session.key)
        is_resumed = self._begun.pop(session.id, 0) != seq
        exchange = Exchange(session, message, seq=seq, parts=self._parts)
        if is_resumed:
            action = "answer" if self._answers_unanswered else "report"
            announce(UnansweredFound(action=action))
            if not self._answers_unanswered:
                return await exchange.fail(self._sentences.text("interrupted"))
            await exchange.pick_up()
        return await self._answer(key, exchange, is_resumed=is_resumed)

    async def _answer(self, key: str, exchange: Exchange, *, is_resumed: bool) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = running = _Running(scope)
            try:
                exchange = await self._with_burst(exchange)
                async with self._limiter:
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
                await exchange.deliver(answer, sorry=partial(self._sorry, exchange.message))
            except NanoloopError as error:
                failure = error
            else:
                return
        if failure and (isinstance(failure, SessionNotFound | TurnLost) or _is_away(failure)):
            raise failure  # it is somebody else's, or still owed
        if failure is not None:
            apology = self._apology(session.id, failure, turn_id=exchange.turn_id, is_kept=True)
            await exchange.fail(apology.text, apology.incident)
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
        self._note(session, begun)
        del self._begun[session.id]
        message = inbound_of(last, key=session.key)
        return Exchange(session, message, seq=begun.seq, parts=self._parts)

    def _join(self, session: Session) -> tuple[Entry, Begun] | None:
        """Let all that waits before a command be asked together with the question."""
        said = said_first(session.waiting)
        return (said[-1], self._parts.begin(session, *said)) if said else None

    # What is told

    async def _apologise(self, delivery: Delivery, error: Exception) -> None:
        await delivery.ack("failed")
        await self._sorry(delivery.message, error)

    async def _sorry(self, message: Inbound, error: Exception) -> None:
        apology = self._apology(message.session_key, error)
        await self._publish(reply_to(message, apology.text, "error", incident=apology.incident))

    async def _publish(self, said: Outbound) -> None:
        try:
            await self._bus.publish(said)
        except Exception as error:  # noqa: BLE001 - a bus that fails must not end every lane
            self._apology(said.chat, error)

    def _apology(
        self, session_id: str, error: Exception, *, turn_id: str = "", is_kept: bool = False
    ) -> Apology:
        """What the chat is told; what the operator is told of it goes to the log."""
        incident = self._sentences.incidents.of(error, place=session_id)
        with about(session_id=session_id, turn_id=turn_id):
            announce(TurnFailed(**incident.facts))
        return self._sentences.apology(error, incident.incident, is_kept=is_kept)


def _tried_before(session: Session, entry: Entry) -> Arrival | None:
    """What became of it where it was taken in already, and could not be made durable."""
    newest = session.newest
    if newest is not None and newest.id == entry.id:
        is_asked = newest.seq == session.awaiting
        begun = Begun(seq=newest.seq, evicted=0) if is_asked else None
        return Arrival(session=session, begun=begun)
    if any(waiting.id == entry.id for waiting in session.waiting):
        return Arrival(session=session)
    return None


def _is_away(error: Exception) -> bool:
    """Whether it says that the store can't be reached now, and nothing of one session."""
    of_one = (SessionDamaged, NotReadable, StoreConflict)
    return isinstance(error, StoreError) and not isinstance(error, of_one)


def _size(entry: Entry) -> int:
    """The bytes that a message takes, about."""
    return len(str(entry.content).encode())


def _entry_at(session: Session, seq: int) -> Entry | None:
    newest = session.newest
    if newest is not None and newest.seq == seq:
        return newest
    return next((entry for entry in session.window if entry.seq == seq), None)


def _drop_question(session: Session, *, seq: int) -> None:
    if session.awaiting == seq:
        session.awaiting = 0


def _take_back(session: Session) -> bool:
    """Take back the question that is being asked; False where more than that came of it."""
    if session.awaiting != session.last_seq:
        return False
    try:
        session.undo()
    except HistoryNotLoaded:  # all before it has left the window
        return False
    session.awaiting = 0
    return True
