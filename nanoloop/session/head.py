"""A session's identity and state, and the parts of it that are not durable yet."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from math import inf
from typing import Any
from uuid import uuid4

from nanoloop.errors import InvalidSessionId
from nanoloop.session.entry import Entry, copied, from_rfc3339, rfc3339, utc_now

ID_LIMIT = 200
"""The maximum length of a session id."""

_SAFE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:@-]{{0,{ID_LIMIT - 1}}}")
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.:@-]")


def new_id() -> str:
    """Generate an id of 32 lowercase hex digits."""
    return uuid4().hex


def checked_id(session_id: object) -> str:
    """Return the id; raise `InvalidSessionId` if it can't safely be used as a session's name."""
    if not isinstance(session_id, str) or not _SAFE.fullmatch(session_id):
        raise InvalidSessionId(session_id)
    return session_id


def timestamp_id(
    moment: datetime | None = None, *, taken: Container[str] | Callable[[str], bool] = ()
) -> str:
    """Return `session-YYYYMMDD-HHMMSS`, with -01, -02 … if that id is taken."""
    is_taken = taken if callable(taken) else taken.__contains__
    base = (moment or datetime.now().astimezone()).strftime("session-%Y%m%d-%H%M%S")
    return next(name for name in numbered(base) if not is_taken(name))


def numbered(session_id: str) -> Iterator[str]:
    """Yield this id, then -01, -02 … endlessly; raise `InvalidSessionId` if it is invalid."""
    yield checked_id(session_id)
    for number in count(1):
        yield checked_id(f"{session_id}-{number:02d}")


def id_for_key(key: str) -> str:
    """Return the id of a routing key's first session, which is the key itself if that is safe.

    For any other key, the id consists of the key's readable part and a digest that makes it unique.
    """
    if _SAFE.fullmatch(key) and len(key) <= ID_LIMIT - 20:  # room for a later session's timestamp
        return key
    readable = _UNSAFE_CHARACTER.sub("-", key)[:100].lstrip("_.:@-") or "chat"
    return f"{readable}@{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


def place_in(value: Any, otherwise: int = 0) -> int:
    """Return the value if it is a valid position or count, otherwise `otherwise`."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if number >= 0 else otherwise


def is_place(value: Any) -> bool:
    """Return True for a valid position or count."""
    return place_in(value, -1) >= 0


ABOUT, STATE, SUMMARY, MEMO, SETTINGS = "about", "state", "summary", "memo", "settings"
WAITING, APPROVALS = "waiting", "approvals"
TOKENS = ("tokens_in", "tokens_out", "tokens_cached")
"""The kinds of tokens that a session counts, in the order used in its head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A session's state, which is small and is written with every commit.

    A new field needs a line here, one in `_FORMS` if JSON has no such type, and two in
    `Conversation`: one to write it (`head`) and one to read it (`restore`).
    """

    rev: int = 0
    """The number of commits so far, including this one."""
    updated_at: datetime = field(default_factory=utc_now)
    expires_at: datetime | None = None
    epoch: int = 0
    start: int = 1
    """The number of this history's first entry."""
    last: int = 0
    window: int = 0
    """The number at which the window begins; 0 if it was not stored, which means at `start`."""
    shown: tuple[int | Mapping[str, Any], ...] | None = None
    """A window made by a handler: numbers of entries, or whole entries that are in no log."""
    hidden: tuple[tuple[int, int], ...] = ()
    """The ranges of numbers that were undone."""
    covered: int = 0
    turns: int = 0
    count: int = 0
    """The number of entries in this history."""
    awaiting: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    """The tokens of all turns, by kind."""
    waiting: int = 0
    unsent: tuple[int, ...] = ()
    senders: Mapping[int, str] = field(default_factory=dict)
    """The senders of unsent answers, if these are not the process `by`."""
    resized: Mapping[str, Any] = field(default_factory=dict)
    """The last resize's type, turn and reason, and the newest number at that time."""
    moved: str = ""
    """The id of the session in which the chat continues, or ""."""
    by: str = ""
    """The process that answers in the session, or last did so."""
    claims: int = 0
    """How often a process has claimed the session's work; older claims can't write."""
    stopped: int = 0
    """The claim whose turn must stop, in whichever process it runs."""
    erasures: int = 0
    """How often entries were erased; an index that has seen fewer erasures is outdated."""
    erasing: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Recently erased ranges of which copies may still have to be removed."""

    def dump(self) -> dict[str, Any]:
        """Return the stored form, without empty values."""
        stored = {}
        for name, empty, form in _STORED:
            value = getattr(self, name)
            if value != empty:
                stored[name] = value if form is None else form(value)
        return stored

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Head:
        """Read the form stored by any version; unknown fields are ignored."""
        known: dict[str, Any] = {
            name: _FORMS[name][1](stored[name]) if name in _FORMS else int(stored[name])
            for name in _NAMES
            if stored.get(name) not in (None, "")
        }
        return cls(**known)


_NAMES = tuple(Head.__dataclass_fields__)
_OPTIONAL: Mapping[str, Any] = {
    "expires_at": None,
    "shown": None,
    "hidden": (),
    "awaiting": 0,
    "spent": {},
    "waiting": 0,
    "unsent": (),
    "senders": {},
    "resized": {},
    "moved": "",
    "by": "",
    "claims": 0,
    "stopped": 0,
    "erasures": 0,
    "erasing": (),
}
_FORMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "updated_at": (rfc3339, from_rfc3339),
    "expires_at": (rfc3339, from_rfc3339),
    "shown": (list, tuple),
    "hidden": (
        lambda ranges: [list(pair) for pair in ranges],
        lambda pairs: tuple((int(first), int(last)) for first, last in pairs),
    ),
    "erasing": (
        lambda erasing: [[list(pair) for pair in ranges] for ranges in erasing],
        lambda stored: tuple(tuple((int(a), int(b)) for a, b in ranges) for ranges in stored),
    ),
    "spent": (
        lambda spent: [spent.get(kind, 0) for kind in TOKENS],
        lambda counts: dict(zip(TOKENS, map(int, counts), strict=False)),
    ),
    "unsent": (list, lambda seqs: tuple(map(int, seqs))),
    "senders": (
        lambda senders: {str(seq): node for seq, node in senders.items()},
        lambda stored: {int(seq): str(node) for seq, node in stored.items()},
    ),
    "resized": (dict, dict),
    "moved": (str, str),
    "by": (str, str),
}
"""How to store and read each field; fields not listed are plain numbers."""
_STORED = [
    (name, _OPTIONAL.get(name, ...), _FORMS[name][0] if name in _FORMS else None) for name in _NAMES
]
"""Each field's name, the empty value that is not stored, and how another value is stored."""


def spent_in(head: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of all turns, by kind, from a stored head."""
    return dict(_FORMS["spent"][1](head.get("spent") or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A session's identity and lifetime."""

    id: str = field(default_factory=new_id)
    """The session's name in stores."""
    key: str | None = None
    """The chat that the session belongs to."""
    created_at: datetime = field(default_factory=utc_now)
    agent: str | None = None
    """The name of the agent that answers in the session."""
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    max_history: int | None = None
    """The maximum number of messages in the window, or None."""
    ttl: float | None = None
    """The session's lifetime in seconds; None, zero or less means no limit."""
    sliding: bool = False
    """True if using the session restarts its lifetime."""

    def __post_init__(self) -> None:
        """Check and normalise the fields; raise `InvalidSessionId` if the id is invalid."""
        own = {
            "id": checked_id(self.id),
            "metadata": copied(self.metadata),
            "ttl": seconds_of(self.ttl),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def dump(self) -> dict[str, Any]:
        """Return the stored form, without empty values."""
        stored = {name: getattr(self, name) for name in self.__dataclass_fields__}
        stored |= {"created_at": rfc3339(self.created_at), "metadata": copied(self.metadata)}
        return {name: value for name, value in stored.items() if value not in (None, False, {}, "")}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Identity:
        """Read the stored or exported form."""
        return cls(
            id=stored["id"],
            key=stored.get("key"),
            created_at=from_rfc3339(stored.get("created_at")),
            agent=stored.get("agent"),
            title=str(stored.get("title") or ""),
            metadata=copied(stored.get("metadata") or {}),
            max_history=stored.get("max_history"),
            ttl=stored.get("ttl"),
            sliding=bool(stored.get("sliding", False)),
        )


def seconds_of(ttl: float | timedelta | None) -> float | None:
    """Return a lifetime in seconds; None if it is None, zero or less, which means no limit."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    return seconds if seconds and 0 < seconds < inf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes that a store must make durable in one commit."""

    revision: int
    """The revision that the changes are based on; the commit increases it by one."""
    entries: tuple[Entry, ...]
    head: Mapping[str, Any]
    """The session's head, which is small and is written with every commit."""
    sections: Mapping[str, Any]
    """The larger parts that have changed."""
    tick: int
    """The session's change counter at the time when the changes were taken."""
    heard: tuple[tuple[str, str], ...] = ()
    """The chat and id of each message received with the changes; unique across all processes."""


class ChangeTracker:
    """Counts every change and keeps track of which changes are durable."""

    def __init__(self) -> None:
        self.tick = 1
        self.revision = 0
        """The number of commits so far."""
        self.saved_seq = 0
        """The entries up to this number are durable."""
        self._saved_tick = 0
        self._changed_at: dict[str, int] = {ABOUT: 1}
        self._fresh: deque[Entry] = deque()
        self._heard_at: dict[tuple[str, str], int] = {}

    @property
    def is_saved(self) -> bool:
        """True if everything is durable."""
        return self.tick == self._saved_tick

    @property
    def fresh(self) -> tuple[Entry, ...]:
        """The entries that are not durable yet, whether or not they are in the window."""
        return tuple(self._fresh)

    @property
    def changed(self) -> tuple[str, ...]:
        """The sections that are not durable yet."""
        return tuple(self._changed_at)

    @property
    def heard(self) -> tuple[tuple[str, str], ...]:
        """The chat and id of each received message that is not durable yet."""
        return tuple(self._heard_at)

    def hear(self, chat: str, message_id: str) -> bool:
        """Record that this message was received; return False if that was already recorded."""
        if (chat, message_id) in self._heard_at:
            return False
        self.tick += 1
        self._heard_at[chat, message_id] = self.tick
        return True

    def touch(self, sections: Iterable[str] = ()) -> None:
        """Record a change to the head and to these sections."""
        self.tick += 1
        for section in sections:
            self._changed_at[section] = self.tick

    def add(self, entry: Entry) -> None:
        """Record a new entry."""
        self._fresh.append(entry)

    def erase(self, seqs: Collection[int]) -> None:
        """Remove the content of these new entries, but keep their positions."""
        self._fresh = deque(e.erased() if e.seq in seqs else e for e in self._fresh)

    def committed(self, changes: Changes) -> None:
        """Record that these changes, but no later ones, are durable."""
        self.revision = changes.revision + 1
        if changes.entries:
            self.saved_seq = changes.entries[-1].seq
        while self._fresh and self._fresh[0].seq <= self.saved_seq:
            self._fresh.popleft()
        self._changed_at = {
            name: tick for name, tick in self._changed_at.items() if tick > changes.tick
        }
        self._heard_at = {
            name: tick for name, tick in self._heard_at.items() if tick > changes.tick
        }
        self._saved_tick = changes.tick

    def restored(self, *, revision: int, saved_seq: int) -> None:
        """Start from a stored state, with nothing left to save."""
        self.revision = revision
        self.saved_seq = saved_seq
        self._changed_at = {}
        self._fresh.clear()
        self._heard_at = {}
        self._saved_tick = self.tick
