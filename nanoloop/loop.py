"""Who runs when: a lane for each chat, commands beside it; stop, full, crash, shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from nanoloop import defaults
from nanoloop.agents import Agent, Agents
from nanoloop.answering import Answering, Item
from nanoloop.bus import InProcessBus
from nanoloop.commands import Commands, is_command, is_stop
from nanoloop.context import Bounds, Views
from nanoloop.errors import LaneFull, NanoloopError
from nanoloop.events import (
    LoopStarted,
    LoopStopped,
    MessageAccepted,
    MessageRefused,
    about,
    announce,
)
from nanoloop.exchange import Exchange, ExchangeParts
from nanoloop.lanes import Lanes
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Delivery, Inbound
from nanoloop.protocols import Bus, Provider, Store, Tool
from nanoloop.recovery import Recovery
from nanoloop.sentences import Sentences
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

FLUSH_SECONDS = 5
"""How long a shutdown waits for what is on its way out."""


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
        message_buffer_limit: int = defaults.MESSAGE_BUFFER_LIMIT,
        message_buffer_min: int = defaults.MESSAGE_BUFFER_MIN,
        context_tokens: int | None = None,
        context_limit: int | None = None,
        handover: bool = False,
        handover_limit: int = 200,
        summary_model: str | None = None,
        max_concurrent_turns: int = defaults.MAX_CONCURRENT_TURNS,
        lane_limit: int = 20,
        open_sessions: int = 1000,
        with_time: bool = False,
        answer_unanswered: bool = True,
        sentences: Sentences | None = None,
        shutdown_turns_seconds: float = defaults.SHUTDOWN_TURNS_SECONDS,
        shutdown_summaries_seconds: float = defaults.SHUTDOWN_TURNS_SECONDS / 2,
    ) -> None:
        default = agent or Agent(tools=tools)
        self.agents = agents if isinstance(agents, Agents) else Agents(default, agents)
        self.sentences = sentences or Sentences()
        self.bus = bus or InProcessBus(busy=self.sentences.text("full"))
        self.sessions = Sessions(store or InMemoryStore(), limit=open_sessions)
        self.summarizer = summarizer or Summarizer(provider, summary_model)
        self.summarizer.keep_in(self.sessions.writer)
        self._recall = recall
        self.message_buffer_limit = message_buffer_limit
        self.message_buffer_min = message_buffer_min
        self._buffer = {"buffer_limit": message_buffer_limit, "buffer_min": message_buffer_min}
        bounds = Bounds(
            context_tokens=context_tokens,
            context_limit=context_limit,
            handover=handover_limit if handover else 0,
            with_time=with_time,
        )
        self._exchanges = ExchangeParts(
            provider=provider,
            sessions=self.sessions,
            bus=self.bus,
            summarizer=self.summarizer,
            follow=_nobody if recall is None else recall.follow,
            views=Views(bounds),
            **self._buffer,
        )
        self._max_concurrent_turns = max_concurrent_turns
        self._lane_limit = lane_limit
        self._shutdown_turns_seconds = shutdown_turns_seconds
        self._shutdown_summaries_seconds = shutdown_summaries_seconds
        self._commands = Commands(
            sessions=self.sessions,
            agents=self.agents,
            summarizer=self.summarizer,
            recall=recall,
            runner=self,
            **self._buffer,
        )
        self._answering = Answering(
            sessions=self.sessions,
            bus=self.bus,
            exchange=self._exchange,
            limiter=anyio.Semaphore(max_concurrent_turns),
            lane_limit=lane_limit,
            answer_unanswered=answer_unanswered,
            sentences=self.sentences,
        )
        self.is_serving = False
        """Whether it takes messages."""
        self._lanes, self._holds = self._answering.lanes, self._answering.holds
        self._recovery = Recovery(
            sessions=self.sessions,
            summarizer=self.summarizer,
            bus=self.bus,
            lanes=self._lanes,
            failed=self._answering.apology,
        )
        self._asides: Lanes[str, Delivery] = Lanes(
            self._answer_aside, limit=lane_limit, name="aside"
        )

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
            stack.enter_context(self._serving())
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
        announce(LoopStopped(unfinished_turns=unfinished, unfinished_summaries=summaries))

    @contextmanager
    def _serving(self) -> Iterator[None]:
        self.is_serving = True
        try:
            yield
        finally:
            self.is_serving = False

    async def _keep(self, waiting: Iterable[Item]) -> None:
        """Make durable what no turn came to: it is answered after the next start."""
        for item in waiting:
            if isinstance(item, Delivery):
                with suppress(NanoloopError):
                    await self._holds.keep(item.message.session_key, item)

    def _announce_start(self) -> None:
        announce(
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
            announce(MessageAccepted(key=key, message_id=message.message_id, waiting=waiting))

    def _put(self, key: str, delivery: Delivery) -> None:
        message = delivery.message
        if message.edits or message.deletes:
            self._holds.put_nowait(key, delivery)
        elif _is_for_us(message):
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
        announce(MessageRefused(key=key, message_id=message_id, reason="lane full"))
        try:
            self._asides.put_nowait(key, delivery)
        except LaneFull:  # it has been told often enough
            await delivery.ack(owed=False)

    async def _answer_aside(self, key: str, delivery: Delivery) -> None:
        """Answer a command, or say that the lane is full."""
        message = delivery.message
        try:
            is_for_us, busy = _is_for_us(message), self.sentences.text("busy")
            text = await self._commands.answer(message) if is_for_us else busy
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            await self._answering.apologise(delivery, self._answering.apology(key, error))
        else:
            await self._answering.tell(delivery, text, "notice")

    def _exchange(self, session: Session, message: Inbound) -> Exchange:
        with about(session_id=session.id):
            agent = self.agents.choose(session, wanted=message.agent, channel=message.channel)
        steering = partial(self._answering.steering, message.session_key)
        return Exchange(session, message, agent=agent, parts=self._exchanges, steering=steering)

    # What commands need of it

    @property
    def channels(self) -> Mapping[str, str]:
        """How each channel stands, of those that can tell."""
        return self.bus.states

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        return self._answering.stop(key)

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self._answering.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return self._answering.is_answering(key)

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self._answering.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Take up what an earlier process left: messages, answers, unfinished summaries."""
        await self._recovery.recover()

    async def recover_chat(self, key: str) -> None:
        """The same for the session that one chat has now."""
        await self._recovery.recover_chat(key)


def _is_for_us(message: Inbound) -> bool:
    """Whether it is a command; what a message was changed to is none."""
    return is_command(message.text) and not (message.edits or message.deletes)


def _nobody(_: str) -> None:
    """Nothing takes in what left a window."""
