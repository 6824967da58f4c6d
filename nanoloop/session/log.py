"""The log, which only grows; the window on it; and the digests of entries outside the window.

Every entry has a sequence number. The window is the part that the model sees in full. An entry that
is neither in the window nor covered by the summary is pending; this is computed and never stored.
Sequence numbers are used rather than list positions, because a handler may show any part of the
history, which would make positions wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from nanoloop.session.chat import (
    MessageSpan,
    char_size,
    results_by_call,
    results_in_time,
    spans_of,
)
from nanoloop.session.entry import MESSAGE, TOOL_RESULT, Entry, entries_in
from nanoloop.session.head import Head


class Log:
    """The entries in order, the window on them, and which of them are in memory."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._shown: list[Entry] | None = None
        """The window if it is not simply the end of the log, otherwise None."""
        self._window_seq = 1
        self.start = 1
        """The first sequence number of this history; a reset increases it."""
        self.last = 0
        """The highest sequence number so far."""
        self.released = 0
        """Entries up to this number are only in the store."""
        self.hidden: tuple[tuple[int, int], ...] = ()
        """The ranges that were undone, each given by its first and last number."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries in memory, oldest first."""
        return self._entries

    @property
    def is_whole(self) -> bool:
        """True if the whole history is in memory."""
        return self.released < self.start

    @property
    def count(self) -> int:
        """The number of entries in this history, in memory or not."""
        taken_back = sum(last - first + 1 for first, last in self.hidden)
        return self.last - self.start + 1 - taken_back

    @property
    def window(self) -> Sequence[Entry]:
        """The entries that the model sees in full."""
        if self._shown is not None:
            return self._shown
        return self._entries[self._index_after(self._window_seq - 1) :]

    @property
    def window_seq(self) -> int:
        """The number at which the window begins, if the window is simply the end of the log."""
        return self._window_seq

    @property
    def shown(self) -> tuple[int | Mapping[str, Any], ...] | None:
        """The window as stores save it, or None if it is simply the end of the log.

        It is saved as the numbers of its entries; entries that are in no log are saved in full.
        """
        return None if self._shown is None else tuple(e.seq or e.to_dict() for e in self._shown)

    @property
    def window_length(self) -> int:
        """The number of entries in the window."""
        if self._shown is not None:
            return len(self._shown)
        return len(self._entries) - self._index_after(self._window_seq - 1)

    @property
    def evicted(self) -> int:
        """The highest number up to which all entries have left the window.

        A handler may leave out entries after the oldest visible one. These don't count until the
        oldest visible entry has left too: a digest covers everything up to a number, and must not
        cover visible entries.
        """
        if self._shown is None:
            return self._window_seq - 1
        return min((e.seq - 1 for e in self._shown if e.seq), default=self.last)

    def index_of(self, seq: int) -> int:
        """Return the index in memory of this entry; if it is missing, of the next entry."""
        return self._index_after(seq - 1)

    def _index_after(self, seq: int) -> int:
        return bisect_right(self._entries, seq, key=attrgetter("seq"))

    def append(self, entry: Entry) -> Entry:
        """Append a copy of the entry, with its number, to the log and the window."""
        self.last += 1
        entry = entry.copy(seq=self.last)
        self._entries.append(entry)
        if self._shown is not None:
            self._shown.append(entry)
        return entry

    def between(self, after: int, upto: int) -> Sequence[Entry]:
        """Return the entries in memory with `after < seq <= upto`."""
        return self._entries[self._index_after(after) : self._index_after(upto)]

    def pending(self, covered: int) -> list[Entry]:
        """Return the entries in memory that left the window and are numbered above `covered`."""
        return list(self.between(covered, self.evicted))

    def show_from(self, index: int) -> list[Entry]:
        """Cut the window at this index, and return the entries that left it."""
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
        """Make these entries the window; they may be any in the log, or in no log."""
        self._shown = list(entries)
        self._settle()

    def _settle(self) -> None:
        """Use the simple form again if the window has become the end of the log."""
        shown = self._shown or []
        tail = self._entries[len(self._entries) - len(shown) :] if shown else []
        if [entry.seq for entry in shown] == [entry.seq for entry in tail]:
            self._window_seq = shown[0].seq if shown else self.last + 1
            self._shown = None

    def restart(self) -> None:
        """Begin a new history after the current one; the old entries stay in the store."""
        self.start = self.last + 1
        self.released = self.last
        self._entries = []
        self._shown = None
        self._window_seq = self.start
        self.hidden = ()

    def rewrite(self, entries: Sequence[Entry]) -> list[Entry]:
        """Make these entries the history, and return them with their new numbers.

        If they are already the last entries in the log, they keep their numbers. Otherwise they are
        appended again, because numbers only increase and durable entries are never rewritten.
        """
        seqs = [entry.seq for entry in entries]
        if seqs and seqs == [entry.seq for entry in self.between(seqs[0] - 1, self.last)]:
            self.forget(seqs[0] - 1)
            return list(entries)
        self.restart()
        return [self.append(entry) for entry in entries]

    def release(self, upto: int) -> None:
        """Free memory by dropping durable entries up to `upto` that are not in the window."""
        if self._shown is not None:
            return
        upto = min(upto, self._window_seq - 1)
        if upto > self.released:
            del self._entries[: self._index_after(upto)]
            self.released = upto

    def bring_back(self, entries: Iterable[Entry], *, after: int, upto: int) -> None:
        """Load the store's entries with `after < seq <= upto` into memory again."""
        # Only if nothing has changed since they were read: the entries in memory must have no gap.
        if upto == self.released and self.start - 1 <= after < upto:
            older = [entry for entry in entries if after < entry.seq <= upto]
            self._entries[:0] = [entry for entry in older if not self.is_hidden(entry.seq)]
            self.released = after

    def forget(self, upto: int) -> None:
        """Begin the history after this entry; the store keeps earlier entries."""
        self.start = max(self.start, upto + 1)
        self.released = max(self.released, upto)
        del self._entries[: self._index_after(upto)]
        self.hidden = tuple((a, b) for a, b in self.hidden if b > upto)
        self._window_seq = max(self._window_seq, self.start)
        if self._shown is not None:
            self.show(entry for entry in self._shown if not 0 < entry.seq <= upto)

    def widen_to(self, seq: int) -> None:
        """If the window is empty, show the end of the log from this entry on."""
        if not self.window_length:
            self._shown = None
            self._window_seq = seq

    def take_back(self, first: int) -> list[Entry]:
        """Hide the newest entries, from `first` on; they stay in the store but are not shown."""
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
        """Erase these entries but keep their positions; return the originals found in memory."""
        gone = [entry for entry in self._entries if entry.seq in seqs]
        self._entries = [e.erased() if e.seq in seqs else e for e in self._entries]
        if self._shown is not None:
            self._shown = [e.erased() if e.seq in seqs else e for e in self._shown]
        return gone

    def reword(self, entries: Mapping[int, Entry]) -> None:
        """Replace the entries that have the same numbers as these, in memory and in the window."""
        self._entries = [entries.get(e.seq, e) for e in self._entries]
        if self._shown is not None:
            self._shown = [entries.get(e.seq, e) if e.seq else e for e in self._shown]

    def is_hidden(self, seq: int) -> bool:
        """Return True if this entry was undone."""
        return any(first <= seq <= last for first, last in self.hidden)

    def shows(self, seq: int) -> bool:
        """Return True if the window contains this entry."""
        if self._shown is None:
            return seq >= self._window_seq
        return any(entry.seq == seq for entry in self._shown)

    @classmethod
    def restored(cls, head: Head, entries: Iterable[Entry], *, after: int = 0) -> Log:
        """Restore a log from a stored head and all entries numbered above `after`."""
        log = cls()
        log.released = after
        log.start = head.start
        log.hidden = head.hidden
        log._entries = [e for e in entries if e.seq >= log.start and not log.is_hidden(e.seq)]
        log._window_seq = head.window or log.start
        newest = log._entries[-1].seq if log._entries else 0
        log.last = max(head.last, newest)
        log._restore_shown(head.shown, head.last)
        return log

    def _restore_shown(self, shown: Sequence[Any] | None, head_last: int) -> None:
        if shown is None:
            return
        by_seq = {entry.seq: entry for entry in self._entries}
        kept = [by_seq.get(s) if isinstance(s, int) else entries_in([s])[0] for s in shown]
        # Entries written after the head belong in the window too, so that nothing goes unseen.
        newer = [entry for entry in self._entries if entry.seq > head_last]
        self._shown = [*(entry for entry in kept if entry is not None), *newer]


def _joined(
    ranges: tuple[tuple[int, int], ...], new: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """Add a newer range; merge adjacent ranges, so that many undos take little space."""
    kept = list(ranges)
    first, last = new
    while kept and kept[-1][1] >= first - 1:
        first = min(first, kept.pop()[0])
    return (*kept, (first, last))


Align = Literal["user", "pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A rule to keep a history's newest entries and pass on the older ones."""

    keep: int = 1000
    """The maximum number of entries in a history."""
    take: Callable[[list[Entry]], object]
    """Receives the old entries before they are removed; if it raises an error, they are kept."""


def message_count(entries: Sequence[Entry]) -> int:
    """Return the number of messages among the entries; tool entries don't count."""
    return [entry.type for entry in entries].count(MESSAGE)


def cut(
    entries: Sequence[Entry],
    *,
    keep: int | None = None,
    chars: int | None = None,
    align: Align = "pair",
    size: Callable[[Mapping[str, Any]], int] = char_size,
) -> int:
    """Return the index at which the window should begin, so that earlier entries leave.

    `align="user"` keeps at least `keep` messages and begins at a user's message, so that no
    exchange is split. `align="pair"` keeps at most `keep` chat messages and `chars` characters, and
    no result without its call. A limit of None, zero or less means no limit. The newest message is
    always kept.
    """
    if not entries:
        return 0
    if align == "user" and any(entry.role == "user" for entry in entries):
        return _cut_at_user(entries, keep or 0)
    return _cut_exact(entries, keep or 0, chars or 0, size)


def _cut_at_user(entries: Sequence[Entry], keep: int) -> int:
    if keep <= 0:
        return 0
    kept = 0
    for index in range(len(entries) - 1, -1, -1):
        kept += entries[index].type == MESSAGE
        if kept >= keep and entries[index].role == "user":
            return index
    return 0


def cut_to_fit(entries: Sequence[Entry], *, room: float, size: Callable[[Entry], int]) -> int:
    """Return the index of the oldest user's message from which all later entries fit."""
    start = 0
    for index in range(len(entries) - 1, -1, -1):
        room -= size(entries[index])
        if start and room < 0:
            break
        if entries[index].role == "user":
            start = index
    return start


def _cut_exact(
    entries: Sequence[Entry], keep: int, chars: int, size: Callable[[Mapping[str, Any]], int]
) -> int:
    spans = spans_of(entries)
    start = _newest(spans, keep) if keep > 0 else 0
    if chars > 0:
        start = max(start, _fitting_from(spans, chars, size))
    return _whole_pairs_from(entries, sum(len(span.entries) for span in spans[:start]))


def _newest(spans: Sequence[MessageSpan], keep: int) -> int:
    """Return where the newest `keep` spans with a message begin."""
    kept = 0
    for start in range(len(spans) - 1, -1, -1):
        kept += spans[start].message is not None
        if kept == keep:
            return start
    return 0


def _fitting_from(
    spans: Sequence[MessageSpan], chars: int, size: Callable[[Mapping[str, Any]], int]
) -> int:
    """Return where the newest spans that fit begin, always including the newest message."""
    start = _newest(spans, 1)
    total = sum(_span_size(span, size) for span in spans[start:])
    while start > 0 and total + _span_size(spans[start - 1], size) <= chars:
        start -= 1
        total += _span_size(spans[start], size)
    return start


def _span_size(span: MessageSpan, size: Callable[[Mapping[str, Any]], int]) -> int:
    return 0 if span.message is None else size(span.message)


def _whole_pairs_from(entries: Sequence[Entry], start: int) -> int:
    """Skip results whose call is cut off, or go back to the call if nothing would be left."""
    if start == 0:
        return 0
    behind = max(_split_by(results_in_time(entries), start).values(), default=start - 1) + 1
    answered = set(results_by_call(entries).values())
    while behind < len(entries) and _is_orphan(entries[behind], behind, answered):
        behind += 1
    return behind if behind < len(entries) else whole_before(entries, start)


def _split_by(pairs: dict[int, int], start: int) -> dict[int, int]:
    return {call: result for call, result in pairs.items() if call < start <= result}


def _is_orphan(entry: Entry, index: int, answered: set[int]) -> bool:
    return entry.type == TOOL_RESULT and index not in answered


def whole_before(entries: Sequence[Entry], start: int) -> int:
    """Return the nearest index, at or before `start`, that separates no call from its result."""
    pairs = results_in_time(entries)
    while split := _split_by(pairs, start):
        start = _message_start(entries, min(split))
    return start


def _message_start(entries: Sequence[Entry], index: int) -> int:
    """Return where the chat message that contains this entry begins."""
    begins = 0
    for span in spans_of(entries):
        if begins + len(span.entries) > index:
            break
        begins += len(span.entries)
    return begins
