"""The interface between a store and its database."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from nanoloop import defaults
from nanoloop.errors import SessionDamaged
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry, from_rfc3339, short_id
from nanoloop.session.head import ABOUT, Changes, ChangeTracker
from nanoloop.session.session import Session
from nanoloop.stores.snapshot import (
    Decode,
    decoding,
    encoded,
    expiry,
    head_of,
    is_visible,
    owes,
    sections_of,
    window_start,
)

NODE_SECONDS = defaults.NODE_SECONDS
FORGET_NODE_SECONDS = 3600.0
"""How long a process's row is kept after its last heartbeat."""
HEARD_SECONDS = 72 * 3600
"""How long message ids are kept."""
COMMIT_ID = "commit"
"""The field for the id of the commit that wrote the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The data written in one step: the head, the changed sections, the entries."""

    id: str
    revision: int
    """The revision that the commit is based on; `head["rev"]` is one higher."""
    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    """The new entries, numbered above all existing ones."""
    texts: Sequence[bytes]
    """The JSON text of each new entry, without its number."""
    rewritten: Sequence[Entry] = ()
    """Erased entries; each replaces the entry with its number."""
    erased: frozenset[int] = frozenset()
    """The numbers of all erased entries, including unreadable ones."""
    heard: Sequence[tuple[str, str]] = ()
    """The chat and id of each message that this commit records."""
    grows: int = 0
    """The number of bytes by which the session grows."""

    @classmethod
    def of(
        cls,
        session_id: str,
        changes: Changes,
        *,
        rewritten: Sequence[Entry] = (),
        erased: Collection[int] = (),
        shrinks: int = 0,
    ) -> Commit:
        """Create a commit; its `rewritten` entries shrink by `shrinks` bytes.

        The changes may be encrypted or plain text.
        """
        texts = [text_of(entry) for entry in changes.entries]
        return cls(
            id=session_id,
            revision=changes.revision,
            head={**changes.head, "rev": changes.revision + 1, COMMIT_ID: short_id()},
            sections=changes.sections,
            entries=changes.entries,
            texts=texts,
            rewritten=rewritten,
            erased=frozenset(erased),
            heard=changes.heard,
            grows=sum(map(len, texts)) - shrinks,
        )

    @property
    def commit_id(self) -> str:
        """The commit's id, which tells a writer after a lost reply that the commit is its own."""
        return str(self.head[COMMIT_ID])

    @property
    def window(self) -> int:
        """The lowest entry number in the window after the commit."""
        return window_start(self.head)

    @property
    def updated_at(self) -> int:
        """The time of the session's last change, in microseconds since 1970."""
        return micros(from_rfc3339(self.head["updated_at"]))

    @property
    def owes(self) -> int:
        """The kind of pending work after the commit, as a number for an index."""
        return owes(self.head)

    @property
    def by(self) -> str:
        """The process that answers in the session, or ""."""
        return str(self.head.get("by") or "")

    @property
    def expires_at(self) -> int | None:
        """When the session expires, in microseconds since 1970; None if it never does."""
        moment = expiry(self.head)
        return None if moment is None else micros(moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardMessage:
    """A message that was accepted."""

    chat: str
    """The key of the message's chat, whatever session the chat had then."""
    id: str
    """The channel's id for the message."""
    at: int
    """The time of the commit that recorded the message, in microseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as a database stores it, expired or not."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry] = ()
    """The entries, oldest first."""
    unreadable: Sequence[str] = ()
    """Descriptions of the parts that could not be read."""
    size: int = 0

    def has_all(self, *, after: int) -> bool:
        """Return True if no entry after this number is missing."""
        first = self.entries[0].seq if self.entries else int(self.head["last"]) + 1
        return not any(is_visible(self.head, seq) for seq in range(max(0, after) + 1, first))

    @classmethod
    def glance(
        cls, session_id: str, head: Any, about: Any, size: Any, decode: Decode
    ) -> StoredSession | SessionDamaged:
        """Read a session's overview from its row.

        The error for a damaged session is returned, not raised, so that the listing can continue.
        """
        try:
            with decoding(session_id):
                return cls(
                    head=head_of(session_id, head, decode),
                    sections=sections_of(session_id, [(ABOUT, about)], decode),
                    size=int(size or 0),
                )
        except SessionDamaged as damaged:
            return damaged


TRIED_LIMIT = 8
"""How many consecutive commits without a reply are remembered."""


class TriedCommits:
    """The commits that each session object has tried and whose outcome is unknown.

    The reply to a commit may get lost. The random id in the head shows which commit was written
    last.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._tried: WeakKeyDictionary[ChangeTracker, deque[tuple[Changes, str]]] = (
            WeakKeyDictionary()
        )

    def note(self, session: Session, changes: Changes, commit: Commit) -> None:
        """Record that this commit is being tried, and may be written even without a reply."""
        with self._lock:
            tried = self._tried.setdefault(session.tracker, deque(maxlen=TRIED_LIMIT))
            tried.append((changes, commit.commit_id))

    def forget(self, session: Session, *, upto: Changes) -> None:
        """Forget the commits tried up to and including these changes; they no longer matter."""
        with self._lock:
            tried = self._tried.get(session.tracker, deque())
            later = [each for each in tried if each[0].revision > upto.revision]
            tried.clear()
            tried.extend(later)  # of another event loop

    def settle(
        self, session: Session, head: Mapping[str, Any], *, refused: Changes | None = None
    ) -> bool:
        """Tell the session which commit was written; return False if another writer's was."""
        revision = refused.revision if refused else session.revision
        with self._lock:
            tried = tuple(self._tried.get(session.tracker, ()))
        for changes, token in tried:
            if head.get(COMMIT_ID) == token:
                session.committed(changes)
        if refused:
            self.forget(session, upto=refused)
        return session.revision != revision


class Database(Protocol):
    """Stores sessions as rows; calls are atomic, durable on return, and raise only `StoreError`.

    A database knows nothing about time or encryption; its caller deals with both.
    """

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        """Create a session, completely replacing the session at revision `over`.

        If `over` is None, there must be no session with this id. Return False if another writer, or
        an earlier attempt of this one, was first. Raise `AlreadyHeard` like `commit`.
        """
        ...

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        """Write everything if the session is at `commit.revision` and has not expired before `now`.

        Return the revision that the session was at, or None if there is no session. Nothing is
        written if it differs from `commit.revision`; after a lost reply, a retry finds this
        commit's id in the head. If it matches, the commit's messages are checked: if one of
        `commit.heard` was recorded before, write nothing and raise `AlreadyHeard`; otherwise,
        record them all at `commit.updated_at`. If two commits contain the same message, in any
        sessions or processes, only one of them succeeds.
        """
        ...

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        """Return a session's head, or None."""
        ...

    async def window(self, session_id: str) -> StoredSession | None:
        """Return a session with the entries from its window on, however long its history."""
        ...

    async def whole(self, session_id: str) -> StoredSession | None:
        """Return a session with all entries."""
        ...

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        """Return the entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    async def delete(self, session_id: str) -> None:
        """Remove a session completely; a missing session is ignored."""
        ...

    async def delete_expired(self, *, now: int) -> int:
        """Remove sessions that expired before `now`, and return how many there were.

        Also forget messages that were recorded more than `HEARD_SECONDS` before `now`.
        """
        ...

    def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        """Yield unexpired sessions without their entries, last changed first, a page at a time.

        The only section that an overview needs is the one that identifies the session.
        """
        ...

    def names(self) -> AsyncIterator[str]:
        """Yield the id of every session, even if it is expired or damaged."""
        ...

    def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        """Yield unexpired sessions with pending work for their chats.

        With `pending`, also yield those that need a summary.
        """
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """Like `Store.beat`, in one step; return each process with the age of its heartbeat.

        A process counts as alive for `NODE_SECONDS` after a heartbeat, and is forgotten after an
        hour.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is ignored."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Return True if this message id was recorded for the chat and is not yet forgotten."""
        ...

    def heard(self) -> AsyncIterator[HeardMessage]:
        """Yield every recorded message that is not yet forgotten, for copying to another store."""
        ...

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        """Record these messages from another store; messages already known don't change."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """Bind this key to a session, replacing any earlier binding."""
        ...

    async def bound(self, key: str) -> str | None:
        """Return the id of the session bound to this key, or None."""
        ...

    def bindings(self) -> AsyncIterator[tuple[str, str]]:
        """Yield every key and its session's id."""
        ...

    async def close(self) -> None:
        """Close files and connections; closing twice is allowed."""
        ...


def granted(node: Node, others: Iterable[Node]) -> frozenset[str]:
    """Return the accounts that a process wants and that no other living process has."""
    living = (other for other in others if other.id != node.id and other.age < NODE_SECONDS)
    return node.holds.difference(*(other.holds for other in living))


def micros(moment: datetime) -> int:
    """Return a time as a whole number of microseconds since 1970."""
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def text_of(entry: Entry) -> bytes:
    """Return an entry as a row stores it: its JSON text, without its number."""
    return encoded(entry.form(), kind="entry")


def size_of(entry: Entry) -> int:
    """Return the number of bytes that an entry takes up."""
    return len(text_of(entry))
