"""Who runs when: a lane for each chat, commands beside it; stop, full, crash, shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from nanoloop.agents import Agent, Agents
from nanoloop.bus.in_process import InProcessBus
from nanoloop.commands import Commands, is_command, is_stop
from nanoloop.errors import (
    LaneFull,
    NanoloopError,
    ProviderError,
    SessionNotFound,
    StoreConflict,
    place_of,
)
from nanoloop.events import (
    Announce,
    LoopStarted,
    LoopStopped,
    MessageAccepted,
    MessageRefused,
    TurnFailed,
    UnansweredFound,
    silent,
)
from nanoloop.exchange import Exchange
from nanoloop.holds import Held, Holds, held_in
from nanoloop.intake import amendment, inbound_of
from nanoloop.lanes import Lanes
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Delivery, Inbound
from nanoloop.protocols import Bus, Provider, Store, Tool
from nanoloop.sending import reply_to, send_owed
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.view import Bounds, Views
from nanoloop.view.headroom import Headroom

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

BUSY = "I am still busy with your earlier messages and did not take this one. Send it again soon."
CRASHED = "Sorry, something went wrong on my side. Your message is kept; please try again."
INTERRUPTED = "I was restarted before I could answer your last message. Please send it again."
FLUSH_SECONDS = 5
"""How long a shutdown waits for what is on its way out."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What an earlier process left to do in a session, before anything new."""

    session_id: str


_Item = Delivery | Held | _Left
"""What a lane works on."""


class AgentLoop:
    """Takes messages from the bus and answers each chat in order, all chats side by side."""

    def __init__(
        self,
        *,
        provider: Provider,
        agent: Agent | None = None,
        agents: Mapping[str, Agent] | None = None,
        tools: Iterable[Tool] = (),
        store: Store | None = None,
        bus: Bus | None = None,
        summarizer: Summarizer | None = None,
        recall: Recall | None = None,
        message_buffer_limit: int = 50,
        message_buffer_min: int = 10,
        context_tokens: int | None = None,
        context_limit: int | None = None,
        handover: bool = False,
        handover_limit: int = 200,
        summary_model: str | None = None,
        max_concurrent_turns: int = 256,
        lane_limit: int = 20,
        open_sessions: int = 1000,
        with_time: bool = False,
        answer_unanswered: bool = True,
        shutdown_turns_seconds: float = 20,
        shutdown_summaries_seconds: float = 10,
        announce: Announce = silent,
    ) -> None:
        self._provider = provider
        default = agent or Agent(tools=tools)
        self.agents = agents if isinstance(agents, Agents) else Agents(default, agents)
        self.bus = bus or InProcessBus(announce=announce)
        self.sessions = Sessions(store or InMemoryStore(), limit=open_sessions, announce=announce)
        self.summarizer = summarizer or Summarizer(provider, summary_model, announce=announce)
        self.summarizer.keep_in(self.sessions.store)
        self._recall = recall
        self.message_buffer_limit = message_buffer_limit
        self.message_buffer_min = message_buffer_min
        self._buffer = {"buffer_limit": message_buffer_limit, "buffer_min": message_buffer_min}
        self._views = Views(
            Bounds(context_tokens=context_tokens, handover=handover_limit if handover else 0)
        )
        self._headroom = Headroom(context_limit, announce)
        self._max_concurrent_turns = max_concurrent_turns
        self._limiter = anyio.Semaphore(max_concurrent_turns)
        self._lane_limit = lane_limit
        self._with_time = with_time
        self._answer_unanswered = answer_unanswered
        self._shutdown_turns_seconds = shutdown_turns_seconds
        self._shutdown_summaries_seconds = shutdown_summaries_seconds
        self._announce = announce
        self._commands = Commands(
            sessions=self.sessions,
            agents=self.agents,
            summarizer=self.summarizer,
            recall=recall,
            runner=self,
            announce=announce,
            **self._buffer,
        )
        self._lanes: Lanes[str, _Item] = Lanes(self._handle, limit=lane_limit)
        self._holds = Holds(
            self.sessions,
            into=self._lanes.put,
            amend=self._amend,
            limit=lane_limit,
            announce=announce,
        )
        self._asides: Lanes[str, Delivery] = Lanes(
            self._answer_aside, limit=lane_limit, name="aside"
        )
        self._turns: dict[str, _Running] = {}
        self._started_at = datetime.now(timezone.utc)

    @property
    def recall(self) -> Recall | None:
        """What finds again what was said, where there is one."""
        return self._recall

    @property
    def lanes(self) -> int:
        """How many chats are being answered or wait."""
        return len(self._lanes)

    # Taking

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until the bus is closed; then finish what runs, up to the deadlines."""
        async with AsyncExitStack() as stack:
            for part in (self.bus, self.summarizer, self._recall, self._asides, self._holds):
                if part is not None:
                    await stack.enter_async_context(part)
            async with self._lanes:
                self._announce_start()
                task_status.started()
                async for delivery in self.bus.deliveries():
                    await self._dispatch(delivery)
                    await checkpoint()  # a burst must leave the lanes their turn
                with anyio.move_on_after(self._shutdown_turns_seconds):
                    await self._holds.idle()
                    await self._lanes.idle()
                    await self._asides.idle()
                unfinished = len(self._lanes)
                waiting = self._lanes.take_waiting()
            await self._keep(waiting)
            await self._stop(unfinished)

    async def _stop(self, unfinished: int) -> None:
        summaries = await self.summarizer.drain(self._shutdown_summaries_seconds)
        with anyio.move_on_after(FLUSH_SECONDS):
            await self.bus.flush()
        self._announce(LoopStopped(unfinished_turns=unfinished, unfinished_summaries=summaries))

    async def _keep(self, waiting: Iterable[_Item]) -> None:
        """Make durable what no turn came to: it is answered after the next start."""
        for item in waiting:
            if isinstance(item, Delivery):
                with suppress(NanoloopError):
                    await self._holds.keep(item.message.session_key, item)

    def _announce_start(self) -> None:
        self._started_at = datetime.now(timezone.utc)
        self._announce(
            LoopStarted(channels=self.bus.channels, max_concurrent_turns=self._max_concurrent_turns)
        )

    async def _dispatch(self, delivery: Delivery) -> None:
        """Put a message where it will be handled; waits for nobody."""
        message = delivery.message
        key = message.session_key
        try:
            self._put(key, delivery)
        except LaneFull:
            await self._refuse(key, delivery)
        else:
            waiting = self.waiting(key)
            self._announce(MessageAccepted(key=key, message_id=message.message_id, waiting=waiting))

    def _put(self, key: str, delivery: Delivery) -> None:
        message = delivery.message
        if message.edits or message.deletes:
            self._holds.put_nowait(key, delivery)
        elif is_command(message.text):
            # /stop waits for no other command, which may take long.
            self._asides.put_nowait(f"{key} stop" if is_stop(message.text) else key, delivery)
        elif not self.is_busy(key):
            self._lanes.put_nowait(key, delivery)
        elif self.waiting(key) < self._lane_limit:
            self._holds.put_nowait(key, delivery)
        else:
            raise LaneFull(key, self._lane_limit)

    async def _refuse(self, key: str, delivery: Delivery) -> None:
        message_id = delivery.message.message_id
        self._announce(MessageRefused(key=key, message_id=message_id, reason="lane full"))
        try:
            self._asides.put_nowait(key, delivery)
        except LaneFull:  # it has been told often enough
            await delivery.ack()

    async def _answer_aside(self, key: str, delivery: Delivery) -> None:
        """Answer a command, or say that the lane is full."""
        message = delivery.message
        kind = "notice"
        try:
            is_for_us = is_command(message.text)
            text = await self._commands.answer(message) if is_for_us else BUSY
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            kind, text = "error", self._apology(error, session_id=key, turn_id="")
        await self._tell(delivery, text, kind)

    async def _tell(self, delivery: Delivery, text: str, kind: str) -> None:
        """Answer and acknowledge; never raises."""
        try:
            await delivery.ack()
            await self.bus.publish(reply_to(delivery.message, text, kind))
        except Exception as error:  # noqa: BLE001 - a bus that fails must not end every lane
            self._apology(error, session_id=delivery.message.session_key, turn_id="")

    # One message

    async def _handle(self, key: str, item: _Item) -> None:
        try:
            match item:
                case Delivery():
                    await self._receive(key, item)
                case Held():
                    await self._receive_held(key, item)
                case _Left():
                    await self._resume(key, item)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            text = self._apology(error, session_id=key, turn_id="")
            if isinstance(item, Delivery):
                await self._tell(item, text, "error")

    async def _receive(self, key: str, delivery: Delivery) -> None:
        message = delivery.message
        session = await self.sessions.current(key, agent=message.agent)
        if await self._holds.is_repeated(key, session, message):
            await delivery.ack()
            return
        exchange = self._exchange(session, message)
        await exchange.hear()
        await delivery.ack()
        await self._answer(key, await self._with_burst(key, exchange))

    async def _receive_held(self, key: str, item: Held) -> None:
        exchange = await self._heard(key, item)
        if exchange is not None:
            await self._answer(key, await self._with_burst(key, exchange))

    async def _heard(self, key: str, item: Held) -> Exchange | None:
        """The exchange for a message that waited; None where it was taken back."""
        session = await self.sessions.current(key, agent=item.message.agent)
        entry = await self._holds.take(item, session)
        if entry is None:
            return None
        exchange = self._exchange(session, item.message)
        await exchange.hear(entry)
        await self._holds.let_go(item, session)
        return exchange

    async def _with_burst(self, key: str, exchange: Exchange) -> Exchange:
        """What is said within a short time is heard together; the last one is answered."""
        seconds = exchange.message.burst_seconds
        while seconds:
            count = self.waiting(key)
            await anyio.sleep(seconds)
            if self.waiting(key) in {count, self._lane_limit}:
                break
        for item in self._lanes.take(key, _is_held) if seconds else ():
            exchange = await self._heard(key, cast("Held", item)) or exchange
        return exchange

    async def _answer(self, key: str, exchange: Exchange, *, resumed: bool = False) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = running = _Running(scope, exchange.message)
            try:
                async with self._limiter:
                    answer = await exchange.think(resumed=resumed)
            except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
                failure = error
            finally:
                del self._turns[key]
        # Outside the scope: what came of it is kept and told, /stop or not.
        if answer is not None:
            await exchange.deliver(answer)
        elif failure is not None:
            about = {"session_id": exchange.session.id, "turn_id": exchange.turn_id}
            await exchange.fail(self._apology(failure, **about))
        elif running.amended is not None:
            await self._answer_amended(key, exchange, running.amended)
        elif scope.cancelled_caught:
            await exchange.stop(waiting=self.waiting(key))

    async def _answer_amended(self, key: str, exchange: Exchange, message: Inbound) -> None:
        """Take the question back; answer what it says now, if it says anything."""
        session = exchange.session
        session.undo()
        if message.deletes:
            await self.sessions.store.save(session)
            return
        again = self._exchange(session, message)
        await again.hear()
        await self._answer(key, again)

    async def _amend(self, key: str, session: Session, message: Inbound) -> None:
        """Change a message that is not answered yet; of any other the model is told."""
        name = message.edits or message.deletes or ""
        running = self._turns.get(key)
        if session.amend_held(name, None if message.deletes else message.text):
            await self.sessions.store.save(session)
        elif running is not None and running.message.message_id == name:
            running.amend(message)
        elif session.has_seen(name):
            session.add_entry(amendment(message))
            await self.sessions.store.save(session)

    def _steering(self, key: str, session: Session) -> list[Entry]:
        """What is to be told to the turn that is going on."""
        taken = [
            item.entry_id
            for item in self._lanes.take(key, lambda item: _steers(item, session))
            if isinstance(item, Held)
        ]
        held = [session.take_held(entry_id) for entry_id in taken]
        return [entry for entry in held if entry is not None]

    def _exchange(self, session: Session, message: Inbound) -> Exchange:
        agent = self.agents.choose(
            session, wanted=message.agent, channel=message.channel, announce=self._announce
        )
        return Exchange(
            session=session,
            message=message,
            agent=agent,
            provider=self._provider,
            store=self.sessions.store,
            bus=self.bus,
            summarizer=self.summarizer,
            headroom=self._headroom,
            views=self._views,
            with_time=self._with_time,
            announce=self._announce,
            steering=partial(self._steering, message.session_key),
            **self._buffer,
        )

    def _apology(self, error: Exception, *, session_id: str, turn_id: str) -> str:
        """What the chat is told; our own errors say what to do, a bug says nothing of itself."""
        self._announce(
            TurnFailed(
                session_id=session_id,
                turn_id=turn_id,
                error=type(error).__name__,
                where=place_of(error),
            )
        )
        if isinstance(error, StoreConflict):  # that object is of no more use
            self.sessions.forget(error.session_id)
        if isinstance(error, ProviderError):
            return f"Sorry, I could not answer: {error}"
        return f"Sorry: {error}" if isinstance(error, NanoloopError) else CRASHED

    # What commands need of it

    @property
    def channels(self) -> Mapping[str, str]:
        """How each channel stands, of those that can tell."""
        return self.bus.states

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        running = self._turns.get(key)
        if running is not None:
            running.scope.cancel()
        return running is not None

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self._holds.waiting(key) + self._lanes.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return key in self._turns

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self._lanes.is_busy(key) or self._holds.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Take up what an earlier process left: messages, answers, unfinished summaries."""
        async for info in self.sessions.store.list():
            is_left = info.awaiting or info.pending or info.waiting or info.unsent
            if is_left and info.updated_at < self._started_at:
                with suppress(SessionNotFound):  # deleted meanwhile
                    await self._take_up(info.key or info.id, info.id)

    async def recover_chat(self, key: str) -> None:
        """The same for the session that one chat has now."""
        with suppress(SessionNotFound):
            await self._take_up(key, await self.sessions.current_id(key))

    async def _take_up(self, key: str, session_id: str) -> None:
        session = await self.sessions.open(session_id)
        self.summarizer.fire_and_forget(session)
        if session.awaiting or session.unsent:
            self._lanes.put_nowait(key, _Left(session_id), bounded=False)
        for held in held_in(session, key=key):
            self._lanes.put_nowait(key, held, bounded=False)

    async def _resume(self, key: str, item: _Left) -> None:
        session = await self.sessions.open(item.session_id)
        await send_owed(session, bus=self.bus, store=self.sessions.store)
        entry = next((e for e in session.window if e.seq == session.awaiting), None)
        if entry is None:  # it was answered together with a newer one
            return
        message = inbound_of(entry, key=session.key)
        if message.channel not in self.bus.channels:
            return
        action = "answer" if self._answer_unanswered else "report"
        self._announce(UnansweredFound(session_id=session.id, action=action))
        exchange = self._exchange(session, message)
        if self._answer_unanswered:
            await exchange.pick_up()
            await self._answer(key, exchange, resumed=True)
        else:
            await exchange.fail(INTERRUPTED)


@dataclass(slots=True)
class _Running:
    """A turn that is going on."""

    scope: anyio.CancelScope
    message: Inbound
    amended: Inbound | None = None

    def amend(self, message: Inbound) -> None:
        """End it: its question has changed."""
        self.amended = message
        self.scope.cancel()


def _is_held(item: _Item) -> bool:
    return isinstance(item, Held)


def _steers(item: _Item, session: Session) -> bool:
    return isinstance(item, Held) and item.message.steers and item.session_id == session.id
