"""A loop with its store, its two models and its chats, that can be dropped and begun again."""

import itertools
import random
from collections import Counter, deque
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint

from nanoloop import Agent, AgentLoop, Inbound, Summarizer, tool
from nanoloop.bus import InProcessBus
from nanoloop.errors import SendLater
from nanoloop.events import (
    ContextShrunk,
    ModelAsked,
    SummaryCommitted,
    SummaryFailed,
    WindowTrimmed,
    current_session,
    hearing,
)
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.testing.faults import FaultyStore
from tests.proof.models import Digester, Talker, fail, look

LIMIT, KEEP = 6, 2
PATIENCE_SECONDS = 20


class World:
    """What a proof drives; it lives through restarts, the loop in it does not."""

    name = "test"
    streams = True
    confirms = True

    def __init__(self, seed, folder=None):
        self.chance = random.Random(seed)
        self.folder = folder
        self.wrong = []
        self.ticks = itertools.count(1)
        self.now = 0.0
        self.repeats_ids = seed % 2 == 0
        self.talker = Talker(self.wrong, repeats_ids=self.repeats_ids)
        self.digester = Digester(random.Random(seed + 1), lambda: next(self.ticks))
        self.save_faults = deque()
        self.is_offline = False
        self.asked = []
        """Every mark that was said, in order, and its chat."""
        self.excused = set()
        """Marks that may stay without an answer of their own."""
        self.answered = {}
        self.sent = {}
        """What has arrived, by the name that it keeps when it is sent again."""
        self.answers = Counter()
        self.commits = []
        self.hanging = anyio.Event()
        self._news = anyio.Event()
        self._numbers = itertools.count(1)
        self._memory = InMemoryStore()
        self._group = None

    # The loop's life

    async def __aenter__(self):
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        await self.begin()
        return self

    async def __aexit__(self, *exc):
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)  # what was raised goes on as it is
        await self.store.close()

    async def begin(self):
        """A new loop over the same store; everything of the old one is dropped."""
        self.inner = JsonlStore(self.folder) if self.folder else self._memory
        self.store = FaultyStore(self.inner, iter(self._next_save_fault, None))
        self.loop = AgentLoop(
            provider=self.talker,
            agent=Agent(prompt="Be brief.", tools=[look, fail, self._hang()]),
            store=self.store,
            bus=InProcessBus(sleep=self._rest),
            summarizer=Summarizer(
                self.digester,
                store=self.store,
                batch_chars=400,
                clock=lambda: self.now,
            ),
            message_buffer_limit=LIMIT,
            message_buffer_min=KEEP,
            shutdown_turns_seconds=0,
            shutdown_summaries_seconds=0,
        )
        self.loop.bus.attach(self)
        self._ended = anyio.Event()
        await self._group.start(self._live)
        await self.loop.recover()
        await self.quiet()

    async def _live(self, *, task_status):
        with anyio.CancelScope() as self._life, hearing(self._hear):
            await self.loop.run(task_status=task_status)
        self._ended.set()

    async def end(self, *, at_once):
        """End the loop: in good order, or in the middle of what it does."""
        if at_once:
            self._life.cancel()
        else:
            self.loop.bus.close()
        await self._ended.wait()
        if self.folder:
            await self.store.close()

    def _next_save_fault(self):
        return self.save_faults.popleft() if self.save_faults else "fine"

    def _hang(self):
        @tool
        async def hang(mark: str) -> str:
            """Never return.

            Args:
                mark: What to wait for.
            """
            self.hanging.set()
            await anyio.sleep_forever()
            return mark

        return hang

    def _hear(self, event):
        if isinstance(event, ModelAsked):
            self.talker.asking = current_session()
        # A summary whose save failed stands in memory, and is written with the next save.
        if isinstance(event, WindowTrimmed | SummaryCommitted | SummaryFailed | ContextShrunk):
            self.swapped(current_session())
        if isinstance(event, SummaryCommitted):
            self.commits.append((current_session(), event))

    def heads(self):
        return self.chance.random() < 0.5

    def swapped(self, session_id):
        """From here on the prompt of this session may begin in another way."""
        self.talker.requests.pop(session_id, None)

    # As a channel

    async def run(self, bus):
        """Nothing comes in by itself."""

    @staticmethod
    async def _rest(_):
        await checkpoint()

    async def send(self, item):
        if hasattr(item, "kind"):
            if self.is_offline:
                raise SendLater("offline")
            if item.id in self.sent:  # the same once more, as its arrival was not kept
                return
            self.sent[item.id or item] = item
            self.answers[item.reply_to, item.kind] += 1
            self.answered[item.reply_to] = item
            self._news.set()
            self._news = anyio.Event()

    def put(self, chat, words, mark=None):
        """Say something with a new mark; returns the mark, which is the message's id too."""
        message = self.said(chat, words, mark)
        self.loop.bus.put_nowait(message)
        return message.message_id

    async def hand_in(self, chat, words, **options):
        """Say something, as `put`; it is durable when this returns."""
        message = self.said(chat, words, **options)
        with anyio.fail_after(PATIENCE_SECONDS):
            await self.loop.bus.hand_in(message)
        return message.message_id

    def said(self, chat, words, mark=None, **options):
        mark = mark or f"m{next(self._numbers)}z"
        is_command, amends = words.startswith("/"), options.get("edits") or options.get("deletes")
        text = words if is_command else f"{amends or mark} {words}"
        if amends:
            self.excused |= {amends} if options.get("deletes") else set()
        elif (chat, mark) not in self.asked:
            self.asked.append((chat, mark))
        return Inbound(channel=self.name, chat=chat, text=text, message_id=mark, **options)

    async def heard(self, *marks):
        """Wait until each of these has an answer of some kind; the last of them."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not all(mark in self.answered for mark in marks):
                await self._news.wait()
        return self.answered[marks[-1]]

    async def say(self, chat, words="hello"):
        return await self.heard(self.put(chat, words))

    async def quiet(self):
        """Wait until no chat is being answered, and all is sent; summaries may go on."""
        await self.idle()
        await self.loop.bus.flush()

    async def idle(self):
        """Wait until no chat is being answered."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while self.loop.lanes:
                await checkpoint()

    @asynccontextmanager
    async def calm(self):
        """Summaries that run are held back, resizes ended: nothing is saved during a look."""
        self.digester.pause.close()
        await self._held_back()
        yield
        self.digester.pause.open()

    async def _held_back(self):
        with anyio.fail_after(PATIENCE_SECONDS):
            summarizer = self.loop.summarizer
            while summarizer.running > self.digester.held or summarizer.working_beside:  # noqa: ASYNC110 - no event tells
                await anyio.sleep(0.0005)

    async def session_of(self, chat):
        return await self.loop.sessions.current(f"{self.name}:{chat}")
