"""What a chat keeps in view: messages of its own, by their numbers in /history."""

from __future__ import annotations

from nanoloop.commands.command import Command
from nanoloop.commands.erasing import numbers
from nanoloop.errors import NotPossible
from nanoloop.messages import Inbound
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

SHOWN_CHARS = 60
"""How much of a pinned message the list shows."""


class Pinning:
    """Pins messages and unpins them; what is pinned goes with /forget like all the rest."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions
        self.commands = (
            Command(name="pin", usage="keep a message in view, /pin NUMBER", run=self._pin),
            Command(
                name="unpin", usage="no longer, /unpin NUMBER; /unpin for all", run=self._unpin
            ),
        )

    async def _pin(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current(message.session_key)
        if not rest:
            return _listed(session) or "Nothing is pinned: /pin NUMBER, as /history shows them."
        seq = _number(rest)
        store = self._sessions.store
        entries = await store.entries(session.id, after=seq - 1, upto=seq) if seq else []
        if not entries:
            return f"There is no message #{rest} here: /history shows the numbers."
        try:
            session.pin(entries[0])
        except NotPossible as refused:
            return f"Nothing was pinned: {refused}."
        await store.save(session)
        return f"#{seq} stays in view."

    async def _unpin(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current(message.session_key)
        count = session.unpin(_number(rest) if rest else None)
        if not count:
            return "That is not pinned: /pin lists what is." if rest else "Nothing is pinned."
        await self._sessions.store.save(session)
        return f"Unpinned {count}."


def _number(text: str) -> int:
    """The number that a text names; 0 where it names none, or several."""
    named = numbers(text)
    return named[0] if len(named) == 1 else 0


def _listed(session: Session) -> str:
    rows = ((p["seq"], p.get("who", ""), " ".join(str(p["text"]).split())) for p in session.pins)
    return "\n".join(f"#{seq} {who}: {text[:SHOWN_CHARS]}" for seq, who, text in rows)
