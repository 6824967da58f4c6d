"""One session on disk: create, read, append, remove.

Each method of a `Journal` runs in a worker thread from start to end, and no two writing methods run
at once. A commit is prepared and written in two steps. In between, another commit may be written by
a cancelled task, another event loop or another process; the file then refuses the first commit,
which is prepared again. While another process has the file locked, writing methods raise
`BlockingIOError` before they do anything, and the caller should retry a moment later.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aiofiles.base import AsyncBase
from aiofiles.threadpool import wrap
from aiofiles.threadpool.binary import AsyncFileIO
from aiofiles.threadpool.utils import delegate_to_executor

from nanoloop.errors import StoreError
from nanoloop.events import Event
from nanoloop.files import locked_file, replace_file, sync_folder
from nanoloop.session.entry import Entry
from nanoloop.stores.database import Commit, StoredSession, micros
from nanoloop.stores.jsonl.folder import SessionFolder
from nanoloop.stores.jsonl.lines import LogLine
from nanoloop.stores.jsonl.log_file import (
    Erasure,
    LogFile,
    PlacedBytes,
    SetAside,
    erase_in_copies,
    new_file,
    removed_copies,
)
from nanoloop.stores.jsonl.owed import ANYTHING, kinds_owed
from nanoloop.stores.jsonl.reading import SUFFIX, SessionReader
from nanoloop.stores.snapshot import decoding, expiry

T = TypeVar("T")


class Journal:
    """The file of one session, opened on demand."""

    def __init__(self, folder: SessionFolder, session_id: str) -> None:
        self.id = session_id
        self._folder = folder
        self._path = folder.file(session_id)
        self._name = self._path.name.removesuffix(SUFFIX)
        self._former = folder.former_file(session_id)
        self._lock = RLock()
        self._file: LogFile | None = None
        self._unreadable = self._set_aside()
        self._heard: list[Event] = []

    @property
    def is_open(self) -> bool:
        """True while the journal's file is open."""
        return self._file is not None

    def take_heard(self) -> list[Event]:
        """Return the events since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def _opened(self) -> LogFile | None:
        """Return the file with the latest changes applied, or None if it doesn't exist."""
        if self._file is not None and self._file.is_gone:
            self._forget()
            self._unreadable = self._set_aside()
        if self._file is None:
            self._file = self._found()
        if self._file is not None:
            self._file.catch_up()
        return self._file

    @contextmanager
    def _alone(self) -> Iterator[LogFile | None]:
        """Yield the current file, locked against other processes; None if it doesn't exist."""
        while (file := self._opened()) is not None:
            with file.alone():
                if not file.is_gone:  # otherwise it was replaced before being locked
                    file.catch_up()
                    yield file
                    return
        yield None

    def _found(self) -> LogFile | None:
        """Open the file, under its former name if no writing process has renamed it yet."""
        for path in self._places():
            with suppress(FileNotFoundError):
                return LogFile(path, self.id, folder=self._folder, guard=self._lock)
        return None

    def _places(self) -> Iterator[Path]:
        yield self._path
        if self._former == self._path:
            return
        # A file system that ignores case may return another session's file here.
        if self._former.exists() and self._former in self._former.parent.iterdir():
            yield self._former
        yield self._path  # perhaps renamed just now

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    # Reading

    def head(self) -> Mapping[str, Any] | None:
        """Like `Database.head`, but blocking."""
        with self._lock:
            file = self._opened()
            return None if file is None else file.state.head

    def window(self) -> StoredSession | None:
        """Like `Database.window`, but blocking."""
        return self._read(SessionReader.window)

    def whole(self) -> StoredSession | None:
        """Like `Database.whole`, but blocking."""
        return self._read(SessionReader.whole)

    def between(self, after: int, upto: int | None, limit: int | None) -> Sequence[Entry]:
        """Like `Database.between`, but blocking."""
        return self._read(lambda reader: reader.between(after, upto, limit)) or ()

    def _read(self, read: Callable[[SessionReader], T]) -> T | None:
        with self._reader() as reader, decoding(self.id):
            return None if reader is None else read(reader)

    @contextmanager
    def _reader(self) -> Iterator[SessionReader | None]:
        """Yield a reader of the durable data that neither delays nor sees concurrent commits."""
        with self._lock:
            file = self._opened()
            if file is not None:
                fd, state, marks = os.dup(file.fd), file.state, file.marks
        if file is None:
            yield None
            return
        met: list[LogLine] = []
        try:
            yield SessionReader(fd, state, session_id=self.id, marks=marks, report=met.append)
            with self._lock:
                self._heard += self._unreadable.settle(fd, met)
        finally:
            os.close(fd)

    # Writing

    def insert(self, commit: Commit, over: int | None) -> bool:
        """Like `Database.insert`: create the file completely, or not at all."""
        with self._lock:
            with self._folder.locked_name(self._name), self._alone() as old:
                if (None if old is None else old.state.revision) != over:
                    return False
                # The old file's marks stay for now, because others may write to the new file at
                # once.
                self._put(old, new_file(commit), commit, durable=self._folder.durable)
            self._forget()
            return True

    def rewrite(self, commit: Commit, now: int) -> int | None:
        """Like `Database.commit`, for a commit that erases entries."""
        with self._lock:
            with self._alone() as file:
                stood = self._stands(file, now)
                if file is None or stood != commit.revision:
                    return stood
                self._erase(file, commit)
            self._forget()
            self._unreadable = self._set_aside()
            return stood

    def ready(self, commit: Commit, now: int) -> Ready:
        """Return the bytes to write for a commit, and the file to write them to."""
        with self._lock, self._alone() as file:
            stood = self._stands(file, now)
            if file is None or stood != commit.revision:
                return Ready(stood=stood)
            self._heard += file.repair()
            return Ready(stood=stood, file=file, data=file.placed(commit))

    def ready_nowait(self, commit: Commit, now: int) -> Ready | None:
        """Like `ready`, but return None if that would need disk access."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            file = self._file
            if file is None or not file.is_whole or self._stands(file, now) != commit.revision:
                return None
            return Ready(stood=commit.revision, file=file, data=file.placed(commit))
        finally:
            self._lock.release()

    def _stands(self, file: LogFile | None, now: int) -> int | None:
        moment = None if file is None else expiry(file.state.head)
        has_expired = moment is not None and micros(moment) < now
        return None if file is None or has_expired else file.state.revision

    def _erase(self, file: LogFile, commit: Commit) -> None:
        self._heard += file.repair()
        erasure = Erasure.of(file, commit.erased)
        erase_in_copies(self._path, erasure.traces)
        # Always durable, because it replaces a whole history.
        self._put(file, erasure.file(file.fd, commit), commit, durable=True)

    def _put(
        self, old: LogFile | None, data: bytes | Iterable[bytes], commit: Commit, *, durable: bool
    ) -> None:
        """Write a new file in place of `old`, which is locked, or None if there is no file."""
        if old is not None:
            old.settle()
        self._folder.marks.add(self._name, kinds_owed(commit.head))
        with self._folder.heard.taking(commit) as is_noted:
            replace_file(self._path, data, durable=durable)
            is_noted()

    def _set_aside(self) -> SetAside:
        return SetAside(self._path, session_id=self.id, read_only=self._folder.read_only)

    def remove(self) -> None:
        """Remove the file and its copies, whatever they contain; a missing file is ignored."""
        with self._lock, self._folder.locked_name(self._name):
            with suppress(StoreError), self._alone() as file:
                if file is not None:
                    file.settle()
            self._forget()
            with suppress(FileNotFoundError), locked_file(self._path, os.O_RDWR):
                self._path.unlink()
            self._removed()

    def remove_if_expired(self, now: int) -> bool:
        """Remove the file if the session expired before `now`; return True if it was removed."""
        with self._lock:
            with self._folder.locked_name(self._name), self._alone() as file:
                if file is None or self._stands(file, now) is not None:
                    return False
                file.settle()
                self._path.unlink()
                self._removed()
            self._forget()
            return True

    def _removed(self) -> None:
        """Remove everything else that belongs to the session."""
        removed_copies(self._path)
        self._folder.marks.remove(self._name, ANYTHING)
        if self._folder.durable:
            sync_folder(self._path.parent)

    # Closing

    def close_if_idle(self) -> bool:
        """Close the file unless it is in use; return True if it was closed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._forget()
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file once no thread is writing to it."""
        with self._lock:
            self._forget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A commit that is ready to be written; it has no file if there is nothing to write."""

    stood: int | None
    file: LogFile | None = None
    data: PlacedBytes = field(default_factory=PlacedBytes)


@delegate_to_executor(
    "head",
    "window",
    "whole",
    "between",
    "insert",
    "rewrite",
    "ready",
    "remove",
    "remove_if_expired",
)
class AsyncJournal(AsyncBase):  # type: ignore[type-arg] # the class takes no parameter at runtime
    """A journal with awaitable methods, each of which makes a single call in a thread."""

    head: Callable[[], Awaitable[Mapping[str, Any] | None]]
    window: Callable[[], Awaitable[StoredSession | None]]
    whole: Callable[[], Awaitable[StoredSession | None]]
    between: Callable[[int, int | None, int | None], Awaitable[Sequence[Entry]]]
    insert: Callable[[Commit, int | None], Awaitable[bool]]
    rewrite: Callable[[Commit, int], Awaitable[int | None]]
    ready: Callable[[Commit, int], Awaitable[Ready]]
    remove: Callable[[], Awaitable[None]]
    remove_if_expired: Callable[[int], Awaitable[bool]]

    def __init__(self, journal: Journal, executor: Executor | None) -> None:
        super().__init__(journal, None, executor)  # type: ignore[arg-type] # AsyncBase expects a file
        self.id = journal.id
        self._journal = journal
        self._threads = executor

    async def commit(self, commit: Commit, now: int) -> int | None:
        """Like `Database.commit`; all lines are written in one call."""
        ready = self._journal.ready_nowait(commit, now) or await self.ready(commit, now)
        # If another commit came first, nothing was written.
        while ready.file is not None and not await self._opened(ready.file).write(ready.data):
            ready = await self.ready(commit, now)
        return ready.stood

    def _opened(self, file: LogFile) -> AsyncFileIO:
        opened: AsyncFileIO = wrap(file, executor=self._threads)
        return opened


class OpenFiles:
    """Journals by id; only the most recently used stay open, to limit the number of open files."""

    def __init__(self, make: Callable[[str], Journal], *, limit: int) -> None:
        self._make = make
        self._limit = max(1, limit)
        self._recent: OrderedDict[str, Journal] = OrderedDict()
        self._known: WeakValueDictionary[str, Journal] = WeakValueDictionary()
        """All journals, even closed ones with work waiting, so that no id ever has two."""

    def __len__(self) -> int:
        """Return how many journals may be open."""
        return len(self._recent)

    def journal(self, session_id: str) -> Journal:
        """Return the only journal for this id."""
        journal = self._known.get(session_id)
        if journal is None:
            journal = self._known[session_id] = self._make(session_id)
        return journal

    def used(self, journal: Journal) -> None:
        """Keep a journal open, and close the least recently used ones beyond the limit."""
        if not journal.is_open and journal.close_if_idle():  # the session doesn't exist
            self._recent.pop(journal.id, None)
            return
        self._recent[journal.id] = journal
        self._recent.move_to_end(journal.id)
        too_many = max(0, len(self._recent) - self._limit)
        for session_id in list(islice(self._recent, too_many)):
            if self._recent[session_id].close_if_idle():
                del self._recent[session_id]

    def close(self) -> None:
        """Close all files."""
        while self._recent:
            self._recent.popitem()[1].close()
