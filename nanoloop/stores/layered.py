"""Keep the most recently used windows in memory, and check their revisions in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nanoloop.bounded import BoundedDict
from nanoloop.errors import SessionDamaged
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry, copied
from nanoloop.stores.database import (
    Commit,
    Database,
    HeardMessage,
    StoredSession,
)
from nanoloop.stores.seal_record import rebind
from nanoloop.stores.snapshot import window_start
from nanoloop.stores.store import DatabaseStore


class LayeredStore(DatabaseStore):
    """A write-through store that also keeps the windows of some sessions in memory."""

    def __init__(self, behind: DatabaseStore, *, sessions: int = 1000) -> None:
        super().__init__(
            _Layered(behind.database, limit=sessions),
            clock=behind.clock,
            sealing=behind.sealing,
        )


class _Layered:
    """Writes everything through; reads a window again only after another process changed it."""

    def __init__(self, behind: Database, *, limit: int) -> None:
        self._behind = behind
        self._windows: BoundedDict[str, StoredSession] = BoundedDict(limit)

    async def window(self, session_id: str) -> StoredSession | None:
        kept = self._windows.get(session_id)
        if kept is not None and await self._is_true(session_id, kept):
            self._windows.move_to_end(session_id)
            return kept
        self._windows.pop(session_id, None)
        stored = await self._behind.window(session_id)
        if stored is not None:
            self._windows[session_id] = stored
        return stored

    async def _is_true(self, session_id: str, kept: StoredSession) -> bool:
        head = await self._behind.head(session_id)
        return head is not None and head["rev"] == kept.head["rev"]

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        # Removed until the outcome is known: after a failure, the commit may or may not be written.
        kept = self._windows.pop(commit.id, None)
        stood = await self._behind.commit(commit, now=now)
        if kept is not None and stood == commit.revision == kept.head["rev"]:
            advanced = _advanced(kept, commit)
            if advanced is not None:
                self._windows[commit.id] = advanced
        return stood

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        self._windows.pop(commit.id, None)
        return await self._behind.insert(commit, over=over)

    async def delete(self, session_id: str) -> None:
        self._windows.pop(session_id, None)
        await self._behind.delete(session_id)

    # Calls passed on unchanged

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        return await self._behind.head(session_id)

    async def whole(self, session_id: str) -> StoredSession | None:
        return await self._behind.whole(session_id)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        return await self._behind.between(session_id, after=after, upto=upto, limit=limit)

    async def delete_expired(self, *, now: int) -> int:
        return await self._behind.delete_expired(now=now)

    def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        return self._behind.glances(now=now)

    def names(self) -> AsyncIterator[str]:
        return self._behind.names()

    def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        return self._behind.owing(now=now, pending=pending)

    async def beat(self, node: Node) -> Sequence[Node]:
        return await self._behind.beat(node)

    async def leave(self, node_id: str) -> None:
        await self._behind.leave(node_id)

    async def has_heard(self, chat: str, message_id: str) -> bool:
        return await self._behind.has_heard(chat, message_id)

    def heard(self) -> AsyncIterator[HeardMessage]:
        return self._behind.heard()

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        await self._behind.hear(messages)

    async def bind(self, key: str, session_id: str) -> None:
        await self._behind.bind(key, session_id)

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        return await rebind(self._behind, key, session_id, was=was)

    async def bound(self, key: str) -> str | None:
        return await self._behind.bound(key)

    def bindings(self) -> AsyncIterator[tuple[str, str]]:
        return self._behind.bindings()

    async def close(self) -> None:
        self._windows.clear()
        await self._behind.close()


def _advanced(kept: StoredSession, commit: Commit) -> StoredSession | None:
    """Return the window after a commit, or None if the window has to be read again."""
    if commit.rewritten or commit.window < window_start(kept.head):
        return None
    entries = [*kept.entries, *commit.entries]
    return replace(
        kept,
        head=copied(commit.head),
        sections={**kept.sections, **copied(commit.sections)},
        entries=[entry for entry in entries if entry.seq >= commit.window],
        size=kept.size + commit.grows,
    )
