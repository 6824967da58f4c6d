"""An open session file: append to it, repair it, and rewrite it to erase entries."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from threading import RLock
from typing import Any

from nanoloop.errors import NotReadable, StoreError
from nanoloop.events import Event, LineSetAside, LogRepaired
from nanoloop.files import (
    load_file,
    lock,
    locked_file,
    opener,
    replace_file,
    sync_folder,
    unfinished,
    unlock,
    write_all,
)
from nanoloop.session.entry import Entry
from nanoloop.session.head import ABOUT, SUMMARY
from nanoloop.stores.database import Commit, text_of
from nanoloop.stores.jsonl.folder import SessionFolder
from nanoloop.stores.jsonl.lines import (
    ENTRY,
    FORMAT,
    HEAD,
    METADATA,
    SECTION,
    UNREADABLE,
    LogLine,
    entry_line,
    first_line,
    head_line,
    renewed,
    section_line,
)
from nanoloop.stores.jsonl.owed import NOTHING, kinds_owed
from nanoloop.stores.jsonl.reading import (
    CHUNK,
    PENDING,
    PROBE,
    SUFFIX,
    WINDOW,
    FileState,
    Marks,
    about_of,
    line_at,
    lines_from,
    read_span,
    read_tail,
    state_of,
)
from nanoloop.stores.snapshot import as_it_is, decoding, head_of, pending_start


class PlacedBytes(bytes):
    """A commit as bytes to write at one position: where the file ended when they were made.

    If another commit was written since, by a cancelled task, another event loop or another process,
    `LogFile.write` writes none of the bytes.
    """

    before: FileState
    """The file's state before the commit."""
    after: FileState
    """The file's state once the bytes are written."""
    commit: Commit


class LogFile(FileIO):
    """A file to which processes only append, except for changes to its first line.

    The state kept here is valid only as long as the file's inode and length stay the same; a writer
    locks the file and checks again. A reader needs no lock, because a commit is not visible until
    its head is written.
    """

    def __init__(self, path: Path, session_id: str, *, folder: SessionFolder, guard: RLock) -> None:
        """Open the file; hold `guard` to write to it or to read its state."""
        super().__init__(path, "rb" if folder.read_only else "r+b", opener=opener)
        self._path = path
        self._id = session_id
        self._folder = folder
        self._guard = guard
        self._name = folder.file(session_id).name.removesuffix(SUFFIX)
        self._inode = os.fstat(self.fd).st_ino
        try:
            with decoding(session_id):
                self._look()
                self._check_format()
                self._check_id()
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        """Close the file silently if the store was not closed; all saved data has been written."""
        self.close()

    @property
    def fd(self) -> int:
        """The file's descriptor."""
        return self.fileno()

    @property
    def is_gone(self) -> bool:
        """True if the file was removed, replaced or renamed."""
        return self._there is None

    @property
    def _there(self) -> os.stat_result | None:
        """The status of the file on disk; None if the file's name now refers to another file."""
        try:
            there = os.stat(self._path)  # noqa: PTH116 - called for each commit
        except FileNotFoundError:
            return None
        return there if there.st_ino == self._inode else None

    @property
    def is_whole(self) -> bool:
        """True if the next line can start at the known end."""
        return not (self.state.torn or self.state.open_ended)

    def catch_up(self) -> None:
        """Read what other processes have added."""
        # A torn end may have been cut off and replaced with other data of the same length.
        if not self.is_whole or os.fstat(self.fd).st_size != self.state.size:
            with decoding(self._id):
                self._look()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers out inside the block; raise `BlockingIOError` if one is writing."""
        lock(self.fd)
        try:
            yield
        finally:
            unlock(self.fd)

    def _look(self) -> None:
        tail = read_tail(self.fd, os.fstat(self.fd).st_size, PROBE)
        found = state_of(tail)
        head, at = head_of(self._id, found.head, as_it_is), found.at
        self.state: FileState = replace(found, head=head)
        self._owed = kinds_owed(head)
        self._marked = NOTHING  # the file may have been copied by hand
        self._is_settled = not found.took
        """True if the messages of the last commit are recorded permanently."""
        self.marks = Marks()
        self.marks.add(int(head.get("covered", 0)) + 1, at.get(PENDING, 0))
        self.marks.add(int(head["window"]), at.get(WINDOW, 0))

    def _check_format(self) -> None:
        first = line_at(self.fd, 0, self.state.size)
        found = first.value.get("format") if first and first.kind == METADATA else None
        if isinstance(found, int) and found > FORMAT:
            raise NotReadable(
                f"{self._path} has format {found}, but this version supports {FORMAT}: install a "
                "newer nanoloop, or choose another folder"
            )

    def _check_id(self) -> None:
        theirs = about_of(self.fd, self.state, session_id=self._id).get("id")
        if theirs != self._id:
            raise NotReadable(
                f"{self._path} contains session {theirs!r}, not {self._id!r}: this file system "
                "treats both names as one, so choose another id"
            )

    def placed(self, commit: Commit) -> PlacedBytes:
        """Return a commit's bytes for the file's end; raise `StoreError` if it has no JSON form."""
        before = self.state
        try:
            data, after = written(commit, at=before.at, base=before.size, marks=self.marks)
        except StoreError:
            self.marks.forget_from(before.size)
            raise
        placed = PlacedBytes(data)
        placed.before, placed.after, placed.commit = before, after, commit
        return placed

    def write(self, data: Any, /) -> int:
        """Write all of a commit's bytes; return 0 if the file now ends at another position.

        Raise disk errors, leaving nothing behind, `AlreadyHeard`, and `BlockingIOError` if another
        process is writing.
        """
        with self._guard:
            try:
                is_done = self._write(data)
            except BaseException:
                self.marks.forget_from(data.before.size)
                raise
            if not is_done:
                self.marks.forget_from(data.before.size)
            return len(data) if is_done else 0

    def _write(self, data: PlacedBytes) -> bool:
        if self.closed or self.state is not data.before or not self.is_whole:
            return False
        lock(self.fd)
        try:
            there = self._there
            if there is None or there.st_size != data.before.size:
                return False
            owed = kinds_owed(data.after.head)
            self.settle()
            self._folder.marks.add(self._name, owed - self._marked)
            if data.commit.heard:
                with self._folder.heard.taking(data.commit) as is_noted:
                    self._put(data)
                    self._is_settled = is_noted()
            else:
                self._put(data)
            self.state = data.after
            self._renew_first_line(data.commit.sections)
            self._folder.marks.remove(self._name, self._owed - owed)
            self._owed = self._marked = owed
        finally:
            unlock(self.fd)
        return True

    def settle(self) -> None:
        """Record the last commit's messages permanently, before the next commit.

        The caller must hold the lock. Raise `BlockingIOError` if a chat's file is locked.
        """
        if not self._is_settled:
            self._folder.heard.settle(self.state.took)
            self._is_settled = True

    def _put(self, data: PlacedBytes) -> None:
        try:
            os.lseek(self.fd, data.before.size, os.SEEK_SET)
            write_all(self.fd, data)
            if self._folder.durable:
                os.fsync(self.fd)
        except BaseException:
            # If even this fails, the next writer finds a torn end, or recognises the commit by its
            # id.
            with suppress(OSError):
                os.ftruncate(self.fd, data.before.size)
            raise

    def repair(self) -> list[Event]:
        """Make the file end with a whole line; return the events to announce.

        The caller must hold the lock and have just read the state.
        """
        old = self.state
        torn = read_span(self.fd, old.size, old.size + old.torn)
        if torn:  # perhaps written by another program or a later version
            keep_beside(self._path, [torn], durable=self._folder.durable)
            os.ftruncate(self.fd, old.size)
        if old.open_ended:
            os.pwrite(self.fd, b"\n", old.size)
        self.state = replace(old, size=old.size + old.open_ended, torn=0, open_ended=False)
        told = LogRepaired(session_id=self._id, bytes_cut=len(torn), file=copy_of(self._path).name)
        return [told] if torn else []

    def _renew_first_line(self, sections: Mapping[str, Any]) -> None:
        """Update the first line, which only copies data that is already written elsewhere."""
        about, summary = sections.get(ABOUT), summary_text(sections)
        if about is None and summary is None:
            return
        with suppress(OSError):  # the commit is valid; the next change updates the copy
            line = line_at(self.fd, 0, self.state.size)
            if line is None or line.kind != METADATA:  # never overwrite what can't be read
                return
            data = renewed(line.value, line.end, about=about, summary=summary)
            if len(data) == line.end:
                os.pwrite(self.fd, data, 0)


def written(
    commit: Commit, *, at: Mapping[str, int], base: int, marks: Marks
) -> tuple[bytes, FileState]:
    """Return a commit as bytes to write at `base`, and the state of the file afterwards.

    The bytes consist of the entries, the changed sections, and finally the head with all positions.
    """
    data = bytearray()
    for entry, text in zip(commit.entries, commit.texts, strict=True):
        marks.add(entry.seq, base + len(data))
        data += entry_line(entry.seq, text)
    places = dict(at)
    for name, value in commit.sections.items():
        places[name] = base + len(data)
        data += section_line(name, value)
    places[WINDOW] = marks.before(commit.window)
    places[PENDING] = marks.before(pending_start(commit.head))
    took = tuple(dict.fromkeys(chat for chat, _ in commit.heard))
    data += head_line(commit.head, places, took)
    size = base + len(data)
    return bytes(data), FileState(head=dict(commit.head), at=places, size=size, took=took)


def new_file(commit: Commit) -> bytes:
    """Return the bytes of a file that begins with this commit."""
    first = first_line(commit.sections[ABOUT], summary_text(commit.sections) or "")
    return first + written(commit, at={}, base=len(first), marks=Marks())[0]


def summary_text(sections: Mapping[str, Any]) -> str | None:
    """Return the summary's text if it is in these sections; "" if not, or if it is encrypted."""
    value = sections.get(SUMMARY)
    if isinstance(value, Mapping):
        value = value.get("value", "")
    return None if value is None else str(value)


class SetAside:
    """Copies a file's unreadable lines."""

    def __init__(self, path: Path, *, session_id: str, read_only: bool) -> None:
        self._path = path
        self._id = session_id
        self._read_only = read_only
        self._told: set[int] = set()

    def settle(self, fd: int, lines: Iterable[LogLine]) -> list[Event]:
        """Copy any new unreadable lines, and return the events to announce."""
        met = {line.offset: line for line in lines if line.offset not in self._told}
        self._told.update(met)
        fresh = list(met.values())
        if fresh and not self._read_only:
            try:
                kept = set(keep_beside(self._path, [line.value for line in fresh]))
            except BlockingIOError:  # the next reader does it
                self._told.difference_update(met)
                return []
            fresh = [line for line in fresh if line.value in kept]
        name = copy_of(self._path).name
        return [
            LineSetAside(session_id=self._id, line=_number(fd, line.offset), file=name)
            for line in fresh
        ]


def keep_beside(path: Path, lines: Iterable[bytes], *, durable: bool = False) -> Collection[bytes]:
    """Copy unreadable lines to a file beside this one; return the new ones.

    Raise `BlockingIOError` if another process is doing the same.
    """
    with locked_file(copy_of(path), os.O_RDWR | os.O_CREAT | os.O_APPEND) as fd:
        known = set(read_span(fd, 0, os.fstat(fd).st_size).split(b"\n"))
        fresh = [line for line in lines if line not in known]
        write_all(fd, b"".join(line + b"\n" for line in fresh))
        if durable:
            os.fsync(fd)
            sync_folder(path.parent)
    return fresh


def _number(fd: int, offset: int) -> int:
    """Return the number, from 1, of the line that begins at this offset."""
    number = 1
    for start in range(0, offset, CHUNK):
        number += read_span(fd, start, min(offset, start + CHUNK)).count(b"\n")
    return number


def removed_copies(path: Path) -> None:
    """Delete files derived from this one: copies of unreadable lines, and unfinished rewrites."""
    for file in (copy_of(path), unfinished(path), unfinished(copy_of(path))):
        file.unlink(missing_ok=True)


def copy_of(path: Path) -> Path:
    """Return the path for copies of a file's unreadable lines."""
    return path.with_name(path.name + ".corrupt")


_RENEWED = {SECTION, HEAD, METADATA}
"""The kinds of lines that are rewritten after the entries, each with only its newest value."""
_DIGESTS = tuple(b'"_type":"%s"' % kind.encode() for kind in (SECTION, METADATA))
"""Signs that an unreadable line may contain text from entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The entries to erase, and what is needed to rewrite the file without them.

    Older versions of the summary, title and similar texts are dropped too, because they may mention
    erased entries.
    """

    state: FileState
    """The state of the file."""
    gone: frozenset[int]
    ids: tuple[str, ...]
    """The ids of erased entries, as far as they can be read."""
    sections: Mapping[str, Any]

    @classmethod
    def of(cls, file: LogFile, gone: frozenset[int]) -> Erasure:
        """Scan the file for what is needed to rewrite it."""
        sections: dict[str, Any] = {}
        ids: list[str] = []
        for line in lines_from(file.fd, 0, file.state.size):
            if line.kind == SECTION:
                sections[line.name] = line.value
            elif line.kind == ENTRY and line.value.seq in gone:
                ids.append(line.value.id)
        return cls(state=file.state, gone=gone, ids=tuple(ids), sections=sections)

    @property
    def traces(self) -> tuple[bytes, ...]:
        """Signs that an unreadable line contains one of the erased entries."""
        ids = (each.encode() for each in self.ids)
        return (*_DIGESTS, *ids, *(b'"seq":%d,' % seq for seq in self.gone))

    def file(self, fd: int, commit: Commit) -> Iterator[bytes]:
        """Yield the new file in pieces, including the commit; the old file is left unchanged."""
        sections = {**self.sections, **commit.sections}
        first = first_line(sections[ABOUT], summary_text(sections) or "")
        yield first
        marks, base = Marks(), len(first)
        left = {entry.seq: entry for entry in commit.rewritten}
        for line in lines_from(fd, 0, self.state.size):
            data = self._kept(fd, line, left)
            if line.kind == ENTRY:
                marks.add(line.value.seq, base)
            base += len(data)
            yield data
        yield written(replace(commit, sections=sections), at={}, base=base, marks=marks)[0]

    def _kept(self, fd: int, line: LogLine, left: Mapping[int, Entry]) -> bytes:
        if line.kind in _RENEWED:
            return b""
        if line.kind == ENTRY and line.value.seq in self.gone:
            erased = left.get(line.value.seq) or line.value.erased()
            return entry_line(line.value.seq, text_of(erased))
        data = read_span(fd, line.offset, line.end)
        if line.kind == UNREADABLE and _tells(data, self.traces):
            return b""
        return data if data.endswith(b"\n") else data + b"\n"


def erase_in_copies(path: Path, traces: Collection[bytes]) -> None:
    """Remove all lines with these signs from the copies of unreadable lines."""
    copy = copy_of(path)
    with suppress(FileNotFoundError), locked_file(copy, os.O_RDWR):
        lines = load_file(copy).splitlines(keepends=True)
        kept = [line for line in lines if not _tells(line, traces)]
        replace_file(copy, b"".join(kept), durable=True)


def _tells(data: bytes, traces: Iterable[bytes]) -> bool:
    return any(trace in data for trace in traces)
