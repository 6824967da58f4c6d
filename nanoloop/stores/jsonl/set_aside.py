"""Lines that can't be read: copied beside the file, told once, and left where they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nanoloop.events import Event, LineSetAside
from nanoloop.stores.jsonl.lines import Line
from nanoloop.stores.jsonl.reading import CHUNK, read_span


class SetAside:
    """The unreadable lines of one file."""

    def __init__(self, path: Path, *, session_id: str, read_only: bool) -> None:
        self._copy = copy_of(path)
        self._id = session_id
        self._read_only = read_only
        self._told: set[int] = set()

    def settle(self, fd: int, lines: Iterable[Line]) -> list[Event]:
        """Copy those that are new; returns what there is to tell."""
        met = {line.offset: line for line in lines if line.offset not in self._told}
        self._told.update(met)
        fresh = list(met.values())
        if fresh and not self._read_only:
            fresh = self._copied(fresh)
        return [
            LineSetAside(session_id=self._id, line=_number(fd, line.offset), file=self._copy.name)
            for line in fresh
        ]

    def _copied(self, lines: list[Line]) -> list[Line]:
        """Those that were not there from an earlier time."""
        old = self._copy.read_bytes() if self._copy.exists() else b""
        known = set(old.split(b"\n"))
        fresh = [line for line in lines if line.value not in known]
        with self._copy.open("ab") as file:
            file.writelines(line.value + b"\n" for line in fresh)
        return fresh


def _number(fd: int, offset: int) -> int:
    """Which line of the file begins there, from 1."""
    number = 1
    for start in range(0, offset, CHUNK):
        number += read_span(fd, start, min(offset, start + CHUNK)).count(b"\n")
    return number


def removed_copy(path: Path) -> None:
    """Remove the copies with the file they came from."""
    copy_of(path).unlink(missing_ok=True)


def copy_of(path: Path) -> Path:
    """Where the copies of a file's lines are."""
    return path.with_name(path.name + ".corrupt")
