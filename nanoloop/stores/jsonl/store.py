"""Sessions as files that a pager can show: one a session, one line an entry, only ever added to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
from aiofiles.os import wrap

from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.events import Announce, silent
from nanoloop.files import ProcessLock, refusal
from nanoloop.protocols import Seal, SessionInfo
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.session import Session
from nanoloop.stores.creation import Creation
from nanoloop.stores.jsonl.bindings import Bindings
from nanoloop.stores.jsonl.file_names import file_name
from nanoloop.stores.jsonl.journal import Journal
from nanoloop.stores.jsonl.listing import Listing
from nanoloop.stores.jsonl.open_files import OpenFiles
from nanoloop.stores.order import Order
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.snapshot import Snapshot

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
        self._order = Order()
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

    async def snapshot(self, session_id: str) -> Snapshot:
        """All there is of it, for another store; raises as `get`."""

        def read(journal: Journal) -> Snapshot:
            with journal.history() as history:
                return history.whole()

        return await self._on_journal(session_id, read)

    async def restore(self, snapshot: Snapshot, *, replace: bool = False) -> None:
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
        listing = Listing(self._folder, suffix=SUFFIX, sealing=self._sealing)
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
        listing = Listing(self._folder, suffix=SUFFIX, sealing=self._sealing)
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
