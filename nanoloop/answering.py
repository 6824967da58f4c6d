"""What a chat's lane does: hears a message, with what comes right behind it, and answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from nanoloop.amending import asked_anew, change
from nanoloop.errors import SessionNotFound, StoreConflict
from nanoloop.events import TurnFailed, about, announce
from nanoloop.holds import Held, Holds, Left
from nanoloop.intake import amended_by
from nanoloop.lanes import Lanes
from nanoloop.leftovers import Leftovers
from nanoloop.messages import Delivery, Inbound
from nanoloop.protocols import Bus
from nanoloop.sending import reply_to
from nanoloop.sentences import Apology, Sentences
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.exchange import Exchange
    from nanoloop.turn import Answer

Item = Delivery | Held | Left
"""What a lane works on."""


@dataclass(slots=True)
class _Running:
    """A turn that is going on, or about to."""

    scope: anyio.CancelScope
    message: Inbound
    amended: Inbound | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)
    """Set once what was amended is durable."""

    async def amend(self, message: Inbound) -> None:
        """End it: its question has changed. Returns once that is durable."""
        self.amended = message
        self.scope.cancel()
        await self.settled.wait()


class Answering:
    """Every chat's lane, and what is kept for it meanwhile."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        bus: Bus,
        exchange: Callable[[Session, Inbound], Exchange],
        limiter: anyio.Semaphore,
        lane_limit: int,
        answer_unanswered: bool,
        sentences: Sentences,
    ) -> None:
        self._sessions = sessions
        self._bus = bus
        self._exchange = exchange
        self._limiter = limiter
        self._lane_limit = lane_limit
        self._sentences = sentences
        self._leftovers = Leftovers(
            sessions,
            bus=bus,
            exchange=exchange,
            answers=answer_unanswered,
            interrupted=sentences.text("interrupted"),
            failed=self.apology,
        )
        self.lanes: Lanes[str, Item] = Lanes(self._handle, limit=lane_limit)
        self.holds = Holds(
            sessions,
            into=self.lanes.put,
            amend=self._amend,
            failed=self.apology,
            limit=lane_limit,
        )
        self._hearing: dict[str, anyio.Event] = {}
        """Set once the message whose turn begins has been heard."""
        self._turns: dict[str, _Running] = {}

    # What goes on

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        running = self._turns.get(key)
        if running is not None:
            running.scope.cancel()
        return running is not None

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return key in self._turns

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self.holds.waiting(key) + self.lanes.waiting(key)

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self.lanes.is_busy(key) or self.holds.is_busy(key)

    # One item

    async def _handle(self, key: str, item: Item) -> None:
        try:
            if isinstance(item, Left):
                await self._resume(key, item)
            else:
                await self._receive(key, item)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            apology = self.apology(key, error)
            if isinstance(item, Left):
                await self._leftovers.fail(key, item, apology)
            else:
                await self.apologise(item, apology)

    async def _resume(self, key: str, item: Left) -> None:
        with about(session_id=item.session_id):
            exchange = await self._leftovers.taken_up(item)
        if exchange is not None:
            await self._answer(key, exchange, resumed=True)

    async def apologise(self, item: Delivery | Held, apology: Apology) -> None:
        """Acknowledge a message and say that it failed; never raises."""
        await self.tell(item, apology.text, "error", incident=apology.incident)

    async def tell(
        self, item: Delivery | Held, text: str, kind: str, *, incident: str | None = None
    ) -> None:
        """Acknowledge a message and answer it; never raises."""
        try:
            if isinstance(item, Delivery):
                await item.ack()
            await self._bus.publish(reply_to(item.message, text, kind, incident=incident))
        except Exception as error:  # noqa: BLE001 - a bus that fails must not end every lane
            self.apology(item.message.session_key, error)

    def apology(
        self, session_id: str, error: Exception, *, turn_id: str = "", is_kept: bool = False
    ) -> Apology:
        """What the chat is told; what the operator is told of it goes to the log."""
        incident = self._sentences.incidents.of(error, place=session_id)
        with about(session_id=session_id, turn_id=turn_id):
            announce(TurnFailed(**incident.facts))
        if isinstance(error, StoreConflict):  # that object is of no more use
            self._sessions.forget(error.session_id)
        return self._sentences.apology(error, incident.incident, is_kept=is_kept)

    # One message

    async def _receive(self, key: str, item: Delivery | Held) -> None:
        self._hearing[key] = heard = anyio.Event()
        try:
            try:
                exchange = await self._heard(key, item)
            except SessionNotFound:  # deleted by another process: the chat begins anew
                exchange = await self._heard(key, item)
        finally:
            del self._hearing[key]
            heard.set()
        # No await between: whoever waited for it to be heard finds its turn.
        if exchange is not None:
            await self._answer(key, exchange)

    async def _heard(self, key: str, item: Delivery | Held) -> Exchange | None:
        """The exchange for a message, which is durable then; None where there is nothing to ask."""
        message = item.message
        session = await self._sessions.current(key, agent=message.agent)
        if isinstance(item, Delivery):
            return await self._heard_first(key, item, session)
        exchange = None
        entry = await self.holds.take(item, session)
        if entry is not None:
            exchange = self._exchange(session, message)
            await exchange.hear(entry)
        await self.holds.let_go(item, session)
        return exchange

    async def _heard_first(self, key: str, delivery: Delivery, session: Session) -> Exchange | None:
        message, exchange = delivery.message, None
        is_repeated = await self.holds.is_repeated(key, session, message)
        if amended_by(message) and not is_repeated:  # it could not be kept when it came
            await change(session, message, sessions=self._sessions)
        elif not is_repeated:
            exchange = self._exchange(session, message)
            await exchange.hear()
        await delivery.ack(owed=not is_repeated)
        return exchange

    async def _with_burst(self, key: str, exchange: Exchange) -> Exchange:
        """What is said within a short time is heard together; the last one is answered."""
        seconds = exchange.message.burst_seconds
        while seconds:
            count = self.waiting(key)
            await anyio.sleep(seconds)
            if self.waiting(key) in {count, self._lane_limit}:
                break
        session = exchange.session
        kept = self._taken(key, lambda _: seconds > 0, session)
        if kept:
            exchange = self._exchange(session, kept[-1][0].message)
            with anyio.CancelScope(shield=True):  # what is taken is heard
                await exchange.hear(*(entry for _, entry in kept))
        return exchange

    def _taken(
        self, key: str, wanted: Callable[[Held], bool], session: Session
    ) -> list[tuple[Held, Entry]]:
        """Take those that wait in this session out of the lane and of the session."""

        def is_wanted(item: Item) -> bool:
            return isinstance(item, Held) and item.session_id == session.id and wanted(item)

        items = [item for item in self.lanes.take(key, is_wanted) if isinstance(item, Held)]
        pairs = [(item, session.take_held(item.entry_id)) for item in items]
        return [(item, entry) for item, entry in pairs if entry is not None]

    def steering(self, key: str, session: Session) -> list[Entry]:
        """What is to be told to the turn that is going on."""
        return [entry for _, entry in self._taken(key, lambda item: item.message.steers, session)]

    async def _answer(self, key: str, exchange: Exchange, *, resumed: bool = False) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = running = _Running(scope, exchange.message)
            try:
                exchange = await self._with_burst(key, exchange)
                running.message = exchange.message
                async with self._limiter:
                    answer = await exchange.think(resumed=resumed)
            except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
                failure = error
            finally:
                del self._turns[key]
        # Outside the scope: what came of it is kept and told, /stop or not.
        with suppress(SessionNotFound):  # deleted by another process: nothing is revived
            await self._end(key, exchange, running, answer, failure)

    async def _end(
        self,
        key: str,
        exchange: Exchange,
        running: _Running,
        answer: Answer | None,
        failure: Exception | None,
    ) -> None:
        if running.amended is not None:
            await self._answer_amended(key, exchange, running)
        elif answer is not None:
            await exchange.deliver(answer)
        elif failure is not None:
            which = {"session_id": exchange.session.id, "turn_id": exchange.turn_id}
            apology = self.apology(error=failure, is_kept=True, **which)
            await exchange.fail(apology.text, apology.incident)
        elif running.scope.cancelled_caught:
            await exchange.stop(waiting=self.waiting(key))

    # What was said otherwise

    async def _amend(self, key: str, session: Session, message: Inbound) -> None:
        """Change a message that is not answered yet; of any other the model is told."""
        held = self._in_older(key, session, message)
        older = None if held is None else await self._sessions.open(held.session_id)
        if key in self._hearing:  # it may be the one that changes
            await self._hearing[key].wait()
        running = self._turns.get(key)
        if running is not None and running.message.message_id == amended_by(message):
            await running.amend(message)
        elif older is not None and held in self.lanes.items(key):
            await change(older, message, sessions=self._sessions)
            known = list(filter(None, [message.message_id]))
            await self._sessions.change(session, lambda now: now.know(known))
        else:
            await change(session, message, sessions=self._sessions)

    def _in_older(self, key: str, session: Session, message: Inbound) -> Held | None:
        """What it changes, where that waits in the conversation from before a /new."""
        waiting = (item for item in self.lanes.items(key) if isinstance(item, Held))
        older = (item for item in waiting if item.session_id != session.id)
        name = amended_by(message)
        return next((item for item in older if item.message.message_id == name), None)

    async def _answer_amended(self, key: str, exchange: Exchange, running: _Running) -> None:
        assert running.amended is not None  # noqa: S101 - asked for only where it was
        try:
            again = await asked_anew(
                exchange, running.amended, exchange_for=self._exchange, sessions=self._sessions
            )
        finally:
            running.settled.set()
        # No await between: a second change finds this turn.
        if again is not None:
            await self._answer(key, again)
