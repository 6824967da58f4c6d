"""What of a session is not durable yet: new entries, the head, the sections that changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nanoloop.session.entry import Entry

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


class Ledger:
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
