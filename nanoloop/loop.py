"""Who runs when: a lane for each chat, commands beside it; stop, full, crash, shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from nanoloop import defaults
from nanoloop.agents import Agent, Agents
from nanoloop.bus import InProcessBus
from nanoloop.chat import Chats
from nanoloop.commands import Commands
from nanoloop.context import Bounds, Views
from nanoloop.errors import SessionNotFound
from nanoloop.events import (
    LoopStarted,
    LoopStopped,
    announce,
)
from nanoloop.exchange import ExchangeParts
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Bus, Provider, SessionInfo, Store, Tool
from nanoloop.sentences import Sentences
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
        lane_limit: int = 1000,
        open_sessions: int = 1000,
        store_timeout_seconds: float = defaults.STORE_TIMEOUT_SECONDS,
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
        self.sessions = Sessions(
            store or InMemoryStore(), limit=open_sessions, patience_seconds=store_timeout_seconds
        )
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
        self.is_serving = False
        """Whether it takes messages."""
        self._max_concurrent_turns = max_concurrent_turns
        self._shutdown_turns_seconds = shutdown_turns_seconds
        self._shutdown_summaries_seconds = shutdown_summaries_seconds
        buffer = {"buffer_limit": message_buffer_limit, "buffer_min": message_buffer_min}
        self._chats = Chats(
            parts=ExchangeParts(
                provider=provider,
                agents=self.agents,
                sessions=self.sessions,
                bus=self.bus,
                summarizer=self.summarizer,
                follow=_nobody if recall is None else recall.follow,
                views=Views(bounds),
                **buffer,
            ),
            commands=Commands(
                sessions=self.sessions,
                agents=self.agents,
                summarizer=self.summarizer,
                recall=recall,
                runner=self,
                **buffer,
            ),
            limiter=anyio.Semaphore(max_concurrent_turns),
            waiting_limit=lane_limit,
            answer_unanswered=answer_unanswered,
            sentences=self.sentences,
        )

    @property
    def recall(self) -> Recall | None:
        """What finds again what was said, where there is one."""
        return self._recall

    @property
    def lanes(self) -> int:
        """How many chats are being answered or wait."""
        return len(self._chats)

    # Taking

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until the bus is closed; then finish what runs, up to the deadlines."""
        async with AsyncExitStack() as stack:
            for part in (self.bus, self.summarizer, self._recall):
                if part is not None:
                    await stack.enter_async_context(part)
            async with self._chats:
                stack.enter_context(self._serving())
                self._announce_start()
                task_status.started()
                async for delivery in self.bus.deliveries():
                    await self._chats.take(delivery)
                    await checkpoint()  # a burst must leave the chats their turn
                with anyio.move_on_after(self._shutdown_turns_seconds):
                    await self._chats.idle()
                unfinished = await self._chats.keep_arriving()
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

    def _announce_start(self) -> None:
        announce(
            LoopStarted(channels=self.bus.channels, max_concurrent_turns=self._max_concurrent_turns)
        )

    # What commands need of it

    @property
    def channels(self) -> Mapping[str, str]:
        """How each channel stands, of those that can tell."""
        return self.bus.states

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        return self._chats.stop(key)

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self._chats.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return self._chats.is_answering(key)

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self._chats.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Take up what an earlier process left: messages, answers, unfinished summaries."""
        # All names first, as what is taken up is written to. The oldest of them first: a chat's
        # older conversation comes before its newer one.
        left = [info async for info in self.sessions.store.list() if _is_left(info)]
        for info in reversed(left):
            await self._chats.take_up(info.key or info.id, info.id)

    async def recover_chat(self, key: str) -> None:
        """The same for the session that one chat has now."""
        with suppress(SessionNotFound):
            await self._chats.take_up(key, await self.sessions.current_id(key))


def _is_left(info: SessionInfo) -> bool:
    return bool(info.awaiting or info.pending or info.waiting or info.unsent)


def _nobody(_: str) -> None:
    """Nothing takes in what left a window."""
