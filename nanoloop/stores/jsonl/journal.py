"""One session on disk: made, read, added to, removed.

Every method runs in a worker thread from beginning to end, so that a cancelled task never leaves
the file and the session of different minds. What is new in a session is taken where the session
is changed, before that: the thread could see but one of two changes that belong together. Where
the session knows of a newer commit by then, nothing is written, and the method says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import RLock

from nanoloop.errors import SessionExists, SessionNotFound, StoreConflict
from nanoloop.events import Event
from nanoloop.files import replace_file, sync_folder
from nanoloop.session.changes import Changes
from nanoloop.session.session import Session
from nanoloop.stores.creation import first_changes
from nanoloop.stores.jsonl.commit import new_file
from nanoloop.stores.jsonl.erasure import Erasure, erase_in_copies
from nanoloop.stores.jsonl.history import History
from nanoloop.stores.jsonl.lines import Line
from nanoloop.stores.jsonl.log_file import LogFile
from nanoloop.stores.jsonl.marks import Marks
from nanoloop.stores.jsonl.set_aside import SetAside, removed_copy
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.sense import making_sense
from nanoloop.stores.snapshot import Snapshot, first_revision, has_expired


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
        with making_sense(self.id):
            if has_expired(self._file.standing.head, self._clock()):
                raise SessionNotFound(self.id)
        return self._file

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    @contextmanager
    def history(self) -> Iterator[History]:
        """Read what is durable now; a commit meanwhile waits for nothing and is not seen."""
        with self._lock:
            file = self._opened()
            fd, standing, marks = os.dup(file.fd), file.standing, file.marks
        unreadable: list[Line] = []
        try:
            with making_sense(self.id):
                yield History(
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

    def restore(self, snapshot: Snapshot, *, may_replace: bool = False) -> None:
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
