"""Sessions as files that a pager can show: one a session, one line an entry, only ever added to."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import anyio
from aiofiles.os import wrap

from nanoloop.errors import (
    SessionDamaged,
    SessionExists,
    SessionNotFound,
    StoreConflict,
    StoreError,
)
from nanoloop.events import Announce, Event, FileUnreadable, silent
from nanoloop.files import (
    ProcessLock,
    file_name,
    make_folder,
    name_of,
    refusal,
    replace_file,
    sync_folder,
)
from nanoloop.protocols import Seal, SessionInfo
from nanoloop.session.changes import Changes
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.session import Session
from nanoloop.stores.jsonl.lines import LogLine
from nanoloop.stores.jsonl.log_file import (
    Erasure,
    LogFile,
    SetAside,
    erase_in_copies,
    new_file,
    removed_copy,
)
from nanoloop.stores.jsonl.reading import Marks, SessionReader, glance
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.snapshot import StoredSnapshot, decoding, first_revision, has_expired
from nanoloop.stores.store import Creation, WriteOrder, first_changes

SUFFIX = ".jsonl"
LOCK = ".lock"
KEYS = "keys"
"""The folder of bindings, in the folder of sessions."""

Durability = Literal["flush", "fsync"]
WRITERS: Mapping[Durability, int] = {"flush": 1, "fsync": 8}
"""Threads of their own that commit: no number of long reads keeps a save waiting for one.

Without a disk to wait for, a second one would only take turns with the first.
"""
T = TypeVar("T")


class JsonlStore(Creation):
    """A folder of sessions, owned by one process at a time."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "flush",
        clock: Callable[[], datetime] = utc_now,
        announce: Announce = silent,
        open_files: int = 256,
        read_only: bool = False,
        seal: Seal | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._durable = durability == "fsync"
        self.clock = clock
        self._announce = announce
        self._read_only = read_only
        self._sealing = Sealing(seal)
        self._lock = ProcessLock(self._folder / LOCK, of=self._folder, clock=clock)
        self._bindings = Bindings(self._folder / KEYS, durable=self._durable)
        self._files = OpenFiles(self._journal, limit=open_files)
        self._order = WriteOrder()
        self._writers = ThreadPoolExecutor(WRITERS[durability], thread_name_prefix="jsonl")
        self._closed = anyio.Event()

    def _journal(self, session_id: str) -> Journal:
        return Journal(
            self._folder / f"{file_name(session_id)}{SUFFIX}",
            session_id,
            clock=self.clock,
            durable=self._durable,
            read_only=self._read_only,
            sealing=self._sealing,
        )

    # Sessions

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Make a session that was made elsewhere durable here; raises `SessionExists`."""
        await self._write(session.id, lambda: self._begin(session, may_replace=replace))

    async def _begin(self, session: Session, *, may_replace: bool) -> None:
        create = partial(Journal.create, session=session, may_replace=may_replace)
        if not await self._on_journal(session.id, partial(create, changes=session.changes())):
            await self._commit(session)  # an earlier try, of a task that was cancelled, added it

    async def get(self, session_id: str) -> Session:
        """The session with its whole history; raises `SessionNotFound`, also when it expired."""
        snapshot = await self.snapshot(session_id)
        return await self._in_thread(snapshot.to_session, self.clock)

    async def load(self, session_id: str) -> Session:
        """The session with its window only, at a cost that history doesn't raise; as `get`."""

        def read(journal: Journal) -> Session:
            with journal.history() as history:
                return history.window().to_session(self.clock)

        return await self._on_journal(session_id, read)

    async def save(self, session: Session) -> None:
        """Make all that is new in it durable at once, or nothing.

        Raises `SessionNotFound` after a delete or expiry and `StoreConflict` when another writer
        was first.
        """
        await self._write(session.id, lambda: self._commit(session))

    async def _commit(self, session: Session) -> None:
        commit = partial(Journal.commit, session=session)
        # Again where a task that was cancelled, or another event loop, committed meanwhile.
        while not await self._on_journal(
            session.id, partial(commit, changes=session.changes()), on=self._writers
        ):
            pass

    async def revision(self, session_id: str) -> int:
        """How many commits it has seen, as stored; raises as `get`."""
        return await self._on_journal(session_id, lambda journal: journal.revision)

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""

        def read(journal: Journal) -> list[Entry]:
            with journal.history() as history:
                return history.between(after, upto, limit)

        return await self._on_journal(session_id, read)

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Save it with nothing left of these entries, its file written anew; raises as `save`."""
        await self._write(session.id, lambda: self._erase(session, seqs))

    async def _erase(self, session: Session, seqs: Collection[int]) -> None:
        look = partial(Journal.to_erase, session=session, seqs=seqs)
        is_done = False
        while not is_done:
            erasure = await self._on_journal(session.id, look)
            session.erase(seqs, stored=erasure.entries)
            changes = session.changes()
            assert changes is not None  # noqa: S101 - erasing is one
            erase = partial(Journal.erase, session=session, changes=changes, erasure=erasure)
            is_done = await self._on_journal(session.id, erase)

    async def delete(self, session_id: str) -> None:
        """Remove it for good; a missing one is fine."""
        await self._write(session_id, lambda: self._on_journal(session_id, Journal.remove))

    async def snapshot(self, session_id: str) -> StoredSnapshot:
        """All there is of it, for another store; raises as `get`."""

        def read(journal: Journal) -> StoredSnapshot:
            with journal.history() as history:
                return history.whole()

        return await self._on_journal(session_id, read)

    async def restore(self, snapshot: StoredSnapshot, *, replace: bool = False) -> None:
        """Have a session as another store had it; raises `SessionExists` unless `replace`."""
        name = snapshot.name
        work = partial(Journal.restore, snapshot=snapshot, may_replace=replace)
        await self._write(name, lambda: self._on_journal(name, work))

    # All of them

    async def list(self) -> AsyncIterator[SessionInfo]:
        """Every session that has not expired, the last active first."""
        self._check_open()
        async for infos in self._glances():
            for info in sorted(infos, key=lambda info: info.updated_at, reverse=True):
                if not self._is_over(info):
                    yield info

    async def names(self) -> AsyncIterator[str]:
        """The id of every session, expired or not, whatever is in its file."""
        self._check_open()
        listing = FolderListing(self._folder, suffix=SUFFIX, sealing=self._sealing)
        for paths in await self._in_thread(listing.batches):
            for name in await self._in_thread(listing.names, paths):
                yield name

    async def delete_expired(self) -> int:
        """Remove what expired; returns how many."""
        await self._own()
        count = 0
        async for infos in self._glances():
            for info in filter(self._is_over, infos):
                count += await self._write(
                    info.id, partial(self._on_journal, info.id, Journal.remove_if_expired)
                )
        return count

    async def _glances(self) -> AsyncIterator[Sequence[SessionInfo]]:
        """What all files tell, a few files at a time; each that can't be read is reported."""
        listing = FolderListing(self._folder, suffix=SUFFIX, sealing=self._sealing)
        for paths in await self._in_thread(listing.batches):
            yield await self._in_thread(listing.glances, paths)
            for event in listing.take_heard():
                self._announce(event)

    def _is_over(self, info: SessionInfo) -> bool:
        return info.expires_at is not None and self.clock() > info.expires_at

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session; durable when this returns."""
        await self._own()
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._bindings.bind, key, session_id)

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        self._check_open()
        return await self._in_thread(self._bindings.bound, key)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        """Every key and its session."""
        for item in await self._in_thread(self._bindings.all):
            yield item

    # The end

    async def close(self) -> None:
        """Let go of files and of the folder; closing twice is fine."""
        if not self._closed.is_set():
            self._closed.set()
            with anyio.CancelScope(shield=True):
                await self._in_thread(self._let_go)

    def _let_go(self) -> None:
        self._files.close()
        self._lock.release()
        self._writers.shutdown(wait=False)

    async def wait_closed(self) -> None:
        """Return once the store is closed."""
        await self._closed.wait()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError(f"the store in {self._folder} is closed: open another")

    # Threads

    async def _own(self) -> None:
        """Be the one who may write; raises `StoreLocked`."""
        self._check_open()
        if self._read_only:
            raise StoreError(f"{self._folder} is open for reading only: nothing was written")
        if not self._lock.is_held:
            await self._in_thread(self._lock.take)

    async def _write(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._own()
        return await self._order.write(session_id, work)

    async def _on_journal(
        self, session_id: str, work: Callable[[Journal], T], *, on: Executor | None = None
    ) -> T:
        self._check_open()
        journal = self._files.journal(session_id)
        done = self._files.used
        try:
            return await self._in_thread(work, journal, on=on)
        except SessionNotFound:
            done = self._files.gone
            raise
        finally:
            done(journal)
            for event in journal.take_heard():
                self._announce(event)

    async def _in_thread(self, work: Callable[..., T], *args: Any, on: Executor | None = None) -> T:
        """One hop to a worker thread and back; what the disk refuses is a `StoreError`."""
        try:
            result: T = await wrap(work)(*args, executor=on)
        except OSError as error:
            raise StoreError(
                f"the store in {self._folder} failed: {refusal(error)}; "
                "what was saved before still is"
            ) from error
        return result


class Journal:
    """The file of one id, opened when it is needed."""

    def __init__(
        self,
        path: Path,
        session_id: str,
        *,
        clock: Callable[[], datetime],
        durable: bool = False,
        read_only: bool = False,
        sealing: Sealing | None = None,
    ) -> None:
        self.id = session_id
        self._path = path
        self._clock = clock
        self._durable = durable
        self._read_only = read_only
        self._sealing = sealing or Sealing()
        self._lock = RLock()
        self._file: LogFile | None = None
        self._unreadable = self._set_aside()
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What happened since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def _opened(self) -> LogFile:
        """The file, and it knows where it stands; raises `SessionNotFound`, also when expired."""
        if self._file is not None and self._file.is_gone:
            self._forget()
        if self._file is None:
            self._file = LogFile(
                self._path, self.id, durable=self._durable, read_only=self._read_only
            )
        self._file.catch_up()
        with decoding(self.id):
            if has_expired(self._file.standing.head, self._clock()):
                raise SessionNotFound(self.id)
        return self._file

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    @contextmanager
    def history(self) -> Iterator[SessionReader]:
        """Read what is durable now; a commit meanwhile waits for nothing and is not seen."""
        with self._lock:
            file = self._opened()
            fd, standing, marks = os.dup(file.fd), file.standing, file.marks
        unreadable: list[LogLine] = []
        try:
            with decoding(self.id):
                yield SessionReader(
                    fd,
                    standing,
                    session_id=self.id,
                    marks=marks,
                    report=unreadable.append,
                    sealing=self._sealing,
                )
            with self._lock:
                self._heard += self._unreadable.settle(fd, unreadable)
        finally:
            os.close(fd)

    def commit(self, session: Session, changes: Changes | None) -> bool:
        """Write these changes and tell the session so; or raise, and nothing was written."""
        with self._lock:
            file = self._opened()
            if changes is None:
                return True
            if changes.revision != session.revision:
                return False
            self._check(file, changes.revision)
            self._heard += file.repair()
            sealed = self._sealing.sealed(changes)
            file.append(file.commit_of(sealed))
            session.committed(changes)
            file.renew_first_line(sealed)
            return True

    def _check(self, file: LogFile, mine: int) -> None:
        theirs = file.standing.revision
        if mine != theirs:
            raise StoreConflict(self.id, mine=mine, theirs=theirs)

    def to_erase(self, session: Session, seqs: Collection[int]) -> Erasure:
        """What `erase` has to know of the file to write it without these entries' words."""
        with self._lock:
            file = self._opened()
            self._check(file, session.revision)
            return Erasure.of(
                file.fd,
                file.standing,
                seqs,
                opened=lambda entry: self._sealing.entry(entry, self.id),
            )

    def erase(self, session: Session, changes: Changes, erasure: Erasure) -> bool:
        """Write the file anew, these changes in it; or raise, and it is as it was."""
        with self._lock:
            file = self._opened()
            if changes.revision != session.revision or file.standing != erasure.standing:
                return False
            pieces = erasure.file(file.fd, self._sealing.sealed(changes))
            # Onto the disk in any case: it takes the place of a whole history.
            replace_file(self._path, pieces, durable=True)
            session.committed(changes)
            erase_in_copies(self._path, erasure.traces)
            self._forget()
            self._unreadable = self._set_aside()
            return True

    def _set_aside(self) -> SetAside:
        return SetAside(self._path, session_id=self.id, read_only=self._read_only)

    def create(
        self, session: Session, changes: Changes | None, *, may_replace: bool = False
    ) -> bool:
        """Make the file of a session, whole or not at all; raises `SessionExists`."""
        with self._lock:
            if changes is not None and changes.revision != session.revision:
                return False
            old = self._revision()
            if old is not None and not may_replace:
                raise SessionExists(self.id)
            # A replacement counts on, so that an object of the replaced one can't commit.
            revision = first_revision() if old is None else old
            changes = replace(first_changes(session, changes), revision=revision)
            self._make(changes)
            session.committed(changes)
            return True

    def restore(self, snapshot: StoredSnapshot, *, may_replace: bool = False) -> None:
        """Make the file of a session as another store had it; raises `SessionExists`."""
        with self._lock:
            if self._revision() is not None and not may_replace:
                raise SessionExists(self.id)
            self._make(snapshot.to_changes())

    def _make(self, changes: Changes) -> None:
        sealed = self._sealing.sealed(changes)
        head = {**sealed.head, "rev": changes.revision + 1}
        data = new_file(sealed, head=head, marks=Marks()).data
        replace_file(self._path, data, durable=self._durable)
        self._forget()

    @property
    def revision(self) -> int:
        """Where the session stands; raises `SessionNotFound`."""
        with self._lock:
            return self._opened().standing.revision

    def _revision(self) -> int | None:
        """Where the session stands that has this id; None for none, or one that expired."""
        try:
            return self.revision
        except SessionNotFound:
            return None

    def remove(self) -> None:
        """Remove the file and its copies; a missing one is fine."""
        with self._lock:
            self._forget()
            self._path.unlink(missing_ok=True)
            removed_copy(self._path)
            if self._durable:
                sync_folder(self._path.parent)

    def remove_if_expired(self) -> bool:
        """Remove the file if the session's time is over; whether it was."""
        with self._lock:
            if self._revision() is not None or not self._path.exists():
                return False
            self.remove()
            return True

    def close_if_idle(self) -> bool:
        """Let go of the file unless it is in use or has to be cut back; whether it did."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._file is not None and self._file.is_dirty:
                return False
            self._forget()
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of the file, as soon as no thread writes to it."""
        with self._lock:
            self._forget()


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


BATCH = 64
"""Files that one visit of a thread looks at."""


class FolderListing:
    """The session files of one folder."""

    def __init__(self, folder: Path, *, suffix: str, sealing: Sealing) -> None:
        self._folder = folder
        self._suffix = suffix
        self._sealing = sealing
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What there is to tell since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self) -> list[Sequence[Path]]:
        """The files, the last written first, in small groups."""
        try:
            with os.scandir(self._folder) as items:
                files = [item for item in items if item.name.endswith(self._suffix)]
        except FileNotFoundError:
            return []
        files.sort(key=_written, reverse=True)
        paths = [Path(file.path) for file in files]
        return [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]

    def glances(self, paths: Sequence[Path]) -> list[SessionInfo]:
        """What these files tell; one that is gone or can't be opened is passed over."""
        infos = []
        for path in paths:
            try:
                infos.append(self._glance(path))
            except FileNotFoundError:
                continue
            except (OSError, SessionDamaged) as error:
                self._heard.append(FileUnreadable(file=path.name, error=type(error).__name__))
        return infos

    def names(self, paths: Sequence[Path]) -> list[str]:
        """The ids that these files belong to, whatever is in them."""
        return [self._id_of(path) for path in paths]

    def _id_of(self, path: Path) -> str:
        name = path.name.removesuffix(self._suffix)
        session_id = name_of(name)
        if session_id is None:  # the file's name is a shortened one
            with suppress(OSError, SessionDamaged):
                return self._glance(path).id
        return session_id or name

    def _glance(self, path: Path) -> SessionInfo:
        name = path.name.removesuffix(self._suffix)
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            session_id = name_of(name) or name
            with decoding(session_id):
                return glance(fd, size, session_id=session_id, sealing=self._sealing)
        finally:
            os.close(fd)


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

    def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        make_folder(self._folder)
        text = json.dumps({"key": key, "session": session_id})
        replace_file(self._path(key), text.encode(), durable=self._durable)

    def bound(self, key: str) -> str | None:
        """The session that this key means, or None."""
        found = _binding_in(self._path(key))
        # On a file system that ignores case another key's file may answer.
        return found[1] if found and found[0] == key else None

    def all(self) -> list[tuple[str, str]]:
        """Every key and its session."""
        return [
            found for path in sorted(self._folder.glob("*.json")) if (found := _binding_in(path))
        ]

    def _path(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.json"


def _binding_in(path: Path) -> tuple[str, str] | None:
    try:
        record = json.loads(path.read_bytes())
        return str(record["key"]), str(record["session"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
