"""Sessions as readable text files: one file per session, one line per entry, append-only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from random import uniform
from secrets import token_hex
from threading import Lock
from typing import Any, Literal, TypeVar

import anyio
from aiofiles.os import wrap

from nanoloop.errors import (
    DiskRefused,
    FileRefused,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
    StoreError,
)
from nanoloop.events import announce
from nanoloop.files import (
    file_name,
    former_file_name,
    load_file,
    locked_file,
    make_folder,
    put_file,
    read_file,
    refusal,
    rename_former,
    replace_file,
    without_earlier,
)
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, entries_in, from_rfc3339, utc_now
from nanoloop.session.head import ABOUT, WAITING
from nanoloop.session.queue import message_id_of
from nanoloop.stores.database import (
    HEARD_SECONDS,
    Commit,
    HeardMessage,
    StoredSession,
    micros,
)
from nanoloop.stores.heartbeats import NodeFiles
from nanoloop.stores.jsonl.folder import (
    KEYS,
    KEYS_LOCK,
    LOCK,
    NODES,
    FolderListing,
    OwedListing,
    SessionFolder,
)
from nanoloop.stores.jsonl.heard import HeardFiles
from nanoloop.stores.jsonl.journal import AsyncJournal, Journal, OpenFiles
from nanoloop.stores.jsonl.lines import FORMAT, METADATA, renewed
from nanoloop.stores.jsonl.log_file import copy_of
from nanoloop.stores.jsonl.owed import ANYTHING, kinds_owed
from nanoloop.stores.jsonl.reading import SUFFIX, glance_at, glance_in, line_at, newest_at
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.snapshot import (
    NOTED,
    OWES_CHAT,
    OWES_SUMMARY,
    StoredSnapshot,
    as_it_is,
    chat_of,
    expiry,
    noted_in,
    owed_session,
    owes,
)
from nanoloop.stores.store import DatabaseStore

Durability = Literal["flush", "fsync"]
WRITERS: Mapping[Durability, int] = {"flush": 1, "fsync": 8}
"""How many threads only write commits, so that long reads never delay a save.

With `flush`, nothing waits for a disk, so a second thread would not be faster.
"""
BETWEEN_TRIES_SECONDS = (0.0005, 0.005)
"""The range of the pause between two attempts to lock a session."""
T = TypeVar("T")


class JsonlStore(DatabaseStore):
    """A folder of sessions that any number of processes on one machine may use."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "flush",
        clock: Callable[[], datetime] = utc_now,
        open_files: int = 256,
        read_only: bool = False,
        seal: Seal | None = None,
        busy_seconds: float = 5,
    ) -> None:
        """Open the folder; a saved commit is in its file and, with `fsync`, on the disk.

        A call fails if another process keeps the session locked for more than `busy_seconds`.
        """
        where = SessionFolder(
            path=Path(folder),
            heard=HeardFiles(Path(folder)),
            durable=durability == "fsync",
            read_only=read_only,
        )
        sealing = Sealing(seal)
        database = _Folder(
            where,
            writers=WRITERS[durability],
            open_files=open_files,
            busy_seconds=busy_seconds,
            upgrade=FolderUpgrade(where, opened=sealing.opened),
        )
        super().__init__(database, clock=clock, sealing=sealing)


class _Folder:
    """Keeps sessions in the files of one folder."""

    def __init__(
        self,
        folder: SessionFolder,
        *,
        writers: int,
        open_files: int,
        busy_seconds: float,
        upgrade: FolderUpgrade,
    ) -> None:
        self._folder = folder
        self._busy_seconds = busy_seconds
        self._upgrade = upgrade
        self._making_ready = Lock()
        self._is_ready = False
        """True once the folder has this version's format."""
        self._bindings = Bindings(folder.path / KEYS, durable=folder.durable)
        self._nodes = NodeFiles(folder.path / NODES)
        self._owed = OwedListing(folder)
        self.files = OpenFiles(partial(Journal, folder), limit=open_files)
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix="jsonl")

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

    # All sessions

    async def delete_expired(self, *, now: int) -> int:
        await self._own()
        count = 0
        async for stored in self._glances():
            if _has_expired(stored, now):
                name = stored.sections[ABOUT]["id"]
                count += await self._on(name, lambda journal: journal.remove_if_expired(now))
        await self._in_thread(self._folder.heard.forget, now)
        return count

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        async for stored in self._glances():
            if not _has_expired(stored, now):
                yield stored

    async def _glances(self) -> AsyncIterator[StoredSession]:
        """Yield overviews of all files, a few at a time; announce unreadable ones."""
        listing = FolderListing(self._folder.path)
        for paths in await self._in_thread(listing.batches):
            for stored in await self._in_thread(listing.glances, paths):
                yield stored
            for event in listing.take_heard():
                announce(event)

    async def names(self) -> AsyncIterator[str]:
        listing = FolderListing(self._folder.path)
        for paths in await self._in_thread(listing.batches):
            for name in await self._in_thread(listing.names, paths):
                yield name

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._own()
        await self._told(self._bindings.bind(key, session_id))

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        await self._own()
        work = partial(self._in_thread, self._rebind, key, session_id, was)
        return await self._in_turn(work, "the keys")

    def _rebind(self, key: str, session_id: str, was: str | None) -> bool:
        with self._folder.locked_name(KEYS_LOCK):
            return self._bindings.rebind(key, session_id, was=was)

    async def bound(self, key: str) -> str | None:
        return await self._told(self._bindings.bound(key))

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        for item in await self._in_thread(self._bindings.all):
            yield item

    # Processes

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        if not await self._is_marked():  # not written to since an earlier version
            wanted = {OWES_CHAT, OWES_SUMMARY} if pending else {OWES_CHAT}
            async for stored in self._glances():
                if owes(stored.head) in wanted and not _has_expired(stored, now):
                    yield owed_session(stored.sections[ABOUT]["id"], stored.head)
            return
        for paths in await self._in_thread(partial(self._owed.batches, pending=pending)):
            look = partial(self._owed.owing, paths, now=now, pending=pending)
            for owed in await self._in_thread(look):
                yield owed
            for event in self._owed.take_heard():
                announce(event)

    async def _is_marked(self) -> bool:
        if self._folder.read_only:
            return await self._in_thread(lambda: self._upgrade.is_done)
        await self._own()
        return True

    async def beat(self, node: Node) -> Sequence[Node]:
        await self._own()
        return await self._in_thread(self._nodes.beat, node)

    async def leave(self, node_id: str) -> None:
        await self._own()
        await self._in_thread(self._nodes.leave, node_id)

    # Messages

    async def has_heard(self, chat: str, message_id: str) -> bool:
        return await self._in_thread(self._folder.heard.has, chat, message_id)

    async def heard(self) -> AsyncIterator[HeardMessage]:
        for path in await self._in_thread(self._folder.heard.all):
            for message in await self._in_thread(self._folder.heard.messages, path):
                yield message

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        await self._own()
        work = partial(self._in_thread, self._folder.heard.hear, messages)
        await self._in_turn(work, "messages of a chat")

    # Threads

    async def close(self) -> None:
        await self._in_thread(self._let_go)

    def _let_go(self) -> None:
        self.files.close()
        self._upgrade.close()
        self._writers.shutdown(wait=False)

    async def _own(self) -> None:
        """Upgrade the folder to this version's format; raise `StoreLocked` if an older one runs."""
        if self._folder.read_only:
            raise StoreError(f"{self._folder.path} is open read-only: nothing was written")
        if not self._is_ready:
            await self._in_turn(partial(self._in_thread, self._make_ready), "the folder")

    def _make_ready(self) -> None:
        with self._making_ready:
            self._upgrade.run()
            self._is_ready = True

    async def _on(
        self,
        session_id: str,
        work: Callable[[AsyncJournal], Awaitable[T]],
        *,
        on: Executor | None = None,
    ) -> T:
        journal = self.files.journal(session_id)
        work_on_it = partial(work, AsyncJournal(journal, on))
        try:
            return await self._in_turn(work_on_it, f"session {session_id!r}")
        finally:
            self.files.used(journal)
            for event in journal.take_heard():
                announce(event)

    async def _in_turn(self, work: Callable[[], Awaitable[T]], what: str) -> T:
        """Run this work and return its result; retry while another process holds the lock."""
        give_up = time.monotonic() + self._busy_seconds
        while True:
            try:
                return await self._told(work())
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise DiskRefused(
                        self._folder.path,
                        f"another process has locked {what}: stop it, or try again",
                    ) from None
            # The wait blocks no thread, because others need the threads.
            await anyio.sleep(uniform(*BETWEEN_TRIES_SECONDS))  # noqa: S311

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await self._told(wrap(work)(*args))

    async def _told(self, work: Awaitable[T]) -> T:
        """Run this work and return its result; raise `StoreError` for disk errors."""
        try:
            return await work
        except (BlockingIOError, FileRefused):  # retried, or already a full sentence
            raise
        except OSError as error:
            raise DiskRefused(self._folder.path, refusal(error)) from error


def _has_expired(stored: StoredSession, now: int) -> bool:
    moment = expiry(stored.head)
    return moment is not None and micros(moment) < now


NOTE = ".index"
"""The file beside the locks that exists once all pending work is marked."""


class FolderUpgrade:
    """Upgrades a folder so that earlier versions can't open it; methods block.

    The upgrade marks pending work and records accepted messages. Several processes may do this at
    the same time. It is repeated after a reboot, since marks need not survive a power loss, and for
    a copied folder.
    """

    def __init__(
        self, folder: SessionFolder, *, opened: Callable[[StoredSnapshot], StoredSnapshot]
    ) -> None:
        """Create the upgrade; `opened` decrypts a session or raises `StoreError`."""
        self._folder = folder
        self._opened = opened
        self._lock = folder.path / LOCK
        self._former_lock = ExitStack()

    @property
    def is_done(self) -> bool:
        """True if no upgrade is needed; raises `NotReadable` for a later version's folder."""
        try:
            note = json.loads(load_file(self._lock / NOTE))
        except (OSError, ValueError):
            return False
        found = note.get("format") if isinstance(note, dict) else None
        if isinstance(found, int) and found > FORMAT:
            raise NotReadable(
                f"{self._folder.path} has format {found}, but this version supports {FORMAT}: "
                "install a newer nanoloop, or choose another folder"
            )
        return bool(note == self._note())

    def run(self) -> None:
        """Upgrade the folder if needed; raise `StoreLocked` while an earlier version runs."""
        is_done = self.is_done
        if not is_done:
            make_folder(self._folder.path)
            self._shut_out()
        for suffix in (SUFFIX, copy_of(Path(SUFFIX)).name):
            rename_former(self._folder.path, suffix)
        rename_former(self._folder.path / KEYS, ".json")
        if not is_done:
            changed = self._mark_all()
            since = max(changed.values(), default=0) - HEARD_SECONDS * 1_000_000
            for path, at in changed.items():
                if at >= since:
                    self._folder.heard.hear(self._messages(path, at))
            self._tell_done()

    def close(self) -> None:
        """Unlock the file that earlier versions lock."""
        self._former_lock.close()

    def _shut_out(self) -> None:
        """Replace the lock file of earlier versions with a folder to keep these versions out."""
        while not self._lock.is_dir():
            with suppress(IsADirectoryError):  # another process has already done so
                # Held until `close`, because an earlier version may have opened the file already.
                stack = without_earlier(self._lock, of=self._folder.path)
                self._former_lock.enter_context(stack)
                self._lock.unlink()
                with suppress(FileExistsError):
                    self._lock.mkdir(mode=0o700)
                    self._lock.chmod(0o700)  # even if the umask removed permissions

    def _mark_all(self) -> dict[Path, int]:
        """Mark all pending work; return the time of each session's last change."""
        changed = {}
        for paths in FolderListing(self._folder.path).batches():
            for path in paths:
                # A file that can't be opened has no pending work either.
                with suppress(
                    FileNotFoundError, IsADirectoryError, PermissionError, SessionDamaged
                ):
                    changed[path] = self._mark(path)
            time.sleep(0)  # many files must not starve the event loop
        return changed

    def _mark(self, path: Path) -> int:
        name = path.name.removesuffix(SUFFIX)
        try:
            with locked_file(path, os.O_RDWR) as fd:
                head = glance_in(path, fd).head
                self._folder.marks.add(name, kinds_owed(head))
                _renew_format(fd)
        except BlockingIOError:  # being written to, so its pending work is found later
            head = glance_at(path).head
            self._folder.marks.add(name, ANYTHING)
        return micros(from_rfc3339(head.get("updated_at")))

    def _messages(self, path: Path, at: int) -> list[HeardMessage]:
        """Return a session's newest messages, which its chat's file may lack."""
        with suppress(FileNotFoundError, StoreError, SessionNotFound):
            found = self._opened(newest_at(path))
            about, noted = found.sections[ABOUT], found.sections.get(NOTED)
            said = [*found.entries, *entries_in(found.sections.get(WAITING) or ())]
            names = [message_id_of(entry) for entry in said if entry.role == "user"]
            names += noted_in(noted, as_it_is)
            chat = chat_of(found.name, about, as_it_is)
            return [HeardMessage(chat=chat, id=name, at=at) for name in names if name]
        return []

    def _tell_done(self) -> None:
        note = json.dumps(self._note()).encode()
        replace_file(self._lock / NOTE, note, durable=False)

    def _note(self) -> dict[str, Any]:
        inode = self._lock.stat().st_ino  # a copied folder has a different one
        return {"format": FORMAT, "start": machine_start(), "inode": inode}


def _renew_format(fd: int) -> None:
    """Make earlier versions reject the file, wherever it is copied to."""
    line = line_at(fd, 0, os.fstat(fd).st_size)
    found = line.value.get("format") if line is not None and line.kind == METADATA else None
    if line is None or not isinstance(found, int) or found >= FORMAT:
        return
    data = renewed(line.value, line.end, about=None, summary=None)
    if len(data) == line.end:
        os.pwrite(fd, data, 0)


@cache
def machine_start() -> str:
    """Return an id of the machine's current boot; an id of this process if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return token_hex(16)


class Bindings:
    """The keys of one folder and the sessions bound to them."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._durable = durable

    async def bind(self, key: str, session_id: str) -> None:
        """Bind this key to a session from now on."""
        await wrap(make_folder)(self._folder)
        text = json.dumps({"key": key, "session": session_id})
        await put_file(self._path(file_name(key)), text.encode(), durable=self._durable)

    def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        """Bind a key if its binding is still `was` (None if unbound); this blocks."""
        path = self._path(file_name(key))
        found = _binding_in(path.read_bytes() if path.exists() else None)
        if (found and found[1]) != was:
            return False
        make_folder(self._folder)
        text = json.dumps({"key": key, "session": session_id})
        replace_file(path, text.encode(), durable=True)
        return True

    async def bound(self, key: str) -> str | None:
        """Return the id of the session bound to this key, or None."""
        for name in dict.fromkeys((file_name(key), former_file_name(key))):
            found = _binding_in(await read_file(self._path(name)))
            # A file system that ignores case may return another key's file.
            if found and found[0] == key:
                return found[1]
        return None

    def all(self) -> list[tuple[str, str]]:
        """Return every key with its session's id."""
        data = (load_file(path) for path in sorted(self._folder.glob("*.json")))
        return [found for each in data if (found := _binding_in(each))]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _binding_in(data: bytes | None) -> tuple[str, str] | None:
    try:
        record = json.loads(data or b"")
        return str(record["key"]), str(record["session"])
    except (ValueError, LookupError, TypeError):
        return None
