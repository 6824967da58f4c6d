"""A question in a session: it goes the way of every message, and its answer is heard."""

from __future__ import annotations

from contextlib import suppress

import anyio

from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.openai.form import Completion
from nanoloop.channels.web.openai.listening import Listening
from nanoloop.channels.web.openai.refusing import LATER_SECONDS, Unfit, refusal_of_name
from nanoloop.channels.web.refusal import Refusal, try_later
from nanoloop.channels.web.talking import CHANNEL, tell_accepted
from nanoloop.commands import is_command
from nanoloop.errors import BusFull
from nanoloop.messages import Inbound
from nanoloop.protocols import OnText
from nanoloop.session.session import Session

LOOK_SECONDS = 5
"""How often to look whether anybody still works on it; twice nobody is an answer that got lost."""


class InSession:
    """A message that waits for its answer; left alone, it is taken back or stopped."""

    def __init__(self, desk: Desk, session: Session, message: Inbound) -> None:
        self._desk = desk
        self._session = session
        self._message = message

    @property
    def session_id(self) -> str:
        """Where it is asked."""
        return self._session.id

    async def ask(self, hear: OnText) -> Completion:
        """As `Question`."""
        desk, session = self._desk, self._session
        feed = desk.feeds.of(session.id)
        desk.shop.bus.put_nowait(self._message)
        tell_accepted(desk, session.id, self._message)
        # No await since it was taken: nothing of it is missed.
        listening = Listening(feed, session, str(self._message.message_id), hear)
        feed.watch(listening)
        try:
            await self._wait(listening.over)
        finally:
            feed.unwatch(listening)
            if not listening.over.is_set():
                self._take_back(is_answering=listening.is_answering)
        return self._outcome(listening)

    async def _wait(self, over: anyio.Event) -> None:
        idle = 0
        while not over.is_set():
            if idle > 1:
                lost = self._desk.shop.sentences.text("crashed")
                raise _kept(Unfit(500, lost, code="failed"))
            with anyio.move_on_after(LOOK_SECONDS):
                await over.wait()
            is_busy = self._desk.shop.runner.is_busy(self._message.session_key)
            idle = 0 if is_busy or is_command(self._message.text) else idle + 1

    def _take_back(self, *, is_answering: bool) -> None:
        key = self._message.session_key
        if is_answering:
            self._desk.shop.runner.stop(key)
            return
        name = self._message.message_id
        unsaid = Inbound(channel=CHANNEL, chat=self._session.id, text="", key=key, deletes=name)
        with suppress(BusFull):
            self._desk.shop.bus.put_nowait(unsaid)

    def _outcome(self, heard: Listening) -> Completion:
        if heard.kind == "error":
            raise _kept(refusal_of_name(heard.error, heard.text))
        if heard.kind == "answer" or is_command(self._message.text):
            return heard.completion(heard.text)
        if heard.was_stopped:
            return heard.completion(heard.said)
        raise try_later(429, heard.text, seconds=LATER_SECONDS)


def _kept(refusal: Refusal) -> Refusal:
    """A failure after which the session has the message: sent again, it would be there twice."""
    refusal.headers["x-should-retry"] = "false"
    return refusal
