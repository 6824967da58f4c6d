"""Files that people send: checked, kept while any session refers to them, then deleted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from nanoloop import documents
from nanoloop.bounded import BoundedDict
from nanoloop.errors import (
    AttachmentsFull,
    DiskRefused,
    FileRefused,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
)
from nanoloop.events import FileUnreadable, announce
from nanoloop.fairness import FairLimiter
from nanoloop.files import (
    load_file,
    locked_file,
    make_folder,
    open_file,
    put_file,
    read_file,
    refusal,
    replace_file,
    save_json,
    sync_folder,
    waited_lock,
)
from nanoloop.images import TYPES, checked
from nanoloop.session.entry import Entry, files_in
from nanoloop.session.session import Session
from nanoloop.session.speech import ErasedWords, Person, sender_in

if TYPE_CHECKING:
    from nanoloop.stores.sealed_files import FolderSealing

REMEMBERED = 1000
"""How many recent uploads are recognised if sent again."""
UNUSED_SECONDS = 24 * 3600
"""How long an upload that no session refers to is kept."""
UNSURE = ".unsure"
"""The suffix of a file that marks an upload that sessions may no longer refer to."""
NOTED = "sessions-noted"
"""The file that marks a folder whose files all have records of their sessions."""
FORGETTING = ".forgetting"
"""The file in which an earlier version listed the files that it was about to delete."""
LOCK = "lock"
_ID = re.compile(r"[0-9a-f]{40}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}|.*\.new")
"""Matches the temporary names that `put_file` and `replace_file` write to."""
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The record of an uploaded file."""

    id: str
    owner: str
    """Who uploaded the file: an account on the web channel, or a chat on a platform."""
    kind: str
    name: str
    mime_type: str
    size: int
    sessions: tuple[str, ...] | None = None
    """The sessions that may use the file; None for a file from an earlier version."""
    at: float = 0.0
    """When the file was uploaded, in seconds since 1970; 0 if that isn't known."""

    @classmethod
    def of(cls, text: bytes | None) -> StoredFile | None:
        """Read a file's record; return None if it is missing or unreadable."""
        with suppress(ValueError, TypeError):  # sealed, and there is no key
            known = json.loads(text or b"")
            sessions = known.pop("sessions", None)
            return cls(**known, sessions=None if sessions is None else tuple(sessions))
        return None


def mime_type_of(data: bytes) -> str | None:
    """Return the MIME type that these bytes have, or None if it isn't accepted."""
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            return mime_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return documents.mime_type_of(data)


class Attachments:
    """Keeps files in a folder, created with the first file, and encrypts them if given a seal.

    An id grants no access. A file belongs to the sessions that were given it (`refer`, `share`):
    only in these is it shown to the model and sent with an answer.
    """

    def __init__(
        self, folder: Path, *, limit_bytes: int, sealing: FolderSealing | None = None
    ) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._sealing = sealing
        self._bytes: int | None = None
        self._recent: BoundedDict[tuple[str, str, bytes], str] = BoundedDict(REMEMBERED)
        self._documents = documents.Documents()
        # One at a time, so that no other thread has to wait for one.
        self._checks = FairLimiter(1)

    async def keep(self, data: bytes, *, owner: str, name: str, mime_type: str) -> StoredFile:
        """Store a file, which is durable on return.

        If one owner uploads the same file twice before sending it, it is stored once. A picture is
        stored upright and without metadata. No session may use the file yet. Raise
        `AttachmentsFull` if there is no space, and `PictureRefused` for an unusable picture.
        """
        if mime_type in TYPES:
            picture = await checked(data, limiter=self._checks.turn(owner))
            data, mime_type = picture.data, picture.mime_type
        # In memory only, so that nothing on the disk says who sent which file.
        same = (owner, name, hashlib.sha256(data).digest())
        if (known := await run_sync(self._kept_again, self._recent.get(same, ""))) is not None:
            return known
        kept = await self._keep(data, owner=owner, name=name, mime_type=mime_type)
        self._recent[same] = kept.id
        return kept

    async def keep_made(
        self, data: bytes, *, session_id: str, name: str, mime_type: str
    ) -> StoredFile:
        """Store a file that was made for this session, unchanged; it is durable on return.

        Its bytes decide whether it is a picture. Raise `AttachmentsFull` or `DiskRefused`.
        """
        known = mime_type_of(data)
        if known in TYPES or mime_type in TYPES:
            mime_type = known or "application/octet-stream"
        try:
            kept = await self._keep(data, owner="", name=name, mime_type=mime_type)
        except OSError as error:
            raise DiskRefused(self.folder, refusal(error)) from error
        await self.refer(session_id, (kept.id,))
        return kept

    async def _keep(self, data: bytes, *, owner: str, name: str, mime_type: str) -> StoredFile:
        kept = StoredFile(
            id=token_hex(20),
            owner=owner,
            kind="image" if mime_type in TYPES else "file",
            name=name,
            mime_type=mime_type,
            size=len(data),
            sessions=(),
            at=time.time(),
        )
        await run_sync(self._begin, kept)
        await self._put(f"{kept.id}.data", data)
        # Last, so that every file with a record is complete.
        await self._put(f"{kept.id}.json", _noted(kept))
        return kept

    async def about(self, attachment_id: str) -> StoredFile | None:
        """Return the file's record, or None if there is no such file."""
        if not _ID.fullmatch(attachment_id):
            return None
        return StoredFile.of(await self._read(attachment_id, ".json"))

    async def data(self, attachment_id: str) -> bytes | None:
        """Return the file's content, or None; call `held` first to check that it may be used."""
        if not _ID.fullmatch(attachment_id):
            return None
        return await self._read(attachment_id, ".data")

    async def held(self, session_id: str, attachment_id: str) -> StoredFile | None:
        """Return the record of a file that this session may use; None for any other file."""
        kept = await self.about(attachment_id)
        return kept if kept is not None and session_id in (kept.sessions or ()) else None

    async def to_send(self, session_id: str, attachment_id: str) -> StoredFile | None:
        """Like `held`, but also return None if the data is missing or the disk fails."""
        with suppress(OSError):
            kept = await self.held(session_id, attachment_id)
            if kept is not None and await run_sync((self.folder / f"{kept.id}.data").is_file):
                return kept
        return None

    async def document(self, kept: StoredFile, data: bytes | None = None) -> documents.Document:
        """Return the text of a file; pass its bytes if they are at hand."""
        if data is None and (data := await self.data(kept.id)) is None:
            return documents.Document(problem=documents.PROBLEMS["gone"])
        return await self._documents.read(data, owner=kept.owner, key=kept.id)

    async def _read(self, attachment_id: str, suffix: str) -> bytes | None:
        name = f"{attachment_id}{suffix}"
        data = await read_file(self.folder / name)
        return None if data is None else await run_sync(self._opened, name, data)

    async def _put(self, name: str, data: bytes) -> None:
        sealed = await run_sync(self._sealed, name, data)
        await put_file(self.folder / name, sealed, durable=True)

    def _opened(self, name: str, data: bytes) -> bytes | None:
        """Return the decrypted content of this file, or None if it can't be read."""
        opened = data if self._sealing is None else self._sealing.opened(name, data)
        if opened is None:
            announce(FileUnreadable(file=name, error="NotReadable"))
        return opened

    def _is_destroyed(self, attachment_id: str) -> bool:
        """Return True if the file's key was destroyed, and a kill left the rest of the file."""
        return self._sealing is not None and self._sealing.is_destroyed(attachment_id)

    def _sealed(self, name: str, data: bytes) -> bytes:
        return data if self._sealing is None else self._sealing.sealed(name, data)

    # The sessions that may use a file

    async def refer(self, session_id: str, attachment_ids: Iterable[str]) -> None:
        """Let this session use these files; this is durable on return.

        Call this before the session's own commit, with files that its chat sent, and without any
        other write of the session in between. Raise `DiskRefused` if the disk fails.
        """
        try:
            for each in attachment_ids:
                await run_sync(self._change, each, partial(_with, session_ids=(session_id,)))
        except FileRefused:
            raise
        except OSError as error:
            raise DiskRefused(self.folder, refusal(error)) from error

    async def share(self, attachment_ids: Iterable[str], *, by: str, to: str) -> None:
        """Let session `to` also use these files, as far as session `by` may use them."""
        for each in attachment_ids:
            if await self.held(by, each) is not None:
                await self.refer(to, (each,))

    async def drop(self, attachment_id: str, session_ids: Collection[str]) -> None:
        """Withdraw a file from these sessions; remove it once no session may use it."""
        left = partial(_without, session_ids=session_ids)
        await run_sync(self._change, attachment_id, left)

    async def remove(self, attachment_id: str) -> None:
        """Remove a file, even if sessions use it; a missing file is ignored."""
        await run_sync(self._remove, attachment_id)

    def _change(
        self, attachment_id: str, change: Callable[[Sequence[str]], Sequence[str] | None]
    ) -> None:
        """Change which sessions may use a file; if `change` returns None, remove the file."""
        if _ID.fullmatch(attachment_id) and self.folder.is_dir():
            with self._alone():
                self._rewrite(attachment_id, change)

    def _rewrite(
        self, attachment_id: str, change: Callable[[Sequence[str]], Sequence[str] | None]
    ) -> None:
        kept = self._known(attachment_id)
        if kept is None:
            return
        users = change(kept.sessions or ())
        if users is None:
            self._clear(attachment_id)
        elif (after := tuple(dict.fromkeys(users))) != kept.sessions:
            if set(after) - set(kept.sessions or ()):  # the commit may never happen
                self._mark(attachment_id)
            name = f"{attachment_id}.json"
            sealed = self._sealed(name, _noted(replace(kept, sessions=after)))
            replace_file(self.folder / name, sealed, durable=True)

    def _known(self, attachment_id: str) -> StoredFile | None:
        name = f"{attachment_id}.json"
        with suppress(FileNotFoundError):
            return StoredFile.of(self._opened(name, load_file(self.folder / name)))
        return None

    def _remove(self, attachment_id: str) -> None:
        if _ID.fullmatch(attachment_id) and self.folder.is_dir():
            with self._alone():
                self._clear(attachment_id)

    def _clear(self, attachment_id: str) -> None:
        # Marked first, so that the sweep removes what a kill leaves; the record goes before the
        # rest.
        self._mark(attachment_id, is_over=True)
        if self._sealing is not None:
            self._sealing.destroy(attachment_id)
        for suffix in (".json.new", ".json", ".data", UNSURE):
            (self.folder / f"{attachment_id}{suffix}").unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent others from changing the files' records inside the block; this blocks."""
        with waited_lock(self.folder / LOCK):
            yield

    # Unused files

    def _mark(self, attachment_id: str, *, is_over: bool = False) -> None:
        """Mark a file for removal in a day unless a session refers to it by then.

        With `is_over`, the day is already over.
        """
        path = self.folder / f"{attachment_id}{UNSURE}"
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT))
        os.utime(path, (0, 0) if is_over else None)

    def _kept_again(self, attachment_id: str) -> StoredFile | None:
        """Return the existing file, kept for another day; None if it is missing or in use.

        A file in use might be deleted with its message before the new message arrives.
        """
        if not attachment_id or not self.folder.is_dir():
            return None
        with self._alone():
            kept = self._known(attachment_id)
            if kept is None or kept.sessions:
                return None
            self._mark(attachment_id)
            return kept

    def doubt(self, attachment_ids: Iterable[str]) -> None:
        """Mark these files durably, so that the next sweep checks for references; this blocks."""
        with self._alone():
            for each in attachment_ids:
                self._mark(each, is_over=True)
            sync_folder(self.folder)

    def grace(self, attachment_ids: Iterable[str]) -> None:
        """Mark these files to be checked in a day, unless they are already marked; this blocks."""
        with self._alone():
            for each in attachment_ids:
                if not (self.folder / f"{each}{UNSURE}").exists():
                    self._mark(each)

    def unsure(self) -> list[str]:
        """Return the files whose day is over and whose references must be checked; this blocks."""
        marked = (mark.name.removesuffix(UNSURE) for mark in self.folder.glob(f"*{UNSURE}"))
        return [name for name in marked if self._is_unsure(name)]

    def _is_unsure(self, attachment_id: str) -> bool:
        mark = self.folder / f"{attachment_id}{UNSURE}"
        return _time_of(mark) < time.time() - UNUSED_SECONDS

    def tidy(self) -> None:
        """Remove unfinished files left by killed processes; this blocks."""
        with suppress(FileNotFoundError):
            named = load_file(self.folder / FORGETTING).decode().split()
            self.doubt(name for name in named if _ID.fullmatch(name))
            (self.folder / FORGETTING).unlink()
        before = time.time() - UNUSED_SECONDS
        for file in [*self.folder.glob(".*"), *self.folder.glob("*.new")]:
            if _UNFINISHED.fullmatch(file.name) and _time_of(file) < before:
                # Locked, unless its writer is dead.
                with suppress(FileNotFoundError, BlockingIOError), locked_file(file, os.O_RDWR):
                    file.unlink()

    def settle(self, attachment_id: str, *, unused_by: Collection[str]) -> None:
        """Withdraw a file from sessions that were found not to refer to it; this blocks.

        A file that no session refers to is removed, unless a session was given it in the meantime.
        """
        with self._alone():
            if not self._is_unsure(attachment_id):
                return
            kept = self._known(attachment_id)
            is_there = (self.folder / f"{attachment_id}.json").exists()
            if kept is None and is_there and not self._is_destroyed(attachment_id):
                return  # encrypted with another key, which is needed to find out
            if kept is None or not set(kept.sessions or ()) - set(unused_by):
                self._clear(attachment_id)
            else:
                self._rewrite(attachment_id, partial(_without, session_ids=unused_by))
                (self.folder / f"{attachment_id}{UNSURE}").unlink(missing_ok=True)

    def all(self) -> list[str]:
        """Return the ids of all files; this blocks."""
        return [file.stem for file in self.folder.glob("*.json") if _ID.fullmatch(file.stem)]

    def used_by(self, session_id: str) -> set[str]:
        """Return the ids of files that this session may use; this blocks."""
        known = ((name, self._known(name)) for name in self.all())
        return {name for name, kept in known if kept and session_id in (kept.sessions or ())}

    def former(self) -> list[str]:
        """Return files from earlier versions, which have no record of their users; this blocks."""
        if (self.folder / NOTED).exists():
            return []
        known = ((name, self._known(name)) for name in self.all())
        return [name for name, kept in known if kept is not None and kept.sessions is None]

    def note_former(self, users: Mapping[str, Collection[str]]) -> None:
        """Record who may use the files from earlier versions; this blocks."""
        for name, sessions in users.items():
            self._change(name, partial(_with, session_ids=tuple(sessions)))
            self._mark(name)
        if all(self._known(name) is not None for name in self.all()):  # else once there is a key
            save_json(self.folder / NOTED, True)

    # Space

    def _begin(self, kept: StoredFile) -> None:
        """Reserve space for a file; raise `AttachmentsFull` if there is not enough."""
        make_folder(self.folder)
        self._take_room(kept.size)
        self._mark(kept.id)

    def _take_room(self, size: int) -> None:
        # Count again if there seems to be no space: files may have been deleted with their
        # messages.
        if self._bytes is None or self._bytes + size > self._limit_bytes:
            self._bytes = sum(file.stat().st_size for file in self.folder.glob("*.data"))
        if self._bytes + size > self._limit_bytes:
            raise AttachmentsFull(self._limit_bytes)
        self._bytes += size


def _noted(kept: StoredFile) -> bytes:
    return json.dumps(asdict(kept)).encode()


def _with(users: Sequence[str], *, session_ids: Sequence[str]) -> Sequence[str]:
    return (*users, *session_ids)


def _without(users: Sequence[str], *, session_ids: Collection[str]) -> Sequence[str] | None:
    left = [user for user in users if user not in session_ids]
    return None if users and not left else left


def _time_of(file: Path) -> float:
    """Return when the file was last changed; infinity if it is gone, so it never counts as old."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return inf


READ_AT_ONCE = 500
"""How many entries are examined at a time."""
SWEEPS = 12
"""How many sweeps pass between two searches for files of missing sessions."""


class Forgetting:
    """Wraps a store so that it also deletes uploaded files.

    A file stays as long as any session refers to it. A damaged session counts as referring to no
    file, and a session that needs another key or version counts as referring to all files that it
    was given.
    """

    def __init__(self, store: Any, attachments: Attachments, *, is_kept: bool = True) -> None:
        """Wrap the store; `is_kept` is True if its sessions outlive the process, as files do."""
        self._store = store
        self._has_former = is_kept
        """True if files from earlier versions may still lack a record of their users."""
        self.attachments = attachments
        self._folder = attachments.folder
        self._sweeps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Erase as the store does, then remove the files that only these entries referred to."""
        gone = await self._files_of(session.id, seqs)
        await self._doubt(gone)
        await self._store.erase(session, seqs)
        await self._let_go(session.id, gone)

    async def erase_words(self, session: Session, person: Person, words: ErasedWords) -> None:
        """Erase as the store does, then remove files that only this person's messages used."""
        own = (e for e in words.waiting if sender_in(e.metadata) == person)
        gone = set().union(*map(files_in, (*words.gone.values(), *own)))
        await self._doubt(gone)
        await self._store.erase_words(session, person, words)
        await self._let_go(session.id, gone)

    async def delete(self, session_id: str) -> None:
        """Delete as the store does, then remove the files that only this session referred to."""
        has_any = self._has_any()
        gone = await run_sync(self.attachments.used_by, session_id) if has_any else set()
        await self._doubt(gone)
        await self._store.delete(session_id)
        await self._let_go(session_id, gone)

    async def delete_expired(self) -> int:
        """Delete as the store does, then remove the files that no session refers to any more.

        That includes leftovers of killed processes, and uploads that nothing has referred to for a
        day.
        """
        removed = int(await self._store.delete_expired())
        if self._has_any():
            if self._has_former:
                await self._note_former()
            if removed or self._sweeps % SWEEPS == 0:  # another process may have removed some
                await self._doubt_missing()
            self._sweeps += 1
            await self._sweep()
        return removed

    def _has_any(self) -> bool:
        # Checked here and not in a thread, so that without uploads, nothing delays the store.
        return self._folder.is_dir()

    async def _doubt(self, gone: Collection[str]) -> None:
        """Have the next sweep finish the work if a kill interrupts it."""
        if gone:
            await run_sync(self.attachments.doubt, gone)

    async def _let_go(self, session_id: str, gone: Collection[str]) -> None:
        """Withdraw these files from damaged sessions, and from this one if it is done with them."""
        for name in gone:
            kept = await self.attachments.about(name)
            if kept is None:  # a kill may have left its data
                await self.attachments.remove(name)
                continue
            unused = []
            for user in kept.sessions or ():
                try:
                    # For other sessions, a message with the file may be on its way.
                    refers = await self._refers(user, kept) or user != session_id
                except SessionDamaged:
                    refers = False
                except NotReadable:
                    refers = True
                if not refers:
                    unused.append(user)
            await self.attachments.drop(name, unused)

    async def _doubt_missing(self) -> None:
        """Keep files of missing sessions another day, because a waiting message may use them."""
        missing: dict[str, bool] = {}
        doubtful = []
        for name in await run_sync(self.attachments.all):
            kept = await self.attachments.about(name)
            users = () if kept is None else kept.sessions or ()
            for user in users:
                if user not in missing:
                    missing[user] = await self._is_missing(user)
            if any(missing[user] for user in users):
                doubtful.append(name)
        if doubtful:
            await run_sync(self.attachments.grace, doubtful)

    async def _is_missing(self, session_id: str) -> bool:
        try:
            await self._store.revision(session_id)
        except SessionNotFound:
            return True
        except (SessionDamaged, NotReadable):
            pass
        return False

    async def _sweep(self) -> None:
        await run_sync(self.attachments.tidy)
        unreadable: set[str] = set()
        for name in await run_sync(self.attachments.unsure):
            kept = await self.attachments.about(name)
            users = () if kept is None else kept.sessions or ()
            if not unreadable.isdisjoint(users):
                continue
            unused = []
            for user in users:
                try:
                    if kept is not None and not await self._refers(user, kept):
                        unused.append(user)
                except SessionDamaged:
                    pass
                except NotReadable:  # this can be decided once there is a key
                    unreadable.add(user)
                    break
            else:
                await run_sync(partial(self.attachments.settle, name, unused_by=unused))

    async def _refers(self, session_id: str, file: StoredFile) -> bool:
        """Return True if anything added to this session since the upload refers to the file.

        Raise `SessionDamaged` or `NotReadable` if the session can't be read.
        """
        try:
            session = await self._store.load(session_id)
            if any(file.id in files_in(entry) for entry in session.waiting):
                return True
            upto = session.last_seq
            while upto > 0:
                after = max(0, upto - READ_AT_ONCE)
                entries = await self._store.entries(session_id, after=after, upto=upto)
                if any(file.id in files_in(entry) for entry in entries):
                    return True
                # A day of grace, because clocks may be set back.
                if entries and entries[0].timestamp.timestamp() < file.at - UNUSED_SECONDS:
                    return False
                upto = after
        except SessionNotFound:
            return False
        return False

    async def _note_former(self) -> None:
        """Record which sessions refer to the files from earlier versions."""
        former = await run_sync(self.attachments.former)
        users: dict[str, set[str]] = {name: set() for name in former}
        is_sure = True
        if former:
            for session_id in [info.id async for info in self._store.list()]:
                try:
                    found = await self._files_of(session_id) & users.keys()
                except NotReadable:  # it may refer to any file, until a sweep can read it
                    found, is_sure = set(users), False
                for name in found:
                    users[name].add(session_id)
        await run_sync(self.attachments.note_former, users)
        if not is_sure:
            await self._doubt(former)
        self._has_former = False

    async def _files_of(self, session_id: str, seqs: Collection[int] | None = None) -> set[str]:
        """Return the files that a session refers to, or only those that these entries refer to."""
        found: set[str] = set()
        if not self._has_any():
            return found
        with suppress(SessionNotFound, SessionDamaged):
            if seqs is None:
                waiting = (await self._store.load(session_id)).waiting
                found.update(*map(files_in, waiting))
            async for entry in self._entries(session_id, seqs):
                found |= files_in(entry)
        return found

    async def _entries(self, session_id: str, seqs: Collection[int] | None) -> AsyncIterator[Entry]:
        after, upto = (
            (0, None) if seqs is None else (min(seqs, default=1) - 1, max(seqs, default=0))
        )
        part = {"upto": upto, "limit": READ_AT_ONCE}
        while some := await self._store.entries(session_id, after=after, **part):
            for entry in some:
                if seqs is None or entry.seq in seqs:
                    yield entry
            after = some[-1].seq
