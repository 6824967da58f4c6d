"""Who runs when: a lane for each chat, commands beside it; stop, full, crash, shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

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
    MessageRepeated,
    TurnFailed,
    UnansweredFound,
    silent,
)
from nanoloop.exchange import Exchange, reply_to
from nanoloop.intake import inbound_of
from nanoloop.lanes import Lanes
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Delivery, Inbound
from nanoloop.protocols import Bus, Provider, Store, Tool
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
class _Unanswered:
    """A message that was kept before a restart and has no answer."""

    session_id: str


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
        self._lanes: Lanes[str, Delivery | _Unanswered] = Lanes(self._handle, limit=lane_limit)
        self._asides: Lanes[str, Delivery] = Lanes(
            self._answer_aside, limit=lane_limit, name="aside"
        )
        self._turns: dict[str, anyio.CancelScope] = {}
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
            for part in (self.bus, self.summarizer, self._recall, self._asides):
                if part is not None:
                    await stack.enter_async_context(part)
            async with self._lanes:
                self._announce_start()
                task_status.started()
                async for delivery in self.bus.deliveries():
                    await self._dispatch(delivery)
                    await checkpoint()  # a burst must leave the lanes their turn
                with anyio.move_on_after(self._shutdown_turns_seconds):
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

    async def _keep(self, waiting: Iterable[Delivery | _Unanswered]) -> None:
        """Make durable what no turn came to: it is answered after the next start."""
        for item in waiting:
            if isinstance(item, Delivery):
                with suppress(NanoloopError):
                    message = item.message
                    session = await self.sessions.current(message.session_key, agent=message.agent)
                    if not session.has_seen(message.message_id or ""):
                        await self._exchange(session, message).hear()
                    await item.ack()

    def _announce_start(self) -> None:
        self._started_at = datetime.now(timezone.utc)
        self._announce(
            LoopStarted(channels=self.bus.channels, max_concurrent_turns=self._max_concurrent_turns)
        )

    async def _dispatch(self, delivery: Delivery) -> None:
        """Put a message where it will be handled; waits for nobody."""
        message = delivery.message
        key = message.session_key
        lanes = self._asides if is_command(message.text) else self._lanes
        try:
            # /stop waits for no other command, which may take long.
            lanes.put_nowait(f"{key} stop" if is_stop(message.text) else key, delivery)
            waiting = lanes.waiting(key)
        except LaneFull:
            await self._refuse(key, delivery)
        else:
            self._announce(MessageAccepted(key=key, message_id=message.message_id, waiting=waiting))

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

    async def _handle(self, key: str, item: Delivery | _Unanswered) -> None:
        try:
            if isinstance(item, _Unanswered):
                await self._resume(key, item)
            else:
                await self._receive(key, item)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            text = self._apology(error, session_id=key, turn_id="")
            if isinstance(item, Delivery):
                await self._tell(item, text, "error")

    async def _receive(self, key: str, delivery: Delivery) -> None:
        message = delivery.message
        session = await self.sessions.current(key, agent=message.agent)
        if message.message_id is not None and session.has_seen(message.message_id):
            self._announce(MessageRepeated(key=key, message_id=message.message_id))
            await delivery.ack()
            return
        exchange = self._exchange(session, message)
        await exchange.hear()
        await delivery.ack()
        await self._answer(key, exchange)

    async def _answer(self, key: str, exchange: Exchange, *, resumed: bool = False) -> None:
        answer = failure = None
        with anyio.CancelScope() as scope:
            self._turns[key] = scope
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
        elif scope.cancelled_caught:
            await exchange.stop(waiting=self.waiting(key))

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

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        scope = self._turns.get(key)
        if scope is not None:
            scope.cancel()
        return scope is not None

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self._lanes.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return key in self._turns

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self._lanes.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Take up what an earlier process left: unanswered messages, unfinished summaries."""
        async for info in self.sessions.store.list():
            is_left = (info.awaiting or info.pending) and info.updated_at < self._started_at
            if is_left:
                with suppress(SessionNotFound):  # deleted meanwhile
                    await self._take_up(info.key or info.id, info.id, info.awaiting)

    async def recover_chat(self, key: str) -> None:
        """The same for the session that one chat has now."""
        with suppress(SessionNotFound):
            session = await self.sessions.open(await self.sessions.current_id(key))
            await self._take_up(key, session.id, session.awaiting)

    async def _take_up(self, key: str, session_id: str, awaiting: int) -> None:
        if awaiting:
            await self._lanes.put(key, _Unanswered(session_id))
        else:
            self.summarizer.fire_and_forget(await self.sessions.open(session_id))

    async def _resume(self, key: str, item: _Unanswered) -> None:
        session = await self.sessions.open(item.session_id)
        self.summarizer.fire_and_forget(session)
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
