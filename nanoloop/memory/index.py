"""The search index: a file beside the store, which can be rebuilt from the store."""

from __future__ import annotations

import difflib
import json
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nanoloop.errors import IndexUnusable
from nanoloop.files import locked_file, make_database_file, make_folder
from nanoloop.memory.ranking import Traits
from nanoloop.memory.terms import IS_TOOL, marks_of, plain, words_of
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry
from nanoloop.session.speech import other_words

FORMAT = f"1 {unicodedata.unidata_version}"
"""The version of the file's format; a file in any other version is rebuilt."""
_BESIDE, _DAMAGED = ("-wal", "-shm"), ".damaged"
ALONE_SECONDS = 10
"""How long to wait for another process that is creating the file."""


class Index:
    """An index of turns by session and entry number, and of the words in them.

    `path` is the file; if it is None, the index is kept in memory.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path is not None else None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._writing = threading.Lock()
        self._reading = threading.Lock() if path is not None else self._writing
        self.opened = 0
        """How many times the file was opened."""
        self.set_aside: Path | None = None
        """Where a damaged file was moved to, until this is reported."""

    # Opening

    def _open(self) -> sqlite3.Connection:
        """Return the connection for writing; the caller must hold the writing lock."""
        if self._writer is None:
            if self._path is not None:
                make_folder(self._path.parent)
            self.opened += 1
            with nullcontext() if self._path is None else _alone_at(self._path):
                self._writer = self._ready()
            self._reader = self._writer if self._path is None else self._connect()
        return self._writer

    def _ready(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            if _format(connection) == FORMAT:
                self._settle(connection)  # finish an interrupted removal
                return connection
        except sqlite3.DatabaseError:
            connection.close()
            self._put_aside()
        else:
            connection.close()
            self._remove()
        connection = self._connect()
        _create(connection)
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            make_database_file(self._path)
        connection = sqlite3.connect(
            self._path or ":memory:", isolation_level=None, check_same_thread=False, timeout=10
        )
        with suppress(sqlite3.DatabaseError):  # a damaged file raises again when read
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA cache_size = -16000")
        return connection

    def _put_aside(self) -> None:
        assert self._path is not None  # noqa: S101 - an index in memory is never damaged
        target = self._aside(self._path)
        self._path.replace(target)
        self._remove()
        self.set_aside = target

    @staticmethod
    def _aside(path: Path) -> Path:
        return path.with_name(f"{path.name}{_DAMAGED}")

    def _remove(self) -> None:
        if self._path is not None:
            for suffix in ("", *_BESIDE):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def start_anew(self, opened: int) -> None:
        """Move a damaged file aside; the next use creates a new one."""
        with self._writing:
            if opened != self.opened:  # another thread has already done so
                return
            self._close()
            if self._path is not None and self._path.exists():
                self._put_aside()

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        with self._writing:
            self._close()

    def _close(self) -> None:
        # The reader last, because the last connection to close removes the extra files.
        with self._reading if self._reading is not self._writing else nullcontext():
            for connection in {self._writer, self._reader} - {None}:
                connection.close()  # type: ignore[union-attr]
            self._writer = self._reader = None

    # Writing

    def settle(self) -> None:
        """Remove what is left of forgotten words, for example after the process was killed."""
        with self._writing:
            self._settle(self._open())

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Rewrite the parts of the file and its log that may still contain forgotten words."""
        noted = _unsettled(connection)
        if not noted:
            return
        # Until it is merged, the full-text index keeps removed words with a deletion mark.
        connection.execute("INSERT INTO said(said) VALUES ('optimize')")
        is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        with _commit(connection):
            # Another process may have forgotten more words in the meantime, or may be reading the
            # log.
            if not is_busy and _unsettled(connection) == noted:
                connection.execute("PRAGMA user_version = 0")

    def standing(self, session_id: str) -> IndexedUpTo | None:
        """Return how far this session is indexed, or None if it is not."""
        with self._writing:
            return standing_of(self._open(), session_id)

    def sessions(self) -> dict[str, str]:
        """Return the indexed sessions, each with the version (`born`) that was indexed."""
        with self._writing:
            rows = self._open().execute("SELECT json_group_object(id, born) FROM session")
            found: dict[str, str] = json.loads(rows.fetchone()[0])
        return found

    def add(self, session_id: str, born: str, entries: Sequence[Entry], reach: int) -> bool:
        """Index these entries and record how far the index reaches, in one commit.

        First remove all entries of an older session with the same name, and anything that was
        indexed before an erasure. If a later state is already indexed, return False and add
        nothing.
        """
        with self._writing:
            connection = self._open()
            with _commit(connection):
                known = standing_of(connection, session_id)
                if known is not None and known.born != born:
                    if is_up_to_date(known.born, born):
                        return False
                    self._forget(connection, known)
                    known = None
                add(connection, known or begin(connection, session_id, born), entries, reach)
            self._settle(connection)
        return True

    def forget(
        self,
        session_id: str,
        seqs: Iterable[int] | None = None,
        *,
        born: Sequence[str] = (),
    ) -> None:
        """Remove a session or some of its entries, including their words in the file.

        `born` lists the session's earlier versions, followed by the current one. If any other
        version of the session is indexed, the whole session is removed.
        """
        with self._writing:
            if self._path is not None:  # its content is unknown, so it may contain these words
                self._aside(self._path).unlink(missing_ok=True)
            connection = self._open()
            with _commit(connection):
                known = standing_of(connection, session_id)
                if known is not None:
                    self._forget(connection, known, seqs, born)
            self._settle(connection)

    def _forget(
        self,
        connection: sqlite3.Connection,
        known: IndexedUpTo,
        seqs: Iterable[int] | None = None,
        born: Sequence[str] = (),
    ) -> None:
        is_whole = seqs is None or (bool(born) and known.born not in born)
        forget(connection, known.number, None if is_whole else set(seqs or ()))
        if born and not is_whole:
            sql = "UPDATE session SET born = ? WHERE number = ?"
            connection.execute(sql, (born[-1], known.number))
        connection.execute(f"PRAGMA user_version = {_unsettled(connection) % _MOST_UNSETTLED + 1}")

    # Reading

    def reading(self, session_id: str, born: str) -> IndexReader:
        """Return a reader for one session's turns, to be used in a `with` statement.

        It finds nothing while the index may still contain entries that were erased.
        """
        if self._reader is None:  # otherwise, reading waits for no writer
            with self._writing:
                self._open()
        return IndexReader(session_id, born, lambda: self._reader, self._reading)


_MOST_UNSETTLED = 1_000_000_000


def _unsettled(connection: sqlite3.Connection) -> int:
    """Return how often words were removed since the last cleanup, or 0 if the file is clean."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def index_files(path: Path) -> list[Path]:
    """Return the paths of all files that an index at this path may use, existing or not."""
    return [path.with_name(path.name + suffix) for suffix in ("", *_BESIDE, _DAMAGED)]


def is_up_to_date(known: str, born: str) -> bool:
    """Return True if the indexed version `known` has nothing that the version `born` has erased."""
    (made, _, erasures), (now, _, wanted) = known.partition(" "), born.partition(" ")
    return made == now and int(erasures or 0) >= int(wanted or 0)


@contextmanager
def _alone_at(path: Path) -> Iterator[None]:
    """Prevent other processes from creating or replacing the file.

    Raise `IndexUnusable` if another process keeps its lock for too long.
    """
    beside, give_up = path.with_name(f".{path.name}.lock"), time.monotonic() + ALONE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked_file(beside))
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise IndexUnusable(f"another process is creating {path}") from None
                time.sleep(0.01)
        stack.callback(beside.unlink, missing_ok=True)  # while it is still locked
        yield


def _format(connection: sqlite3.Connection) -> str | None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return None
    has_format = "SELECT count(*) FROM sqlite_master WHERE name = 'format'"
    if not connection.execute(has_format).fetchone()[0]:
        raise sqlite3.DatabaseError("the file belongs to another program")
    row = connection.execute("SELECT version FROM format").fetchone()
    return str(row[0]) if row else None


def _create(connection: sqlite3.Connection) -> None:
    try:
        connection.executescript(f"BEGIN;{SCHEMA}")
        connection.execute("INSERT INTO format VALUES (?)", (FORMAT,))
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        raise IndexUnusable(
            "this Python's SQLite is built without FTS5: set recall.enabled to false, "
            "or use another build of Python"
        ) from error


@contextmanager
def _commit(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all changes; if an error is raised, commit none of them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


COUNTED = 10_000
"""How many turns are counted per word; a more frequent word counts as being in every turn."""
LOOKED_AT = 400
"""How many words are compared with a word that occurs nowhere."""


class IndexReader:
    """A reader of one session's rows, for ranking; it never sees another session's turns."""

    def __init__(
        self,
        session_id: str,
        born: str,
        connection: Callable[[], sqlite3.Connection | None],
        lock: threading.Lock,
    ) -> None:
        self._id = session_id
        self._born = born
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
        if known is not None and known.turns and is_up_to_date(known.born, self._born):
            self.total = known.turns
            self.length = max(1.0, known.words / known.turns)
            self._first = known.number << PLACES
            self._last = self._first + (1 << PLACES) - 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _places(self, condition: str, limit: int) -> list[int]:
        # All in one row: SQLite releases the interpreter lock at each step, so a thousand rows
        # would wait a thousand times for a busy event loop.
        rows = (
            "SELECT rowid - ? AS place FROM said WHERE said MATCH ? AND rowid BETWEEN ? AND ? "
            "ORDER BY rowid DESC LIMIT ?"
        )
        values = (self._first, condition, self._first, self._last, limit)
        found: list[int] = self._listed(f"SELECT json_group_array(place) FROM ({rows})", values)  # noqa: S608 - built from constants only
        return found

    def _listed(self, sql: str, values: Sequence[Any]) -> Any:
        return json.loads(self._connection.execute(sql, values).fetchone()[0])

    def having(self, word: str, limit: int) -> list[int]:
        """Return the newest turns with this word, at most `limit`."""
        return self._places(_quoted(word), limit)

    def having_both(self, word: str, others: Sequence[str], limit: int) -> list[int]:
        """Return the turns with this word and one of the others."""
        either = " OR ".join(map(_quoted, others))
        return self._places(f"{_quoted(word)} AND ({either})", limit)

    def count(self, word: str) -> int:
        """Return how many turns have this word, counting up to a limit."""
        sql = (
            "SELECT count(*) FROM (SELECT 1 FROM said WHERE said MATCH ? "
            "AND rowid BETWEEN ? AND ? LIMIT ?)"
        )
        values = (_quoted(word), self._first, self._last, COUNTED)
        counted: int = self._connection.execute(sql, values).fetchone()[0]
        return self.total if counted == COUNTED else counted

    def near(self, word: str) -> list[str]:
        """Return words with a similar spelling or the same beginning."""
        if len(word) < 4 or not word.isalpha() or not word.isascii():  # noqa: PLR2004 - shorter words are all similar
            return []
        sql = (
            "SELECT json_group_array(term) FROM (SELECT term FROM vocabulary "
            "WHERE term >= ? AND term < ? LIMIT ?)"
        )
        known = self._listed(sql, (word[:2], word[:2] + "\U0010ffff", LOOKED_AT))
        near: list[str] = difflib.get_close_matches(word, known, n=3, cutoff=0.8)
        return near

    def speakers(self) -> list[str]:
        """Return the names of all speakers."""
        number = self._first >> PLACES
        sql = "SELECT json_group_array(name) FROM speaker WHERE number = ?"
        found: list[str] = self._listed(sql, (number,))
        return found

    def traits(self, places: Iterable[int]) -> dict[int, Traits]:
        """Return the traits of these turns; skip missing turns."""
        found = self._turns("row - ?, seq, who, role, length, marks, year, month", places)
        return {turn[0]: Traits(*turn) for turn in found}

    def entries(self, places: Iterable[int]) -> dict[int, Entry]:
        """Return the entries at these places; skip missing entries."""
        found = self._turns("row - ?, seq, entry", places)
        return {place: Entry.from_dict(json.loads(text), seq=seq) for place, seq, text in found}

    def _turns(self, columns: str, places: Iterable[int]) -> list[list[Any]]:
        wanted = json.dumps([self._first + place for place in places if place >= 0])
        sql = (
            f"SELECT json_group_array(json_array({columns})) FROM turn "  # noqa: S608 - built from constants only
            "WHERE row IN (SELECT value FROM json_each(?)) AND row BETWEEN ? AND ?"
        )
        found: list[list[Any]] = self._listed(sql, (self._first, wanted, self._first, self._last))
        return found


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


PLACES = 32
"""How many bits of a row number give the place within the session; the rest give the session."""
TOOL_CHARS = 2000
"""How many characters of a tool's arguments or result are indexed."""

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
class IndexedUpTo:
    """How much of a session is indexed."""

    number: int
    born: str
    reach: int
    turns: int
    words: int


def standing_of(connection: sqlite3.Connection, session_id: str) -> IndexedUpTo | None:
    """Return how far this session is indexed, or None if it is not."""
    sql = "SELECT number, born, reach, turns, words FROM session WHERE id = ?"
    row = connection.execute(sql, (session_id,)).fetchone()
    names = ("number", "born", "reach", "turns", "words")
    return IndexedUpTo(**dict(zip(names, row, strict=True))) if row else None


def begin(connection: sqlite3.Connection, session_id: str, born: str) -> IndexedUpTo:
    """Add a record for a new session."""
    sql = "INSERT INTO session(id, born, reach, turns, words) VALUES (?, ?, 0, 0, 0)"
    number = connection.execute(sql, (session_id, born)).lastrowid
    assert number is not None  # noqa: S101 - an insert has a row
    return IndexedUpTo(number=number, born=born, reach=0, turns=0, words=0)


def add(
    connection: sqlite3.Connection, known: IndexedUpTo, entries: Sequence[Entry], reach: int
) -> None:
    """Index new entries, and record how far the index reaches."""
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
    """Remove these entries from a session; None means all of them."""
    first, last = number << PLACES, (number << PLACES) + (1 << PLACES) - 1
    speakers = set()
    sql = "SELECT row, entry, who FROM turn WHERE row BETWEEN ? AND ?"
    among = " AND seq IN (SELECT value FROM json_each(?))"
    values = (first, last) if seqs is None else (first, last, json.dumps([*seqs]))
    for row, text, who in connection.execute(sql + among * (seqs is not None), values).fetchall():
        speakers.add(who)
        words = " ".join(words_of(said_in(Entry.from_json(text))))
        connection.execute(
            "INSERT INTO said(said, rowid, words) VALUES ('delete', ?, ?)", (row, words)
        )
        connection.execute("DELETE FROM turn WHERE row = ?", (row,))
    unheard = (
        "DELETE FROM speaker WHERE number = ? AND name = ? "
        "AND NOT EXISTS (SELECT 1 FROM turn WHERE row BETWEEN ? AND ? AND who = name)"
    )
    connection.executemany(unheard, [(number, who, first, last) for who in speakers])
    if seqs is None:
        connection.execute("DELETE FROM speaker WHERE number = ?", (number,))
        connection.execute("DELETE FROM session WHERE number = ?", (number,))


def said_in(entry: Entry) -> str:
    """Return an entry's searchable text, or "" for reasoning and recall results."""
    content = entry.content
    if entry.type == MESSAGE:
        said = (str(content.get("text") or ""), other_words(entry))
        return "\n".join(filter(None, said)) if entry.role != "system" else ""
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
    """Return the speaker's plain name: the sender, or the name before a colon in the text."""
    sender = entry.metadata.get("sender")
    if sender:
        return " ".join(words_of(str(sender)))
    name, colon, _ = str(entry.content.get("text") or "")[:40].partition(":")
    is_name = colon and name[:1].isupper() and name.replace(" ", "").isalpha()
    return plain(name).strip() if is_name and len(name.split()) <= 3 else ""  # noqa: PLR2004 - anything longer is a sentence
