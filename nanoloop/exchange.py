"""One message and its answer: recorded, trimmed, answered, recorded again, sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from nanoloop.agents import Agent
from nanoloop.context import Views
from nanoloop.errors import NanoloopError, SessionNotFound, place_of
from nanoloop.events import (
    HookFailed,
    ResizeFailed,
    TextStreamed,
    TurnFinished,
    TurnStarted,
    TurnStopped,
    announce,
)
from nanoloop.intake import user_entry
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.protocols import Bus, OnText, Provider, vendor_of
from nanoloop.sending import named, reply_to, send_answer
from nanoloop.session.entry import Entry
from nanoloop.session.options import UNLIMITED
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.turn import Act, Answer, Cutting, Keeping, RequestOutcome, Turn

STOPPED = "Stopped."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeParts:
    """What all exchanges of a loop share."""

    provider: Provider
    """Who is asked where the agent has none of its own."""
    sessions: Sessions
    bus: Bus
    summarizer: Summarizer
    views: Views
    buffer_limit: int
    """With more messages a window is cut, unless the agent says otherwise."""
    buffer_min: int
    follow: Callable[[str], object]
    """Told of each session whose window was cut."""


class Exchange:
    """What the loop does for one message in its session's lane."""

    def __init__(
        self,
        session: Session,
        message: Inbound,
        *,
        agent: Agent,
        parts: ExchangeParts,
        steering: Callable[[Session], Sequence[Entry]],
    ) -> None:
        self.session = session
        self.message = message
        self._agent = agent
        self._sessions = parts.sessions
        self._store = parts.sessions.store
        self._bus = parts.bus
        self._summarizer = parts.summarizer
        self._started = time.monotonic()
        provider = agent.provider or parts.provider
        agent.equip(session, provider, defaults=UNLIMITED)
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
            keeping=Keeping(change=parts.sessions.change, store=self._store, steering=steering),
            cutting=Cutting(
                limit=agent.limits.messages or parts.buffer_limit,
                keep=agent.limits.kept or parts.buffer_min,
                # Not a method of this object: it would hold a session in a circle.
                heard=partial(parts.summarizer.fire_and_forget, session),
                follow=parts.follow,
            ),
            on_text=_stream_to(parts.bus, message, session.id),
        )

    @property
    def turn_id(self) -> str:
        """The turn's name in events."""
        return self._turn.id

    async def hear(self, *kept: Entry) -> None:
        """Keep the user's message, durable when this returns, and cut the window if it is full.

        What waited is given as it was `kept`, the message last.
        """
        await self._turn.begin(*(kept or (user_entry(self.message),)), then=_await_answer)
        await self._begun()

    async def pick_up(self) -> None:
        """Go on with a message that was kept before a restart; calls in between are closed."""
        why = "interrupted by a restart; whether it took effect is not known"
        await self._turn.begin(then=self._turn.closing(why))
        await self._begun()

    async def _begun(self) -> None:
        with self._turn.about():
            self.session.release()
            self._summarise()
            await self._view.fill(self._store)

    def _summarise(self) -> None:
        self._summarizer.fire_and_forget(self.session)

    async def think(self, *, resumed: bool = False) -> Answer:
        """Ask the model until there is an answer; raises `ProviderError`."""
        with self._turn.about():
            announce(TurnStarted(resumed=resumed))
            try:
                return await self._turn.run()
            except Exception as error:
                await self._tell_hooks(RequestOutcome(given=self.message.text, error=error))
                raise

    async def deliver(self, answer: Answer) -> None:
        """Keep the answer, then send it."""
        with self._turn.about():
            # Kept before it is sent: what the chat has read is never unknown to the log.
            said = await self._keep(answer)
            await self._send(answer.text, said)
            announce(self._receipt(answer))
            self._view.learn(answer.usage.tokens_in, steps=answer.steps)
            if self.session.has_resize_rules:
                self._summarizer.work_beside(self.session, self._resize)
            await self._tell_hooks(RequestOutcome(given=self.message.text, answer=answer))

    async def _keep(self, answer: Answer) -> Entry:
        kept: list[Entry] = []

        def act(session: Session) -> None:
            session.awaiting = 0
            kept[:] = [session.add_entry(entry) for entry in answer.entries]
            session.spend(asdict(answer.usage))
            if self._bus.confirms(self.message.channel):
                session.owe(kept[-1].seq)

        try:
            await self._turn.change(act)
        except SessionNotFound:
            if not self.session.has_expired():
                raise  # deleted by somebody: nothing is revived
            await self._keep_anew(act)
        except NanoloopError:  # the chat is told so, and no answer comes later
            self.session.arrived(kept[-1].seq)
            raise
        return kept[-1]

    async def _keep_anew(self, act: Act) -> None:
        """The conversation's time ran out meanwhile: the next one begins with this exchange."""
        question = user_entry(self.message)

        def begun(session: Session) -> None:
            session.add_entry(question)
            act(session)

        key, agent = self.message.session_key, self.session.agent
        self.session = await self._sessions.current(key, agent=agent)
        await self._sessions.change(self.session, begun)

    async def _send(self, text: str, said: Entry) -> None:
        answer = reply_to(self.message, text, "answer", self.session.id)
        await send_answer(
            named(answer, said),
            bus=self._bus,
            sessions=self._sessions,
            session=self.session,
            seq=said.seq,
        )

    async def _resize(self) -> None:
        """Keep the history as small as the session's own rules say; nothing waits for it."""
        try:
            await self._turn.resize()
        except Exception as error:  # noqa: BLE001 - no handler's bug may stop every conversation
            name = type(error).__name__
            announce(ResizeFailed(error=name))
        else:
            self.session.release()
            self._summarise()

    async def _tell_hooks(self, outcome: RequestOutcome) -> None:
        try:
            await self._agent.hooks.after(outcome, self._agent)
        except Exception as error:  # noqa: BLE001 - a hook's bug must not cost the answer
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
        """Keep what was finished, close what was not, and tell the chat."""
        why = "stopped by the user before it finished"
        with self._turn.about():
            await self._turn.break_off(why, half_said=True, then=_await_nothing)
            announce(TurnStopped(waiting=waiting))
        await self.say(STOPPED, kind="notice")

    async def interrupt(self, told: Entry, *, goes_on: bool) -> None:
        """Keep what was finished, close what was not, and tell the model why."""

        def then(session: Session) -> None:
            session.add_entry(told)
            session.awaiting = session.awaiting if goes_on else 0

        why = "interrupted before it finished: a message was changed"
        await self._turn.break_off(why, then=then)

    async def fail(self, apology: str, incident: str | None = None) -> None:
        """Keep the user's message, close what is open, and apologise."""
        await self._turn.break_off("the turn failed before it finished", then=_await_nothing)
        await self.say(apology, kind="error", incident=incident)

    async def say(self, text: str, *, kind: Any, incident: str | None = None) -> None:
        """Send a word of the loop itself to the message's chat."""
        said = reply_to(self.message, text, kind, self.session.id, incident=incident)
        await self._bus.publish(said)


def _await_answer(session: Session) -> None:
    session.awaiting = session.last_seq


def _await_nothing(session: Session) -> None:
    session.awaiting = 0


def _stream_to(bus: Bus, message: Inbound, session_id: str) -> OnText | None:
    """What brings pieces of the answer to the message's chat, where its channel wants them."""
    if not bus.streams(message.channel):
        return None
    chat = {"channel": message.channel, "chat": message.chat, "session_id": session_id}
    answers = message.message_id
    return lambda piece: bus.publish_nowait(TextStreamed(**chat, text=piece, reply_to=answers))
