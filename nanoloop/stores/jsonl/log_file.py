"""One open file of a session: where it stands, and bytes at its end or none at all."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.events import Event, LogRepaired
from nanoloop.files import write_all
from nanoloop.session.changes import ABOUT, Changes
from nanoloop.stores.jsonl.commit import Commit, commit_of, summary_text
from nanoloop.stores.jsonl.first_line import FORMAT, renewed
from nanoloop.stores.jsonl.history import about_of
from nanoloop.stores.jsonl.lines import METADATA
from nanoloop.stores.jsonl.marks import Marks
from nanoloop.stores.jsonl.reading import PROBE, line_at, read_tail
from nanoloop.stores.jsonl.standing import PENDING, WINDOW, Standing, standing_of
from nanoloop.stores.sense import as_it_is, head_of, making_sense


class LogFile:
    """A file that is only ever added to, but for its first line; raises `SessionNotFound`."""

    def __init__(self, path: Path, session_id: str, *, durable: bool, read_only: bool) -> None:
        self._path = path
        self._id = session_id
        self._durable = durable
        self.is_dirty = False
        """Whether a failed write may have left bytes behind where the file stands."""
        try:
            self.fd = os.open(path, os.O_RDONLY if read_only else os.O_RDWR)
        except FileNotFoundError:
            raise SessionNotFound(session_id) from None
        try:
            with making_sense(session_id):
                self._look()
                self._check_format()
                self._check_id()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    @property
    def is_gone(self) -> bool:
        """Whether it was removed or replaced by hand."""
        return os.fstat(self.fd).st_nlink == 0

    def catch_up(self) -> None:
        """See what others added; what this one failed to write is no addition."""
        known = self.standing.size + self.standing.torn
        if not self.is_dirty and os.fstat(self.fd).st_size != known:
            with making_sense(self._id):
                self._look()

    def _look(self) -> None:
        tail = read_tail(self.fd, os.fstat(self.fd).st_size, PROBE)
        self.standing: Standing = standing_of(tail)
        head, at = head_of(self._id, self.standing.head, as_it_is), self.standing.at
        self.marks = Marks()
        self.marks.add(int(head.get("covered", 0)) + 1, at.get(PENDING, 0))
        self.marks.add(int(head["window"]), at.get(WINDOW, 0))

    def _check_format(self) -> None:
        first = line_at(self.fd, 0, self.standing.size)
        found = first.value.get("format") if first and first.kind == METADATA else None
        if isinstance(found, int) and found > FORMAT:
            raise StoreError(
                f"{self._path} is of format {found}, and this version knows {FORMAT}: install a "
                "newer nanoloop, or choose another folder"
            )

    def _check_id(self) -> None:
        theirs = about_of(self.fd, self.standing, session_id=self._id).get("id")
        if theirs != self._id:
            raise StoreError(
                f"{self._path} holds session {theirs!r}, not {self._id!r}: this file system takes "
                "both names for one, choose another id"
            )

    def commit_of(self, changes: Changes) -> Commit:
        """The bytes of these changes, for this place."""
        size = self.standing.size
        try:
            return commit_of(
                changes, head=changes.head, at=self.standing.at, base=size, marks=self.marks
            )
        except StoreError:
            self.marks.forget_from(size)
            raise

    def append(self, commit: Commit) -> None:
        """Write the whole commit, or raise and leave nothing of it."""
        try:
            os.lseek(self.fd, self.standing.size, os.SEEK_SET)
            write_all(self.fd, commit.data)
            if self._durable:
                os.fsync(self.fd)
        except BaseException:
            self._cut_back()
            raise
        self.standing = commit.standing

    def _cut_back(self) -> None:
        """Take back what a failed write left; where even that fails, before the next write."""
        self.is_dirty = True
        self.marks.forget_from(self.standing.size)
        with suppress(OSError):
            os.ftruncate(self.fd, self.standing.size)
            self.is_dirty = False

    def repair(self) -> list[Event]:
        """Let the next line begin where one ends; returns what there is to tell."""
        old = self.standing
        if self.is_dirty or old.torn:
            os.ftruncate(self.fd, old.size)
            self.is_dirty = False
        if old.open_ended:
            os.pwrite(self.fd, b"\n", old.size)
        self.standing = replace(old, size=old.size + old.open_ended, torn=0, open_ended=False)
        return [LogRepaired(session_id=self._id, bytes_cut=old.torn)] if old.torn else []

    def renew_first_line(self, changes: Changes) -> None:
        """Bring the copy for people up to date; what is true is written already."""
        about, summary = changes.sections.get(ABOUT), summary_text(changes.sections)
        if about is None and summary is None:
            return
        with suppress(OSError):  # the commit stands; the copy is renewed with the next change
            line = line_at(self.fd, 0, self.standing.size)
            if line is None or line.kind != METADATA:  # never overwrite what can't be read
                return
            data = renewed(line.value, line.end, about=about, summary=summary)
            if len(data) == line.end:
                os.pwrite(self.fd, data, 0)
