"""Sessions that last as long as the process, for tests, demos and short-lived chats."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from nanoloop.errors import AlreadyHeard
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry, copied, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.stores.database import (
    FORGET_NODE_SECONDS,
    HEARD_SECONDS,
    Commit,
    HeardMessage,
    StoredSession,
    granted,
)
from nanoloop.stores.snapshot import OWES_CHAT, OWES_SUMMARY, owed_session
from nanoloop.stores.store import DatabaseStore


class InMemoryStore(DatabaseStore):
    """A store that keeps its records in memory and creates session objects from them."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        super().__init__(_Memory(), clock=clock)

    async def close(self) -> None:
        """Stop the sweep.

        The store holds no resources, so it remains usable and nothing is lost.
        """
        self._closed.set()
        self._closed = anyio.Event()


@dataclass(slots=True, kw_only=True)
class _Row:
    """A session's data as of its last commit."""

    head: Mapping[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    window: int = 1
    updated_at: int = 0
    expires_at: int | None = None

    def take_in(self, commit: Commit) -> None:
        """Apply a commit to the row."""
        rewritten = {entry.seq: entry for entry in commit.rewritten}
        if rewritten:
            self.entries = [rewritten.get(entry.seq, entry) for entry in self.entries]
        self.entries += commit.entries
        self.head = copied(commit.head)
        self.sections |= copied(commit.sections)
        self.size += commit.grows
        self.window = commit.window
        self.updated_at = commit.updated_at
        self.expires_at = commit.expires_at

    def has_expired(self, now: int) -> bool:
        """Return True if the session expired before `now`."""
        return self.expires_at is not None and self.expires_at < now

    def stored(self, after: int | None) -> StoredSession:
        """Return the session with its entries after this number, or without entries for None."""
        entries: Sequence[Entry] = () if after is None else self.between(after, None)
        return StoredSession(
            head=self.head,
            sections=self.sections,
            entries=entries,
            size=self.size,
        )

    def between(self, after: int, upto: int | None) -> list[Entry]:
        """Return the entries with `after < seq <= upto`."""
        start = bisect_right(self.entries, after, key=_seq)
        stop = None if upto is None else bisect_right(self.entries, upto, key=_seq)
        return self.entries[start:stop]


def _seq(entry: Entry) -> int:
    return entry.seq


class _Memory:
    """Keeps rows in a dictionary; each call lets other tasks run, as a real database would."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._owing: dict[str, int] = {}
        """The kind of pending work for each session that has some."""
        self._keys: dict[str, str] = {}
        self._nodes: dict[str, tuple[float, Node]] = {}
        """Each process with the time of its last heartbeat by this machine's clock."""
        self._heard: dict[tuple[str, str], int] = {}

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        await checkpoint()
        old = self._rows.get(commit.id)
        if (None if old is None else old.head["rev"]) != over:
            return False
        self._take(commit)
        self._rows[commit.id] = row = _Row()
        self._take_in(row, commit)
        return True

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        await checkpoint()
        row = self._rows.get(commit.id)
        if row is None or row.has_expired(now):
            return None
        stood = int(row.head["rev"])
        if stood == commit.revision:
            self._take(commit)
            self._take_in(row, commit)
        return stood

    def _take(self, commit: Commit) -> None:
        if any(message in self._heard for message in commit.heard):
            raise AlreadyHeard(commit.id)
        self._heard |= dict.fromkeys(commit.heard, commit.updated_at)

    def _take_in(self, row: _Row, commit: Commit) -> None:
        row.take_in(commit)
        self._owing.pop(commit.id, None)
        if commit.owes:
            self._owing[commit.id] = commit.owes

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        await checkpoint()
        row = self._rows.get(session_id)
        return None if row is None else row.head

    async def window(self, session_id: str) -> StoredSession | None:
        await checkpoint()
        row = self._rows.get(session_id)
        return None if row is None else row.stored(row.window - 1)

    async def whole(self, session_id: str) -> StoredSession | None:
        await checkpoint()
        row = self._rows.get(session_id)
        return None if row is None else row.stored(0)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        await checkpoint()
        row = self._rows.get(session_id)
        return [] if row is None else row.between(after, upto)[:limit]

    async def delete(self, session_id: str) -> None:
        await checkpoint()
        self._rows.pop(session_id, None)

    async def delete_expired(self, *, now: int) -> int:
        await checkpoint()
        gone = [name for name, row in self._rows.items() if row.has_expired(now)]
        for name in gone:
            del self._rows[name]
        since = now - HEARD_SECONDS * 1_000_000
        self._heard = {message: at for message, at in self._heard.items() if at >= since}
        return len(gone)

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession]:
        await checkpoint()
        rows = sorted(self._rows.values(), key=lambda row: row.updated_at, reverse=True)
        for row in rows:
            if ABOUT in row.sections and not row.has_expired(now):
                yield row.stored(None)

    async def names(self) -> AsyncIterator[str]:
        await checkpoint()
        for name in list(self._rows):
            yield name

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        await checkpoint()
        wanted = {OWES_CHAT, OWES_SUMMARY} if pending else {OWES_CHAT}
        for name, kind in list(self._owing.items()):
            row = self._rows.get(name)
            if row is not None and kind in wanted and not row.has_expired(now):
                yield owed_session(name, row.head)

    async def beat(self, node: Node) -> Sequence[Node]:
        await checkpoint()
        now = time.monotonic()
        others = [replace(each, age=now - seen) for seen, each in self._nodes.values()]
        self._nodes[node.id] = now, replace(node, holds=granted(node, others), age=0.0)
        fresh = {n: it for n, it in self._nodes.items() if now - it[0] < FORGET_NODE_SECONDS}
        self._nodes = fresh
        return [replace(each, age=now - seen) for seen, each in fresh.values()]

    async def leave(self, node_id: str) -> None:
        await checkpoint()
        self._nodes.pop(node_id, None)

    async def has_heard(self, chat: str, message_id: str) -> bool:
        await checkpoint()
        return (chat, message_id) in self._heard

    async def heard(self) -> AsyncIterator[HeardMessage]:
        await checkpoint()
        for (chat, name), at in list(self._heard.items()):
            yield HeardMessage(chat=chat, id=name, at=at)

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        await checkpoint()
        self._heard = {(each.chat, each.id): each.at for each in messages} | self._heard

    async def bind(self, key: str, session_id: str) -> None:
        await checkpoint()
        self._keys[key] = session_id

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        await checkpoint()
        if self._keys.get(key) != was:
            return False
        self._keys[key] = session_id
        return True

    async def bound(self, key: str) -> str | None:
        await checkpoint()
        return self._keys.get(key)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        await checkpoint()
        for item in list(self._keys.items()):
            yield item

    async def close(self) -> None:
        """Do nothing, because there are no resources to release."""
