"""A folder of sessions: what lies where in it, and what its files tell at a glance."""

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
"""The folder of locks on the names of sessions. What earlier versions locked was a file."""
MARK = ".mark"
"""The file beside them that marks of what is owed are names of."""
KEYS = "keys"
"""The folder of bindings."""
NODES = "nodes"
"""The folder that says which processes live."""
BATCH = 64
"""Files that one visit of a thread looks at."""


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """Where the files of sessions are, and how they are written."""

    path: Path
    heard: HeardFiles
    """Which messages were taken in them."""
    durable: bool = False
    """Whether a commit is on the disk when it is done."""
    read_only: bool = False

    @cached_property
    def marks(self) -> OwedMarks:
        """Which of them may owe something."""
        return OwedMarks(self.path, mark=self.path / LOCK / MARK)

    def file(self, session_id: str) -> Path:
        """Where a session's file is."""
        return self.path / f"{file_name(session_id)}{SUFFIX}"

    def former_file(self, session_id: str) -> Path:
        """Where earlier versions had it."""
        return self.path / f"{former_file_name(session_id)}{SUFFIX}"

    @contextmanager
    def locked_name(self, name: str) -> Iterator[None]:
        """Nobody makes or removes the file of this name meanwhile; raises `BlockingIOError`."""
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
        return list(in_batches([Path(file.path) for file in files]))

    def glances(self, paths: Sequence[Path]) -> list[StoredSession]:
        """What these files tell, the last changed first; one that can't be read is passed over."""
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
        """The ids that these files belong to, whatever is in them."""
        return [_id_of(path) for path in paths]


def in_batches(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """So many at a time as one visit of a thread looks at."""
    return (paths[start : start + BATCH] for start in range(0, len(paths), BATCH))


def unreadable(path: Path, error: Exception) -> Event:
    """What there is to tell of a file that can't be read."""
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
"""What tells that a file is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What a file told when it was looked at."""

    stamp: Stamp
    kinds: frozenset[str] = NOTHING
    session: OwedSession | None = None
    expires_at: int | None = None

    def is_due(self, now: int, *, pending: bool) -> bool:
        """Whether it is to be told: it lives, and owes what is asked for."""
        lives = self.expires_at is None or self.expires_at >= now
        return lives and (pending or CHAT in self.kinds)


class OwedListing:
    """The sessions of one folder that owe something. A file is read again when it has changed."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder
        self._known: dict[str, Owed] = {}
        """As they were when they were looked at last, by the name of the file."""
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What there is to tell since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self, *, pending: bool) -> list[Sequence[Path]]:
        """The files in which something may be owed, in small groups."""
        names = self._folder.marks.names(ANYTHING if pending else {CHAT})
        self._known = {name: owed for name in names if (owed := self._known.get(name))}
        return list(in_batches([self._folder.path / f"{name}{SUFFIX}" for name in names]))

    def owing(self, paths: Sequence[Path], *, now: int, pending: bool) -> list[OwedSession]:
        """What is owed in these; the mark of one that owes nothing goes."""
        found = []
        for path in paths:
            owed = self._owed(path)
            if owed is None or not owed.kinds:
                self._unmark(path)
            elif owed.session and owed.is_due(now, pending=pending):
                found.append(owed.session)
        return found

    def _owed(self, path: Path) -> Owed | None:
        """What is owed there; None where there is no such file."""
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
        """Remove its marks if nobody is about to owe something there."""
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
