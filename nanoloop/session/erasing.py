"""Erasing for good: an entry keeps its number, and nothing that was made of its words stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nanoloop.session.changes import ABOUT, MEMO, SUMMARY
from nanoloop.session.conversation import title_of
from nanoloop.session.entry import ERASED, Entry
from nanoloop.session.log import Digest
from nanoloop.session.pinned import Pinned
from nanoloop.session.seen import MESSAGE_ID


class Erasing(Pinned):
    """A session whose entries can be erased; a store's `erase` does it, so that it lasts."""

    def erase(self, seqs: Collection[int], *, stored: Iterable[Entry] = ()) -> None:
        """Leave nothing of these entries, and begin a new epoch: a summary being written is late.

        Where the summary tells of one, it goes, with the ledger, and the whole history waits to
        be summarised anew. `stored` are the entries as the store has them. Once more does no harm.
        """
        with self._lock:
            gone = frozenset(seqs)
            said = {entry.seq: entry for entry in (*stored, *self._log.erase(gone))}
            self._ledger.erase(gone)
            for entry in said.values():
                self._forget_trace(entry)
            self._erase_digests(gone - {seq for seq, e in said.items() if e.type == ERASED})
            self._awaiting = 0 if self._awaiting in gone else self._awaiting
            self._epoch += 1
            self._touch(ABOUT, SUMMARY, MEMO)

    def _forget_trace(self, entry: Entry) -> None:
        if entry.role == "user":
            self._seen.remove(entry.metadata.get(MESSAGE_ID))
            self._title = "" if self._title == title_of(entry) else self._title

    def _erase_digests(self, gone: Collection[int]) -> None:
        self._pins = tuple(pin for pin in self._pins if pin["seq"] not in gone)
        first = min(gone, default=self._log.last + 1)
        if first <= self._summary.seq:
            self._summary = Digest(value="", seq=self._log.start - 1)
            self._kept = ()
        if first <= self._memo.seq:
            self._memo = Digest(value={}, seq=self._memo.seq)
