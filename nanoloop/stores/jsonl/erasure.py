"""A session's file written anew, with nothing in it of the entries that are erased.

Older versions of summary, title and the like go too: they may have told of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoloop.files import replace_file
from nanoloop.session.changes import ABOUT, Changes
from nanoloop.session.entry import Entry
from nanoloop.stores.jsonl.commit import commit_of, summary_text
from nanoloop.stores.jsonl.first_line import first_line
from nanoloop.stores.jsonl.lines import (
    ENTRY,
    HEAD,
    METADATA,
    SECTION,
    UNREADABLE,
    Line,
    entry_line,
)
from nanoloop.stores.jsonl.marks import Marks
from nanoloop.stores.jsonl.reading import lines_from, read_span
from nanoloop.stores.jsonl.set_aside import copy_of
from nanoloop.stores.jsonl.standing import Standing

_RENEWED = {SECTION, HEAD, METADATA}
"""Lines of which only the newest is written, behind the entries."""
_DIGESTS = tuple(b'"_type":"%s"' % kind.encode() for kind in (SECTION, METADATA))
"""What tells that a line which can't be read may tell of any entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What goes, and what of the file has to be known to write it anew."""

    standing: Standing
    """Where the file stood."""
    gone: frozenset[int]
    entries: tuple[Entry, ...]
    """Those that go, readable."""
    sections: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        fd: int,
        standing: Standing,
        gone: Collection[int],
        *,
        opened: Callable[[Entry], Entry],
    ) -> Erasure:
        """Look through the file."""
        sections: dict[str, Any] = {}
        entries: list[Entry] = []
        for line in lines_from(fd, 0, standing.size):
            if line.kind == SECTION:
                sections[line.name] = line.value
            elif line.kind == ENTRY and line.value.seq in gone:
                entries.append(opened(line.value))
        return cls(
            standing=standing, gone=frozenset(gone), entries=tuple(entries), sections=sections
        )

    @property
    def traces(self) -> tuple[bytes, ...]:
        """What tells that a line which can't be read was one of them."""
        ids = (entry.id.encode() for entry in self.entries)
        return (*_DIGESTS, *ids, *(b'"seq":%d,' % seq for seq in self.gone))

    def file(self, fd: int, changes: Changes) -> Iterator[bytes]:
        """The new file, piece by piece, these changes in it; the old one stands as it stood."""
        sections = {**self.sections, **changes.sections}
        first = first_line(sections[ABOUT], summary_text(sections) or "")
        yield first
        marks, base = Marks(), len(first)
        for line in lines_from(fd, 0, self.standing.size):
            data = self._kept(fd, line)
            if line.kind == ENTRY:
                marks.add(line.value.seq, base)
            base += len(data)
            yield data
        changes = replace(changes, sections=sections)
        yield commit_of(changes, head=changes.head, at={}, base=base, marks=marks).data

    def _kept(self, fd: int, line: Line) -> bytes:
        if line.kind in _RENEWED:
            return b""
        if line.kind == ENTRY and line.value.seq in self.gone:
            return entry_line(line.value.erased())
        data = read_span(fd, line.offset, line.end)
        if line.kind == UNREADABLE and _tells(data, self.traces):
            return b""
        return data if data.endswith(b"\n") else data + b"\n"


def erase_in_copies(path: Path, traces: Collection[bytes]) -> None:
    """Leave nothing of them in the copies of lines that could not be read."""
    copy = copy_of(path)
    if copy.exists():
        lines = copy.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not _tells(line, traces)]
        replace_file(copy, b"".join(kept), durable=True)


def _tells(data: bytes, traces: Iterable[bytes]) -> bool:
    return any(trace in data for trace in traces)
