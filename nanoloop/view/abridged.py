"""What of a session is shown shortened, and what by its first words: decided once, and kept so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.view.excerpts import Shortening, first_words, with_short_result
from nanoloop.view.tokens import entry_tokens

EXTRACT_LINES = 40
"""Messages whose first words stand for the oldest pending ones."""
_OLDER = "(earlier ones are left out)"


@dataclass(slots=True, kw_only=True)
class Abridged:
    """The decisions for one session, as long as it is in memory."""

    epoch: int
    extract_upto: int = 0
    """Pending entries up to here are shown by their first words."""
    _shortenings: list[Shortening] = field(default_factory=list)
    _extract: list[tuple[int, str]] = field(default_factory=list)

    def shorten(self, upto: int, chars: int) -> None:
        """From now on show tool results up to this number with so many characters, or fewer."""
        new = Shortening(upto=upto, chars=chars)
        if not any(new.is_within(rule) for rule in self._shortenings):
            left = [rule for rule in self._shortenings if not rule.is_within(new)]
            self._shortenings = [*left, new]

    def give_up(self, pending: Sequence[Entry], count: int) -> None:
        """Show the first so many pending ones, up to a user's message, by their first words."""
        while 0 < count < len(pending) and pending[count].role != "user":
            count += 1
        if count > 0:
            self.extract_upto = pending[count - 1].seq
            self._extract += first_words(pending[:count])
            del self._extract[:-EXTRACT_LINES]

    def entry(self, entry: Entry) -> Entry:
        """The entry as it is shown."""
        return with_short_result(entry, self._shortenings)

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries as they are shown."""
        return [self.entry(entry) for entry in entries] if self._shortenings else entries

    def size(self, entry: Entry) -> int:
        """Tokens of the entry as it is shown."""
        return entry_tokens(self.entry(entry))

    def sizes(self, entries: Iterable[Entry]) -> int:
        """Tokens of all of them."""
        return sum(map(self.size, entries))

    def extract(self, session: Session) -> list[str]:
        """The first words that stand for what still waits."""
        waiting = (pair for pair in self._extract if pair[0] > session.covered_seq)
        lines = [text for seq, text in waiting if session.has_entry(seq)]
        return [_OLDER, *lines] if len(lines) == EXTRACT_LINES else lines
