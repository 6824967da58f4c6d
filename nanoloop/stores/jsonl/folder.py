"""A folder of sessions: its layout, and what its files show at a glance."""

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
"""The folder of locks on session names. Earlier versions locked a file instead."""
MARK = ".mark"
"""The file beside them to which the marks of what is owed are linked."""
KEYS = "keys"
"""The folder of bindings."""
KEYS_LOCK = ".keys"
"""Locked while a binding is replaced that must be what it was."""
NODES = "nodes"
"""The folder that says which processes are alive."""
BATCH = 64
"""How many files a thread looks at in one go."""


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """Where the files of sessions are, and how they are written."""

    path: Path
    heard: HeardFiles
    """The record of which messages were taken in them."""
    durable: bool = False
    """Whether a commit is on the disk once it is done."""
    read_only: bool = False

    @cached_property
    def marks(self) -> OwedMarks:
        """The marks of the sessions that may owe something."""
        return OwedMarks(self.path, mark=self.path / LOCK / MARK)

    def file(self, session_id: str) -> Path:
        """Where a session's file is."""
        return self.path / f"{file_name(session_id)}{SUFFIX}"

    def former_file(self, session_id: str) -> Path:
        """Where earlier versions kept it."""
        return self.path / f"{former_file_name(session_id)}{SUFFIX}"

    @contextmanager
    def locked_name(self, name: str) -> Iterator[None]:
        """Keep others from creating or removing the file of this name; raises `BlockingIOError`."""
        path = self.path / LOCK / name
        with locked_file(path):
            yield
            path.unlink(missing_ok=True)  # one that a killed process left is used by the next


class FolderListing:
    """The session files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """The events to report since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self) -> list[Sequence[Path]]:
        """The files, the most recently written first, in small groups."""
        try:
            with os.scandir(self._folder) as items:
                files = [item for item in items if item.name.endswith(SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        files.sort(key=_written, reverse=True)
        return list(in_batches([Path(file.path) for file in files]))

    def glances(self, paths: Sequence[Path]) -> list[StoredSession]:
        """What these files show, the last changed first; any that can't be read are skipped."""
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
        """The ids that these files belong to, regardless of their contents."""
        return [_id_of(path) for path in paths]


def in_batches(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Split them into batches that a thread looks at in one go."""
    return (paths[start : start + BATCH] for start in range(0, len(paths), BATCH))


def unreadable(path: Path, error: Exception) -> Event:
    """The event that reports a file that can't be read."""
    return FileUnreadable(file=path.name, error=type(error).__name__)


def _id_of(path: Path) -> str:
    name = path.name.removesuffix(SUFFIX)
    session_id = name_of(name)
    if session_id is None:  # the file's name is a shortened one
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
"""What shows that a file is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What a file showed when it was last looked at."""

    stamp: Stamp
    kinds: frozenset[str] = NOTHING
    session: OwedSession | None = None
    expires_at: int | None = None

    def is_due(self, now: int, *, pending: bool) -> bool:
        """Whether to report it: it has not expired, and owes what is asked for."""
        lives = self.expires_at is None or self.expires_at >= now
        return lives and (pending or CHAT in self.kinds)


class OwedListing:
    """The sessions of one folder that owe something. A file is only read again after a change."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder
        self._known: dict[str, Owed] = {}
        """What they showed when last looked at, by file name."""
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """The events to report since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self, *, pending: bool) -> list[Sequence[Path]]:
        """The files in which something may be owed, in small groups."""
        names = self._folder.marks.names(ANYTHING if pending else {CHAT})
        self._known = {name: owed for name in names if (owed := self._known.get(name))}
        return list(in_batches([self._folder.path / f"{name}{SUFFIX}" for name in names]))

    def owing(self, paths: Sequence[Path], *, now: int, pending: bool) -> list[OwedSession]:
        """What is owed in these files; removes the mark of any that owes nothing."""
        found = []
        for path in paths:
            owed = self._owed(path)
            if owed is None or not owed.kinds:
                self._unmark(path)
            elif owed.session and owed.is_due(now, pending=pending):
                found.append(owed.session)
        return found

    def _owed(self, path: Path) -> Owed | None:
        """What is owed there; None if there is no such file."""
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
            return Owed(stamp=stamp, kinds=ANYTHING)  # it may owe something once it is mended
        ends_at = expiry(stored.head)
        return Owed(
            stamp=stamp,
            kinds=kinds_owed(stored.head),
            session=owed_session(stored.sections[ABOUT]["id"], stored.head),
            expires_at=None if ends_at is None else micros(ends_at),
        )

    def _unmark(self, path: Path) -> None:
        """Remove its marks unless something is about to be owed there."""
        if self._folder.read_only:
            return
        name = path.name.removesuffix(SUFFIX)
        # Locked by a writer, or broken: the next look will tell.
        with suppress(OSError, SessionDamaged), self._folder.locked_name(name):
            try:
                with locked_file(path, os.O_RDWR) as fd:
                    owed = kinds_owed(glance_in(path, fd).head)
                    self._folder.marks.remove(name, ANYTHING - owed)
            except FileNotFoundError:
                self._folder.marks.remove(name, ANYTHING)
