"""Sessions in one SQLite file: nothing to install or start, and safe for several processes.

Each call switches to a thread only once; all writes share one thread.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from operator import call
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal, TypeVar

from aiofiles.os import wrap

from nanoloop.errors import AlreadyHeard, DiskRefused, FileRefused, SessionDamaged
from nanoloop.events import announce
from nanoloop.files import refusal
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, from_rfc3339, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.stores.database import (
    HEARD_SECONDS,
    Commit,
    HeardMessage,
    StoredSession,
    micros,
    text_of,
)
from nanoloop.stores.heartbeats import NodeFiles
from nanoloop.stores.snapshot import (
    OWES_CHAT,
    OWES_SUMMARY,
    decoding,
    encoded,
    entries_of,
    head_of,
    sections_of,
)
from nanoloop.stores.sqlite_file import (
    SessionFile,
    SqliteConnector,
    as_bytes,
    is_damage,
    primary_code,
    transaction,
)
from nanoloop.stores.store import DatabaseStore

Durability = Literal["flush", "fsync"]
PAGE = 256
"""How many rows of a long list are read at once."""

_ADVICE: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: "another process has locked it: stop it, or try again",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_READONLY: "check the permissions, or choose another place",
    sqlite3.SQLITE_CANTOPEN: "check the permissions, or choose another place",
    sqlite3.SQLITE_PERM: "check the permissions, or choose another place",
}

T = TypeVar("T")


_called = wrap(call)
"""Calls a function in a thread."""
BUSY_SECONDS = 5.0
"""How long to wait for a file that another process is writing."""


class SqliteStore(DatabaseStore):
    """A store in one file; saved data survives `kill -9` and, with `fsync`, a power loss."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "flush",
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
        read_only: bool = False,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """Create the store; a call fails if the file stays locked for over `busy_seconds`."""
        where = Path(path)
        opening = SqliteConnector(
            path=where, fsync=durability == "fsync", busy_seconds=busy_seconds, clock=clock
        )
        database = _Sqlite(SessionFile(opening, read_only=read_only))
        super().__init__(database, clock=clock, seal=seal)


class _Sqlite:
    """The sessions in one file, which other processes may also have open."""

    def __init__(self, file: SessionFile) -> None:
        self._file = file
        real = file.path.resolve()  # the same for all processes, whatever path they use
        self._nodes = NodeFiles(real.with_name(f"{real.name}.nodes"))
        # A separate thread, so that long reads never delay a save.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        self._queue = WriteQueue(file)

    # Sessions

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        return await self._write(write_insert, commit, over)

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        if not commit.rewritten:
            return await self._write(write_commit, commit, now)

        def clean(stood: int | None) -> bool:
            if stood == commit.revision:
                self._file.clean()
            return True

        return await self._erase(partial(write_commit, commit=commit, now=now), clean)

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        return await self._read(read_head, session_id)

    async def window(self, session_id: str) -> StoredSession | None:
        return await self._read(read_window, session_id)

    async def whole(self, session_id: str) -> StoredSession | None:
        return await self._read(read_whole, session_id)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        return await self._read(read_between, session_id, after, upto, limit)

    async def delete(self, session_id: str) -> None:
        work = partial(write_delete, session_id=session_id)
        await self._erase(work, lambda _: self._file.empty_log())

    async def delete_expired(self, *, now: int) -> int:
        count = 0
        while any(gone := await self._write(write_delete_expired, now)):
            count += gone[0]
        if count:
            await self._on_writer(self._file.empty_log)
        return count

    async def names(self) -> AsyncIterator[str]:
        for name in await self._read(read_names):
            yield name

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        # List all rows first, because rows written meanwhile would shift the pages.
        numbers = await self._read(read_living, now)
        for start in range(0, len(numbers), PAGE):
            for stored in await self._read(read_glances, numbers[start : start + PAGE]):
                yield stored

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        most = OWES_SUMMARY if pending else OWES_CHAT
        for owed in await self._read(read_owing, most, now):
            yield owed

    # Processes

    async def beat(self, node: Node) -> Sequence[Node]:
        # Not in the writing thread, so that long writes don't delay the heartbeat.
        return await self._in_thread(self._beat, node)

    def _beat(self, node: Node) -> Sequence[Node]:
        self._file.check_writes()
        return self._nodes.beat(node)

    async def leave(self, node_id: str) -> None:
        await self._in_thread(self._leave, node_id)

    def _leave(self, node_id: str) -> None:
        self._file.check_writes()
        self._nodes.leave(node_id)

    # Messages

    async def has_heard(self, chat: str, message_id: str) -> bool:
        return await self._read(read_has_heard, chat, message_id)

    async def heard(self) -> AsyncIterator[HeardMessage]:
        last: HeardMessage | None = None
        while page := await self._read(read_heard, last):
            for last in page:
                yield last

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        await self._write(write_heard, messages)

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._write(write_bind, key, session_id)

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        return await self._write(write_rebind, key, session_id, was)

    async def bound(self, key: str) -> str | None:
        return await self._read(read_bound, key)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        after = 0
        while page := await self._read(read_bindings, after, PAGE):
            for after, key, session_id in page:  # noqa: B007 - the last one starts the next page
                yield key, session_id

    # Threads

    async def clean(self) -> None:
        """Remove traces of replaced data from the file."""
        await self._on_writer(self._file.clean)

    async def close(self) -> None:
        await self._on_writer(self._file.let_go)
        self._writer.shutdown(wait=False)

    async def _read(self, work: Callable[..., T], *args: Any) -> T:
        return await self._in_thread(self._file.read, work, *args)

    async def _write(self, work: Callable[..., T], *args: Any) -> T:
        write = self._queue.put(lambda connection: work(connection, *args))
        return await self._on_writer(self._written, write)

    def _written(self, write: QueuedWrite) -> Any:
        self._queue.work_off()
        return write.outcome

    async def _erase(
        self, work: Callable[[sqlite3.Connection], T], clean: Callable[[T], bool]
    ) -> T:
        """Run a write, then clean the file; if interrupted, the next opening cleans it."""

        def written() -> T:
            with self._file.erasing() as is_clean:
                done: T = self._written(self._queue.put(work))
                if clean(done):
                    is_clean()
            return done

        return await self._on_writer(written)

    async def _on_writer(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return await self._in_thread(work, *args, executor=self._writer, **kwargs)

    async def _in_thread(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run work in a thread; raise `StoreError` if SQLite or the disk fails."""
        try:
            result: T = await _called(work, *args, **kwargs)
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                raise await _called(self._file.opening.told_damage, error) from error
            advice = _ADVICE.get(primary_code(error), "check the disk")
            raise DiskRefused(self._file.path, f"{error}: {advice}") from error
        except FileRefused:
            raise
        except OSError as error:
            raise DiskRefused(self._file.path, refusal(error)) from error
        finally:
            heard = self._file.opening.heard
            while heard:
                announce(heard.pop(0))
        return result


BATCH, FORGOTTEN = 50, 1000
"""How many expired sessions and message ids one transaction removes."""

# Bound as bytes, which SQLite stores unchanged as text, even half of a surrogate pair.
_STANDING = "SELECT number, rev, expires_at FROM session WHERE id = ?"
_NEW = """
    INSERT INTO session (id, rev, window_seq, updated_at, size, head) VALUES (?, 0, 0, 0, 0, '')
"""
_HEAD = """
    UPDATE session SET rev = ?, window_seq = ?, updated_at = ?, expires_at = ?, owes = ?,
    node = CAST(? AS TEXT), size = size + ?, head = CAST(? AS TEXT) WHERE number = ?
"""
_ENTRY = "INSERT INTO entry (session, seq, value) VALUES (?, ?, CAST(? AS TEXT))"
_REWRITTEN = "UPDATE entry SET value = CAST(? AS TEXT) WHERE session = ? AND seq = ?"
_HEARD = """
    INSERT INTO heard (chat, id, heard_at) VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?)
    ON CONFLICT DO NOTHING
"""
_SECTION = """
    INSERT INTO section (session, name, value) VALUES (?, ?, CAST(? AS TEXT))
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value
"""
_FORGET = """
    DELETE FROM heard WHERE (chat, id) IN (SELECT chat, id FROM heard WHERE heard_at < ? LIMIT ?)
"""
_BINDING = """
    INSERT INTO binding (key, session) VALUES (CAST(? AS TEXT), ?)
    ON CONFLICT (key) DO UPDATE SET session = excluded.session
"""


def write_insert(connection: Connection, commit: Commit, over: int | None) -> bool:
    """Like `Database.insert`, but blocking."""
    with transaction(connection):
        old = connection.execute(_STANDING, (commit.id,)).fetchone()
        if (None if old is None else old[1]) != over:
            return False
        if old is not None:
            _remove(connection, [old[0]])
        number = connection.execute(_NEW, (commit.id,)).lastrowid
        assert number is not None  # noqa: S101 - a row was inserted
        _take_in(connection, number, commit)
    return True


def write_commit(connection: Connection, commit: Commit, now: int) -> int | None:
    """Like `Database.commit`, but blocking."""
    with transaction(connection):
        row = connection.execute(_STANDING, (commit.id,)).fetchone()
        if row is None or (row[2] is not None and row[2] < now):
            return None
        number, stood, _ = row
        if stood == commit.revision:
            _take_in(connection, number, commit)
    return int(stood)


def _take_in(connection: Connection, number: int, commit: Commit) -> None:
    head = encoded(commit.head, kind="head")
    stands = commit.revision + 1, commit.window, commit.updated_at, commit.expires_at
    owed = commit.owes, as_bytes(commit.by)
    connection.execute(_HEAD, (*stands, *owed, commit.grows, head, number))
    new = zip(commit.entries, commit.texts, strict=True)
    connection.executemany(_ENTRY, [(number, entry.seq, text) for entry, text in new])
    if commit.rewritten:
        erased = [(text_of(entry), number, entry.seq) for entry in commit.rewritten]
        connection.executemany(_REWRITTEN, erased)
    for chat, name in commit.heard:
        row = (as_bytes(chat), as_bytes(name), commit.updated_at)
        if not connection.execute(_HEARD, row).rowcount:
            raise AlreadyHeard(commit.id)
    if commit.sections:
        values = [(number, name, encoded(value)) for name, value in commit.sections.items()]
        connection.executemany(_SECTION, values)


def write_delete(connection: Connection, session_id: str) -> None:
    """Like `Database.delete`, but blocking."""
    with transaction(connection):
        row = connection.execute(_STANDING, (session_id,)).fetchone()
        if row is not None:
            _remove(connection, [row[0]])


def write_delete_expired(connection: Connection, now: int) -> tuple[int, int]:
    """Do part of `Database.delete_expired`; return how many sessions and ids were removed."""
    with transaction(connection):
        rows = connection.execute(
            "SELECT number FROM session WHERE expires_at < ? LIMIT ?", (now, BATCH)
        ).fetchall()
        _remove(connection, [number for (number,) in rows])
        since = now - HEARD_SECONDS * 1_000_000
        forgotten = connection.execute(_FORGET, (since, FORGOTTEN)).rowcount
    return len(rows), forgotten


def write_heard(connection: Connection, messages: Sequence[HeardMessage]) -> None:
    """Like `Database.hear`, but blocking."""
    rows = [(as_bytes(each.chat), as_bytes(each.id), each.at) for each in messages]
    with transaction(connection):
        connection.executemany(_HEARD, rows)


def _remove(connection: Connection, numbers: Iterable[int]) -> None:
    for number in numbers:
        connection.execute("DELETE FROM entry WHERE session = ?", (number,))
        connection.execute("DELETE FROM section WHERE session = ?", (number,))
        connection.execute("DELETE FROM session WHERE number = ?", (number,))


def write_bind(connection: Connection, key: str, session_id: str) -> None:
    """Like `Database.bind`, but blocking."""
    with transaction(connection):
        connection.execute(_BINDING, (as_bytes(key), session_id))


def write_rebind(connection: Connection, key: str, session_id: str, was: str | None) -> bool:
    """Bind this key if its binding is still `was` (None: unbound)."""
    with transaction(connection):
        if read_bound(connection, key) != was:
            return False
        connection.execute(_BINDING, (as_bytes(key), session_id))
    return True


EVER = 1 << 62
"""A number greater than that of any entry."""

_SESSION = "SELECT number, head, window_seq, size, rev, updated_at FROM session WHERE id = ?"
_SECTIONS = "SELECT name, value FROM section WHERE session = ?"
_ENTRIES = """
    SELECT seq, value FROM entry WHERE session = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_HAS_HEARD = "SELECT 1 FROM heard WHERE chat = CAST(? AS TEXT) AND id = CAST(? AS TEXT)"
_ALL_HEARD = """
    SELECT chat, id, heard_at FROM heard WHERE (chat, id) >= (CAST(? AS TEXT), CAST(? AS TEXT))
    ORDER BY chat, id LIMIT ?
"""
_LIVING = """
    SELECT number FROM session WHERE expires_at IS NULL OR expires_at >= ?
    ORDER BY updated_at DESC, number DESC
"""
_GLANCES = """
    SELECT session.id, head, section.value, size FROM json_each(?) AS wanted
    JOIN session ON number = wanted.value LEFT JOIN section ON session = number AND name = ?
    ORDER BY wanted.key
"""
_OWING = """
    SELECT id, rev, node, instr(head, '"erasing"') FROM session
    WHERE owes > 0 AND owes <= ? AND (expires_at IS NULL OR expires_at >= ?) ORDER BY number
"""
_NAMES = "SELECT id FROM session ORDER BY number"
_BINDINGS = "SELECT number, key, session FROM binding WHERE number > ? ORDER BY number LIMIT ?"


def read_head(connection: Connection, session_id: str) -> Mapping[str, Any] | None:
    """Like `Database.head`, but blocking."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else head_of(session_id, row[1], json.loads)


def read_window(connection: Connection, session_id: str) -> StoredSession | None:
    """Like `Database.window`, but blocking."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _stored(connection, session_id, row, start=row[2])


def read_whole(connection: Connection, session_id: str) -> StoredSession | None:
    """Like `Database.whole`, but blocking."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    return None if row is None else _stored(connection, session_id, row, start=0)


def _stored(
    connection: Connection, session_id: str, row: tuple[Any, ...], *, start: int
) -> StoredSession:
    number, head, _, size, *columns = row
    sections = connection.execute(_SECTIONS, (number,))
    with decoding(session_id):
        stored = StoredSession(
            head=head_of(session_id, head, json.loads),
            sections=sections_of(session_id, ((n.decode(), v) for n, v in sections), json.loads),
            entries=_entries(session_id, connection, number, start - 1, EVER, -1),
            size=int(size),
        )
        if columns != [stored.head["rev"], micros(from_rfc3339(stored.head["updated_at"]))]:
            raise SessionDamaged(session_id, "its row and its head disagree")
    return stored


def read_between(
    connection: Connection, session_id: str, after: int, upto: int | None, limit: int | None
) -> Sequence[Entry]:
    """Like `Database.between`, but blocking."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        return []
    bounds = (after, EVER if upto is None else upto, -1 if limit is None else limit)
    return _entries(session_id, connection, row[0], *bounds)


def read_living(connection: Connection, now: int) -> list[int]:
    """Return the row numbers of all unexpired sessions, most recently changed first."""
    return [number for (number,) in connection.execute(_LIVING, (now,))]


def read_glances(
    connection: Connection, numbers: Sequence[int]
) -> list[StoredSession | SessionDamaged]:
    """Return overviews of the sessions in these rows; deleted ones are skipped."""
    rows = connection.execute(_GLANCES, (json.dumps(numbers), ABOUT))
    return [
        StoredSession.glance(_text(name), head, about, size, json.loads)
        for name, head, about, size in rows
    ]


def read_names(connection: Connection) -> list[str]:
    """Return the ids of all sessions."""
    return [_text(name) for (name,) in connection.execute(_NAMES)]


def read_owing(connection: Connection, most: int, now: int) -> list[OwedSession]:
    """Return the unexpired sessions with pending work up to kind `most`."""
    return [
        OwedSession(id=_text(name), revision=revision, by=_text(node), erasing=erasing != 0)
        for name, revision, node, erasing in connection.execute(_OWING, (most, now))
    ]


def read_has_heard(connection: Connection, chat: str, message_id: str) -> bool:
    """Like `Database.has_heard`, but blocking."""
    wanted = as_bytes(chat), as_bytes(message_id)
    return connection.execute(_HAS_HEARD, wanted).fetchone() is not None


def read_heard(connection: Connection, after: HeardMessage | None) -> list[HeardMessage]:
    """Return the next page of recorded messages after this one."""
    place = (b"", b"") if after is None else (as_bytes(after.chat), as_bytes(after.id))
    rows = connection.execute(_ALL_HEARD, (*place, PAGE + 1))
    found = [HeardMessage(chat=_text(chat), id=_text(name), at=at) for chat, name, at in rows]
    return [message for message in found if message != after]


def read_bound(connection: Connection, key: str) -> str | None:
    """Like `Database.bound`, but blocking."""
    found = connection.execute(
        "SELECT session FROM binding WHERE key = CAST(? AS TEXT)", (as_bytes(key),)
    ).fetchone()
    return None if found is None else _text(found[0])


def read_bindings(connection: Connection, after: int, limit: int) -> list[tuple[int, str, str]]:
    """Return the next `limit` rows of keys after this row, with their sessions."""
    rows = connection.execute(_BINDINGS, (after, limit))
    return [(number, _text(key), _text(session_id)) for number, key, session_id in rows]


def _entries(session_id: str, connection: Connection, *which: Any) -> list[Entry]:
    return entries_of(session_id, connection.execute(_ENTRIES, which), json.loads)


def _text(data: bytes) -> str:
    """Decode bytes as text; replace invalid bytes, such as those after damage."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


TOGETHER = 64
"""The maximum number of writes in one transaction."""


class QueuedWrite:
    """A queued write and its outcome."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def on(self, connection: sqlite3.Connection) -> None:
        """Run the write; an error that the file did not cause fails only this write."""
        try:
            self._result = self._work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - raised again for the caller
            self._error = error

    def fail(self, error: Exception) -> None:
        """Record this error as the write's outcome."""
        self._error = error

    @property
    def outcome(self) -> Any:
        """The write's result; raises its error if it failed."""
        if self._error is not None:
            raise self._error
        return self._result


class WriteQueue:
    """A queue of writes from the event loop for the writing thread."""

    def __init__(self, file: SessionFile) -> None:
        self._file = file
        self._waiting: deque[QueuedWrite] = deque()

    def put(self, work: Callable[[sqlite3.Connection], Any]) -> QueuedWrite:
        """Queue a write; the next `work_off` performs it."""
        self._waiting.append(write := QueuedWrite(work))
        return write

    def work_off(self) -> None:
        """Perform all queued writes."""
        while writes := [self._waiting.popleft() for _ in range(min(len(self._waiting), TOGETHER))]:
            self._do(writes)

    def _do(self, writes: Sequence[QueuedWrite]) -> None:
        try:
            self._file.write(_together if len(writes) > 1 else _alone, writes)
        except Exception as error:  # noqa: BLE001 - raised again for each caller
            is_one_too_big = isinstance(error, sqlite3.Error) and not _is_busy(error)
            for write in writes:
                if len(writes) > 1 and is_one_too_big:
                    self._do([write])
                else:
                    write.fail(error)


def _alone(connection: sqlite3.Connection, writes: Sequence[QueuedWrite]) -> None:
    writes[0].on(connection)


def _together(connection: sqlite3.Connection, writes: Sequence[QueuedWrite]) -> None:
    with transaction(connection):
        for write in writes:
            write.on(connection)


def _is_busy(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_BUSY
