"""The loop: it starts and stops, and stores each message before confirming it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from nanoloop import defaults, plugins
from nanoloop.agents import Agent, Agents
from nanoloop.bus import InProcessBus
from nanoloop.chat import Chats
from nanoloop.commands import Commands
from nanoloop.context import Bounds, Views
from nanoloop.embedding import Embedded
from nanoloop.errors import (
    AlreadyHeard,
    HistoryNotLoaded,
    LaneFull,
    NanoloopError,
    NotPossible,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
    StoreError,
)
from nanoloop.events import (
    LoopStarted,
    LoopStopped,
    MessageAccepted,
    MessageRefused,
    MessageRepeated,
    announce,
)
from nanoloop.exchange import Begun, ExchangeParts
from nanoloop.fairness import FairLimiter
from nanoloop.intake import amended_by, entry_of, is_command
from nanoloop.lanes import Lanes, Then
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Delivery, Inbound, Outcome
from nanoloop.nodes import Nodes
from nanoloop.protocols import Bus, Provider, Store, Tool, in_background
from nanoloop.sending import Notices, reply_to
from nanoloop.sentences import Sentences
from nanoloop.session.approvals import withdraw
from nanoloop.session.entry import TOOL_CALL, Entry
from nanoloop.session.queue import (
    asked_again,
    erased_name,
    message_id_of,
    messages_among,
    reworded,
)
from nanoloop.session.session import Session
from nanoloop.session.speech import other_words
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tools.effects import close_calls
from nanoloop.writing import is_away, leave_alone

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

FLUSH_SECONDS = 5
"""How long a shutdown waits for outgoing messages to be sent."""


class AgentLoop(Embedded):
    """Takes messages from the bus and answers each chat in order, and all chats in parallel."""

    def __init__(
        self,
        provider: Provider | str,
        *,
        agent: Agent | None = None,
        agents: Mapping[str, Agent] | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        store: Store | str | None = None,
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
        """Create a loop; `provider` and `store` may be names (openai:gpt-5.4-mini, sqlite:bot.db).

        A named provider or store is created as the settings would create it, and closed with the
        loop.
        """
        made: list[Provider | Store] = []
        if isinstance(provider, str):
            made.append(provider := plugins.provider_named(provider))
        if isinstance(store, str):
            made.append(store := plugins.store_named(store))
        store = InMemoryStore() if store is None else store
        super().__init__(store, closing=made)
        default = agent or Agent(tools=tools)
        self.agents = agents if isinstance(agents, Agents) else Agents(default, agents)
        self.sentences = sentences or Sentences()
        self.bus = bus or InProcessBus(busy=self._busy)
        self.sessions = Sessions(
            store,
            limit=open_sessions,
            patience_seconds=store_timeout_seconds,
            recall=recall,
        )
        self.summarizer = summarizer or Summarizer(in_background(provider), summary_model)
        self.summarizer.keep_in(self.sessions.writer, opened=self.sessions.open)
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
        self._max_concurrent_turns = max_concurrent_turns
        self.turns = FairLimiter(max_concurrent_turns)
        """Limits concurrent turns, both in chats and elsewhere."""
        self._shutdown_turns_seconds = shutdown_turns_seconds
        self._shutdown_summaries_seconds = shutdown_summaries_seconds
        buffer = {"buffer_limit": message_buffer_limit, "buffer_min": message_buffer_min}
        self.nodes = Nodes(self.sessions.store, patience_seconds=store_timeout_seconds)
        """All processes that answer chats from this store, including this one."""
        self._notices = Notices(
            self.bus, self.sentences, agents=self.agents, sessions=self.sessions
        )
        parts = ExchangeParts(
            provider=provider,
            agents=self.agents,
            sessions=self.sessions,
            bus=self.bus,
            summarizer=self.summarizer,
            follow=_nobody if recall is None else recall.follow,
            nodes=self.nodes,
            views=Views(bounds),
            notices=self._notices,
            **buffer,
        )
        commands = Commands(
            sessions=self.sessions,
            agents=self.agents,
            summarizer=self.summarizer,
            recall=recall,
            runner=self,
            notices=self._notices,
            **buffer,
        )
        self._chats = Chats(
            parts=parts,
            commands=commands,
            limiter=self.turns,
            waiting_limit=lane_limit,
            answer_unanswered=answer_unanswered,
        )
        self._arrivals = Arrivals(
            chats=self._chats,
            parts=parts,
            commands=commands,
            waiting_limit=lane_limit,
        )

    @property
    def recall(self) -> Recall | None:
        """The object that searches earlier messages, or None if recall is disabled."""
        return self._recall

    @property
    def lanes(self) -> int:
        """The number of chats that are being answered or waiting."""
        return len(self._chats)

    # Taking

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer messages until the bus is closed; then finish all work within the deadlines."""
        async with AsyncExitStack() as stack:
            for part in (self.bus, self.summarizer, self._recall):
                if part is not None:
                    await stack.enter_async_context(part)
            async with self.nodes, self._chats, self._arrivals:
                stack.enter_context(self._serving())
                self._announce_start()
                task_status.started()
                async for delivery in self.bus.deliveries():
                    await self._arrivals.take(delivery)
                    await checkpoint()  # a burst must not starve the chats
                self._chats.watch_over(lambda _: False)
                with anyio.move_on_after(self._shutdown_turns_seconds):
                    await self._arrivals.idle()
                unfinished = len(self._chats)
                await self._arrivals.finish()
            await self._stop(unfinished)

    async def _stop(self, unfinished: int) -> None:
        summaries = await self.summarizer.drain(self._shutdown_summaries_seconds)
        with anyio.move_on_after(FLUSH_SECONDS):
            await self.bus.flush()
        announce(LoopStopped(unfinished_turns=unfinished, unfinished_summaries=summaries))

    def _announce_start(self) -> None:
        announce(
            LoopStarted(channels=self.bus.channels, max_concurrent_turns=self._max_concurrent_turns)
        )

    def _busy(self, message: Inbound) -> str:
        return self._notices.text(message, "full")

    # For the commands

    @property
    def node(self) -> str:
        """The name of this process among those that use the store."""
        return self.nodes.me

    @property
    def channels(self) -> Mapping[str, str]:
        """The state of each channel that reports one."""
        return self.bus.states

    def stop(self, key: str) -> bool:
        """Stop the turn in progress in this lane; return False if there is none."""
        return self._chats.stop(key)

    async def stop_anywhere(self, key: str) -> bool:
        """Like `stop`, but also reach a turn in another process, after a short delay."""
        return await self._chats.stop_anywhere(key)

    def waiting(self, key: str) -> int:
        """Return how many messages are waiting in this lane."""
        return self._arrivals.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Return True if a turn is in progress in this lane."""
        return self._chats.is_answering(key)

    def is_busy(self, key: str) -> bool:
        """Return True if a message is being processed or waiting in this lane."""
        return self._chats.is_busy(key) or self._arrivals.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Resume what earlier processes left unfinished: messages, answers and summaries.

        From now on, also take over the work of other processes that end while this one is running.
        """
        await self._recover(lambda _: True)

    async def recover_chat(self, key: str) -> None:
        """Like `recover`, but for one chat only."""
        await self.sessions.current_id(key)
        await self.sessions.finish_all_erasing()
        await self._recover(lambda session_id: session_id == self.sessions.known_id(key))

    async def _recover(self, is_wanted: Callable[[str], bool]) -> None:
        self._chats.watch_over(is_wanted)
        await self._chats.look()
        await self._chats.take_up_summaries()


def _nobody(_: str) -> None:
    """Do nothing, because there is no index to update."""


WAITING_BYTES = 1_000_000
"""The maximum total size in bytes of the messages waiting in one chat."""
INTERRUPTED = "interrupted before it finished: a message was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The outcome of accepting a message."""

    session: Session
    outcome: Outcome = "kept"
    begun: Begun | None = None
    """The question that the message became, if no other work came first."""
    ends_turn: bool = False
    """True if the message changed the question being answered."""
    stops: str | None = None
    """The id of the question whose turn should be stopped."""


class Arrivals:
    """Accepts messages into their sessions, in order and one at a time per chat."""

    def __init__(
        self,
        *,
        chats: Chats,
        parts: ExchangeParts,
        commands: Commands,
        waiting_limit: int,
    ) -> None:
        self._chats = chats
        self._parts = parts
        self._sessions = parts.sessions
        self._commands = commands
        self._notices = parts.notices
        self._waiting_limit = waiting_limit
        self._arrivals: Lanes[str, Delivery] = Lanes(
            self._arrive, limit=waiting_limit, name="arrival"
        )
        self._asides: Lanes[str, Delivery] = Lanes(
            self._answer_aside, limit=waiting_limit, name="aside"
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for lanes in (self._asides, self._arrivals):
            await self._stack.enter_async_context(lanes)
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._stack.__aexit__(*exc)  # type: ignore[arg-type]

    def waiting(self, key: str) -> int:
        """Return how many of a chat's messages wait in its session or on their way to it."""
        session = self._sessions.known(key)
        return self._arrivals.waiting(key) + (
            0 if session is None else len(messages_among(session.waiting))
        )

    def is_busy(self, key: str) -> bool:
        """Return True if a message for this chat has not reached its session yet."""
        return self._arrivals.is_busy(key)

    async def idle(self) -> None:
        """Wait until all messages have been accepted and answered."""
        await self._arrivals.idle()
        await self._chats.idle()
        await self._asides.idle()

    async def finish(self) -> None:
        """Store the messages that have not been accepted yet."""
        for delivery in self._arrivals.take_waiting():
            message = delivery.message
            try:
                arrival = await self._kept(message, entry_of(message))
            except NanoloopError as error:
                if is_away(error):  # unavailable for all messages, so don't wait for each one
                    break
            else:
                await delivery.ack(arrival.outcome)

    async def take(self, delivery: Delivery) -> None:
        """Queue a message without waiting."""
        message = self._with_own_agent(delivery.message)
        if message is not delivery.message:
            delivery = replace(delivery, message=message)
        key = message.session_key
        try:
            if is_command(message) and self._commands.is_at_once(message.text):
                # /stop must not wait for other commands, which may take long.
                lane = f"{key} stop" if message.text.split()[:1] == ["/stop"] else key
                self._asides.put_nowait(lane, delivery)
            else:
                self._arrivals.put_nowait(key, delivery)
        except LaneFull:
            await self._refuse(delivery)
        else:
            waiting, name = self.waiting(key), message.message_id
            announce(MessageAccepted(key=key, message_id=name, waiting=waiting))

    def _with_own_agent(self, message: Inbound) -> Inbound:
        """Return the message without its choice of agent if the sender may not use that agent."""
        if message.agent is None or message.agents is None:
            return message
        choice = message.agents or (self._parts.agents.default.name,)
        return message if message.agent in choice else replace(message, agent=None)

    async def _refuse(self, delivery: Delivery) -> None:
        message = delivery.message
        announce(
            MessageRefused(key=message.session_key, message_id=message.message_id, reason="full")
        )
        await delivery.ack("full")
        await self._notices.say(message, "busy")

    async def _answer_aside(self, _: str, delivery: Delivery) -> None:
        """Run a command that only reads, without waiting for anything else."""
        try:
            text = await self._commands.answer(delivery.message)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            await self._fail(delivery, error)
        else:
            await delivery.ack()
            await anyio.sleep(delivery.message.early_seconds)
            await self._notices.publish(reply_to(delivery.message, text, "notice"))

    async def _fail(self, delivery: Delivery, error: Exception) -> None:
        await delivery.ack("failed")
        await self._notices.apologise(delivery.message, error)

    async def _arrive(self, key: str, delivery: Delivery) -> Then | None:
        try:
            arrival = await self._kept_in_the_end(delivery)
        except (SessionDamaged, NotReadable) as unreadable:
            if is_command(delivery.message):  # /new lets the user continue
                await self._answer_aside(key, delivery)
            else:
                await self._fail(delivery, unreadable)
            return None
        except Exception as error:  # noqa: BLE001 - as above
            await self._fail(delivery, error)
            return None
        if arrival.outcome == "full":
            await self._refuse(delivery)
            return None
        if arrival.outcome == "repeated":
            name = delivery.message.message_id or ""
            announce(MessageRepeated(key=key, message_id=name))
        if arrival.begun is not None:
            self._chats.note(arrival.session, arrival.begun)
        if arrival.ends_turn:
            self._chats.drop_turn(key)
        if arrival.stops is not None:
            self._chats.stop(key, question=arrival.stops)
        await delivery.ack(arrival.outcome)
        if self._arrivals.waiting(key):
            self._chats.wake(key, arrival.session.id)
            return None
        return partial(self._chats.work_here, key, arrival.session.id)

    async def _kept_in_the_end(self, delivery: Delivery) -> Arrival:
        """Store a message, however long the store is down; the chat is told only once."""
        message = delivery.message
        key, entry = message.session_key, entry_of(message)
        while True:
            try:
                arrival = await self._kept(message, entry)
            except StoreError as error:
                if not is_away(error):
                    raise
                await self._notices.store_is_away(key, message, error)
                await leave_alone()
            else:
                if self._notices.told_of_store:
                    self._notices.store_is_back(key)
                return arrival

    async def _kept(self, message: Inbound, entry: Entry) -> Arrival:
        """Store a message in its chat's session; the message is durable on return."""
        changed = amended_by(message)
        while True:
            with suppress(SessionNotFound):  # deleted by another process, so start a new session
                session = await self._sessions.current(message.session_key, agent=message.agent)
                if session.by != self._parts.nodes.me:
                    await self._parts.nodes.ask_after(session.by)
                # Unanswered questions are in memory, so the store need not be read for them.
                is_known = changed is not None and (
                    _is_owed(session, changed) or await self._is_there(message, changed)
                )
                if message.again:
                    await self._sessions.ready_to_undo(session)
                left = self._sessions.without_erased(session, entry, message)
                if left is None:
                    return Arrival(session=session, outcome="repeated")
                entry = left
                act = partial(self._take_in, message=message, entry=entry, is_known=is_known)
                arrival = await self._arrived(session, message, entry, act)
                if arrival is not None:
                    return arrival

    async def _arrived(
        self,
        session: Session,
        message: Inbound,
        entry: Entry,
        act: Callable[[Session], Arrival | None],
    ) -> Arrival | None:
        """Return the message's outcome in this session, or None if the chat has moved on."""
        with suppress(AlreadyHeard):
            arrival = await self._sessions.take(session, entry, act)
            is_full = arrival is not None and arrival.outcome == "full"
            if not is_full or not await self._has_heard(message, message.message_id):
                return arrival
        return Arrival(session=session, outcome="repeated")

    async def _is_there(self, message: Inbound, message_id: str) -> bool:
        """Return True if the message was accepted in the same chat and not erased since."""
        if not await self._has_heard(message, message_id):
            return False
        return not await self._has_heard(message, erased_name(message_id))

    async def _has_heard(self, message: Inbound, message_id: str | None) -> bool:
        """Return True if a message with this id was already accepted in the same chat."""
        if message_id is None:
            return False
        return await self._sessions.store.has_heard(message.session_key, message_id)

    def _take_in(
        self, session: Session, *, message: Inbound, entry: Entry, is_known: bool
    ) -> Arrival | None:
        """Add a message to the session; return None if its chat has moved on.

        `is_known` is True if the message that this one edits or deletes was accepted before.
        """
        if session.moved:
            return None
        if (kept := _tried_before(session, entry)) is not None:
            return kept
        if amended_by(message):
            return self._amend(session, message, entry, is_known=is_known)
        if message.again:
            entry = _again_in(session, entry)
        return self._queue(session, message, entry)

    def _queue(self, session: Session, message: Inbound, entry: Entry) -> Arrival:
        """Queue a message, or make it the current question at once if nothing else is pending."""
        is_next = self._chats.is_free(session) and not message.early_seconds
        waits = is_command(message) or not is_next
        if waits and not self._has_room(session, entry):
            return Arrival(session=session, outcome="full")
        if not _hears(session, message):
            return Arrival(session=session, outcome="repeated")
        if message.agent and not is_command(message):
            self._parts.agents.choose(session, wanted=message.agent, channel=message.channel)
        if waits:
            self._chats.hold(session, entry)
            return Arrival(session=session)
        return Arrival(session=session, begun=self._parts.begin(session, entry))

    def _amend(self, session: Session, message: Inbound, told: Entry, *, is_known: bool) -> Arrival:
        """Change a waiting or current question; for an older message, tell the model instead."""
        name, begun, ends_turn = amended_by(message) or "", None, False
        if not is_known:
            return Arrival(session=session)
        if not _hears(session, message):
            return Arrival(session=session, outcome="repeated")
        if not session.amend_held(name, None if message.deletes else message.text):
            question = session.entry_at(session.awaiting)
            ends_turn = question is not None and _is_message(question, name)
            paused = self._withdrawn(session, message, name)
            if message.origin == "system":  # its caller has left, but the user has not withdrawn it
                return self._give_up(session, message) if ends_turn else Arrival(session=session)
            if question is None or not ends_turn:
                asks_anew = paused and not message.deletes and self._chats.is_free(session)
                if asks_anew and session.entry_at(paused) is None:  # it has left the window
                    begun = self._parts.begin(session, told)
                else:
                    session.add_entry(told)
                    begun = self._parts.resume(session, paused) if asks_anew else None
            elif not _take_back(session):  # finished work must stay in the log
                close_calls(session, INTERRUPTED)
                session.add_entry(told)
                session.awaiting = 0 if message.deletes else session.awaiting
                session.claim(self._parts.nodes.me)  # ends the running turn, in whatever process
            elif not message.deletes:
                again = replace(reworded(question, message.text), id=told.id)
                begun = self._parts.begin(session, again)
        return Arrival(session=session, begun=begun, ends_turn=ends_turn)

    def _withdrawn(self, session: Session, message: Inbound, name: str) -> int:
        """Withdraw the calls waiting because of this message; return the message's number, or 0."""
        led_to = [each for each in session.approvals.asked if name in each.messages]
        if message.origin == "system" or not led_to:
            return 0
        withdraw(session, "edited", lambda each: name in each.messages)
        return led_to[0].question

    def _give_up(self, session: Session, message: Inbound) -> Arrival:
        """End the current turn, unless it has called a tool that writes."""
        if self._has_written(session):
            return Arrival(session=session)
        if self._chats.is_answering(message.session_key):
            return Arrival(session=session, stops=message.deletes)
        if not _take_back(session):
            close_calls(session, INTERRUPTED)
            session.awaiting = 0
        session.claim(self._parts.nodes.me)
        return Arrival(session=session)

    def _has_written(self, session: Session) -> bool:
        writes = self._parts.agents.of(session).toolbox.writes
        done = [entry for entry in session.window if entry.seq > session.awaiting]
        return any(e.type == TOOL_CALL and writes(str(e.content.get("tool"))) for e in done)

    def _has_room(self, session: Session, entry: Entry) -> bool:
        waiting = session.waiting
        used = sum(map(_size, waiting))
        return len(waiting) < self._waiting_limit and used + _size(entry) <= WAITING_BYTES


def _again_in(session: Session, entry: Entry) -> Entry:
    """Return the message as a repeat of the last question; raise `NotPossible` if there is none."""
    known = (*session.entries_between(0, session.last_seq), *session.waiting)
    again = asked_again(entry, known)
    if again is None:
        raise NotPossible("there is no question to ask again")
    return again


def _is_owed(session: Session, message_id: str) -> bool:
    """Return True if a message with this id is waiting in the session or being answered."""
    asked = session.entry_at(session.awaiting)
    owed = session.waiting if asked is None else (*session.waiting, asked)
    return message_id in map(message_id_of, owed)


def _hears(session: Session, message: Inbound) -> bool:
    """Mark the message as received in the next commit; return False if it is already marked."""
    name = message.message_id
    # An edit may have the same id as the message that it changes.
    if name is None or name == amended_by(message):
        return True
    return session.hear(message.session_key, name)


def _is_message(entry: Entry, message_id: str) -> bool:
    return entry.role == "user" and message_id_of(entry) == message_id


def _tried_before(session: Session, entry: Entry) -> Arrival | None:
    """Return the outcome for a message that was accepted before but is not stored yet."""
    newest = session.newest
    if newest is not None and newest.id == entry.id:
        is_asked = newest.seq == session.awaiting
        begun = Begun(seq=newest.seq, claim=session.claims, evicted=0) if is_asked else None
        return Arrival(session=session, begun=begun)
    if any(waiting.id == entry.id for waiting in session.waiting):
        return Arrival(session=session)
    return None


def _size(entry: Entry) -> int:
    """Return the approximate size of a message in bytes."""
    return len(str(entry.content).encode()) + len(other_words(entry).encode())


def _take_back(session: Session) -> bool:
    """Withdraw the current question; return False if anything has been added since."""
    if session.awaiting != session.last_seq:
        return False
    try:
        session.undo()
    except HistoryNotLoaded:  # the rest has left the window
        return False
    session.awaiting = 0
    return True
