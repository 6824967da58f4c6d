"""One message and its answer: recorded, trimmed, answered, recorded again, sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from nanoloop.agents import Agent, RequestOutcome
from nanoloop.context import Headroom, Views
from nanoloop.errors import NanoloopError, place_of
from nanoloop.events import (
    Announce,
    HookFailed,
    TextStreamed,
    TurnFinished,
    TurnStarted,
    TurnStopped,
    WindowTrimmed,
)
from nanoloop.intake import user_entry
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.protocols import Bus, OnText, Provider, vendor_of
from nanoloop.sending import named, reply_to, send_answer
from nanoloop.session.chat import open_calls
from nanoloop.session.entry import TOOL_RESULT, Entry
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.tools.here import here
from nanoloop.turn import Answer, Turn

STOPPED = "Stopped."


class Exchange:
    """What the loop does for one message in its session's lane."""

    def __init__(
        self,
        *,
        session: Session,
        message: Inbound,
        agent: Agent,
        provider: Provider,
        sessions: Sessions,
        bus: Bus,
        summarizer: Summarizer,
        headroom: Headroom,
        buffer_limit: int,
        buffer_min: int,
        views: Views,
        with_time: bool,
        announce: Announce,
        steering: Callable[[Session], Sequence[Entry]] = lambda _: (),
    ) -> None:
        self.session = session
        self.message = message
        self._agent = agent
        self._sessions = sessions
        self._store = sessions.store
        self._bus = bus
        self._summarizer = summarizer
        self._headroom = headroom
        own = (agent.message_buffer_limit, agent.message_buffer_min)
        self._buffer = (own[0] or buffer_limit, own[1] or buffer_min)
        provider = agent.provider or provider
        self._view = views.of(
            session,
            prompt=agent.prompt,
            model=agent.model,
            tools=agent.toolbox.specs,
            with_time=with_time,
            vendor=vendor_of(provider, agent.model),
        )
        self._announce = announce
        self._steering = steering
        self._started = time.monotonic()
        self._turn = Turn(
            provider=agent.hooks.before(provider, agent),
            toolbox=agent.toolbox,
            model=agent.model,
            max_steps=agent.max_steps,
            on_text=_stream_to(bus, message, session.id),
            announce=announce,
            session_id=session.id,
        )

    @property
    def turn_id(self) -> str:
        """The turn's name in events."""
        return self._turn.id

    async def hear(self, *kept: Entry) -> None:
        """Keep the user's message, durable when this returns, and cut the window if it is full.

        What waited is given as it was `kept`, the message last.
        """
        for entry in kept or (user_entry(self.message),):
            self.session.awaiting = self.session.add_entry(entry).seq
        self._trim()
        await self._store.save(self.session)
        await self._after_save()

    async def pick_up(self) -> None:
        """Go on with a message that was kept before a restart; calls in between are closed."""
        self._close_calls("interrupted by a restart; whether it took effect is not known")
        self._trim()
        await self._store.save(self.session)
        await self._after_save()

    def _trim(self) -> None:
        limit, keep = self._buffer
        evicted, did_trim = self.session.trim_if_needed(limit=limit, min_keep=keep)
        if did_trim:
            self._tell_trimmed(len(evicted))

    def _tell_trimmed(self, evicted: int) -> None:
        kept = len(self.session.window)
        self._announce(WindowTrimmed(session_id=self.session.id, evicted=evicted, kept=kept))

    async def _after_save(self) -> None:
        self.session.release()
        self._summarise()
        await self._view.fill(self._store)

    def _summarise(self) -> None:
        self._summarizer.fire_and_forget(self.session)

    async def think(self, *, resumed: bool = False) -> Answer:
        """Ask the model until there is an answer; raises `ProviderError`."""
        self._announce(
            TurnStarted(session_id=self.session.id, turn_id=self.turn_id, resumed=resumed)
        )
        here.set(self.session)
        try:
            return await self._turn.run(self)
        except Exception as error:
            await self._tell_hooks(RequestOutcome(given=self.message.text, error=error))
            raise

    async def deliver(self, answer: Answer) -> None:
        """Keep the answer, then send it."""
        # Kept before it is sent: what the chat has read is never unknown to the log.
        self.session.awaiting = 0
        said = [self.session.add_entry(entry) for entry in answer.entries][-1]
        self.session.spend(asdict(answer.usage))
        if self._bus.confirms(self.message.channel):
            self.session.owe(said.seq)
        try:
            await self._store.save(self.session)
        except NanoloopError:  # the chat is told so, and no answer comes later
            self.session.arrived(said.seq)
            raise
        text = reply_to(self.message, answer.text, "answer", self.session.id)
        await send_answer(
            named(text, said),
            bus=self._bus,
            sessions=self._sessions,
            session=self.session,
            seq=said.seq,
        )
        self._announce(self._receipt(answer))
        self._view.learn(answer.usage.tokens_in)
        self._headroom.measured(self.session, answer.usage.tokens_in // answer.steps)
        await self._tell_hooks(RequestOutcome(given=self.message.text, answer=answer))

    async def _tell_hooks(self, outcome: RequestOutcome) -> None:
        try:
            await self._agent.hooks.after(outcome, self._agent)
        except Exception as error:  # noqa: BLE001 - a hook's bug must not cost the answer
            name, where = type(error).__name__, place_of(error)
            self._announce(HookFailed(session_id=self.session.id, error=name, where=where))

    def _receipt(self, answer: Answer) -> TurnFinished:
        return TurnFinished(
            session_id=self.session.id,
            turn_id=self.turn_id,
            steps=answer.steps,
            tokens_in=answer.usage.tokens_in,
            tokens_out=answer.usage.tokens_out,
            tokens_cached=answer.usage.tokens_cached,
            seconds=round(time.monotonic() - self._started, 3),
        )

    async def stop(self, *, waiting: int) -> None:
        """Keep what was finished, close what was not, and tell the chat."""
        self._keep_finished("stopped by the user before it finished")
        if self._turn.said.strip():
            said = Entry.message("assistant", self._turn.said, metadata={"stopped": True})
            self.session.add_entry(said)
        self.session.awaiting = 0
        await self._store.save(self.session)
        self._announce(
            TurnStopped(session_id=self.session.id, turn_id=self.turn_id, waiting=waiting)
        )
        await self.say(STOPPED, kind="notice")

    async def interrupt(self, told: Entry, *, goes_on: bool) -> None:
        """Keep what was finished, close what was not, and tell the model why."""
        self._keep_finished("interrupted before it finished: a message was changed")
        self.session.add_entry(told)
        self.session.awaiting = self.session.awaiting if goes_on else 0
        await self._store.save(self.session)

    async def fail(self, apology: str, incident: str | None = None) -> None:
        """Keep the user's message, close what is open, and apologise."""
        self._close_calls("the turn failed before it finished")
        self.session.awaiting = 0
        await self._store.save(self.session)
        await self.say(apology, kind="error", incident=incident)

    def _keep_finished(self, why: str) -> None:
        for entry in self._turn.finished:
            self.session.add_entry(entry)
        self._close_calls(why)

    def _close_calls(self, why: str) -> None:
        for call in open_calls(self.session.window):
            name = call.content.get("tool", "")
            self.session.add_entry(Entry.tool_result(name, None, why, call_id=call.call_id))

    async def say(self, text: str, *, kind: Any, incident: str | None = None) -> None:
        """Send a word of the loop itself to the message's chat."""
        said = reply_to(self.message, text, kind, self.session.id, incident=incident)
        await self._bus.publish(said)

    # What a turn needs of it

    def request(self) -> list[dict[str, Any]]:
        """The messages for the model, as of now."""
        before = len(self.session.window)
        messages = self._view.request()
        if evicted := before - len(self.session.window):
            self._tell_trimmed(evicted)
            self._summarise()
        return messages

    async def record(self, entries: Sequence[Entry]) -> None:
        """Add these entries, durable when this returns; with results, what steers the turn too."""
        is_between_steps = bool(entries) and entries[-1].type == TOOL_RESULT
        steering = self._steering(self.session) if is_between_steps else ()
        for entry in (*entries, *steering):
            self.session.add_entry(entry)
        await self._store.save(self.session)

    def shrink(self) -> int:
        """Show much less; how many entries are left in the window, 0 if nothing more can go."""
        if not self._view.shrink():
            return 0
        self._summarise()
        return len(self.session.window)


def _stream_to(bus: Bus, message: Inbound, session_id: str) -> OnText | None:
    """What brings pieces of the answer to the message's chat, where its channel wants them."""
    if not bus.streams(message.channel):
        return None
    chat = {"channel": message.channel, "chat": message.chat, "session_id": session_id}
    answers = message.message_id
    return lambda piece: bus.publish_nowait(TextStreamed(**chat, text=piece, reply_to=answers))
