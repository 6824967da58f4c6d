"""The seam below a store: what a database has to do so that sessions can be kept in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_urlsafe
from typing import Any, Protocol

from nanoloop import defaults
from nanoloop.errors import SessionDamaged
from nanoloop.protocols import Node, OwedSession
from nanoloop.session.entry import Entry, from_rfc3339
from nanoloop.session.head import ABOUT, Changes
from nanoloop.stores.snapshot import (
    Decode,
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
"""After so long its row goes."""
HEARD_SECONDS = 72 * 3600
"""So long the id of a message is kept."""
COMMIT_ID = "commit"
"""The head's field with the random id of the commit that wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is written in one piece: the head, the sections that changed, the entries."""

    id: str
    revision: int
    """What it is based on; `head["rev"]` is one more."""
    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    """New ones, their numbers above all that are there."""
    texts: Sequence[bytes]
    """The JSON of each of these, without its number."""
    rewritten: Sequence[Entry] = ()
    """Erased ones, each in the place of the entry with its number."""
    erased: frozenset[int] = frozenset()
    """The numbers of all that are erased, of those too that can't be read."""
    heard: Sequence[tuple[str, str]] = ()
    """Chat and id of each message that this commit takes."""
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
        """These changes, sealed or not; the entries in `rewritten` lose so many bytes."""
        texts = [text_of(entry) for entry in changes.entries]
        return cls(
            id=session_id,
            revision=changes.revision,
            head={**changes.head, "rev": changes.revision + 1, COMMIT_ID: token_urlsafe(8)},
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
        """By which a writer knows its own commit, whatever was heard of it."""
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
        """What is owed in it from now on, as an index has it."""
        return owes(self.head)

    @property
    def by(self) -> str:
        """The process that answers there; "" for none."""
        return str(self.head.get("by") or "")

    @property
    def expires_at(self) -> int | None:
        """After which moment it is gone, in microseconds since 1970; None for never."""
        moment = expiry(self.head)
        return None if moment is None else micros(moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardMessage:
    """A message that was taken."""

    chat: str
    """The key of the chat it was said in, whatever session that had then."""
    id: str
    """The channel's name for it."""
    at: int
    """When the commit was made that took it, in microseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as a database has it, expired or not."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry] = ()
    """Oldest first."""
    unreadable: Sequence[str] = ()
    """What is there of it that could not be read, in words."""
    size: int = 0

    def has_all(self, *, after: int) -> bool:
        """Whether no entry is missing behind this number."""
        first = self.entries[0].seq if self.entries else int(self.head["last"]) + 1
        return not any(is_visible(self.head, seq) for seq in range(max(0, after) + 1, first))

    @classmethod
    def glance(
        cls, session_id: str, head: Any, about: Any, size: int, decode: Decode
    ) -> StoredSession | SessionDamaged:
        """Who a session is, from its row; one that is damaged stops no list."""
        try:
            return cls(
                head=head_of(session_id, head, decode),
                sections=sections_of(session_id, [(ABOUT, about)], decode),
                size=size,
            )
        except SessionDamaged as damaged:
            return damaged


class Database(Protocol):
    """Rows of sessions. Each call is atomic, durable when it returns, and raises `StoreError` only.

    It knows nothing of time and of seals: whoever calls has the clock and the key.
    """

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        """Make the session, in place of all there is of the one at revision `over`.

        With None there must be none of that id, and False says that another was first, or an
        earlier try of this one. Raises `AlreadyHeard` as `commit`.
        """
        ...

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        """Write it all if the session stands at `commit.revision` and has not expired before now.

        Returns where it stood, and None where there is none: nothing was written unless that is
        `commit.revision`, or unless the head has this commit's id, as after an answer that got
        lost and a second try. Only then what it takes is looked at: raises `AlreadyHeard`, and
        writes nothing, where one of `commit.heard` was taken before; else all of them are now, at
        `commit.updated_at`. Of two commits that take the same, in any sessions and processes, one
        is made.
        """
        ...

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        """Its head, or None."""
        ...

    async def window(self, session_id: str) -> StoredSession | None:
        """It with the entries from its window on; history costs nothing here."""
        ...

    async def whole(self, session_id: str) -> StoredSession | None:
        """It with all entries."""
        ...

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        ...

    async def delete(self, session_id: str) -> None:
        """Remove all there is of it; a missing one is fine."""
        ...

    async def delete_expired(self, *, now: int) -> int:
        """Remove those whose time was over before now; returns how many.

        What was heard more than `HEARD_SECONDS` before now is forgotten too.
        """
        ...

    def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        """All that have not expired, without entries, the last changed first, a page at a time.

        Of the sections only the one that says who they are is needed.
        """
        ...

    def names(self) -> AsyncIterator[str]:
        """The id of every session, expired or not, whatever it looks like inside."""
        ...

    def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        """Those that have not expired and owe something, `pending` ones among them if wanted."""
        ...

    async def beat(self, node: Node) -> Sequence[Node]:
        """As `Store.beat`, in one step; a process lives for `NODE_SECONDS` after its last beat.

        What was not heard of for an hour is forgotten.
        """
        ...

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is fine."""
        ...

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Whether a message of this id was taken there, and isn't forgotten yet."""
        ...

    def heard(self) -> AsyncIterator[HeardMessage]:
        """All that was heard and isn't forgotten, for another store."""
        ...

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        """Note these, as another store had them; what is known already stays as it is."""
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
        """Let go of files and connections; closing twice is fine."""
        ...


def granted(node: Node, others: Iterable[Node]) -> frozenset[str]:
    """What it may hold of what it wants: what no other living one holds."""
    living = (other for other in others if other.id != node.id and other.age < NODE_SECONDS)
    return node.holds.difference(*(other.holds for other in living))


def micros(moment: datetime) -> int:
    """A moment as a whole number: microseconds since 1970."""
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def text_of(entry: Entry) -> bytes:
    """An entry as a row has it: its JSON, its number left out."""
    return encoded(entry.to_dict(), kind="entry")


def size_of(entry: Entry) -> int:
    """The bytes that an entry takes."""
    return len(text_of(entry))
