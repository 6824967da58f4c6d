"""The journals in use: one object an id, and a bound on how many files stay open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from weakref import WeakValueDictionary

from nanoloop.stores.jsonl.journal import Journal


class OpenFiles:
    """Journals by id, the last used of them open."""

    def __init__(self, make: Callable[[str], Journal], *, limit: int) -> None:
        self._make = make
        self._limit = max(1, limit)
        self._recent: OrderedDict[str, Journal] = OrderedDict()
        self._known: WeakValueDictionary[str, Journal] = WeakValueDictionary()
        """Also those that were closed while work on them waits for a thread: never two of one."""

    def __len__(self) -> int:
        """How many may be open."""
        return len(self._recent)

    def journal(self, session_id: str) -> Journal:
        """The one journal of this id."""
        journal = self._known.get(session_id)
        if journal is None:
            journal = self._known[session_id] = self._make(session_id)
        return journal

    def used(self, journal: Journal) -> None:
        """Keep this one open, and close the longest unused beyond the limit."""
        self._recent[journal.id] = journal
        self._recent.move_to_end(journal.id)
        too_many = max(0, len(self._recent) - self._limit)
        for session_id in list(islice(self._recent, too_many)):
            if self._recent[session_id].close_if_idle():
                del self._recent[session_id]

    def gone(self, journal: Journal) -> None:
        """Keep nothing of a session that isn't there."""
        if journal.close_if_idle():
            self._recent.pop(journal.id, None)
        else:
            self.used(journal)

    def close(self) -> None:
        """Let go of all files."""
        while self._recent:
            self._recent.popitem()[1].close()
