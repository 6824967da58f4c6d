"""Sessions as files that a pager can show: one a session, one line an entry, only ever added to."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiofiles.os import wrap

from nanoloop.errors import SessionDamaged, StoreError
from nanoloop.events import Event, FileUnreadable, announce
from nanoloop.files import (
    ProcessLock,
    file_name,
    former_file_name,
    make_folder,
    name_of,
    put_file,
    read_file,
    refusal,
    rename_former,
)
from nanoloop.protocols import Seal
from nanoloop.session.entry import Entry, from_rfc3339, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.stores.database import Commit, StoredSession, micros
from nanoloop.stores.jsonl.journal import AsyncJournal, Journal, OpenFiles
from nanoloop.stores.jsonl.log_file import copy_of
from nanoloop.stores.jsonl.reading import glance
from nanoloop.stores.snapshot import decoding, expiry
from nanoloop.stores.store import DatabaseStore

SUFFIX = ".jsonl"
LOCK = ".lock"
KEYS = "keys"
"""The folder of bindings, in the folder of sessions."""

Durability = Literal["flush", "fsync"]
WRITERS: Mapping[Durability, int] = {"flush": 1, "fsync": 8}
"""Threads of their own that commit: no number of long reads keeps a save waiting for one.

Without a disk to wait for, a second one would only take turns with the first.
"""
BATCH = 64
"""Files that one visit of a thread looks at."""
T = TypeVar("T")


class JsonlStore(DatabaseStore):
    """A folder of sessions, owned by one process at a time."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "flush",
        clock: Callable[[], datetime] = utc_now,
        open_files: int = 256,
        read_only: bool = False,
        seal: Seal | None = None,
    ) -> None:
        """A commit is in the file when it is saved, and with `fsync` on the disk too."""
        where = Path(folder)
        lock = ProcessLock(where / LOCK, of=where, clock=clock)
        database = _Folder(
            where,
            durability=durability,
            open_files=open_files,
            lock=None if read_only else lock,
        )
        super().__init__(database, clock=clock, seal=seal)


class _Folder:
    """The files of one folder; without a lock they may only be read."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability,
        open_files: int,
        lock: ProcessLock | None,
    ) -> None:
        self._path = path
        self._is_durable = durability == "fsync"
        self._lock = lock
        self._is_owned = False
        self._bindings = Bindings(path / KEYS, durable=self._is_durable)
        self.files = OpenFiles(self._journal, limit=open_files)
        self._writers = ThreadPoolExecutor(WRITERS[durability], thread_name_prefix="jsonl")

    def _journal(self, session_id: str) -> Journal:
        return Journal(
            self._path / f"{file_name(session_id)}{SUFFIX}",
            session_id,
            former=self._path / f"{former_file_name(session_id)}{SUFFIX}",
            durable=self._is_durable,
            read_only=self._lock is None,
        )

    # One session

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        await self._own()
        return await self._on(commit.id, lambda journal: journal.insert(commit, over))

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        await self._own()
        if commit.erased:
            return await self._on(commit.id, lambda journal: journal.rewrite(commit, now))
        return await self._on(
            commit.id, lambda journal: journal.commit(commit, now), on=self._writers
        )

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        return await self._on(session_id, lambda journal: journal.head())

    async def window(self, session_id: str) -> StoredSession | None:
        return await self._on(session_id, lambda journal: journal.window())

    async def whole(self, session_id: str) -> StoredSession | None:
        return await self._on(session_id, lambda journal: journal.whole())

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        return await self._on(session_id, lambda journal: journal.between(after, upto, limit))

    async def delete(self, session_id: str) -> None:
        await self._own()
        await self._on(session_id, lambda journal: journal.remove())

    # All of them

    async def delete_expired(self, *, now: int) -> int:
        await self._own()
        count = 0
        async for stored in self._glances():
            if _has_expired(stored, now):
                name = stored.sections[ABOUT]["id"]
                count += await self._on(name, lambda journal: journal.remove_if_expired(now))
        return count

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        async for stored in self._glances():
            if not _has_expired(stored, now):
                yield stored

    async def _glances(self) -> AsyncIterator[StoredSession]:
        """What all files tell, a few files at a time; each that can't be read is reported."""
        listing = FolderListing(self._path)
        for paths in await self._in_thread(listing.batches):
            for stored in await self._in_thread(listing.glances, paths):
                yield stored
            for event in listing.take_heard():
                announce(event)

    async def names(self) -> AsyncIterator[str]:
        listing = FolderListing(self._path)
        for paths in await self._in_thread(listing.batches):
            for name in await self._in_thread(listing.names, paths):
                yield name

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._own()
        await self._told(self._bindings.bind(key, session_id))

    async def bound(self, key: str) -> str | None:
        return await self._told(self._bindings.bound(key))

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        for item in await self._in_thread(self._bindings.all):
            yield item

    # Threads

    async def close(self) -> None:
        await self._in_thread(self._let_go)

    def _let_go(self) -> None:
        self.files.close()
        if self._lock is not None:
            self._lock.release()
        self._writers.shutdown(wait=False)

    async def _own(self) -> None:
        """Be the one who may write; raises `StoreLocked`."""
        if self._lock is None:
            raise StoreError(f"{self._path} is open for reading only: nothing was written")
        if not self._is_owned:
            await self._in_thread(self._take, self._lock)

    def _take(self, lock: ProcessLock) -> None:
        lock.take()
        for suffix in (SUFFIX, copy_of(Path(SUFFIX)).name):
            rename_former(self._path, suffix)
        self._bindings.rename_former()
        self._is_owned = True

    async def _on(
        self,
        session_id: str,
        work: Callable[[AsyncJournal], Awaitable[T]],
        *,
        on: Executor | None = None,
    ) -> T:
        journal = self.files.journal(session_id)
        try:
            return await self._told(work(AsyncJournal(journal, on)))
        finally:
            self.files.used(journal)
            for event in journal.take_heard():
                announce(event)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await self._told(wrap(work)(*args))

    async def _told(self, work: Awaitable[T]) -> T:
        """What comes of it; what the disk refuses is a `StoreError`."""
        try:
            return await work
        except OSError as error:
            raise StoreError(
                f"the store in {self._path} failed: {refusal(error)}; "
                "what was saved before still is"
            ) from error


def _has_expired(stored: StoredSession, now: int) -> bool:
    moment = expiry(stored.head)
    return moment is not None and micros(moment) < now


class FolderListing:
    """The session files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What there is to tell since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self) -> list[Sequence[Path]]:
        """The files, the last written first, in small groups."""
        try:
            with os.scandir(self._folder) as items:
                files = [item for item in items if item.name.endswith(SUFFIX)]
        except FileNotFoundError:
            return []
        files.sort(key=_written, reverse=True)
        paths = [Path(file.path) for file in files]
        return [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]

    def glances(self, paths: Sequence[Path]) -> list[StoredSession]:
        """What these files tell, the last changed first; one that can't be read is passed over."""
        glances = []
        for path in paths:
            try:
                glances.append(self._glance(path))
            except FileNotFoundError:
                continue
            except (OSError, SessionDamaged) as error:
                self._heard.append(FileUnreadable(file=path.name, error=type(error).__name__))
        return sorted(glances, key=_updated_at, reverse=True)

    def names(self, paths: Sequence[Path]) -> list[str]:
        """The ids that these files belong to, whatever is in them."""
        return [self._id_of(path) for path in paths]

    def _id_of(self, path: Path) -> str:
        name = path.name.removesuffix(SUFFIX)
        session_id = name_of(name)
        if session_id is None:  # the file's name is a shortened one
            with suppress(OSError, SessionDamaged):
                return str(self._glance(path).sections[ABOUT]["id"])
        return session_id or name

    def _glance(self, path: Path) -> StoredSession:
        name = path.name.removesuffix(SUFFIX)
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            session_id = name_of(name) or name
            with decoding(session_id):
                return glance(fd, size, session_id=session_id)
        finally:
            os.close(fd)


def _updated_at(stored: StoredSession) -> datetime:
    return from_rfc3339(stored.head.get("updated_at"))


def _written(item: os.DirEntry[str]) -> int:
    try:
        return item.stat().st_mtime_ns
    except OSError:
        return 0


class Bindings:
    """The keys of one folder."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._durable = durable

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        await wrap(make_folder)(self._folder)
        text = json.dumps({"key": key, "session": session_id})
        await put_file(self._path(file_name(key)), text.encode(), durable=self._durable)

    async def bound(self, key: str) -> str | None:
        """The session that this key means, or None."""
        for name in dict.fromkeys((file_name(key), former_file_name(key))):
            found = _binding_in(await read_file(self._path(name)))
            # On a file system that ignores case another key's file may answer.
            if found and found[0] == key:
                return found[1]
        return None

    def all(self) -> list[tuple[str, str]]:
        """Every key and its session."""
        data = (path.read_bytes() for path in sorted(self._folder.glob("*.json")))
        return [found for each in data if (found := _binding_in(each))]

    def rename_former(self) -> None:
        """Give the files that earlier versions named their present names."""
        rename_former(self._folder, ".json")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _binding_in(data: bytes | None) -> tuple[str, str] | None:
    try:
        record = json.loads(data or b"")
        return str(record["key"]), str(record["session"])
    except (ValueError, LookupError, TypeError):
        return None
