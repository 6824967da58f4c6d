"""An exchange: a message is recorded, answered, recorded with its answer, and sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nanoloop.context import Views
from nanoloop.errors import (
    SessionNotFound,
    StoreError,
    TurnLost,
    place_of,
)
from nanoloop.events import (
    HookFailed,
    ResizeFailed,
    TextStreamed,
    TurnFinished,
    TurnStarted,
    TurnStopped,
    WindowTrimmed,
    about,
    announce,
)
from nanoloop.hooks import RequestOutcome
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.nodes import Nodes
from nanoloop.protocols import Bus, OnText, Provider, vendor_of
from nanoloop.sending import (
    ChatClaim,
    Notices,
    noted_files,
    reply_to,
    send_answer,
    with_files,
)
from nanoloop.session.approvals import expire, settle
from nanoloop.session.entry import APPROVAL, SCHEME, Entry, PiecesWithoutFiles, fresh_id, utc_now
from nanoloop.session.head import TOKENS
from nanoloop.session.options import UNLIMITED
from nanoloop.session.queue import STEERS, heard_by, said_first, without
from nanoloop.session.session import Session
from nanoloop.session.speech import FILES
from nanoloop.sessions import Sessions, give_way
from nanoloop.tools.approval import announce_asked, choices_in
from nanoloop.tools.call import Tell
from nanoloop.tools.file_results import files_here, sent_with
from nanoloop.tools.reading import AttachmentReader
from nanoloop.turn import INTERRUPTED, Act, Answer, Cutting, Keeping, Turn, trimmed
from nanoloop.writing import is_away, leave_alone

if TYPE_CHECKING:
    from nanoloop.agents import Agent, Agents


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeParts:
    """The parts that all of a loop's exchanges share."""

    provider: Provider
    """The provider for agents without one of their own."""
    agents: Agents
    sessions: Sessions
    bus: Bus
    summarizer: Summarizer
    views: Views
    buffer_limit: int
    """A window with more messages is cut, unless the agent sets another limit."""
    buffer_min: int
    follow: Callable[[str], object]
    """Called with each session whose window was cut."""
    nodes: Nodes
    """This process and the other processes that use the store."""
    notices: Notices

    def begin(self, session: Session, *questions: Entry) -> Begun:
        """Make these messages the next question, and cut the window if it is full."""
        agent = self.agents.choose(session, channel=str(questions[-1].metadata.get("channel", "")))
        if session.approvals.open:
            if not session.awaiting:
                settle(session)
            expire(session, utc_now().timestamp())
        for question in questions:
            session.awaiting = session.append(_as_question(session, question)).seq
        limit, keep = self._buffer_of(agent)
        evicted = trimmed(session, limit, keep)
        claim = session.claim(self.nodes.me)
        return Begun(seq=session.awaiting, claim=claim, evicted=evicted)

    def resume(self, session: Session, seq: int) -> Begun:
        """Answer an earlier question again, because its message changed while its turn paused."""
        session.awaiting = seq
        return Begun(seq=seq, claim=session.claim(self.nodes.me), evicted=0)

    def begun(self, session: Session, begun: Begun) -> None:
        """Continue after a question has been stored: summarise the entries that left the window."""
        if begun.evicted:
            with about(session_id=session.id):
                announce(WindowTrimmed(evicted=begun.evicted, kept=len(session.window)))
            self.follow(session.id)
        session.release()
        self.summarizer.fire_and_forget(session)

    def cutting(self, session: Session, agent: Agent) -> Cutting:
        """Return how the agent's turns cut this session's window."""
        limit, keep = self._buffer_of(agent)
        # Not a method of `Exchange`, because a reference cycle would keep the session alive.
        heard = partial(self.summarizer.fire_and_forget, session)
        return Cutting(limit=limit, keep=keep, by_defaults=False, heard=heard, follow=self.follow)

    def teller(self, session: Session, message: Inbound) -> Tell:
        """Return a function that sends a tool's texts to the message's chat, while that is ours.

        These texts are not the answer: anyone who is waiting for the answer continues to wait.
        """
        claim = ChatClaim(self.nodes, self.sessions, session.id, 0, self.nodes.lapses)

        async def tell(text: str) -> None:
            said = reply_to(message, text, "notice", claim.session_id)
            said = replace(said, reply_to=None, id=fresh_id())
            await self.bus.publish(said, may_go=claim.is_good)

        return tell

    def _buffer_of(self, agent: Agent) -> tuple[int, int]:
        limits = agent.limits
        return limits.messages or self.buffer_limit, limits.kept or self.buffer_min


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A question whose turn has begun."""

    seq: int
    claim: int
    """The number of the turn's claim."""
    evicted: int
    """How many messages left the window to make room for the question."""


class Exchange:
    """A chat's question, until its answer is sent."""

    def __init__(
        self, session: Session, message: Inbound, *, seq: int, claim: int, parts: ExchangeParts
    ) -> None:
        """Create an exchange for the question numbered `seq`, whose turn has the claim `claim`."""
        self.session = session
        self.message = message
        self._fence = _TurnFence(seq, claim)
        self._nodes = parts.nodes
        self._notices = parts.notices
        self._agent = agent = parts.agents.of(session)
        self._sessions = parts.sessions
        self._store = parts.sessions.store
        self._bus = parts.bus
        self._summarizer = parts.summarizer
        self._sentences = parts.notices.speaking(message)
        self._started = time.monotonic()
        provider = agent.provider or parts.provider
        agent.equip(session, provider, defaults=UNLIMITED)
        agent = _with_reader(agent, session, parts.sessions)
        self._view = parts.views.of(
            session,
            prompt=agent.prompt,
            model=agent.model,
            tools=agent.toolbox.specs,
            vendor=vendor_of(provider, agent.model),
        )
        self._turn = Turn(
            session,
            agent=agent,
            provider=provider,
            view=self._view,
            keeping=Keeping(
                change=partial(self._fence.change, parts.sessions),
                store=self._store,
                files=parts.sessions.attachments,
                steering=steering_in,
                asks=True,
            ),
            cutting=parts.cutting(session, agent),
            on_text=_stream_to(parts.bus, message, session),
            sentences=self._sentences,
            tell=parts.teller(session, message),
        )

    @property
    def turn_id(self) -> str:
        """The turn's id in events."""
        return self._turn.id

    async def pick_up(self) -> None:
        """Resume a question that another process or run began.

        Open tool calls that can't be run again are closed.
        """
        close = self._turn.closing(INTERRUPTED, resumes=True)
        claims: list[int] = []

        def act(session: Session) -> None:
            claims.append(session.claim(self._nodes.me))
            close(session)  # after the claim, which counts as an attempt of each open call

        await self._turn.begin(then=act)
        self._fence.claim = claims[-1]

    @property
    def seq(self) -> int:
        """The question's number."""
        return self._fence.seq

    @property
    def claim(self) -> int:
        """The number of the turn's claim."""
        return self._fence.claim

    async def think(self, *, resumed: bool = False) -> Answer:
        """Call the model until it has an answer; raise `ProviderError` if it fails."""
        with self._turn.about():
            announce(TurnStarted(resumed=resumed))
            await self._view.fill(self._store)
            files = self._sessions.attachments
            files_here.set(None if files is None else (files, self.session.id))
            try:
                return await self._turn.run()
            except Exception as error:
                await self._tell_hooks(RequestOutcome(given=self.message.text, error=error))
                raise

    async def deliver(self, answer: Answer) -> None:
        """Store the answer, then send it. The chat is told if the store is down for long."""
        with self._turn.about():
            # Stored before it is sent, so that the log always has what the chat has read.
            lapses = self._nodes.lapses
            said = await self._keep(await self._with_noted_files(answer))
            if self._turn.tell_cut():
                self.session.release()
            await self._send(answer.text, said, lapses)
            if said.type == APPROVAL:
                announce_asked(said)
            announce(self._receipt(answer))
            self._view.learn(answer.usage.tokens_in, steps=answer.steps)
            if self._turn.owes_resize:
                self._summarizer.work_beside(self.session, self._resize)
            await self._tell_hooks(RequestOutcome(given=self.message.text, answer=answer))

    async def _with_noted_files(self, answer: Answer) -> Answer:
        """Return the answer with its files recorded in its last entry, in case it is sent again."""
        attachments = self._sessions.attachments
        last_seq = self.session.last_seq
        is_first = last_seq == self.seq  # the usual case: nothing was made for it
        said = () if is_first else self.session.entries_between(self.seq, last_seq)
        made = [*sent_with(said)]
        if attachments is None or not (made or SCHEME in answer.text):
            return answer
        last = await noted_files(answer.entries[-1], made, attachments, self.session.id)
        return replace(answer, entries=(*answer.entries[:-1], last))

    async def _keep(self, answer: Answer) -> Entry:
        kept: list[Entry] = []

        def act(session: Session) -> None:
            session.awaiting = 0
            kept[:] = [session.append(entry) for entry in answer.entries]
            answer.then(session)
            session.spend({kind: getattr(answer.usage, kind) for kind in TOKENS})
            if self._bus.confirms(self.message.channel):
                session.owe(kept[-1].seq)
            self._turn.cut_with_answer(session)

        try:
            await self._turn.change(act)
        except SessionNotFound:
            if not self.session.has_expired():
                raise  # deleted, so don't create it again
            await self._keep_anew(act)
        except StoreError as error:
            if not is_away(error):
                raise
            key = self.message.session_key
            await self._notices.store_is_away(key, self.message, error)
            await self._keep_in_the_end(act, answer.entries[-1].id)
            self._notices.store_is_back(key)
        self._fence.is_over = True
        return kept[-1]

    async def _keep_in_the_end(self, act: Act, last: str) -> None:
        """Retry until the store is back, so that an answer already paid for is not lost."""

        def again(session: Session) -> None:
            if not any(entry.id == last for entry in session.window):
                self._fence.act(session, act)

        while True:
            await leave_alone()
            try:
                return await self._sessions.change(self.session, again)
            except StoreError as error:
                if not is_away(error):
                    raise

    async def _keep_anew(self, act: Act) -> None:
        """Start a new conversation with this exchange, because the old one has expired."""
        (question,) = self.session.entries_between(self._fence.seq - 1, self._fence.seq)

        def begun(session: Session) -> None:
            asked = session.awaiting  # messages that arrived meanwhile still need an answer
            session.claim(self._nodes.me)
            session.add_entry(question)
            act(session)
            session.awaiting = asked

        key, agent = self.message.session_key, self.session.agent
        self.session = await self._sessions.current(key, agent=agent)
        await self._sessions.change(self.session, begun)

    async def _send(self, text: str, said: Entry, lapses: int) -> None:
        answer = reply_to(self.message, text, "answer", self.session.id, said=said)
        if said.type == APPROVAL:
            answer = replace(answer, choices=choices_in(said, self._sentences.text))
        await send_answer(
            await with_files(answer, said, self._sessions.attachments, self._sentences),
            bus=self._bus,
            sessions=self._sessions,
            session=self.session,
            seq=said.seq,
            claim=ChatClaim(self._nodes, self._sessions, self.session.id, said.seq, lapses),
        )

    async def _resize(self) -> None:
        """Update the memo and run the user's resize handlers; no answer waits for this."""
        try:
            await self._turn.resize()
        except Exception as error:  # noqa: BLE001 - a handler's bug must not stop all conversations
            name = type(error).__name__
            announce(ResizeFailed(error=name))
        else:
            self.session.release()
            self._summarizer.fire_and_forget(self.session)

    async def _tell_hooks(self, outcome: RequestOutcome) -> None:
        try:
            await self._agent.hooks.after(outcome, self._agent)
        except Exception as error:  # noqa: BLE001 - a hook's bug must not lose the answer
            name, where = type(error).__name__, place_of(error)
            announce(HookFailed(error=name, where=where))

    def _receipt(self, answer: Answer) -> TurnFinished:
        return TurnFinished(
            steps=answer.steps,
            tokens_in=answer.usage.tokens_in,
            tokens_out=answer.usage.tokens_out,
            tokens_cached=answer.usage.tokens_cached,
            seconds=round(time.monotonic() - self._started, 3),
        )

    async def stop(self, *, waiting: int) -> None:
        """Store the finished parts, close open tool calls, and tell the chat."""
        why = "stopped by the user before it finished"
        with self._turn.about():
            await self._turn.break_off(why, half_said=True, then=_await_nothing)
            announce(TurnStopped(waiting=waiting))
        await self.say(self._notices.text(self.message, "stopped"), kind="notice")

    async def fail(self, apology: str, incident: str | None = None) -> None:
        """Store the user's message, close open calls, and send an apology."""
        await self._turn.break_off("the turn failed before it finished", then=_await_nothing)
        await self.say(apology, kind="error", incident=incident)

    async def say(self, text: str, *, kind: Any, incident: str | None = None) -> None:
        """Send a notice from the loop to the message's chat."""
        said = reply_to(self.message, text, kind, self.session.id, incident=incident)
        await self._bus.publish(said)


@dataclass(slots=True)
class _TurnFence:
    """Prevents a turn from writing once it no longer owns its question."""

    seq: int
    claim: int
    is_over: bool = False
    """True once the turn has its answer, so that later changes are allowed."""

    def act(self, session: Session, act: Act) -> Any:
        """Apply a change; raise `TurnLost` if the turn no longer owns its question."""
        is_ours = (session.awaiting, session.claims) == (self.seq, self.claim)
        if not is_ours and not self.is_over:
            raise TurnLost(session.id)
        return act(session)

    async def change(self, sessions: Sessions, session: Session, act: Act) -> Any:
        """Apply a change and make it durable; raise `TurnLost` like `act`."""
        return await sessions.change(session, partial(self.act, act=act))


def _with_reader(agent: Agent, session: Session, sessions: Sessions) -> Agent:
    """Return the agent; if it has tools and there are long files, add the tool to read them."""
    if sessions.attachments is None or not agent.toolbox.specs:
        return agent
    reader = AttachmentReader(sessions.attachments, session)
    if not reader.is_offered:
        return agent
    reading = copy(agent)
    reading.toolbox = agent.toolbox.plus(reader)
    return reading


def steering_in(session: Session) -> list[Entry]:
    """Return the waiting messages to add to the current turn, up to the first command."""
    return [entry for entry in said_first(session.waiting) if entry.metadata.get(STEERS)]


def _as_question(session: Session, message: Entry) -> Entry:
    """Return a message as the log has a question; only one that joins a turn keeps `STEERS`."""
    return without(give_way(session, heard_by(message, "")), STEERS)


def _await_nothing(session: Session) -> None:
    session.awaiting = 0


def _stream_to(bus: Bus, message: Inbound, session: Session) -> OnText | None:
    """Return a function that sends pieces of the answer, if the chat's channel wants them."""
    if not bus.streams(message.channel):
        return None
    chat = {"channel": message.channel, "chat": message.chat, "session_id": session.id}
    answers = message.message_id
    shown = PiecesWithoutFiles(lambda: any(FILES in entry.metadata for entry in session.window))

    def tell(piece: str) -> None:
        if text := shown(piece):
            bus.publish_nowait(TextStreamed(**chat, text=text, reply_to=answers))

    return tell
