"""One session's turns in the index, as ranking reads them."""

from __future__ import annotations

import difflib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from nanoloop.errors import IndexUnusable
from nanoloop.memory.ranking import Traits
from nanoloop.memory.rows import PLACES, standing_of
from nanoloop.session.entry import Entry

COUNTED = 10_000
"""Turns with a word that are counted; in more of them it is as good as in all."""
LOOKED_AT = 400
"""Words that are compared with one that isn't there."""


class Reading:
    """One session's rows, as ranking sees them. No other session's turn is in it."""

    def __init__(
        self,
        session_id: str,
        connection: Callable[[], sqlite3.Connection | None],
        lock: threading.Lock,
    ) -> None:
        self._id = session_id
        self._connected = connection
        self._lock = lock
        self.total = 0
        self.length = 1.0
        self._first = self._last = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            self._connection = self._opened()
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _opened(self) -> sqlite3.Connection:
        connection = self._connected()
        if connection is None:
            raise IndexUnusable("the recall index was closed")
        return connection

    def _begin(self) -> None:
        known = standing_of(self._connection, self._id)
        if known is not None and known.turns:
            self.total = known.turns
            self.length = max(1.0, known.words / known.turns)
            self._first = known.number << PLACES
            self._last = self._first + (1 << PLACES) - 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _places(self, condition: str, limit: int) -> list[int]:
        # One row with all of them: a step of SQLite lets go of the interpreter, and a thousand
        # steps would wait a thousand times for a busy event loop.
        rows = (
            "SELECT rowid - ? AS place FROM said WHERE said MATCH ? AND rowid BETWEEN ? AND ? "
            "ORDER BY rowid DESC LIMIT ?"
        )
        values = (self._first, condition, self._first, self._last, limit)
        found: list[int] = self._listed(f"SELECT json_group_array(place) FROM ({rows})", values)  # noqa: S608 - our own words
        return found

    def _listed(self, sql: str, values: Sequence[Any]) -> Any:
        return json.loads(self._connection.execute(sql, values).fetchone()[0])

    def having(self, word: str, limit: int) -> list[int]:
        """The places of turns with this word, the newest ones, so many at most."""
        return self._places(_quoted(word), limit)

    def having_both(self, word: str, others: Sequence[str], limit: int) -> list[int]:
        """The places of turns with this word and one of the others."""
        either = " OR ".join(map(_quoted, others))
        return self._places(f"{_quoted(word)} AND ({either})", limit)

    def count(self, word: str) -> int:
        """How many turns have this word, counted up to a bound."""
        sql = (
            "SELECT count(*) FROM (SELECT 1 FROM said WHERE said MATCH ? "
            "AND rowid BETWEEN ? AND ? LIMIT ?)"
        )
        values = (_quoted(word), self._first, self._last, COUNTED)
        counted: int = self._connection.execute(sql, values).fetchone()[0]
        return self.total if counted == COUNTED else counted

    def near(self, word: str) -> list[str]:
        """Words that are spelled much like this one, or begin with most of it."""
        if len(word) < 4 or not word.isalpha() or not word.isascii():  # noqa: PLR2004 - shorter ones all look alike
            return []
        sql = (
            "SELECT json_group_array(term) FROM (SELECT term FROM vocabulary "
            "WHERE term >= ? AND term < ? LIMIT ?)"
        )
        known = self._listed(sql, (word[:2], word[:2] + "\U0010ffff", LOOKED_AT))
        near: list[str] = difflib.get_close_matches(word, known, n=3, cutoff=0.8)
        return near

    def speakers(self) -> list[str]:
        """The names of all who spoke."""
        number = self._first >> PLACES
        sql = "SELECT json_group_array(name) FROM speaker WHERE number = ?"
        found: list[str] = self._listed(sql, (number,))
        return found

    def traits(self, places: Iterable[int]) -> dict[int, Traits]:
        """What is known of these turns; those that are gone are left out."""
        found = self._turns("row - ?, seq, who, role, length, marks, year, month", places)
        return {turn[0]: Traits(*turn) for turn in found}

    def entries(self, places: Iterable[int]) -> dict[int, Entry]:
        """The entries at these places; those that are gone are left out."""
        found = self._turns("row - ?, seq, entry", places)
        return {place: Entry.from_dict(json.loads(text), seq=seq) for place, seq, text in found}

    def _turns(self, columns: str, places: Iterable[int]) -> list[list[Any]]:
        wanted = json.dumps([self._first + place for place in places if place >= 0])
        sql = (
            f"SELECT json_group_array(json_array({columns})) FROM turn "  # noqa: S608 - our own words
            "WHERE row IN (SELECT value FROM json_each(?)) AND row BETWEEN ? AND ?"
        )
        found: list[list[Any]] = self._listed(sql, (self._first, wanted, self._first, self._last))
        return found


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'
