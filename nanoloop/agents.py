"""Agents that talk through a session: for whole answers, in pieces, or from synchronous code."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Lock, get_ident
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from nanoloop import defaults
from nanoloop.context import Views
from nanoloop.errors import EmptyAnswer, HistoryNotLoaded, ProviderError, SessionNotFound
from nanoloop.events import AgentUnknown, ResizeFailed, announce
from nanoloop.hooks import Hooks, RequestOutcome
from nanoloop.messages import Language
from nanoloop.protocols import (
    OnText,
    Provider,
    Store,
    Tool,
    vendor_of,
)
from nanoloop.recording import Recording, content_of
from nanoloop.session.entry import Entry
from nanoloop.session.options import DEFAULTS
from nanoloop.session.session import ChatMessages, Session
from nanoloop.session.sync import Handler, Mutex, blocking
from nanoloop.sessions import Sessions
from nanoloop.tools.approval import ApprovalRules
from nanoloop.tools.prompts import ServerPrompt
from nanoloop.tools.toolbox import Toolbox
from nanoloop.turn import Answer, Cutting, Keeping, Turn


class AgentHistory:
    """An agent's history, stored in the agent's own session or in an attached one."""

    def __init__(
        self,
        *,
        name: str,
        provider: Provider | None,
        settings: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self.provider = provider
        """The agent's provider, also used for a session without a provider."""
        self.settings: Mapping[str, Any] = {} if settings is None else settings
        """Defaults for the sessions that the agent creates: `session.mode`, `session.limit` …"""
        self._own = self._made()
        self._session: Session | None = None

    def _made(self) -> Session:
        return Session(settings=self.settings, provider=self.provider)

    # The session

    @property
    def session(self) -> Session | None:
        """The attached session, or None."""
        return self._session

    def get_session(self) -> Session | None:
        """Return the attached session, or None."""
        return self._session

    def attach_session(self, session: Session | None = None, *, mode: str | None = None) -> Self:
        """Attach this session, or a new one, to hold the history from now on.

        Earlier messages are not copied. `mode` is "lite" or "memo".
        """
        session = self._made() if session is None else session
        if mode is not None:
            session.configure(mode=mode)
        if session.provider is None:
            session.provider = self.provider
        self._session = session
        return self

    def detach_session(self) -> Self:
        """Detach the session, which keeps its content, and go back to the agent's own history."""
        self._session = None
        return self

    def equip(self, session: Session, provider: Provider, *, defaults: Mapping[str, Any]) -> None:
        """Apply the agent's settings over these defaults, and provide a model.

        A session that has a provider keeps it.
        """
        if session.settings.parent is not self.settings:
            session.settings.inherit(self.settings, defaults=defaults)
        if session.provider is None:
            session.provider = provider

    # The history

    @property
    def _history(self) -> Session:
        return self._own if self._session is None else self._session

    @property
    def chat_history(self) -> list[dict[str, Any]]:
        """The messages of the conversation that the model will see."""
        return self._history.current_chat_history

    def set_chat_history(self, messages: ChatMessages) -> Self:
        """Replace the history with these messages, and keep the memo."""
        self._history.set_chat_history(messages)
        return self

    def add_chat_history(self, messages: ChatMessages) -> Self:
        """Append one or more messages, then resize the history if due."""
        self._history.add_chat_history(messages).resize()
        return self

    def reset_chat_history(self) -> Self:
        """Empty the history, and keep the memo."""
        self._history.reset_chat_history()
        return self


PROMPT = "You are a helpful assistant. Answer briefly and to the point."
BUFFER_LIMIT, BUFFER_MIN = 50, 10
"""The default limits: how many messages a window may hold, and about how many a cut leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """How many steps an agent may take for one answer, and how much of a conversation it sees."""

    steps: int = defaults.MAX_STEPS
    """How many times the model may be called for one answer."""
    tool_seconds: float = defaults.TOOL_TIMEOUT_SECONDS
    """How many seconds a tool may take."""
    approval: ApprovalRules | None = None
    """Which tool calls a person has to approve first; None leaves it to each tool."""
    messages: int | None = None
    """A window with more messages is cut; None means the loop's limit, or 50 without a loop."""
    kept: int | None = None
    """About how many messages a cut leaves; None means the loop's number, or 10 without a loop."""


class Agent(AgentHistory):
    """A named set of prompt, model and tools.

    An agent keeps its own history unless a session is attached.
    """

    def __init__(
        self,
        name: str = "assistant",
        prompt: str = PROMPT,
        *,
        provider: Provider | None = None,
        model: str | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        store: Store | None = None,
        settings: Mapping[str, Any] | None = None,
        limits: AgentLimits | None = None,
        recording: Recording | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(name=name, provider=provider, settings=settings)
        self.prompt = prompt
        self.model = model
        self.limits = limits or AgentLimits()
        self.toolbox = Toolbox(
            tuple(tools),
            timeout_seconds=self.limits.tool_seconds,
            approval=self.limits.approval,
        )
        self.recording = recording or Recording()
        self.hooks = hooks or Hooks()
        self.prompts: Mapping[str, ServerPrompt] = {}
        """The prompts of tool servers that its chats may use, by their commands."""
        self.language: Language | None = None
        """The language of the loop's own messages; None means the channel's."""
        self._sessions = Sessions(store) if store is not None else None
        self._serial = Serial()
        self._views = Views()

    def set_record_handler(self, handler: Handler | None) -> Self:
        """Set a handler, which maps (given, answer) to the messages to record.

        Nothing is then recorded before the answer is complete.
        """
        self.recording = replace(self.recording, handler=handler)
        return self

    # Asking

    async def ask(
        self, given: Any, *, session_id: str | None = None, on_text: OnText | None = None
    ) -> str:
        """Ask the model and return its answer; raise `ProviderError` if it fails.

        `on_text` receives the answer in pieces. Text and lists of parts are sent to the model
        unchanged, other values as JSON. `session_id` selects a session in the agent's store, which
        is created if it does not exist.
        """
        provider = self._able()
        session = await self._session_for(session_id)
        async with self._serial.lock_of(session):
            turn = self._turn(session, provider, on_text)
            text = await AgentRequest(turn, given, agent=self).answered()
            if session_id is not None:
                session.release()  # the store has what left the window
            return text

    def ask_sync(
        self, given: Any, *, session_id: str | None = None, on_text: OnText | None = None
    ) -> str:
        """Like `ask`, but for synchronous code, inside or outside an event loop."""
        self._serial.check_may_block(self._history.id if session_id is None else session_id)
        return from_sync(partial(self.ask, given, session_id=session_id, on_text=on_text))

    def stream(self, given: Any, *, session_id: str | None = None) -> Stream:
        """Like `ask`, but yield the answer in pieces: `async for piece in agent.stream(…)`."""
        return Stream(lambda hear: self.ask(given, session_id=session_id, on_text=hear))

    def _turn(self, session: Session, provider: Provider, on_text: OnText | None) -> Turn:
        sessions = None if session is self._own else self._sessions
        keeping = Keeping(recording=self.recording)
        if sessions is not None:
            keeping = replace(
                keeping,
                change=sessions.change,
                store=sessions.store,
                files=sessions.attachments,
            )
        view = self._views.of(
            session,
            prompt=self.prompt,
            model=self.model,
            tools=self.toolbox.specs,
            vendor=vendor_of(provider, self.model),
        )
        return Turn(
            session,
            agent=self,
            provider=provider,
            view=view,
            keeping=keeping,
            cutting=Cutting(
                limit=self.limits.messages or BUFFER_LIMIT,
                keep=self.limits.kept or BUFFER_MIN,
            ),
            on_text=on_text,
        )

    def _able(self) -> Provider:
        if self.provider is None:
            raise ValueError(f"agent {self.name!r} has no provider: pass Agent(provider=...)")
        return self.provider

    async def _session_for(self, session_id: str | None) -> Session:
        if session_id is None:
            return self._history
        if self._sessions is None:
            raise ValueError(f"agent {self.name!r} has no store: pass Agent(store=...)")
        session = await self._sessions.named(session_id, agent=self.name)
        self.equip(session, self._able(), defaults=DEFAULTS)
        return session


class Agents(Mapping[str, Agent]):
    """All agents by name, and the default one."""

    def __init__(
        self,
        default: Agent,
        named: Mapping[str, Agent] | None = None,
        *,
        by_channel: Mapping[str, str] | None = None,
    ) -> None:
        """Create the collection; `by_channel` maps a channel to the agent for its new sessions."""
        # The user's agents come later, so that one with the default's name replaces it.
        self._agents = {default.name: default, **(named or {})}
        self.default = self._agents[default.name]
        self._by_channel = dict(by_channel or {})

    def renew(self, agents: Agents) -> None:
        """Replace all agents; the change takes effect with the next turn."""
        self._agents, self.default = agents._agents, agents.default
        self._by_channel = agents._by_channel

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def among(self, names: Sequence[str] | None) -> list[str]:
        """Return the agents that a user who is allowed these names may choose.

        None allows all of them, and an empty sequence only the default.
        """
        if names is None:
            return list(self)
        return [name for name in names or (self.default.name,) if name in self]

    def of(self, session: Session) -> Agent:
        """Return the agent that answers in this session."""
        return self._agents.get(session.agent or "", self.default)

    def choose(
        self,
        session: Session,
        *,
        wanted: str | None = None,
        channel: str = "",
    ) -> Agent:
        """Choose the agent for the session's next question, and store its name in the session.

        The first question goes to the requested agent, else the session's, else the channel's, else
        the default. Later questions go to the session's agent. An unknown name is logged and
        ignored.
        """
        names = self._candidates(session, wanted, channel)
        for name in names:
            if name is not None and name not in self:
                announce(AgentUnknown(agent=name))
        chosen = next((name for name in names if name in self), None)
        if chosen != session.agent:
            session.agent = chosen
        return self.of(session)

    def to_answer(self, session: Session, *, wanted: str | None, channel: str) -> Agent:
        """Return the agent that `choose` would choose, without choosing it."""
        names = self._candidates(session, wanted, channel)
        return next((self[name] for name in names if name and name in self), self.default)

    def _candidates(
        self, session: Session, wanted: str | None, channel: str
    ) -> Sequence[str | None]:
        if session.last_seq:
            return [session.agent or wanted]
        return [wanted, session.agent, self._by_channel.get(channel), self.default.name]


class AgentRequest:
    """One question to an agent.

    Messages are recorded as they arrive, unless a handler chooses them.
    """

    def __init__(self, turn: Turn, given: Any, *, agent: Agent) -> None:
        self._turn = turn
        self._session = turn.session
        self._given = given
        self._agent = agent
        self._recording = agent.recording
        self._asked = 0

    async def answered(self) -> str:
        """Return the model's answer.

        The user's message is kept even if `ProviderError` is raised.
        """
        with self._turn.about():
            return await self._answered()

    async def _answered(self) -> str:
        # Stored before the model is called, so that the question survives any failure.
        await self._begin()
        try:
            answer = await self._turn.run()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._fail(error)
            raise
        await self._finish(answer)
        return answer.text

    async def _begin(self) -> None:
        kept, shown = self._recording.question(self._given), None
        if self._recording.is_partial:
            shown = Entry.message("user", content_of(self._given))
        self._asked = await self._turn.begin(kept, shown=shown, then=self._name_agent)

    def _name_agent(self, session: Session) -> None:
        if session.agent is None:
            session.agent = self._agent.name

    async def _finish(self, answer: Answer) -> None:
        with anyio.CancelScope(shield=True):
            await self._keep(answer)
        self._turn.tell_cut()
        await self._resize()
        await self._agent.hooks.after(RequestOutcome(given=self._given, answer=answer), self._agent)

    async def _keep(self, answer: Answer) -> None:
        entries = [] if self._recording.handler else self._recording.answer(answer.entries)
        try:
            said = await self._recording.by_handler(self._given, answer.text)
        except BaseException:
            await self._turn.change(self._keep_question)
            raise

        def act(session: Session) -> None:
            for entry in entries:
                session.add_entry(entry)
            session.add_chat_history(said)
            self._turn.cut_with_answer(session)

        await self._turn.change(act)

    def _keep_question(self, session: Session) -> None:
        session.add_entry(self._recording.question(self._given))

    async def _resize(self) -> None:
        try:
            await self._turn.resize()
        except ProviderError as error:  # the memo stays as it was; the answer is still valid
            name = type(error).__name__
            announce(ResizeFailed(error=name))

    async def _fail(self, error: BaseException) -> None:
        with suppress(SessionNotFound):  # deleted meanwhile: don't create it again
            if isinstance(error, EmptyAnswer):
                await self._turn.change(self._take_back)
            elif self._recording.handler:
                await self._turn.change(self._keep_question)
            else:
                await self._turn.break_off(
                    "the turn was ended before it finished",
                    since=self._asked,
                    half_said=isinstance(error, anyio.get_cancelled_exc_class()),
                )
        await self._agent.hooks.after(RequestOutcome(given=self._given, error=error), self._agent)

    def _take_back(self, session: Session) -> None:
        """Remove a question without an answer, unless tools have acted on it."""
        newest = session.newest
        if newest is not None and newest.seq == self._asked:
            with suppress(HistoryNotLoaded):
                session.undo()


Ask = Callable[[OnText], Awaitable[str]]
"""Ask the model, and pass on each piece of its answer."""


class _Flow:
    """The pieces that have arrived but have not been read yet."""

    def __init__(self) -> None:
        self.pieces: deque[str] = deque()
        self.text: str | None = None
        self.error: Exception | None = None
        self.is_over = False
        self.news = anyio.Event()

    async def run(self, ask: Ask) -> None:
        try:
            self.text = await ask(self._hear)
        except Exception as error:  # noqa: BLE001 - raised again in the reader
            self.error = error
        finally:
            self.is_over = True
            self.news.set()

    def _hear(self, piece: str) -> None:
        self.pieces.append(piece)
        self.news.set()


class Stream:
    """An answer in pieces; the model is asked when the first piece is read.

    Leaving the loop early stops the answer. `async with agent.stream(…) as pieces` waits on exit
    until the answer has stopped.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._flow = _Flow()
        self._task: asyncio.Task[None] | None = None

    @property
    def text(self) -> str | None:
        """The whole answer, once it is complete."""
        return self._flow.text

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        flow = self._started()
        while not flow.pieces:
            if flow.is_over:
                return self._end()
            flow.news = anyio.Event()
            try:
                await flow.news.wait()
            except BaseException:
                self._stop()
                raise
        return flow.pieces.popleft()

    def _started(self) -> _Flow:
        if self._task is None:
            # No task group: if the iteration ended early, its scope would stay open around the
            # reader and cancel it. This object owns the task instead, and ends it once nobody reads
            # any more.
            work = self._flow.run(self._ask)
            self._task = asyncio.get_running_loop().create_task(work, name="answer in pieces")
        return self._flow

    def _end(self) -> str:
        error, self._flow.error = self._flow.error, None
        if error is not None:
            raise error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the answer if it is still being written, and wait until it has stopped."""
        self._stop()
        if self._task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _stop(self) -> None:
        if self._task is not None and not self._flow.is_over:
            self._task.cancel()

    def __del__(self) -> None:
        self._stop()


class _QuestionLock(Mutex):
    async def __aenter__(self) -> None:
        try:
            await super().__aenter__()
        except RuntimeError:
            raise RuntimeError(
                "a tool or hook can't use its own session to ask the agent that called it: use "
                "another session"
            ) from None

    def check_may_block(self) -> None:
        try:
            super().check_may_block()
        except RuntimeError:
            raise RuntimeError(
                "this event loop is already answering in that session: use `await ask()`"
            ) from None


class Serial:
    """One lock per session in use, shared by all event loops and threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: WeakKeyDictionary[Session, _QuestionLock] = WeakKeyDictionary()

    def lock_of(self, session: Session) -> Mutex:
        """Return the lock to hold while asking in this session."""
        with self._lock:
            return self._locks.setdefault(session, _QuestionLock())

    def check_may_block(self, session_id: str) -> None:
        """Raise RuntimeError if waiting for this session would never end."""
        with self._lock:
            locks = [lock for session, lock in self._locks.items() if session.id == session_id]
        for lock in locks:
            lock.check_may_block()


T = TypeVar("T")

_lock = Lock()


def from_sync(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an async function and return its result.

    All calls share one event loop, so that connections stay open.
    """
    with _lock:
        portals, thread = _opened()
    if thread == get_ident():  # called in that loop's own thread, which must not wait for itself
        return blocking(function)
    with portals as portal:
        future = portal.start_task_soon(function)
        try:
            result: T = future.result()
        except BaseException:
            future.cancel()  # as after Ctrl-C: nobody is waiting for it any more
            raise
        return result


@cache
def _opened() -> tuple[BlockingPortalProvider, int]:
    """Open this process's portal once, and return it with its thread's id."""
    portals = BlockingPortalProvider()
    portal = portals.__enter__()
    # Work still running at exit is cancelled.
    atexit.register(portals.__exit__, SystemExit, SystemExit(), None)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_forget, portal))
    return portals, portal.call(get_ident)


def _forget(portal: BlockingPortal) -> None:
    """Forget the portal in a forked child, which lacks the thread but would wait for it at exit."""
    _opened.cache_clear()
    with suppress(StopIteration, RuntimeError):  # nothing waits in it; asyncio's dev mode raises
        portal.stop().send(None)
