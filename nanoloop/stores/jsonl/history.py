"""What a session's file tells: its window, its whole history, some entries, or a glance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nanoloop.protocols import SessionInfo
from nanoloop.session.changes import ABOUT
from nanoloop.session.entry import Entry, rfc3339
from nanoloop.stores.jsonl.first_line import about_in
from nanoloop.stores.jsonl.lines import ENTRY, METADATA, SECTION, UNREADABLE, Line
from nanoloop.stores.jsonl.marks import Marks
from nanoloop.stores.jsonl.reading import (
    PROBE,
    Tail,
    begins_line,
    line_at,
    lines_from,
    read_tail,
    search,
)
from nanoloop.stores.jsonl.standing import PENDING, WINDOW, Standing, standing_of
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.sense import as_it_is, sections_of
from nanoloop.stores.snapshot import Snapshot, info_of, is_visible, message_ids, window_start

Report = Callable[[Line], None]
"""Hears of lines that can't be read."""


class History:
    """One open file, up to where it stood when it was opened."""

    def __init__(
        self,
        fd: int,
        standing: Standing,
        *,
        session_id: str,
        marks: Marks,
        report: Report,
        sealing: Sealing,
    ) -> None:
        self._fd = fd
        self._standing = standing
        self._id = session_id
        self._marks = marks
        self._report = report
        self._sealing = sealing

    def window(self) -> Snapshot:
        """The session with its window only, from the end of the file."""
        standing = self._standing
        tail = read_tail(self._fd, standing.size)
        known = {line.offset: line for line in self._told(tail.lines)}
        sections = self._sections(standing, known)
        after = window_start(standing.head) - 1
        shown = self._window_entries(standing, tail, after)
        if sections is None or shown is None:  # the places don't hold: the file was edited
            return _cut(self.whole(), after)
        entries = (line.value for line in tail.lines if line.kind == ENTRY)
        before = (self._sealing.entry(e, self._id) for e in entries if e.seq <= after)
        return self._sealing.opened(
            Snapshot(
                head=standing.head,
                sections=sections,
                entries=shown,
                after=after,
                seen=message_ids(before),
            )
        )

    def _sections(self, standing: Standing, known: Mapping[int, Line]) -> dict[str, Any] | None:
        """The newest value of each section; None where one isn't where it should be."""
        sections = {}
        for name, offset in standing.at.items():
            if name in {WINDOW, PENDING}:
                continue
            line = known.get(offset) or line_at(self._fd, offset, standing.size)
            if line is None or line.kind != SECTION or line.name != name:
                return None
            sections[name] = line.value
        return sections if ABOUT in sections else None

    def _window_entries(self, standing: Standing, tail: Tail, after: int) -> list[Entry] | None:
        """The entries above `after`; None where they aren't where they should be."""
        offset = standing.at.get(WINDOW, 0)
        if offset > standing.size or not begins_line(self._fd, offset):
            return None
        before = self._told(lines_from(self._fd, offset, max(offset, tail.start)))
        lines = [*before, *(line for line in tail.lines if line.offset >= offset)]
        entries = [line.value for line in self._marked(lines) if line.kind == ENTRY]
        if offset > 0 and entries and entries[0].seq > after + 1:
            return None
        return [entry for entry in entries if entry.seq > after]

    def whole(self) -> Snapshot:
        """The session with all its entries."""
        first: Mapping[str, Any] = {}
        sections: dict[str, Any] = {}
        entries: list[Entry] = []
        unreadable = []
        for line in self._told(self._marked(lines_from(self._fd, 0, self._standing.size))):
            if line.kind == ENTRY:
                entries.append(line.value)
            elif line.kind == SECTION:
                sections[line.name] = line.value
            elif line.kind == METADATA and not first:
                first = line.value
            elif line.kind == UNREADABLE:
                unreadable.append(f"the line at byte {line.offset} of its file can't be read")
        sections.setdefault(ABOUT, _salvaged(first, self._id, entries))
        return self._sealing.opened(
            Snapshot(
                head=self._standing.head,
                sections=sections_of(self._id, sections.items(), as_it_is),
                entries=entries,
                unreadable=unreadable,
            )
        )

    def between(self, after: int, upto: int | None, limit: int | None) -> list[Entry]:
        """Entries with `after < seq <= upto`, oldest first, at most `limit`."""
        head = self._standing.head
        found: list[Entry] = []
        for line in self._told(lines_from(self._fd, self._start(after), self._standing.size)):
            if line.kind != ENTRY or line.value.seq <= after:
                continue
            if (upto is not None and line.value.seq > upto) or len(found) == limit:
                self._marks.add(line.value.seq, line.offset)
                break
            if is_visible(head, line.value.seq):
                found.append(self._sealing.entry(line.value, self._id))
        return found

    def _start(self, after: int) -> int:
        """A byte not far before the entry behind `after`."""
        size = self._standing.size
        start = search(self._fd, after + 1, self._marks.before(after + 1), size)
        lines = lines_from(self._fd, start, size, PROBE)
        first = next((line.value.seq for line in lines if line.kind == ENTRY), None)
        if start == 0 or after >= self._standing.last or (first or after + 2) <= after + 1:
            return start
        return search(self._fd, after + 1, 0, size)  # the file was edited: no known place holds

    def _told(self, lines: Iterator[Line] | tuple[Line, ...]) -> Iterator[Line]:
        for line in lines:
            if line.kind == UNREADABLE:
                self._report(line)
            yield line

    def _marked(self, lines: Iterator[Line] | list[Line]) -> Iterator[Line]:
        for line in lines:
            if line.kind == ENTRY:
                self._marks.add(line.value.seq, line.offset)
            yield line


def glance(fd: int, size: int, *, session_id: str, sealing: Sealing) -> SessionInfo:
    """The session at a glance, from both ends of its file."""
    tail = read_tail(fd, size, PROBE)
    standing = standing_of(tail)
    about = sealing.glance(about_of(fd, standing, session_id=session_id))
    return info_of(standing.head, about, size=size, newer=standing.newer)


def about_of(fd: int, standing: Standing, *, session_id: str) -> Mapping[str, Any]:
    """Who the file says it is: by its newest section, else by its first line, else by its name."""
    line = line_at(fd, standing.at.get(ABOUT, -1), standing.size)
    if line is not None and line.name == ABOUT and isinstance(line.value, dict):
        return {"id": session_id, **line.value}
    line = line_at(fd, 0, standing.size)
    if line is not None and line.kind == METADATA and line.value.get("id"):
        return about_in(line.value)
    return {"id": session_id}


def _salvaged(first: Mapping[str, Any], session_id: str, entries: list[Entry]) -> dict[str, Any]:
    born = {"created_at": rfc3339(entries[0].timestamp)} if entries else {}
    return {**born, **about_in(first), "id": session_id}


def _cut(whole: Snapshot, after: int) -> Snapshot:
    after = min(after, window_start(whole.head) - 1)
    kept = [entry for entry in whole.entries if entry.seq > after]
    return Snapshot(head=whole.head, sections=whole.sections, entries=kept, after=after)
