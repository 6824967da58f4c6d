"""The one idea: a log that only grows, a window on it, and digests that stand for what left.

Every entry has a sequence number. The window is what the model sees word for word; what is neither
in it nor covered by the summary is pending, and that is computed, never stored. Sequence numbers,
not list positions: a handler may show any part of the history, and positions then lie.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanoloop.session.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A value that stands for every entry up to a sequence number; committed as one record."""

    value: Any
    seq: int = 0


class Log:
    """Entries in order, the window on them, and which of them are in memory."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._shown: list[Entry] | None = None
        """The window where it is no plain tail of the log; else None."""
        self._window_seq = 1
        """Where the window begins, when it is a plain tail."""
        self.start = 1
        """The first sequence number of this history; a reset moves it."""
        self.last = 0
        """The newest sequence number given out."""
        self.released = 0
        """Entries up to here are in the store only."""
        self.hidden: tuple[tuple[int, int], ...] = ()
        """Ranges that were taken back: first and last, both included."""

    @property
    def entries(self) -> Sequence[Entry]:
        """What is in memory, oldest first."""
        return self._entries

    @property
    def is_whole(self) -> bool:
        """Whether the whole history is in memory."""
        return self.released < self.start

    @property
    def count(self) -> int:
        """Entries of this history, in memory or not."""
        taken_back = sum(last - first + 1 for first, last in self.hidden)
        return self.last - self.start + 1 - taken_back

    @property
    def window(self) -> Sequence[Entry]:
        """What the model sees word for word."""
        if self._shown is not None:
            return self._shown
        return self._entries[self._index_after(self._window_seq - 1) :]

    @property
    def window_length(self) -> int:
        """Entries in the window."""
        if self._shown is not None:
            return len(self._shown)
        return len(self._entries) - self._index_after(self._window_seq - 1)

    @property
    def evicted(self) -> int:
        """Entries up to here left the window, and none of them is in it.

        What a handler left out behind the oldest entry it shows is not among them before that one
        leaves too: a digest reaches up to a number, and must not reach over what may leave later.
        """
        if self._shown is None:
            return self._window_seq - 1
        return min((e.seq - 1 for e in self._shown if e.seq), default=self.last)

    def index_of(self, seq: int) -> int:
        """Where this entry, or the next one there is, stands among those in memory."""
        return self._index_after(seq - 1)

    def _index_after(self, seq: int) -> int:
        return bisect_right(self._entries, seq, key=lambda entry: entry.seq)

    def append(self, entry: Entry) -> Entry:
        """Give the entry its number and add it to log and window."""
        self.last += 1
        entry = replace(entry, seq=self.last)
        self._entries.append(entry)
        if self._shown is not None:
            self._shown.append(entry)
        return entry

    def between(self, after: int, upto: int) -> Sequence[Entry]:
        """The entries in memory with `after < seq <= upto`."""
        return self._entries[self._index_after(after) : self._index_after(upto)]

    def pending(self, covered: int) -> list[Entry]:
        """The entries in memory that left the window and that no digest up to `covered` has."""
        return list(self.between(covered, self.evicted))

    def show_from(self, index: int) -> list[Entry]:
        """Cut the window at this index; returns what left it."""
        window = self.window
        left = list(window[:index])
        if self._shown is not None:
            self._shown = list(window[index:])
            self._settle()
        elif index < len(window):
            self._window_seq = window[index].seq
        else:
            self._window_seq = self.last + 1
        return left

    def show(self, entries: Iterable[Entry]) -> None:
        """Make these entries the window: any part of the log, or entries that are in no log."""
        self._shown = list(entries)
        self._settle()

    def _settle(self) -> None:
        """Go back to the plain form where the window is a tail of the log again."""
        shown = self._shown or []
        tail = self._entries[len(self._entries) - len(shown) :] if shown else []
        if [entry.seq for entry in shown] == [entry.seq for entry in tail]:
            self._window_seq = shown[0].seq if shown else self.last + 1
            self._shown = None

    def restart(self) -> None:
        """Begin a new history behind everything there was; the old entries stay in the store."""
        self.start = self.last + 1
        self.released = self.last
        self._entries = []
        self._shown = None
        self._window_seq = self.start
        self.hidden = ()

    def release(self, upto: int) -> None:
        """Forget, in memory only, what is durable up to `upto` and not in the window."""
        if self._shown is not None:
            return
        upto = min(upto, self._window_seq - 1)
        if upto > self.released:
            del self._entries[: self._index_after(upto)]
            self.released = upto

    def bring_back(self, entries: Iterable[Entry], *, after: int, upto: int) -> None:
        """Take all entries with `after < seq <= upto` into memory again, from the store."""
        # Only onto what they were read for: a gap would be taken for something that is in memory.
        if upto == self.released and self.start - 1 <= after < upto:
            older = [entry for entry in entries if after < entry.seq <= upto]
            self._entries[:0] = [entry for entry in older if not self.is_hidden(entry.seq)]
            self.released = after

    def forget(self, upto: int) -> None:
        """Begin the history behind this entry; the store keeps what was before."""
        self.start = max(self.start, upto + 1)
        self.released = max(self.released, upto)
        del self._entries[: self._index_after(upto)]
        self.hidden = tuple((a, b) for a, b in self.hidden if b > upto)
        self._window_seq = max(self._window_seq, self.start)
        if self._shown is not None:
            self.show(entry for entry in self._shown if not 0 < entry.seq <= upto)

    def widen_to(self, seq: int) -> None:
        """Show the tail from this entry on, where the window is empty."""
        if not self.window_length:
            self._shown = None
            self._window_seq = seq

    def take_back(self, first: int) -> list[Entry]:
        """Hide the newest entries, from `first` on; they stay in the store and in no view."""
        taken = list(self._entries[self._index_after(first - 1) :])
        if not taken:
            return []
        gone = {entry.seq for entry in taken}
        del self._entries[-len(taken) :]
        if self._shown is not None:
            self._shown = [entry for entry in self._shown if entry.seq not in gone]
        self._window_seq = min(self._window_seq, first)
        self.hidden = _joined(self.hidden, (first, self.last))
        return taken

    def erase(self, seqs: Collection[int]) -> list[Entry]:
        """Leave nothing of these but their place; returns those that were in memory."""
        gone = [entry for entry in self._entries if entry.seq in seqs]
        self._entries = [e.erased() if e.seq in seqs else e for e in self._entries]
        if self._shown is not None:
            self._shown = [e.erased() if e.seq in seqs else e for e in self._shown]
        return gone

    def is_hidden(self, seq: int) -> bool:
        """Whether this entry was taken back."""
        return any(first <= seq <= last for first, last in self.hidden)

    def shows(self, seq: int) -> bool:
        """Whether the window has this entry."""
        if self._shown is None:
            return seq >= self._window_seq
        return any(entry.seq == seq for entry in self._shown)

    def head(self) -> dict[str, Any]:
        """Where everything stands, small, for the store."""
        head: dict[str, Any] = {"start": self.start, "last": self.last, "window": self._window_seq}
        if self._shown is not None:
            head["shown"] = [e.seq or e.to_dict() for e in self._shown]
        if self.hidden:
            head["hidden"] = [list(pair) for pair in self.hidden]
        return head

    @classmethod
    def restored(cls, head: Mapping[str, Any], entries: Iterable[Entry], *, after: int = 0) -> Log:
        """The log that a store kept: its head, and all entries whose number is above `after`."""
        log = cls()
        log.released = after
        log.start = int(head.get("start", 1))
        log.hidden = tuple((int(a), int(b)) for a, b in head.get("hidden", ()))
        log._entries = [e for e in entries if e.seq >= log.start and not log.is_hidden(e.seq)]
        log._window_seq = int(head.get("window", log.start))
        newest = log._entries[-1].seq if log._entries else 0
        log.last = max(int(head.get("last", 0)), newest)
        log._restore_shown(head.get("shown"), int(head.get("last", 0)))
        return log

    def _restore_shown(self, shown: Sequence[Any] | None, head_last: int) -> None:
        if shown is None:
            return
        by_seq = {entry.seq: entry for entry in self._entries}
        kept = [by_seq.get(s) if isinstance(s, int) else Entry.from_dict(s) for s in shown]
        # An entry that was written after the head is in the window too: nothing said is unseen.
        newer = [entry for entry in self._entries if entry.seq > head_last]
        self._shown = [*(entry for entry in kept if entry is not None), *newer]


def _joined(
    ranges: tuple[tuple[int, int], ...], new: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Ranges with a newer one added; touching ones become one, so that undo after undo is small."""
    kept = list(ranges)
    first, last = new
    while kept and kept[-1][1] >= first - 1:
        first = min(first, kept.pop()[0])
    return (*kept, (first, last))
