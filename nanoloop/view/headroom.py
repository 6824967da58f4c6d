"""How much of the model's context a conversation takes: told once when it comes near the limit."""

from __future__ import annotations

from weakref import WeakSet

from nanoloop.events import Announce, ContextNearLimit
from nanoloop.session.session import Session

NEAR = 0.8
"""The part of the limit from which on it is near."""


class Headroom:
    """Compares each turn with the limit; None is no limit."""

    def __init__(self, limit: int | None, announce: Announce) -> None:
        self._limit = limit
        self._announce = announce
        self._near: WeakSet[Session] = WeakSet()

    def measured(self, session: Session, tokens: int) -> None:
        """Hear what a request of this session took, 0 where nobody counted; tell a crossing."""
        if self._limit is None:
            return
        tokens = tokens or session.context_size()
        if tokens < NEAR * self._limit:
            self._near.discard(session)
        elif session not in self._near:
            self._near.add(session)
            self._announce(
                ContextNearLimit(session_id=session.id, tokens=tokens, limit=self._limit)
            )
