"""What an earlier process left of a chat: answers that are owed are sent, a question is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nanoloop.errors import NanoloopError
from nanoloop.events import UnansweredFound, announce
from nanoloop.holds import Left
from nanoloop.intake import inbound_of
from nanoloop.messages import Inbound
from nanoloop.protocols import Bus
from nanoloop.sending import question_in, send_owed
from nanoloop.sentences import Apology
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.exchange import Exchange


class Leftovers:
    """Takes up one session's, in its chat's lane."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        bus: Bus,
        exchange: Callable[[Session, Inbound], Exchange],
        answers: bool,
        interrupted: str,
        failed: Callable[[str, Exception], object],
    ) -> None:
        self._sessions = sessions
        self._bus = bus
        self._exchange = exchange
        self._answers = answers
        self._interrupted = interrupted
        self._failed = failed

    async def taken_up(self, item: Left) -> Exchange | None:
        """Send what is owed; the exchange for a question that still wants its answer, or None."""
        session = await self._sessions.open(item.session_id)
        await send_owed(session, bus=self._bus, sessions=self._sessions)
        entry = next((e for e in session.window if e.seq == session.awaiting), None)
        if entry is None:  # it was answered together with a newer one
            return None
        message = inbound_of(entry, key=session.key)
        if message.channel not in self._bus.channels:
            return None
        action = "answer" if self._answers else "report"
        announce(UnansweredFound(action=action))
        exchange = self._exchange(session, message)
        if not self._answers:
            await exchange.fail(self._interrupted)
            return None
        await exchange.pick_up()
        return exchange

    async def fail(self, key: str, item: Left, apology: Apology) -> None:
        """Let what could not be taken up fail as any other turn does; never raises."""
        try:
            session = await self._sessions.open(item.session_id)
            message = question_in(session.window)
            is_owed = session.awaiting or session.unsent
            if message is None or not is_owed or message.channel not in self._bus.channels:
                return
            exchange = self._exchange(session, replace(message, key=session.key))
            try:
                await exchange.fail(apology.text, apology.incident)
            except NanoloopError:  # that it failed could not be kept: the next start tries again
                await exchange.say(apology.text, kind="error", incident=apology.incident)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            self._failed(key, error)
