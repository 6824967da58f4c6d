"""Who a session is, how long it lives, its state, and what of it is not durable yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from threading import RLock
from typing import Any, TypedDict

from nanoloop.session.entry import Entry, copied, from_rfc3339, rfc3339, utc_now
from nanoloop.session.ids import checked_id, new_id


class Identity(TypedDict, total=False):
    """What a session may be created with; everything has a default."""

    id: str | None
    key: str | None
    agent: str | None
    metadata: Mapping[str, Any] | None
    max_history: int | None
    ttl: float | timedelta | None
    sliding: bool
    clock: Callable[[], datetime]


class Record:
    """The identity, the state and the life span of a session, safe for threads."""

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the seeds' name for it
        key: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_history: int | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._id = checked_id(id) if id is not None else new_id()
        self._lock = RLock()
        self._clock = clock
        self._ledger = ChangeTracker()
        self._state: dict[str, Any] = {}
        self._key = key
        self._agent = agent
        self._title = ""
        self._metadata: dict[str, Any] = copied(metadata or {})
        self._max_history = max_history
        self._ttl = _seconds(ttl)
        self._sliding = sliding
        self._created_at = self._updated_at = clock()
        self._expires_at = self._expiry_from_now()

    @property
    def id(self) -> str:
        """The name that stores know it by."""
        return self._id

    @property
    def key(self) -> str | None:
        """The chat that this session belongs to."""
        return self._key

    @property
    def created_at(self) -> datetime:
        """When it was made."""
        return self._created_at

    @property
    def updated_at(self) -> datetime:
        """When anything in it last changed; reading is no change."""
        return self._updated_at

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers here."""
        return self._agent

    @agent.setter
    def agent(self, name: str | None) -> None:
        with self._lock:
            self._agent = name
            self._touch(ABOUT)

    @property
    def title(self) -> str:
        """The first user's words, or what it was renamed to."""
        return self._title

    @title.setter
    def title(self, text: str) -> None:
        with self._lock:
            self._title = text
            self._touch(ABOUT)

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of what it was created with."""
        return dict(copied(self._metadata))

    @property
    def max_history(self) -> int | None:
        """Messages that the window holds at most, when set."""
        return self._max_history

    @max_history.setter
    def max_history(self, count: int | None) -> None:
        with self._lock:
            self._max_history = count
            self._touch(ABOUT)

    def has_expired(self) -> bool:
        """Whether its time is over, strictly after the moment it was given."""
        return self._expires_at is not None and self._clock() > self._expires_at

    # State

    def get(self, key: str) -> tuple[Any, bool]:
        """A copy of the value and True, or None and False."""
        with self._lock:
            return copied(self._state.get(key)), key in self._state

    def set(self, key: str, value: Any) -> None:
        """Keep a value under this key."""
        with self._lock:
            self._state[key] = copied(value)
            self._touch(STATE, by_user=True)

    def delete(self, key: str) -> None:
        """Remove a key; a missing one is fine."""
        with self._lock:
            self._state.pop(key, None)
            self._touch(STATE, by_user=True)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of all values."""
        with self._lock:
            return dict(copied(self._state))

    # What stores need

    def _touch(self, *sections: str, by_user: bool = False) -> None:
        self._ledger.touch(sections)
        self._updated_at = self._clock()
        if by_user and self._sliding:
            self._expires_at = self._expiry_from_now()

    def _expiry_from_now(self) -> datetime | None:
        try:
            return None if self._ttl is None else self._clock() + timedelta(seconds=self._ttl)
        except OverflowError:  # beyond the last date there is
            return None

    @property
    def revision(self) -> int:
        """Moves with every commit of its store; a new session begins anywhere."""
        return self._ledger.revision

    def changes(self) -> Changes | None:
        """What is not durable yet, as of now; None when everything is."""
        with self._lock:
            if self._ledger.is_saved:
                return None
            return Changes(
                revision=self._ledger.revision,
                entries=self._ledger.fresh,
                head=self._head(),
                sections={name: self._section(name) for name in self._ledger.changed},
                tick=self._ledger.tick,
            )

    def committed(self, changes: Changes) -> None:
        """Hear that these changes are durable now; once more, or late, does no harm."""
        with self._lock:
            if changes.revision >= self._ledger.revision:
                self._ledger.committed(changes)

    def _head(self) -> dict[str, Any]:
        """Where everything stands, small; each layer adds its part."""
        head = {"rev": self._ledger.revision + 1, "updated_at": rfc3339(self._updated_at)}
        if self._expires_at is not None:
            head["expires_at"] = rfc3339(self._expires_at)
        return head

    def _section(self, name: str) -> Any:
        """The present value of a section; each layer knows its own."""
        return self._about() if name == ABOUT else copied(self._state)

    def _about(self) -> dict[str, Any]:
        about = {
            "id": self._id,
            "key": self._key,
            "created_at": rfc3339(self._created_at),
            "agent": self._agent,
            "title": self._title,
            "metadata": copied(self._metadata),
            "max_history": self._max_history,
            "ttl": self._ttl,
            "sliding": self._sliding,
        }
        return {name: value for name, value in about.items() if value not in (None, False, {}, "")}

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        """Take over what a store kept; each layer takes its part."""
        self._restore_about(sections.get(ABOUT) or {})
        self._state = copied(sections.get(STATE) or {})
        self._updated_at = from_rfc3339(head.get("updated_at"))
        expires_at = head.get("expires_at")
        self._expires_at = from_rfc3339(expires_at) if expires_at else None

    def _restore_about(self, about: Mapping[str, Any]) -> None:
        self._key = about.get("key")
        self._agent = about.get("agent")
        self._title = str(about.get("title") or "")
        self._metadata = copied(about.get("metadata") or {})
        self._max_history = about.get("max_history")
        self._ttl = about.get("ttl")
        self._sliding = bool(about.get("sliding", False))
        self._created_at = from_rfc3339(about.get("created_at"))


def _seconds(ttl: float | timedelta | None) -> float | None:
    """A life span in seconds; None where it has no end, as with zero or less."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    return seconds if seconds and 0 < seconds < inf else None


ABOUT, STATE, SUMMARY, MEMO, SETTINGS = "about", "state", "summary", "memo", "settings"
WAITING, HEARD = "waiting", "heard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a store has to make durable in one piece."""

    revision: int
    """The revision these changes are based on; the commit makes it one more."""
    entries: tuple[Entry, ...]
    head: Mapping[str, Any]
    """Small, written with every commit."""
    sections: Mapping[str, Any]
    """Larger parts, only those that changed."""
    tick: int
    """The moment of the session's own clock at which they were taken."""


class ChangeTracker:
    """Counts every change, and knows which of them are durable."""

    def __init__(self) -> None:
        self.tick = 1
        self.revision = 0
        """Commits so far."""
        self.saved_seq = 0
        """Entries up to here are durable."""
        self._saved_tick = 0
        self._changed_at: dict[str, int] = {ABOUT: 1}
        self._fresh: deque[Entry] = deque()

    @property
    def is_saved(self) -> bool:
        """Whether everything is durable."""
        return self.tick == self._saved_tick

    @property
    def fresh(self) -> tuple[Entry, ...]:
        """The entries that are not durable, whatever view they are in."""
        return tuple(self._fresh)

    @property
    def changed(self) -> tuple[str, ...]:
        """The sections that are not durable."""
        return tuple(self._changed_at)

    def touch(self, sections: Iterable[str] = ()) -> None:
        """Note a change of the head, and of these sections."""
        self.tick += 1
        for section in sections:
            self._changed_at[section] = self.tick

    def add(self, entry: Entry) -> None:
        """Note a new entry."""
        self._fresh.append(entry)

    def erase(self, seqs: Collection[int]) -> None:
        """Leave nothing of these new entries but their place."""
        self._fresh = deque(e.erased() if e.seq in seqs else e for e in self._fresh)

    def committed(self, changes: Changes) -> None:
        """Note that these changes are durable; what came since is not."""
        self.revision = changes.revision + 1
        if changes.entries:
            self.saved_seq = changes.entries[-1].seq
        while self._fresh and self._fresh[0].seq <= self.saved_seq:
            self._fresh.popleft()
        self._changed_at = {
            name: tick for name, tick in self._changed_at.items() if tick > changes.tick
        }
        self._saved_tick = changes.tick

    def restored(self, *, revision: int, saved_seq: int) -> None:
        """Begin where a store left off, with nothing to save."""
        self.revision = revision
        self.saved_seq = saved_seq
        self._changed_at = {}
        self._fresh.clear()
        self._saved_tick = self.tick
