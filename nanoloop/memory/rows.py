"""The rows of the recall index: a session's standing, its turns and the words in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.memory.words import IS_TOOL, marks_of, plain, words_of
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry

PLACES = 32
"""Bits of a row number that say the place in its session; the others say which session."""
TOOL_CHARS = 2000
"""Characters of a tool's arguments or result that can be found."""

SCHEMA = """
CREATE TABLE format (version TEXT NOT NULL);
CREATE TABLE session (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, born TEXT NOT NULL,
    reach INTEGER NOT NULL, turns INTEGER NOT NULL, words INTEGER NOT NULL
);
CREATE TABLE speaker (
    number INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (number, name)
) WITHOUT ROWID;
CREATE TABLE turn (
    row INTEGER PRIMARY KEY, seq INTEGER NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL,
    length INTEGER NOT NULL, marks INTEGER NOT NULL, year INTEGER NOT NULL,
    month INTEGER NOT NULL, entry TEXT NOT NULL
);
CREATE VIRTUAL TABLE said USING fts5(
    words, content='', detail=none, columnsize=0,
    tokenize="porter unicode61 remove_diacritics 0 categories 'L* N* M* Co'"
);
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(said, row);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a session is indexed."""

    number: int
    born: str
    reach: int
    turns: int
    words: int


def standing_of(connection: sqlite3.Connection, session_id: str) -> Standing | None:
    """How far this session is indexed; None where nothing of it is."""
    sql = "SELECT number, born, reach, turns, words FROM session WHERE id = ?"
    row = connection.execute(sql, (session_id,)).fetchone()
    names = ("number", "born", "reach", "turns", "words")
    return Standing(**dict(zip(names, row, strict=True))) if row else None


def begin(connection: sqlite3.Connection, session_id: str, born: str) -> Standing:
    """Make room for a session of which nothing is known."""
    sql = "INSERT INTO session(id, born, reach, turns, words) VALUES (?, ?, 0, 0, 0)"
    number = connection.execute(sql, (session_id, born)).lastrowid
    assert number is not None  # noqa: S101 - an insert has a row
    return Standing(number=number, born=born, reach=0, turns=0, words=0)


def add(
    connection: sqlite3.Connection, known: Standing, entries: Sequence[Entry], reach: int
) -> None:
    """Take in entries that are new, and note how far that goes."""
    turns, words = known.turns, known.words
    for entry in entries:
        text = said_in(entry)
        if entry.seq <= known.reach or not text.strip():
            continue
        turns += 1
        words += _insert(connection, known.number, turns, entry, text)
    connection.execute(
        "UPDATE session SET reach = max(reach, ?), turns = ?, words = ? WHERE number = ?",
        (reach, turns, words, known.number),
    )


def _insert(
    connection: sqlite3.Connection, number: int, place: int, entry: Entry, text: str
) -> int:
    row = (number << PLACES) + place
    found = words_of(text)
    who = speaker_of(entry)
    at = entry.timestamp
    marks = marks_of(text) | (IS_TOOL if entry.type != MESSAGE else 0)
    values = (row, entry.seq, who, entry.role or "tool", len(found), marks, at.year, at.month)
    sql = "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    connection.execute(sql, (*values, entry.to_json()))
    connection.execute("INSERT INTO said(rowid, words) VALUES (?, ?)", (row, " ".join(found)))
    if who:
        connection.execute("INSERT OR IGNORE INTO speaker VALUES (?, ?)", (number, who))
    return len(found)


def forget(connection: sqlite3.Connection, number: int, seqs: set[int] | None) -> None:
    """Remove these entries of a session, or all that there is of it."""
    first, last = number << PLACES, (number << PLACES) + (1 << PLACES) - 1
    rows = connection.execute(
        "SELECT row, seq, entry FROM turn WHERE row BETWEEN ? AND ?", (first, last)
    )
    for row, seq, text in rows.fetchall():
        if seqs is None or seq in seqs:
            words = " ".join(words_of(said_in(Entry.from_json(text))))
            sql = "INSERT INTO said(said, rowid, words) VALUES ('delete', ?, ?)"
            connection.execute(sql, (row, words))
            connection.execute("DELETE FROM turn WHERE row = ?", (row,))
    if seqs is None:
        connection.execute("DELETE FROM speaker WHERE number = ?", (number,))
        connection.execute("DELETE FROM session WHERE number = ?", (number,))


def said_in(entry: Entry) -> str:
    """What can be found of an entry; "" for a thought and for what recall itself brought up."""
    content = entry.content
    if entry.type == MESSAGE:
        return str(content.get("text") or "") if entry.role != "system" else ""
    if content.get("tool") == "recall":
        return ""
    if entry.type == TOOL_CALL:
        return f"{content.get('tool')} {_shortened(content.get('parameters'))}"
    if entry.type == TOOL_RESULT:
        outcome = content.get("result") if content.get("success", True) else content.get("error")
        return f"{content.get('tool')} {_shortened(outcome)}"
    return ""


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:TOOL_CHARS]


def speaker_of(entry: Entry) -> str:
    """Who said it, in plain words: the sender, or the name that stands before the text."""
    sender = entry.metadata.get("sender")
    if sender:
        return " ".join(words_of(str(sender)))
    name, colon, _ = str(entry.content.get("text") or "")[:40].partition(":")
    is_name = colon and name[:1].isupper() and name.replace(" ", "").isalpha()
    return plain(name).strip() if is_name and len(name.split()) <= 3 else ""  # noqa: PLR2004 - longer is a sentence
