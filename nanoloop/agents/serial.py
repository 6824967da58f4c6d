"""The questions of one session, one after the other; those of several, side by side."""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from nanoloop.session.mutex import Mutex
from nanoloop.session.session import Session


class _Turn(Mutex):
    async def __aenter__(self) -> None:
        try:
            await super().__aenter__()
        except RuntimeError:
            raise RuntimeError(
                "a tool or hook can't ask the agent that called it in the same session: "
                "give it another session"
            ) from None

    def check_may_block(self) -> None:
        try:
            super().check_may_block()
        except RuntimeError:
            raise RuntimeError(
                "this event loop is answering in that session: await ask()"
            ) from None


class Serial:
    """A lock for each session that is in use, for all event loops and threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns: WeakKeyDictionary[Session, _Turn] = WeakKeyDictionary()

    def turn_in(self, session: Session) -> Mutex:
        """The lock that a question in this session is asked under."""
        with self._lock:
            return self._turns.setdefault(session, _Turn())

    def check_may_block(self, session_id: str) -> None:
        """Raise RuntimeError where waiting for this session would never end."""
        with self._lock:
            turns = [turn for session, turn in self._turns.items() if session.id == session_id]
        for turn in turns:
            turn.check_may_block()
