"""What a store keeps of a session: its head, its sections and entries, and what they tell."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nanoloop.protocols import ARCHIVED, SessionInfo
from nanoloop.session.changes import ABOUT, Changes
from nanoloop.session.conversation import spent_in
from nanoloop.session.entry import Entry, copied, from_rfc3339
from nanoloop.session.seen import MESSAGE_ID
from nanoloop.session.session import Session
from nanoloop.stores.sense import making_sense


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A session as a store has it, with all entries whose number is above `after`."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    after: int = 0
    seen: Sequence[str] = ()
    """Ids of messages before that, so that a repeated delivery is known."""
    unreadable: Sequence[str] = ()
    """What is there of it that could not be read, in words."""

    def to_session(self, clock: Callable[[], datetime]) -> Session:
        """A new session object, which shares nothing that changes with any other."""
        with making_sense(self.name):
            return Session.restored(
                head=self.head,
                sections=copied(self.sections),
                entries=self.entries,
                after=self.after,
                seen=self.seen,
                clock=clock,
            )

    @property
    def name(self) -> str:
        """The session's id."""
        return str(self.sections[ABOUT]["id"])

    def to_changes(self) -> Changes:
        """All of it as one commit, for a store that has nothing of it."""
        return Changes(
            revision=int(self.head["rev"]) - 1,
            entries=tuple(self.entries),
            head=self.head,
            sections=self.sections,
            tick=0,
        )


def first_revision() -> int:
    """Where a new session begins to count its commits.

    Anywhere: an object of a deleted session must not fit its successor of the same name.
    """
    return secrets.randbelow(1 << 31)


def message_ids(entries: Iterable[Entry]) -> list[str]:
    """The channels' ids of the users' messages among these."""
    ids = (entry.metadata.get(MESSAGE_ID) for entry in entries if entry.role == "user")
    return [message_id for message_id in ids if message_id]


def window_start(head: Mapping[str, Any]) -> int:
    """The lowest number that the window shows."""
    shown = [seq for seq in head.get("shown") or () if isinstance(seq, int)]
    start = int(head.get("window", 1))
    return start if head.get("shown") is None else min([*shown, int(head.get("last", 0)) + 1])


def pending_start(head: Mapping[str, Any]) -> int:
    """The lowest number that no summary covers."""
    return max(int(head.get("covered", 0)), int(head.get("start", 1)) - 1) + 1


def is_visible(head: Mapping[str, Any], seq: int) -> bool:
    """Whether an entry belongs to the present history and was not taken back."""
    if seq < int(head.get("start", 1)):
        return False
    return not any(first <= seq <= last for first, last in head.get("hidden") or ())


def expiry(head: Mapping[str, Any]) -> datetime | None:
    """The moment after which the session is gone; None for never."""
    text = head.get("expires_at")
    return from_rfc3339(text) if text else None


def has_expired(head: Mapping[str, Any], now: datetime) -> bool:
    """Whether its time is over, strictly after the moment it was given."""
    moment = expiry(head)
    return moment is not None and now > moment


def info_of(
    head: Mapping[str, Any], about: Mapping[str, Any], *, size: int, newer: int = 0
) -> SessionInfo:
    """The session at a glance; `newer` entries stand behind the head."""
    return SessionInfo(
        id=about["id"],
        key=about.get("key"),
        title=about.get("title", ""),
        agent=about.get("agent"),
        entries=int(head.get("count", 0)) + newer,
        created_at=from_rfc3339(about.get("created_at")),
        updated_at=from_rfc3339(head.get("updated_at")),
        expires_at=expiry(head),
        awaiting=int(head.get("awaiting", 0)),
        pending=_pending(head),
        size=size,
        archived=bool((about.get("metadata") or {}).get(ARCHIVED)),
        waiting=int(head.get("waiting", 0)),
        unsent=len(head.get("unsent") or ()),
        **spent_in(head),
    )


def _pending(head: Mapping[str, Any]) -> int:
    first, last = pending_start(head), window_start(head) - 1
    hidden = [max(0, min(last, b) - max(first, a) + 1) for a, b in head.get("hidden") or ()]
    count: int = last - first + 1 - sum(hidden)
    return max(0, count)
