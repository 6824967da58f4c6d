"""Commits whose answer got lost: whether they were written shows at the next one."""

from __future__ import annotations

import json
from collections import deque
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from nanoloop.session.changes import Changes
from nanoloop.session.session import Session
from nanoloop.stores.database import Commit, Database
from nanoloop.stores.encoding import encoded

LIMIT = 8
"""Commits in a row that are remembered, should none of them get an answer."""


class Doubts:
    """What each session object tried to commit, as long as it doesn't know what came of it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tried: WeakKeyDictionary[Session, deque[tuple[Changes, Commit]]] = WeakKeyDictionary()

    def note(self, session: Session, changes: Changes, commit: Commit) -> None:
        """This is tried, and may be written whatever is heard of it."""
        with self._lock:
            self._tried.setdefault(session, deque(maxlen=LIMIT)).append((changes, commit))

    def forget(self, session: Session, *, upto: Changes) -> None:
        """What was tried before these or with them doesn't matter any more."""
        with self._lock:
            tried = self._tried.pop(session, ())
            later = [each for each in tried if each[0].revision > upto.revision]
            if later:  # of another event loop
                self._tried[session] = deque(later, maxlen=LIMIT)

    async def settle(
        self, session: Session, database: Database, *, refused: Changes | None = None
    ) -> bool:
        """Tell the session what was written after all; False where that was someone else's."""
        revision = refused.revision if refused else session.revision
        for changes, commit in self._tried_by(session):
            if changes is not refused and await _is_stored(commit, database):
                session.committed(changes)
                break
        # Forgotten only now: where the database can't be asked, it may be at the next try.
        if refused:
            self.forget(session, upto=refused)
        return session.revision != revision

    def _tried_by(self, session: Session) -> tuple[tuple[Changes, Commit], ...]:
        with self._lock:
            return tuple(self._tried.get(session, ()))


async def _is_stored(commit: Commit, database: Database) -> bool:
    """Whether the last thing that was written to the session says what this commit says."""
    stored = await database.window(commit.id)
    if stored is None or stored.head != _as_stored(commit.head):
        return False
    if any(stored.sections.get(name) != _as_stored(v) for name, v in commit.sections.items()):
        return False
    if not commit.entries:
        return True
    last = commit.entries[-1]
    found = await database.between(commit.id, after=last.seq - 1, upto=last.seq, limit=1)
    return [entry.id for entry in found] == [last.id]


def _as_stored(value: Any) -> Any:
    return json.loads(encoded(value))
