"""A folder of sessions: its layout, and overviews of its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from nanoloop.errors import SessionDamaged
from nanoloop.events import Event, FileUnreadable
from nanoloop.files import (
    file_name,
    former_file_name,
    locked_file,
    name_of,
)
from nanoloop.protocols import OwedSession
from nanoloop.session.entry import from_rfc3339
from nanoloop.session.head import ABOUT
from nanoloop.stores.database import StoredSession, micros
from nanoloop.stores.jsonl.heard import HeardFiles
from nanoloop.stores.jsonl.owed import ANYTHING, CHAT, NOTHING, OwedMarks, kinds_owed
from nanoloop.stores.jsonl.reading import SUFFIX, glance_at, glance_in
from nanoloop.stores.snapshot import expiry, owed_session

LOCK = ".lock"
"""The folder of locks on session names, at the path where earlier versions locked a file."""
MARK = ".mark"
"""The file in the lock folder that all marks for pending work link to."""
KEYS = "keys"
"""The folder of key bindings."""
KEYS_LOCK = ".keys"
"""The file that is locked while a binding is checked and replaced."""
NODES = "nodes"
"""The folder with one file per living process."""
BATCH = 64
"""How many files a thread reads at once."""


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """The folder with the session files, and the options for writing them."""

    path: Path
    heard: HeardFiles
    """The record of the messages accepted in these sessions."""
    durable: bool = False
    """True if each commit must be on disk before it counts as done."""
    read_only: bool = False

    @cached_property
    def marks(self) -> OwedMarks:
        """The marks of the sessions that may have pending work."""
        return OwedMarks(self.path, mark=self.path / LOCK / MARK)

    def file(self, session_id: str) -> Path:
        """Return the path of a session's file."""
        return self.path / f"{file_name(session_id)}{SUFFIX}"

    def former_file(self, session_id: str) -> Path:
        """Return the path that earlier versions used for a session's file."""
        return self.path / f"{former_file_name(session_id)}{SUFFIX}"

    @contextmanager
    def locked_name(self, name: str) -> Iterator[None]:
        """Prevent others from creating or deleting a session's file.

        Raise `BlockingIOError` if someone else is doing so.
        """
        path = self.path / LOCK / name
        with locked_file(path):
            yield
            path.unlink(missing_ok=True)  # a file left by a killed process is reused


class FolderListing:
    """Lists the session files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """Return the events since the last call, so that the caller can announce them."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self) -> list[Sequence[Path]]:
        """Return the files, most recently written first, in small groups."""
        try:
            with os.scandir(self._folder) as items:
                files = [item for item in items if item.name.endswith(SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        files.sort(key=_written, reverse=True)
        return list(in_batches([Path(file.path) for file in files]))

    def glances(self, paths: Sequence[Path]) -> list[StoredSession]:
        """Return overviews of these files, last changed first; skip unreadable files."""
        glances = []
        for path in paths:
            try:
                glances.append(glance_at(path))
            except FileNotFoundError:
                continue
            except (OSError, SessionDamaged) as error:
                self._heard.append(unreadable(path, error))
        return sorted(glances, key=_updated_at, reverse=True)

    def names(self, paths: Sequence[Path]) -> list[str]:
        """Return the ids that these files belong to, even if the files can't be read."""
        return [_id_of(path) for path in paths]


def in_batches(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Split paths into batches that a thread reads at once."""
    return (paths[start : start + BATCH] for start in range(0, len(paths), BATCH))


def unreadable(path: Path, error: Exception) -> Event:
    """Return the event for a file that can't be read."""
    return FileUnreadable(file=path.name, error=type(error).__name__)


def _id_of(path: Path) -> str:
    name = path.name.removesuffix(SUFFIX)
    session_id = name_of(name)
    if session_id is None:  # the file's name was shortened
        with suppress(OSError, SessionDamaged):
            return str(glance_at(path).sections[ABOUT]["id"])
    return session_id or name


def _updated_at(stored: StoredSession) -> datetime:
    return from_rfc3339(stored.head.get("updated_at"))


def _written(item: os.DirEntry[str]) -> int:
    try:
        return item.stat().st_mtime_ns
    except OSError:
        return 0


Stamp = tuple[int, int, int]
"""The properties of a file that change when it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A file's pending work when it was last read."""

    stamp: Stamp
    kinds: frozenset[str] = NOTHING
    session: OwedSession | None = None
    expires_at: int | None = None

    def is_due(self, now: int, *, pending: bool) -> bool:
        """Return True if the session has not expired and has this kind of pending work."""
        lives = self.expires_at is None or self.expires_at >= now
        return lives and (pending or CHAT in self.kinds)


class OwedListing:
    """Lists sessions with pending work in one folder; a file is read again only after a change."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder
        self._known: dict[str, Owed] = {}
        """What was last read from each file, by file name."""
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """Return the events since the last call, so that the caller can announce them."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self, *, pending: bool) -> list[Sequence[Path]]:
        """Return the files that may have pending work, in small groups."""
        names = self._folder.marks.names(ANYTHING if pending else {CHAT})
        self._known = {name: owed for name in names if (owed := self._known.get(name))}
        return list(in_batches([self._folder.path / f"{name}{SUFFIX}" for name in names]))

    def owing(self, paths: Sequence[Path], *, now: int, pending: bool) -> list[OwedSession]:
        """Return the pending work in these files, and remove the marks of files without any."""
        found = []
        for path in paths:
            owed = self._owed(path)
            if owed is None or not owed.kinds:
                self._unmark(path)
            elif owed.session and owed.is_due(now, pending=pending):
                found.append(owed.session)
        return found

    def _owed(self, path: Path) -> Owed | None:
        """Return a file's pending work, or None if the file doesn't exist."""
        name = path.name.removesuffix(SUFFIX)
        try:
            there = path.stat()
            stamp = there.st_ino, there.st_size, there.st_mtime_ns
            known = self._known.get(name)
            if known is None or known.stamp != stamp:
                self._known[name] = known = self._look(path, stamp)
        except FileNotFoundError:
            return None
        return known

    def _look(self, path: Path, stamp: Stamp) -> Owed:
        try:
            stored = glance_at(path)
        except FileNotFoundError:
            raise
        except (OSError, SessionDamaged) as error:
            self._heard.append(unreadable(path, error))
            return Owed(stamp=stamp, kinds=ANYTHING)  # it may have pending work once it is repaired
        ends_at = expiry(stored.head)
        return Owed(
            stamp=stamp,
            kinds=kinds_owed(stored.head),
            session=owed_session(stored.sections[ABOUT]["id"], stored.head),
            expires_at=None if ends_at is None else micros(ends_at),
        )

    def _unmark(self, path: Path) -> None:
        """Remove a file's marks, unless new work is about to be recorded."""
        if self._folder.read_only:
            return
        name = path.name.removesuffix(SUFFIX)
        # If a writer holds the lock or the file is damaged, the next check decides.
        with suppress(OSError, SessionDamaged), self._folder.locked_name(name):
            try:
                with locked_file(path, os.O_RDWR) as fd:
                    owed = kinds_owed(glance_in(path, fd).head)
                    self._folder.marks.remove(name, ANYTHING - owed)
            except FileNotFoundError:
                self._folder.marks.remove(name, ANYTHING)
