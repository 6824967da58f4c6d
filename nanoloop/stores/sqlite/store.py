"""Sessions in one SQLite file: nothing to install or to start, and safe for several processes.

Each call is one visit to a thread, and all that is written shares one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiofiles.os import wrap

from nanoloop.errors import SessionDamaged, StoreError
from nanoloop.events import Announce, silent
from nanoloop.files import ProcessLock, refusal
from nanoloop.protocols import Seal
from nanoloop.session.entry import Entry, utc_now
from nanoloop.stores.database import Commit, Stored
from nanoloop.stores.sqlite import reading, writing
from nanoloop.stores.sqlite.damage import is_damage, primary_code
from nanoloop.stores.sqlite.file import SessionFile
from nanoloop.stores.sqlite.opening import Opening
from nanoloop.stores.sqlite.queue import Write, WriteQueue
from nanoloop.stores.store import DatabaseStore

Durability = Literal["flush", "fsync"]
PAGE = 256
"""Rows that one visit reads of a long list."""

_ADVICE: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: "another process holds it: stop that one, or try again",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_READONLY: "choose a place that may be written in",
    sqlite3.SQLITE_CANTOPEN: "choose a place that may be written in",
    sqlite3.SQLITE_PERM: "choose a place that may be written in",
}

T = TypeVar("T")


class _Sqlite:
    """One file; other processes may have it open too."""

    def __init__(self, file: SessionFile, *, announce: Announce) -> None:
        self._file = file
        self._announce = announce
        # A thread of its own: no number of long reads keeps a save waiting for one.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
        self._queue = WriteQueue(file)

    # Sessions

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        return await self._write(writing.insert, commit, over)

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        stood = await self._write(writing.commit, commit, now)
        if commit.rewritten and stood == commit.revision:
            await self._on_writer(self._file.clean)
        return stood

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        return await self._read(reading.head, session_id)

    async def window(self, session_id: str) -> Stored | None:
        return await self._read(reading.window, session_id)

    async def whole(self, session_id: str) -> Stored | None:
        return await self._read(reading.whole, session_id)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        return await self._read(reading.between, session_id, after, upto, limit)

    async def delete(self, session_id: str) -> None:
        await self._write(writing.delete, session_id)
        await self._on_writer(self._file.empty_log)

    async def delete_expired(self, *, now: int) -> int:
        count = 0
        while removed := await self._write(writing.delete_expired, now):
            count += removed
        return count

    async def names(self) -> AsyncIterator[str]:
        for name in await self._read(reading.names):
            yield name

    async def glances(self, *, now: int) -> AsyncIterator[Stored | SessionDamaged]:
        # All rows first: what is written meanwhile must not move the pages under our feet.
        numbers = await self._read(reading.living, now)
        for start in range(0, len(numbers), PAGE):
            for stored in await self._read(reading.glances, numbers[start : start + PAGE]):
                yield stored

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._write(writing.bind, key, session_id)

    async def bound(self, key: str) -> str | None:
        return await self._read(reading.bound, key)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        after = 0
        while page := await self._read(reading.bindings, after, PAGE):
            for after, key, session_id in page:  # noqa: B007 - the last one is where to go on
                yield key, session_id

    # Threads

    async def close(self) -> None:
        await self._on_writer(self._file.let_go)
        self._writer.shutdown(wait=False)

    async def _read(self, work: Callable[..., T], *args: Any) -> T:
        return await self._in_thread(self._file.read, work, *args)

    async def _write(self, work: Callable[..., T], *args: Any) -> T:
        write = self._queue.put(lambda connection: work(connection, *args))
        return await self._on_writer(self._written, write)

    def _written(self, write: Write) -> Any:
        self._queue.work_off()
        return write.outcome

    async def _on_writer(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return await self._in_thread(work, *args, executor=self._writer, **kwargs)

    async def _in_thread(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """One hop to a thread and back; what SQLite or the disk refuses is a `StoreError`."""
        try:
            result: T = await wrap(work)(*args, **kwargs)
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                raise await wrap(self._file.opening.told_damage)(error) from error
            advice = _ADVICE.get(primary_code(error), "check the disk")
            raise self._refused(f"{error}: {advice}") from error
        except OSError as error:
            raise self._refused(refusal(error)) from error
        finally:
            heard = self._file.opening.heard
            while heard:
                self._announce(heard.pop(0))
        return result

    def _refused(self, what: str) -> StoreError:
        return StoreError(
            f"the store in {self._file.path} failed: {what}; what was saved before still is"
        )


class SqliteStore(DatabaseStore):
    """A file of sessions. What is saved survives `kill -9`, and with `fsync` a power loss too."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "flush",
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
        announce: Announce = silent,
        exclusive: bool = False,
        read_only: bool = False,
        busy_seconds: float = 5,
    ) -> None:
        """With `exclusive` no other process may do the same; one that only reads always may.

        What another process holds for more than `busy_seconds` fails.
        """
        where = Path(path)
        opening = Opening(
            path=where, fsync=durability == "fsync", busy_seconds=busy_seconds, clock=clock
        )
        lock = ProcessLock(where.with_name(f"{where.name}.lock"), of=where, clock=clock)
        file = SessionFile(opening, read_only=read_only, lock=lock if exclusive else None)
        database = _Sqlite(file, announce=announce)
        super().__init__(database, clock=clock, seal=seal, announce=announce)
