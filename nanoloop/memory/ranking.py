"""Rank turns by how well they answer a query, using words, speakers, neighbours and kind.

This module does no I/O: it sees an index only through a reader. However long the conversation is,
no step reads more than a fixed number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING

from nanoloop.memory.terms import IS_TOOL, ONLY_ASKS, Query

if TYPE_CHECKING:
    from nanoloop.memory.index import IndexReader

MOST_ROWS = 400
"""How many rows are read per word; a more frequent word only adds weight to other matches."""
CANDIDATES = 40
"""How many turns are scored in detail, together with their neighbours."""

LENGTH = 0.35
"""How much more of the query a long turn must contain than a short one."""
SATURATION = 1.2
BESIDE = {-1: 0.25, 1: 0.15, -2: 0.08, 2: 0.05}
"""The weight of a word found only in a neighbouring turn, by that turn's distance."""
ASKED = 0.6
"""The weight of a word found in the question that a turn answers."""
COVERED = 0.35
"""The share of the score that depends on how many of the words were found."""
SPOKEN = 1.4
"""The factor for a turn by a speaker named in the query."""
MEANT = 1.1
"""The factor for a turn by the person that "I" or "you" refers to."""
FITTING = 1.15
"""The factor for a turn with a time or amount, if the query asks for one."""
DATED = 1.25
"""The factor for a turn in the requested month or year."""
ASKING = 0.7
"""The factor for a turn that only asks a question."""
TOOL = 0.8
"""The factor for a tool's arguments and result."""
NAMED = 0.3
"""The weight of a speaker's name as a word; low, because people use it to address the speaker."""


@dataclass(frozen=True, slots=True)
class Traits:
    """A turn's properties in the index, besides its words."""

    place: int
    seq: int
    who: str
    role: str
    length: int
    marks: int
    year: int
    month: int


@dataclass(slots=True)
class Matches:
    """The words found in each turn, as one bit per word."""

    weights: list[float] = field(default_factory=list)
    bits: dict[int, int] = field(default_factory=dict)
    _sums: dict[int, float] = field(default_factory=dict)
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def add(self, places: Sequence[int], weight: float) -> None:
        """Add the turns that contain a word; a synonym found in the same turns counts once."""
        known = tuple(places)
        if not known or known in self._seen:
            return
        self._seen.add(known)
        bit = 1 << len(self.weights)
        self.weights.append(weight)
        bits = self.bits
        for place in places:
            bits[place] = bits.get(place, 0) | bit

    def worth(self, mask: int) -> float:
        """Return the total weight of these words."""
        found = self._sums.get(mask)
        if found is None:
            found = sum(w for i, w in enumerate(self.weights) if mask >> i & 1)
            self._sums[mask] = found
        return found


def ranked(
    query: Query, rows: IndexReader, *, limit: int, allows: Callable[[int], bool] = lambda _: True
) -> list[tuple[int, float]]:
    """Return the places and scores of the best turns, best first.

    `allows` takes an entry's number and returns True if the entry may be returned.
    """
    if not rows.total:
        return []
    named = _speakers_named(query, rows)
    matches = Matches()
    _match(query.words, rows, matches, weaker=frozenset(_parts(named)))
    needed = sum(matches.weights) or 1.0
    judge = _Judge(query=query, rows=rows, matches=matches, named=named, needed=needed)
    return judge.best(limit, allows)


def _parts(names: Iterable[str]) -> set[str]:
    return {part for name in names for part in name.split()}


def _speakers_named(query: Query, rows: IndexReader) -> frozenset[str]:
    return frozenset(who for who in rows.speakers() if query.names.intersection(who.split()))


def _rarity(count: int, total: int) -> float:
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def _match(
    words: dict[str, float], rows: IndexReader, matches: Matches, *, weaker: frozenset[str]
) -> None:
    rare: list[str] = []
    common: dict[str, tuple[list[int], float]] = {}
    for word, counts in words.items():
        weight = counts * (NAMED if word in weaker else 1.0)
        places = rows.having(word, MOST_ROWS)
        if not places:
            _match_near(word, weight, rows, matches)
        elif len(places) < MOST_ROWS:
            rare.append(word)
            matches.add(places, weight * _rarity(len(places), rows.total))
        else:
            common[word] = (places, weight * _rarity(rows.count(word), rows.total))
    for word, (places, weight) in common.items():
        others = rare or [other for other in common if other != word]
        both = rows.having_both(word, others, MOST_ROWS) if others else []
        matches.add(sorted({*both, *(() if rare else places)}), weight)


def _match_near(word: str, weight: float, rows: IndexReader, matches: Matches) -> None:
    """Match similar words, because a word that occurs nowhere may be misspelt or inflected."""
    found = {place for near in rows.near(word) for place in rows.having(near, MOST_ROWS)}
    if found:
        matches.add(sorted(found), weight * _rarity(len(found), rows.total) / 2)


@dataclass(slots=True, kw_only=True)
class _Judge:
    """Scores turns in detail."""

    query: Query
    rows: IndexReader
    matches: Matches
    named: frozenset[str]
    needed: float
    traits: dict[int, Traits] = field(default_factory=dict)

    def best(self, limit: int, allows: Callable[[int], bool]) -> list[tuple[int, float]]:
        """Return the best turns with their scores."""
        bits, worth = self.matches.bits, self.matches.worth
        first = nlargest(CANDIDATES, bits, key=lambda place: (worth(bits[place]), place))
        near = {place + step for place in first for step in (0, *BESIDE)}
        self.traits = self.rows.traits(near)
        scored = (
            (place, self.score(place)) for place, turn in self.traits.items() if allows(turn.seq)
        )
        return nlargest(limit, (hit for hit in scored if hit[1] > 0), key=lambda hit: hit[::-1])

    def score(self, place: int) -> float:
        """Return a turn's score from its words, its neighbours, its speaker and its kind."""
        traits = self.traits[place]
        matches = self.matches
        own = matches.bits.get(place, 0)
        longer = traits.length / self.rows.length
        slope = (SATURATION + 1) / (1 + SATURATION * (1 - LENGTH + LENGTH * longer))
        score = matches.worth(own) * slope
        seen = own
        for step, counts in BESIDE.items():
            there = matches.bits.get(place + step, 0) & ~seen
            if there:
                seen |= there
                score += matches.worth(there) * (ASKED if self._answers(place, step) else counts)
        share = min(1.0, matches.worth(seen) / self.needed)
        return score * (1 - COVERED + COVERED * share) * self._fit(traits)

    def _answers(self, place: int, step: int) -> bool:
        asked = self.traits.get(place - 1)
        return step == -1 and asked is not None and bool(asked.marks & ONLY_ASKS)

    def _fit(self, traits: Traits) -> float:
        query = self.query
        fit = 1.0
        if self.named:
            fit *= SPOKEN if traits.who in self.named else 1.0
        elif traits.role in query.roles:
            fit *= MEANT
        if traits.marks & query.wants:
            fit *= FITTING
        if query.month and query.month == traits.month:
            fit *= DATED
        if query.year and query.year == traits.year:
            fit *= DATED
        if traits.marks & ONLY_ASKS:
            fit *= ASKING
        return fit * (TOOL if traits.marks & IS_TOOL else 1.0)
