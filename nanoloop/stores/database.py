"""The seam below a store: what a database must do to keep sessions."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Protocol

from nanoloop import defaults
from nanoloop.errors import SessionDamaged
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry, from_rfc3339
from nanoloop.session.head import ABOUT, Changes
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
"""After this long without a beat, a process's row is deleted."""
HEARD_SECONDS = 72 * 3600
"""How long the id of a message is kept."""
COMMIT_ID = "commit"
"""The head's field with the random id of the commit that wrote it."""


def new_commit_id() -> str:
    """A name that no other commit has; it is no secret.

    It takes no system call, at which other threads would take the interpreter in every turn.
    """
    return urlsafe_b64encode(_random.randbytes(8)).decode().rstrip("=")


_random = Random()  # noqa: S311 - no secret
os.register_at_fork(after_in_child=_random.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is written at once: the head, the changed sections, the entries."""

    id: str
    revision: int
    """The revision it is based on; `head["rev"]` is one more."""
    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    """New entries, with numbers above all existing ones."""
    texts: Sequence[bytes]
    """The JSON of each new entry, without its number."""
    rewritten: Sequence[Entry] = ()
    """Erased entries, each replacing the entry with its number."""
    erased: frozenset[int] = frozenset()
    """The numbers of all erased entries, including those that can't be read."""
    heard: Sequence[tuple[str, str]] = ()
    """The chat and id of each message that this commit takes."""
    grows: int = 0
    """By how many bytes the session grows."""

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
        """These changes, sealed or not; the entries in `rewritten` shrink by `shrinks` bytes."""
        texts = [text_of(entry) for entry in changes.entries]
        return cls(
            id=session_id,
            revision=changes.revision,
            head={**changes.head, "rev": changes.revision + 1, COMMIT_ID: new_commit_id()},
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
        """The id by which a writer recognises its own commit, even if the answer got lost."""
        return str(self.head[COMMIT_ID])

    @property
    def window(self) -> int:
        """The lowest number that the window shows from now on."""
        return window_start(self.head)

    @property
    def updated_at(self) -> int:
        """When the session changed, in microseconds since 1970."""
        return micros(from_rfc3339(self.head["updated_at"]))

    @property
    def owes(self) -> int:
        """What the session owes from now on, in an index's form."""
        return owes(self.head)

    @property
    def by(self) -> str:
        """The process that answers there; "" for none."""
        return str(self.head.get("by") or "")

    @property
    def expires_at(self) -> int | None:
        """When the session expires, in microseconds since 1970; None for never."""
        moment = expiry(self.head)
        return None if moment is None else micros(moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardMessage:
    """A message that was taken."""

    chat: str
    """The key of the chat it was said in, whichever session that chat had then."""
    id: str
    """The channel's name for it."""
    at: int
    """When the commit that took it was made, in microseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as a database stores it, expired or not."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry] = ()
    """Oldest first."""
    unreadable: Sequence[str] = ()
    """Which parts of it could not be read, in words."""
    size: int = 0

    def has_all(self, *, after: int) -> bool:
        """Whether no entry after this number is missing."""
        first = self.entries[0].seq if self.entries else int(self.head["last"]) + 1
        return not any(is_visible(self.head, seq) for seq in range(max(0, after) + 1, first))

    @classmethod
    def glance(
        cls, session_id: str, head: Any, about: Any, size: Any, decode: Decode
    ) -> StoredSession | SessionDamaged:
        """A session's identity, from its row; a damaged one is returned, so that no list stops."""
        try:
            with decoding(session_id):
                return cls(
                    head=head_of(session_id, head, decode),
                    sections=sections_of(session_id, [(ABOUT, about)], decode),
                    size=int(size or 0),
                )
        except SessionDamaged as damaged:
            return damaged


class Database(Protocol):
    """Rows of sessions. Each call is atomic, durable when it returns, and raises `StoreError` only.

    It knows nothing about time or seals: the caller has the clock and the key.
    """

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        """Create the session, replacing everything of the one at revision `over`.

        With None there must be no session with that id; False means that another was first, or an
        earlier attempt at this one. Raises `AlreadyHeard` like `commit`.
        """
        ...

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        """Write it all if the session is at `commit.revision` and has not expired before now.

        Returns the revision it was at, or None if there is no session: nothing was written unless
        that is `commit.revision`, or the head has this commit's id, as on a retry after a lost
        answer. Only then are its messages checked: raises `AlreadyHeard`, and writes nothing, if
        one of `commit.heard` was taken before; otherwise all are taken now, at `commit.updated_at`.
        If two commits take the same message, in any sessions or processes, only one succeeds.
        """
        ...

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        """Its head, or None."""
        ...

    async def window(self, session_id: str) -> StoredSession | None:
        """The session with the entries from its window on; history costs nothing here."""
        ...

    async def whole(self, session_id: str) -> StoredSession | None:
        """The session with all entries."""
        ...

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    async def delete(self, session_id: str) -> None:
        """Remove everything of it; a missing one is fine."""
        ...

    async def delete_expired(self, *, now: int) -> int:
        """Remove sessions that expired before now; returns how many.

        Messages taken more than `HEARD_SECONDS` before now are forgotten too.
        """
        ...

    def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        """Sessions that have not expired, without entries, last changed first, a page at a time.

        Only the section that identifies them is needed.
        """
        ...

    def names(self) -> AsyncIterator[str]:
        """The id of every session, expired or not, whatever it looks like inside."""
        ...

    def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        """Sessions that have not expired and owe something, including `pending` ones if wanted."""
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """Like `Store.beat`, in one step; a process lives for `NODE_SECONDS` after its last beat.

        A process not heard from for an hour is forgotten.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is fine."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Whether a message with this id was taken there, and isn't forgotten yet."""
        ...

    def heard(self) -> AsyncIterator[HeardMessage]:
        """Every message that was taken and isn't forgotten, for another store."""
        ...

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        """Note these messages from another store; those already known stay as they are."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        ...

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        ...

    def bindings(self) -> AsyncIterator[tuple[str, str]]:
        """Every key and its session."""
        ...

    async def close(self) -> None:
        """Close files and connections; closing twice is fine."""
        ...


def granted(node: Node, others: Iterable[Node]) -> frozenset[str]:
    """What it may hold of what it wants: anything that no other living process holds."""
    living = (other for other in others if other.id != node.id and other.age < NODE_SECONDS)
    return node.holds.difference(*(other.holds for other in living))


def micros(moment: datetime) -> int:
    """A moment as a whole number: microseconds since 1970."""
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def text_of(entry: Entry) -> bytes:
    """An entry as a row has it: its JSON, without its number."""
    return encoded(entry.to_dict(), kind="entry")


def size_of(entry: Entry) -> int:
    """The bytes that an entry takes."""
    return len(text_of(entry))
