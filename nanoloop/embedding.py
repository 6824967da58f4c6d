"""Run a loop inside a program, which starts, asks and closes it with or without `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from threading import get_ident
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import TaskStatus

from nanoloop.agents import Agents, Stream, from_sync
from nanoloop.errors import BusClosed, BusFull, NotRunning, TurnFailed
from nanoloop.events import TextStreamed
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus, OnText, Provider, Store
from nanoloop.sentences import Sentences
from nanoloop.session.entry import fresh_id
from nanoloop.session.queue import is_command_text
from nanoloop.stores.sweep import sweep
from nanoloop.words import did_you_mean

T = TypeVar("T")


class DirectChannel:
    """A channel for code in the same process, which uses the loop as any other channel does."""

    name = "direct"
    streams = True

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._arrived: dict[str, anyio.Event] = {}
        self._answers: dict[str, Outbound] = {}
        self._listeners: dict[str, OnText] = {}
        bus.attach(self)

    async def ask(
        self,
        text: str,
        *,
        chat: str | int = "default",
        sender: str = "",
        agent: str | None = None,
        on_text: OnText | None = None,
    ) -> Outbound:
        """Send a message and return its answer, which may be an error.

        If cancelled, stop the turn, unless a tool that writes has been called. Raise `NotRunning`
        if the loop ends before it has answered.
        """
        if not isinstance(chat, str | int):  # else callers might share a conversation
            raise TypeError(f"chat is {chat!r}: pass a str, such as a user's id")
        message = Inbound(
            channel=self.name,
            chat=str(chat),
            text=text,
            sender=sender,
            agent=agent,
            message_id=(name := fresh_id()),
        )
        self._arrived[name] = arrived = anyio.Event()
        if on_text is not None:
            self._listeners[name] = on_text
        try:
            await self._bus.put(message)
            await self._arrival(arrived, message)
        finally:
            del self._arrived[name]
            self._listeners.pop(name, None)
        if name not in self._answers:
            raise NotRunning("the loop ended before it answered")
        return self._answers.pop(name)

    async def _arrival(self, arrived: anyio.Event, message: Inbound) -> None:
        try:
            await arrived.wait()
        except BaseException:
            if self._answers.pop(str(message.message_id), None) is None:
                self._give_up(message)
            raise

    def _give_up(self, message: Inbound) -> None:
        unwanted = Inbound(
            channel=self.name,
            chat=message.chat,
            text="",
            deletes=message.message_id,
            origin="system",  # the user has not withdrawn it
        )
        with suppress(BusFull):  # it will be answered, but nobody will read the answer
            self._bus.put_nowait(unwanted)

    def end(self) -> None:
        """Release all waiting callers, because no more answers will arrive."""
        for arrived in self._arrived.values():
            arrived.set()

    async def run(self, bus: Bus) -> None:
        """Do nothing, because `ask` puts its messages on the bus directly."""

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Pass an answer or a piece of one to its caller."""
        if isinstance(item, TextStreamed):
            if item.reply_to in self._listeners:
                self._listeners[item.reply_to](item.text)
        elif item.reply_to in self._arrived:
            self._answers[str(item.reply_to)] = item
            self._arrived[str(item.reply_to)].set()


class Embedded:
    """The interface of a loop for the program that runs it.

    `async with loop:` or `with loop:` starts and closes the loop; in between, `ask` and `stream`
    work.
    """

    bus: Bus
    agents: Agents
    sentences: Sentences
    run: Callable[..., Awaitable[None]]
    recover: Callable[[], Awaitable[None]]

    def __init__(self, store: Store, *, closing: Sequence[Provider | Store]) -> None:
        """Create the interface; closing it also closes the providers and stores in `closing`."""
        self.is_serving = False
        """True while the loop accepts messages."""
        self._store = store
        self._closing = closing
        self._direct: DirectChannel | None = None
        self._task: asyncio.Task[None] | None = None
        self._event_loop: tuple[asyncio.AbstractEventLoop, int] | None = None
        """The event loop that this loop runs in, and its thread."""

    # Asking

    async def ask(
        self,
        text: str,
        chat: str | int = "default",
        *,
        sender: str = "",
        agent: str | None = None,
        on_text: OnText | None = None,
    ) -> str:
        """Send a message to a chat and return the answer; raise `TurnFailed` if there is none.

        Commands such as /new are answered too. `agent` names the agent for a new chat. If
        cancelled, stop the turn, unless a tool that writes has been called. Raise `NotRunning`
        before the start and after `close`.
        """
        heard: list[str] = []

        def hear(piece: str) -> None:
            heard.append(piece)
            if on_text is not None:
                on_text(piece)

        said = await self._asked(text, chat=chat, sender=sender, agent=agent, on_text=hear)
        is_answer = said.kind == "answer" or (said.kind == "notice" and is_command_text(text))
        if not is_answer:
            raise self._failure(said)
        if on_text is not None and (rest := _unheard(said.text, "".join(heard))):
            on_text(rest)
        return said.text

    def stream(
        self, text: str, chat: str | int = "default", *, sender: str = "", agent: str | None = None
    ) -> Stream:
        """Like `ask`, but yield pieces: `async for piece in loop.stream(…)`.

        Leaving the `async for` early stops the answer.
        """
        return Stream(
            lambda hear: self.ask(text, chat, sender=sender, agent=agent, on_text=hear),
        )

    async def _asked(self, text: str, *, agent: str | None, **about: Any) -> Outbound:
        if not self.is_serving:
            raise NotRunning(self._why_not)
        self._check_event_loop()
        if agent is not None and agent not in self.agents:
            known = f"the agents are: {', '.join(self.agents)}"
            advice = did_you_mean(agent, list(self.agents), known)
            raise ValueError(f"there is no agent {agent!r}: {advice}")
        try:
            return await self._attach().ask(text, agent=agent, **about)
        except BusClosed:
            raise NotRunning(CLOSED) from None

    def _attach(self) -> DirectChannel:
        if self._direct is None:
            self._direct = DirectChannel(self.bus)
        return self._direct

    def _failure(self, said: Outbound) -> TurnFailed:
        known = self.sentences.incidents.known(said.incident)
        if known is None:
            return TurnFailed(said.text)
        return TurnFailed(said.text, incident=known.incident, error=known.error, why=known.said)

    @property
    def _why_not(self) -> str:
        return UNSTARTED if self._task is None else CLOSED

    # Asking from synchronous code

    def ask_sync(
        self, text: str, chat: str | int = "default", *, sender: str = "", agent: str | None = None
    ) -> str:
        """Like `ask`, but for synchronous code in any thread except the loop's own."""
        return self._wait_for(self.ask(text, chat, sender=sender, agent=agent))

    def stream_sync(
        self, text: str, chat: str | int = "default", *, sender: str = "", agent: str | None = None
    ) -> Iterator[str]:
        """Like `stream`, but for synchronous code: `for piece in loop.stream_sync(…)`."""
        pieces = self.stream(text, chat, sender=sender, agent=agent)
        try:
            while (piece := self._wait_for(anext(pieces, None))) is not None:
                yield piece
        finally:  # a task must not be cancelled from another thread
            self._wait_for(pieces.aclose())

    def _wait_for(self, work: Awaitable[T]) -> T:
        async def waiting() -> T:
            return await work

        coroutine = waiting()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._other_event_loop())
        except BaseException:
            coroutine.close()
            if isinstance(work, Coroutine):
                work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()  # as after Ctrl-C: nobody is waiting for the answer any more
            raise

    def _other_event_loop(self) -> asyncio.AbstractEventLoop:
        if self._event_loop is None:
            raise NotRunning(self._why_not)
        event_loop, thread = self._event_loop
        if thread == get_ident():
            raise RuntimeError("this would block the event loop that answers: use `await ask()`")
        return event_loop

    def _check_event_loop(self) -> None:
        """Raise `RuntimeError` if called in another event loop, where waiting would never end."""
        here = asyncio.get_running_loop()
        if self._event_loop is not None and self._event_loop[0] is not here:
            raise RuntimeError(
                "this loop runs in another event loop: use it there, call ask_sync() in a thread, "
                "or start one here with `async with`"
            )

    # Start and end

    async def start(self) -> Self:
        """Start answering, beginning with messages that an earlier process left unanswered.

        The loop runs until `close`, which another task may call. It can be started only once.
        """
        if self.is_serving or self._task is not None:
            raise NotRunning(RUNNING if self.is_serving else CLOSED)
        started = anyio.Event()
        # No task group: a loop started in a notebook cell or by a fixture is closed by another
        # task. This object owns the task instead, and `close` waits for it.
        self._task = asyncio.get_running_loop().create_task(self._live(started), name="loop")
        self._task.add_done_callback(lambda _: started.set())
        try:
            await started.wait()
        except BaseException:
            await self._cut_off()
            raise
        if self._task.done():
            self._task.result()
        return self

    async def close(self) -> None:
        """Accept no more messages, finish running work within its deadlines, and end.

        Safe to call twice.
        """
        if self._task is not None and not self._task.done():
            self._check_event_loop()
        self.bus.close()
        if self._task is None:
            return
        try:
            if not self._task.done():
                await asyncio.wait([self._task])
        except BaseException:
            await self._cut_off()
            raise
        if not self._task.cancelled():
            self._task.result()

    async def _cut_off(self) -> None:
        assert self._task is not None  # noqa: S101 - it was started
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    async def _live(self, started: anyio.Event) -> None:
        async with AsyncExitStack() as stack:
            for part in self._closing:
                stack.push_async_callback(part.close)
            # First of all, so that nothing starts if the store is not writable.
            expired = await self._store.delete_expired()
            async with anyio.create_task_group() as group:
                await group.start(self._run_in, group.cancel_scope, name="loop")
                self._attach()
                group.start_soon(lambda: sweep(self._store, expired=expired), name="sweep")
                await self.recover()
                started.set()

    async def _run_in(self, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        await self.run(task_status=task_status)
        scope.cancel()

    @contextmanager
    def _serving(self) -> Iterator[None]:
        self._event_loop = asyncio.get_running_loop(), get_ident()
        self.is_serving = True
        try:
            yield
        finally:
            self.is_serving = False
            self._event_loop = None
            if self._direct is not None:
                self._direct.end()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        from_sync(self.start)
        return self

    def __exit__(self, *exc: object) -> None:
        from_sync(self.close)


UNSTARTED = "this loop is not running: start it with `async with loop:` or `with loop:`"
RUNNING = "this loop is already running: use it, and start it only once"
CLOSED = "this loop is closed and accepts no more messages: create a new one"


def _unheard(answer: str, heard: str) -> str:
    """Return the part of an answer that is missing from the pieces sent so far."""
    if answer.startswith(heard):
        return answer[len(heard) :]
    is_whole = heard.rstrip().endswith(answer.strip())
    return "" if is_whole else f"\n\n{answer}"
