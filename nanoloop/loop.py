"""The loop: what arrives is kept in its chat's session before anyone is told; start and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from nanoloop import defaults
from nanoloop.agents import Agent, Agents
from nanoloop.bus import InProcessBus
from nanoloop.chat import Chats
from nanoloop.commands import Commands
from nanoloop.context import Bounds, Views
from nanoloop.errors import (
    AlreadyHeard,
    HistoryNotLoaded,
    LaneFull,
    NanoloopError,
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
from nanoloop.protocols import Bus, Provider, Store, Tool
from nanoloop.sending import Notices, reply_to
from nanoloop.sentences import Sentences
from nanoloop.session.entry import Entry
from nanoloop.session.queue import message_id_of, messages_among, reworded
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.turn import close_calls
from nanoloop.writing import is_away, leave_alone

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
        self.turns = FairLimiter(max_concurrent_turns)
        """What every turn waits for, in chats and beside them."""
        self._shutdown_turns_seconds = shutdown_turns_seconds
        self._shutdown_summaries_seconds = shutdown_summaries_seconds
        buffer = {"buffer_limit": message_buffer_limit, "buffer_min": message_buffer_min}
        self.nodes = Nodes(self.sessions.store)
        """This process among those that answer chats on its store."""
        parts = ExchangeParts(
            provider=provider,
            agents=self.agents,
            sessions=self.sessions,
            bus=self.bus,
            summarizer=self.summarizer,
            follow=_nobody if recall is None else recall.follow,
            nodes=self.nodes,
            views=Views(bounds),
            **buffer,
        )
        commands = Commands(
            sessions=self.sessions,
            agents=self.agents,
            summarizer=self.summarizer,
            recall=recall,
            runner=self,
            **buffer,
        )
        notices = Notices(self.bus, self.sentences)
        self._chats = Chats(
            parts=parts,
            commands=commands,
            notices=notices,
            limiter=self.turns,
            waiting_limit=lane_limit,
            answer_unanswered=answer_unanswered,
        )
        self._arrivals = Arrivals(
            chats=self._chats,
            parts=parts,
            commands=commands,
            notices=notices,
            waiting_limit=lane_limit,
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
            async with self.nodes, self._chats, self._arrivals:
                stack.enter_context(self._serving())
                self._announce_start()
                task_status.started()
                async for delivery in self.bus.deliveries():
                    await self._arrivals.take(delivery)
                    await checkpoint()  # a burst must leave the chats their turn
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

    async def stop_anywhere(self, key: str) -> bool:
        """The same, also where it goes on in another process, which hears of it soon."""
        return await self._chats.stop_anywhere(key)

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        return self._arrivals.waiting(key)

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        return self._chats.is_answering(key)

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        return self._chats.is_busy(key) or self._arrivals.is_busy(key)

    # After a restart

    async def recover(self) -> None:
        """Take up what earlier processes left: messages, answers, unfinished summaries.

        From now on also what others leave that end while this one runs.
        """
        await self._recover(lambda _: True)

    async def recover_chat(self, key: str) -> None:
        """The same for one chat."""
        await self.sessions.current_id(key)
        await self._recover(lambda session_id: session_id == self.sessions.known_id(key))

    async def _recover(self, is_wanted: Callable[[str], bool]) -> None:
        self._chats.watch_over(is_wanted)
        await self._chats.look()
        await self._chats.take_up_summaries()


def _nobody(_: str) -> None:
    """Nothing takes in what left a window."""


WAITING_BYTES = 1_000_000
"""How much may wait in one chat."""
INTERRUPTED = "interrupted before it finished: a message was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What became of a message."""

    session: Session
    outcome: Outcome = "kept"
    begun: Begun | None = None
    """The question that it is, where nothing else was owed."""
    ends_turn: bool = False
    """Whether it changed the question that is being answered."""


class Arrivals:
    """Takes messages into their sessions, one at a time and in order for each chat."""

    def __init__(
        self,
        *,
        chats: Chats,
        parts: ExchangeParts,
        commands: Commands,
        notices: Notices,
        waiting_limit: int,
    ) -> None:
        self._chats = chats
        self._parts = parts
        self._sessions = parts.sessions
        self._commands = commands
        self._notices = notices
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
        """Messages of this chat that wait, in its session or to get there."""
        session = self._sessions.known(key)
        return self._arrivals.waiting(key) + (
            0 if session is None else len(messages_among(session.waiting))
        )

    def is_busy(self, key: str) -> bool:
        """Whether a message of this chat is on its way into its session."""
        return self._arrivals.is_busy(key)

    async def idle(self) -> None:
        """Wait until all that came has been taken in and answered."""
        await self._arrivals.idle()
        await self._chats.idle()
        await self._asides.idle()

    async def finish(self) -> None:
        """Make durable what has not been taken in yet."""
        for delivery in self._arrivals.take_waiting():
            message = delivery.message
            try:
                arrival = await self._kept(message, entry_of(message))
            except NanoloopError as error:
                if is_away(error):  # for all others too: nobody waits for it once for each
                    break
            else:
                await delivery.ack(arrival.outcome)

    async def take(self, delivery: Delivery) -> None:
        """Put a message where it will be handled; waits for nobody."""
        message = delivery.message
        key = message.session_key
        try:
            if is_command(message) and self._commands.is_at_once(message.text):
                # /stop waits for no other command, which may take long.
                lane = f"{key} stop" if message.text.split()[:1] == ["/stop"] else key
                self._asides.put_nowait(lane, delivery)
            else:
                self._arrivals.put_nowait(key, delivery)
        except LaneFull:
            await self._refuse(delivery)
        else:
            waiting, name = self.waiting(key), message.message_id
            announce(MessageAccepted(key=key, message_id=name, waiting=waiting))

    async def _refuse(self, delivery: Delivery) -> None:
        message = delivery.message
        announce(
            MessageRefused(key=message.session_key, message_id=message.message_id, reason="full")
        )
        await delivery.ack("full")
        await self._notices.say(message, "busy")

    async def _answer_aside(self, _: str, delivery: Delivery) -> None:
        """Answer what only reads, whatever else goes on."""
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
            if is_command(delivery.message):  # /new is the way out
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
        await delivery.ack(arrival.outcome)
        if self._arrivals.waiting(key):
            self._chats.wake(key, arrival.session.id)
            return None
        return partial(self._chats.work_here, key, arrival.session.id)

    async def _kept_in_the_end(self, delivery: Delivery) -> Arrival:
        """The same, however long the store is away; the chat is told of that once."""
        message, is_told = delivery.message, False
        entry = entry_of(message)
        while True:
            try:
                return await self._kept(message, entry)
            except StoreError as error:
                if not is_away(error):
                    raise
                if not is_told:
                    await self._notices.apologise(message, error)
                is_told = True
                await leave_alone()

    async def _kept(self, message: Inbound, entry: Entry) -> Arrival:
        """Have it in its chat's session, durable when this returns."""
        changed = amended_by(message)
        while True:
            with suppress(SessionNotFound):  # deleted by another process: the chat begins anew
                session = await self._sessions.current(message.session_key, agent=message.agent)
                if session.by != self._parts.nodes.me:
                    await self._parts.nodes.ask_after(session.by)
                # What is owed is known: no read between a message and its change.
                is_known = changed is not None and (
                    _is_owed(session, changed) or await self._has_heard(message, changed)
                )
                act = partial(self._take_in, message=message, entry=entry, is_known=is_known)
                arrival = await self._arrived(session, message, act)
                if arrival is not None:
                    return arrival

    async def _arrived(
        self, session: Session, message: Inbound, act: Callable[[Session], Arrival | None]
    ) -> Arrival | None:
        """What became of it in this session; None where its chat has moved on."""
        with suppress(AlreadyHeard):
            arrival = await self._sessions.change(session, act)
            is_full = arrival is not None and arrival.outcome == "full"
            if not is_full or not await self._has_heard(message, message.message_id):
                return arrival
        return Arrival(session=session, outcome="repeated")

    async def _has_heard(self, message: Inbound, message_id: str | None) -> bool:
        """Whether a message with this id was taken in the same chat."""
        if message_id is None:
            return False
        return await self._sessions.store.has_heard(message.session_key, message_id)

    def _take_in(
        self, session: Session, *, message: Inbound, entry: Entry, is_known: bool
    ) -> Arrival | None:
        """Have the session take it in; None where its chat has moved on.

        `is_known` says whether the message that it changes was taken.
        """
        if session.moved:
            return None
        if (kept := _tried_before(session, entry)) is not None:
            return kept
        if amended_by(message):
            return self._amend(session, message, entry, is_known=is_known)
        return self._queue(session, message, entry)

    def _queue(self, session: Session, message: Inbound, entry: Entry) -> Arrival:
        """Have it wait for its turn, which comes at once where nothing else is owed."""
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
        """Change what waits or is being asked; of anything older the model is told."""
        name, begun, ends_turn = amended_by(message) or "", None, False
        if not is_known:
            return Arrival(session=session)
        if not _hears(session, message):
            return Arrival(session=session, outcome="repeated")
        if not session.amend_held(name, None if message.deletes else message.text):
            question = session.entry_at(session.awaiting)
            ends_turn = question is not None and message_id_of(question) == name
            if question is None or not ends_turn:
                session.add_entry(told)
            elif not _take_back(session):  # what was done for it must not be forgotten
                close_calls(session, INTERRUPTED)
                session.add_entry(told)
                session.awaiting = 0 if message.deletes else session.awaiting
                session.claim(self._parts.nodes.me)  # the turn going on is over, wherever it runs
            elif not message.deletes:
                again = replace(reworded(question, message.text), id=told.id)
                begun = self._parts.begin(session, again)
        return Arrival(session=session, begun=begun, ends_turn=ends_turn)

    def _has_room(self, session: Session, entry: Entry) -> bool:
        waiting = session.waiting
        used = sum(map(_size, waiting))
        return len(waiting) < self._waiting_limit and used + _size(entry) <= WAITING_BYTES


def _is_owed(session: Session, message_id: str) -> bool:
    """Whether a message with this id waits in the session, or is being answered."""
    asked = session.entry_at(session.awaiting)
    owed = session.waiting if asked is None else (*session.waiting, asked)
    return message_id in map(message_id_of, owed)


def _hears(session: Session, message: Inbound) -> bool:
    """Have the session take it with its next commit; False if that takes it already."""
    name = message.message_id
    # A change may come under the name of what it changes.
    if name is None or name == amended_by(message):
        return True
    return session.hear(message.session_key, name)


def _tried_before(session: Session, entry: Entry) -> Arrival | None:
    """What became of it where it was taken in already, and could not be made durable."""
    newest = session.newest
    if newest is not None and newest.id == entry.id:
        is_asked = newest.seq == session.awaiting
        begun = Begun(seq=newest.seq, claim=session.claims, evicted=0) if is_asked else None
        return Arrival(session=session, begun=begun)
    if any(waiting.id == entry.id for waiting in session.waiting):
        return Arrival(session=session)
    return None


def _size(entry: Entry) -> int:
    """The bytes that a message takes, about."""
    return len(str(entry.content).encode())


def _take_back(session: Session) -> bool:
    """Take back the question that is being asked; False where more than that came of it."""
    if session.awaiting != session.last_seq:
        return False
    try:
        session.undo()
    except HistoryNotLoaded:  # all before it has left the window
        return False
    session.awaiting = 0
    return True
