"""Sessions that last as long as the process: for tests, demos and chats that need no tomorrow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import anyio

from nanoloop.errors import SessionExists, SessionNotFound, StoreConflict, StoreError
from nanoloop.protocols import SessionInfo
from nanoloop.session.changes import ABOUT, Changes
from nanoloop.session.entry import Entry, copied, utc_now
from nanoloop.session.seen import SEEN_LIMIT
from nanoloop.session.session import Session
from nanoloop.stores.snapshot import (
    Snapshot,
    first_revision,
    has_expired,
    info_of,
    is_visible,
    message_ids,
    window_start,
)


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A session as the store has it."""

    head: Mapping[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    size: int = 0

    def commit(self, changes: Changes) -> None:
        """Take in what is new."""
        self.head = copied(changes.head)
        self.sections |= copied(changes.sections)
        self.entries += changes.entries
        self.size += sum(len(entry.to_json()) for entry in changes.entries)

    def erase(self, seqs: Collection[int]) -> list[Entry]:
        """Leave nothing of these but their place; returns them as they were."""
        gone = [entry for entry in self.entries if entry.seq in seqs]
        self.entries = [e.erased() if e.seq in seqs else e for e in self.entries]
        self.size = sum(len(entry.to_json()) for entry in self.entries)
        return gone

    def snapshot(self, after: int) -> Snapshot:
        """What a new session object is made of."""
        entries = self.between(after, None)
        before = self.between(after - SEEN_LIMIT, after)
        return Snapshot(
            head=self.head,
            sections=self.sections,
            entries=entries,
            after=after,
            seen=message_ids(before),
        )

    def between(self, after: int, upto: int | None) -> list[Entry]:
        """Entries with `after < seq <= upto`."""
        start = bisect_right(self.entries, after, key=_seq)
        stop = None if upto is None else bisect_right(self.entries, upto, key=_seq)
        return self.entries[start:stop]


def _seq(entry: Entry) -> int:
    return entry.seq


class InMemoryStore:
    """Keeps records, and hands out session objects built from them."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._keys: dict[str, str] = {}
        self._closed = anyio.Event()

    # Sessions

    async def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the seeds' name for it
        key: str | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        replace: bool = False,
    ) -> Session:
        """Make a session; raises `SessionExists` unless `replace`."""
        session = Session(
            id=id,
            key=key,
            ttl=ttl,
            sliding=sliding,
            metadata=metadata,
            agent=agent,
            clock=self._clock,
        )
        await self.add(session, replace=replace)
        return session

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Keep a session that was made elsewhere; raises `SessionExists`."""
        self._check_open()
        old = self._living(session.id)
        if old is not None and not replace:
            raise SessionExists(session.id)
        changes = session.changes()
        if changes is None or ABOUT not in changes.sections or changes.revision:
            raise StoreError(f"session {session.id!r} is kept by a store already: fork it")
        self._begin(session, changes, old)

    def _begin(self, session: Session, changes: Changes, old: _Kept | None) -> None:
        # A replacement counts on, so that an object of the replaced one can't commit.
        revision = old.head["rev"] if old is not None else first_revision()
        head = {**changes.head, "rev": revision + 1}
        changes = replace(changes, revision=revision, head=head)
        self._kept[session.id] = kept = _Kept()
        kept.commit(changes)
        session.committed(changes)

    async def get(self, session_id: str) -> Session:
        """The session with its whole history; raises `SessionNotFound`, also when it expired."""
        return self._found(session_id).snapshot(0).to_session(self._clock)

    async def load(self, session_id: str) -> Session:
        """The session with its window only; as `get`."""
        kept = self._found(session_id)
        after = window_start(kept.head) - 1
        return kept.snapshot(after).to_session(self._clock)

    async def save(self, session: Session) -> None:
        """Keep all that is new in it.

        Raises `SessionNotFound` after a delete or expiry and `StoreConflict` when another writer
        was first.
        """
        kept = self._found(session.id)
        changes = session.changes()
        if changes is None:
            return
        if changes.revision != kept.head["rev"]:
            raise StoreConflict(session.id, mine=changes.revision, theirs=kept.head["rev"])
        kept.commit(changes)
        session.committed(changes)

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        kept = self._found(session_id)
        visible = [e for e in kept.between(after, upto) if is_visible(kept.head, e.seq)]
        return visible[:limit]

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Save it with nothing left of these entries; raises as `save`."""
        kept = self._found(session.id)
        if session.revision != kept.head["rev"]:
            raise StoreConflict(session.id, mine=session.revision, theirs=kept.head["rev"])
        session.erase(seqs, stored=kept.erase(seqs))
        await self.save(session)

    async def delete(self, session_id: str) -> None:
        """Remove it for good; a missing one is fine."""
        self._check_open()
        self._kept.pop(session_id, None)

    # All of them

    async def list(self) -> AsyncIterator[SessionInfo]:
        """Every session that has not expired, the last active first."""
        self._check_open()
        infos = [
            info_of(kept.head, kept.sections[ABOUT], size=kept.size)
            for kept in self._kept.values()
            if not has_expired(kept.head, self._clock())
        ]
        for info in sorted(infos, key=lambda info: info.updated_at, reverse=True):
            yield info

    async def delete_expired(self) -> int:
        """Remove what expired; returns how many."""
        self._check_open()
        gone = [i for i, kept in self._kept.items() if has_expired(kept.head, self._clock())]
        for session_id in gone:
            del self._kept[session_id]
        return len(gone)

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        self._check_open()
        self._keys[key] = session_id

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        self._check_open()
        return self._keys.get(key)

    # The end

    async def close(self) -> None:
        """Take no more calls; closing twice is fine."""
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return once the store is closed."""
        await self._closed.wait()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError("the store is closed: open another")

    def _living(self, session_id: str) -> _Kept | None:
        kept = self._kept.get(session_id)
        is_over = kept is None or has_expired(kept.head, self._clock())
        return None if is_over else kept

    def _found(self, session_id: str) -> _Kept:
        self._check_open()
        kept = self._living(session_id)
        if kept is None:
            raise SessionNotFound(session_id)
        return kept
