"""Read a session's file from an offset, from its end or by searching, and interpret its lines."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from nanoloop.files import name_of, open_file
from nanoloop.session.entry import Entry, dated, rfc3339
from nanoloop.session.head import ABOUT, WAITING
from nanoloop.stores.database import StoredSession
from nanoloop.stores.jsonl.lines import (
    ENTRY,
    HEAD,
    METADATA,
    SECTION,
    UNREADABLE,
    LogLine,
    about_in,
    decoded,
    lines_in,
)
from nanoloop.stores.snapshot import (
    StoredSnapshot,
    as_it_is,
    decoding,
    head_of,
    sections_of,
    window_start,
)

SUFFIX = ".jsonl"
"""The suffix of session files."""
Report = Callable[[LogLine], None]
"""Receives lines that can't be read."""


class SessionReader:
    """Reads one open file, up to its end at the time it was opened."""

    def __init__(
        self, fd: int, state: FileState, *, session_id: str, marks: Marks, report: Report
    ) -> None:
        self._fd = fd
        self._state = state
        self._id = session_id
        self._marks = marks
        self._report = report

    def window(self) -> StoredSession:
        """Read the session with only its window, from the end of the file."""
        state = self._state
        tail = read_tail(self._fd, state.size)
        known = {line.offset: line for line in self._told(tail.lines)}
        sections = self._sections(state, known)
        after = window_start(state.head) - 1
        shown = self._window_entries(state, tail, after)
        if sections is None or shown is None:  # the positions are wrong because the file was edited
            return _cut(self.whole(), after)
        return StoredSession(
            head=state.head,
            sections=sections,
            entries=shown,
        )

    def _sections(self, state: FileState, known: Mapping[int, LogLine]) -> dict[str, Any] | None:
        """Return the newest value of each section, or None if one isn't at its position."""
        sections = {}
        for name, offset in state.at.items():
            if name in {WINDOW, PENDING}:
                continue
            line = known.get(offset) or line_at(self._fd, offset, state.size)
            if line is None or line.kind != SECTION or line.name != name:
                return None
            sections[name] = line.value
        return sections if ABOUT in sections else None

    def _window_entries(self, state: FileState, tail: Tail, after: int) -> list[Entry] | None:
        """Return the entries after `after`, or None if the recorded position is wrong."""
        offset = state.at.get(WINDOW, 0)
        if offset > state.size or not begins_line(self._fd, offset):
            return None
        before = self._told(lines_from(self._fd, offset, max(offset, tail.start)))
        lines = [*before, *(line for line in tail.lines if line.offset >= offset)]
        entries = [line.value for line in self._marked(lines) if line.kind == ENTRY]
        if offset > 0 and entries and entries[0].seq > after + 1:
            return None
        return [entry for entry in dated(entries) if entry.seq > after]

    def whole(self) -> StoredSession:
        """Read the session with all its entries."""
        first: Mapping[str, Any] = {}
        sections: dict[str, Any] = {}
        entries: list[Entry] = []
        unreadable = []
        for line in self._told(self._marked(lines_from(self._fd, 0, self._state.size))):
            if line.kind == ENTRY:
                entries.append(line.value)
            elif line.kind == SECTION:
                sections[line.name] = line.value
            elif line.kind == METADATA and not first:
                first = line.value
            elif line.kind == UNREADABLE:
                unreadable.append(f"the line at byte {line.offset} of its file can't be read")
        entries = dated(entries)
        sections.setdefault(ABOUT, _salvaged(first, self._id, entries))
        return StoredSession(
            head=self._state.head,
            sections=sections_of(self._id, sections.items(), as_it_is),
            entries=entries,
            unreadable=unreadable,
        )

    def between(self, after: int, upto: int | None, limit: int | None) -> list[Entry]:
        """Return the entries with `after < seq <= upto`, oldest first, at most `limit`."""
        found: list[Entry] = []
        for line in self._told(lines_from(self._fd, self._start(after), self._state.size)):
            if line.kind != ENTRY or line.value.seq <= after:
                continue
            if (upto is not None and line.value.seq > upto) or len(found) == limit:
                self._marks.add(line.value.seq, line.offset)
                break
            found.append(line.value)
        return dated(found)

    def _start(self, after: int) -> int:
        """Return a position shortly before the entry that follows `after`."""
        size = self._state.size
        start = search(self._fd, after + 1, self._marks.before(after + 1), size)
        lines = lines_from(self._fd, start, size, PROBE)
        first = next((line.value.seq for line in lines if line.kind == ENTRY), None)
        if start == 0 or after >= self._state.last or (first or after + 2) <= after + 1:
            return start
        return search(self._fd, after + 1, 0, size)  # edited: no position can be trusted

    def _told(self, lines: Iterator[LogLine] | tuple[LogLine, ...]) -> Iterator[LogLine]:
        for line in lines:
            if line.kind == UNREADABLE:
                self._report(line)
            yield line

    def _marked(self, lines: Iterator[LogLine] | list[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            if line.kind == ENTRY:
                self._marks.add(line.value.seq, line.offset)
            yield line


def glance_at(path: Path) -> StoredSession:
    """Read an overview of the session in this file.

    Raise `OSError` if the file can't be read, or `SessionDamaged` if its content is invalid.
    """
    fd = open_file(path)
    try:
        return glance_in(path, fd)
    finally:
        os.close(fd)


def glance_in(path: Path, fd: int) -> StoredSession:
    """Like `glance_at`, but for a file that is already open."""
    name = path.name.removesuffix(SUFFIX)
    session_id = name_of(name) or name
    with decoding(session_id):
        return glance(fd, os.fstat(fd).st_size, session_id=session_id)


def newest_at(path: Path) -> StoredSnapshot:
    """Read the session's window and newest entries from this file; same errors as `glance_at`."""
    fd = open_file(path)
    try:
        name = path.name.removesuffix(SUFFIX)
        with decoding(name):
            return newest(fd, os.fstat(fd).st_size, session_id=name_of(name) or name)
    finally:
        os.close(fd)


def glance(fd: int, size: int, *, session_id: str) -> StoredSession:
    """Read an overview of the session from both ends of its file."""
    state = state_of(read_tail(fd, size, PROBE))
    head = dict(head_of(session_id, state.head, as_it_is))
    about = about_of(fd, state, session_id=session_id)
    head["count"] = int(head.get("count", 0)) + state.newer
    return StoredSession(head=head, sections={ABOUT: about}, size=size)


NEWEST = 128
"""The minimum number of a session's last entries that count as its newest."""


def newest(fd: int, size: int, *, session_id: str) -> StoredSnapshot:
    """Read the session with its window and its newest entries."""
    state = state_of(read_tail(fd, size))
    state = replace(state, head=head_of(session_id, state.head, as_it_is))
    reader = SessionReader(fd, state, session_id=session_id, marks=Marks(), report=lambda _: None)
    stored = reader.window()
    first = min(window_start(state.head), state.last - NEWEST + 1)
    after = max(0, first - 1)
    entries = reader.between(after, None, None)
    return StoredSnapshot(head=state.head, sections=stored.sections, entries=entries, after=after)


def about_of(fd: int, state: FileState, *, session_id: str) -> Mapping[str, Any]:
    """Return the session's identity from its newest section, its first line or its name."""
    line = line_at(fd, state.at.get(ABOUT, -1), state.size)
    if line is not None and line.name == ABOUT and isinstance(line.value, dict):
        return {"id": session_id, **line.value}
    line = line_at(fd, 0, state.size)
    if line is not None and line.kind == METADATA and line.value.get("id"):
        return about_in(line.value)
    return {"id": session_id}


def _salvaged(first: Mapping[str, Any], session_id: str, entries: list[Entry]) -> dict[str, Any]:
    born = {"created_at": rfc3339(entries[0].timestamp)} if entries else {}
    return {**born, **about_in(first), "id": session_id}


def _cut(whole: StoredSession, after: int) -> StoredSession:
    after = min(after, window_start(whole.head) - 1)
    kept = [entry for entry in whole.entries if entry.seq > after]
    return replace(whole, entries=kept, unreadable=())


CHUNK = 64 * 1024
"""How many bytes are read at once."""
PROBE = 4 * 1024
"""How many bytes are read to find out which entry is at an offset."""
BREATH = 32
"""How many lines are read before other threads get a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lines of a file."""

    lines: tuple[LogLine, ...]
    start: int
    """The offset at which these lines begin."""
    size: int
    """The offset at which the last whole line ends."""
    torn: int
    """The number of bytes at the end of the file that belong to an unfinished line."""
    open_ended: bool
    """True if the last line is complete except for its newline."""

    @property
    def head_index(self) -> int:
        """The index of the last head among the lines, or -1."""
        kinds = [line.kind for line in self.lines]
        return len(kinds) - 1 - kinds[::-1].index(HEAD) if HEAD in kinds else -1


def read_span(fd: int, start: int, stop: int) -> bytes:
    """Return the bytes from `start` to `stop`, or to the end of the file."""
    pieces = []
    while start < stop and (piece := os.pread(fd, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_tail(fd: int, size: int, chunk: int = CHUNK) -> Tail:
    """Read enough of the last lines to include a head."""
    while True:
        tail = _tail_from(fd, max(0, size - chunk), size)
        if tail is not None and (tail.start == 0 or tail.head_index >= 0):
            return tail
        chunk *= 4


def _tail_from(fd: int, start: int, size: int) -> Tail | None:
    """Return the whole lines in the last bytes, or None if a line is longer than that."""
    data = read_span(fd, start, size)
    skipped = 0
    if start > 0:  # it begins in the middle of a line
        skipped = data.find(b"\n") + 1
        if skipped == 0:
            return None
    return _tail_of(data[skipped:], start + skipped)


def _tail_of(data: bytes, start: int) -> Tail:
    whole = data.rfind(b"\n") + 1
    lines = list(lines_in(data[:whole], start))
    rest = data[whole:]
    last = decoded(rest, start + whole, start + len(data)) if rest else None
    is_readable = last is not None and last.kind != UNREADABLE
    if last is not None and is_readable:
        lines.append(last)
    return Tail(
        lines=tuple(lines),
        start=start,
        size=start + (len(data) if is_readable else whole),
        torn=0 if is_readable else len(rest),
        open_ended=is_readable,
    )


def lines_from(fd: int, start: int, stop: int, chunk: int = CHUNK) -> Iterator[LogLine]:
    """Yield the lines from `start`, where a line begins, to `stop`, where a line ends."""
    rest, place, grown = b"", start, chunk
    while place < stop:
        piece = read_span(fd, place, min(stop, place + grown))
        if not piece:
            return
        place += len(piece)
        data = rest + piece
        whole = len(data) if place >= stop else data.rfind(b"\n") + 1
        for count, line in enumerate(lines_in(data[:whole], place - len(data))):
            if count % BREATH == BREATH - 1:
                time.sleep(0)  # reading a long history must not starve the event loop
            yield line
        rest = data[whole:]
        grown = chunk if whole else grown * 2  # read a longer line in few steps


def line_at(fd: int, offset: int, size: int) -> LogLine | None:
    """Return the line that begins at this byte, or None."""
    if not 0 <= offset < size or not begins_line(fd, offset):
        return None
    return next(lines_from(fd, offset, size, PROBE), None)


def begins_line(fd: int, offset: int) -> bool:
    """Return True if a line begins at this byte."""
    return offset == 0 or os.pread(fd, 1, offset - 1) == b"\n"


def search(fd: int, seq: int, low: int, size: int) -> int:
    """Return a position shortly before the entry with this number, but not before `low`.

    The stride grows until it goes too far, and is then halved, so nearby entries are found at once
    and distant ones quickly. This relies on the entries being in numerical order.
    """
    stride = 2 * CHUNK
    high = size
    while low + stride < high:
        found = _entry_near(fd, low + stride, high)
        if found is None or found.value.seq > seq:
            high = low + stride
            break
        low, stride = found.offset, stride * 2
    return _halved(fd, seq, low, high)


def _halved(fd: int, seq: int, low: int, high: int) -> int:
    while high - low > 2 * CHUNK:
        middle = (low + high) // 2
        found = _entry_near(fd, middle, high)
        if found is None or found.value.seq > seq:
            high = middle
        else:
            low = found.offset
    return low


def _entry_near(fd: int, offset: int, stop: int) -> LogLine | None:
    """Return the first entry that begins after this byte and before `stop`."""
    start = _next_line(fd, offset, stop)
    if start is None:
        return None
    entries = (line for line in lines_from(fd, start, stop, PROBE) if line.kind == ENTRY)
    found = next(entries, None)
    # The piece may end in the middle of a line, so the rest can't be interpreted yet.
    return found if found is not None and found.offset < stop else None


def _next_line(fd: int, offset: int, stop: int) -> int | None:
    while offset < stop:
        data = read_span(fd, offset, min(stop, offset + PROBE))
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += max(1, len(data))
    return None


WINDOW, PENDING = "window", "pending"
"""The names of entry positions in `at`; all other names there are those of sections."""
NO_HEAD: Mapping[str, Any] = {"rev": 0, "start": 1, "last": 0, "window": 1, "count": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The state recorded at the end of a file."""

    head: Mapping[str, Any]
    at: Mapping[str, int]
    size: int
    """The offset for the next line."""
    torn: int = 0
    """The number of bytes at the end of the file that belong to an incomplete commit."""
    open_ended: bool = False
    """True if the last line lacks its newline."""
    took: tuple[str, ...] = ()
    """The chats whose messages the last commit recorded."""
    newer: int = 0
    """The number of entries after the head; they were written, but their own head is unreadable."""

    @property
    def revision(self) -> int:
        """The number of commits so far."""
        return int(self.head["rev"])

    @property
    def last(self) -> int:
        """The newest entry's number, according to the head."""
        return int(self.head["last"])


def state_of(tail: Tail) -> FileState:
    """Return the state that these last lines describe.

    A commit ends with its head: lines not followed by a head were never acknowledged, and count as
    torn. If a head has become unreadable, the lines before it are accepted.
    """
    index = tail.head_index
    head, at = head_and_places(tail.lines[index]) if index >= 0 else (dict(NO_HEAD), {})
    took = head.pop("took", ())
    tail = _finished(tail)
    newer = tail.lines[index + 1 :]
    if any(line.kind != UNREADABLE for line in newer):
        head["rev"] += 1  # a writer that has not read these lines must not append to them
    at |= {line.name: line.offset for line in newer if line.kind == SECTION}
    head |= _owed([line.value for line in newer if line.kind == ENTRY])
    waiting = [line.value for line in newer if line.name == WAITING]
    head |= {WAITING: len(waiting[-1])} if waiting else {}
    return FileState(
        head=head,
        at=at,
        size=tail.size,
        torn=tail.torn,
        open_ended=tail.open_ended,
        took=tuple(map(str, took)) if isinstance(took, list) else (),
        newer=sum(1 for line in newer if line.kind == ENTRY),
    )


def _finished(tail: Tail) -> Tail:
    """Return the tail without the lines of an incomplete commit."""
    ends = [number for number, line in enumerate(tail.lines) if line.kind in {HEAD, UNREADABLE}]
    if not ends or ends[-1] == len(tail.lines) - 1:
        return tail
    lines = tail.lines[: ends[-1] + 1]
    size = lines[-1].end
    return replace(
        tail, lines=lines, size=size, torn=tail.size + tail.torn - size, open_ended=False
    )


def _owed(newer: Sequence[Entry]) -> dict[str, Any]:
    """Return the head's fields for a question or answer that follows the head."""
    last = newer[-1] if newer else None
    if last is None or last.role not in {"user", "assistant"}:
        return {}
    return {"awaiting": last.seq} if last.role == "user" else {"awaiting": 0, "unsent": [last.seq]}


def head_and_places(line: LogLine) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a head and its positions."""
    head = {name: value for name, value in line.value.items() if name not in {"_type", "at"}}
    return head, dict(line.value["at"])


SPACING = 4096
"""The minimum number of bytes between two marks."""
LIMIT = 1024
"""The maximum number of marks for one file; beyond it, older marks are thinned out."""


class Marks:
    """Known positions in a file: entries from a mark's number onwards begin there or later."""

    def __init__(self) -> None:
        self._seqs = [0]
        self._offsets = [0]
        self._lock = Lock()

    def add(self, seq: int, offset: int) -> None:
        """Add a mark unless a nearby one is known."""
        with self._lock:
            index = bisect_left(self._seqs, seq)
            near = index > 0 and offset - self._offsets[index - 1] < SPACING
            known = index < len(self._seqs) and self._offsets[index] - offset < SPACING
            if near or known:
                return
            self._seqs.insert(index, seq)
            self._offsets.insert(index, offset)
            if len(self._seqs) > LIMIT:
                self._thin()

    def _thin(self) -> None:
        """Drop every other mark of the older half, but never the first."""
        older = slice(1, LIMIT // 2, 2)
        del self._seqs[older]
        del self._offsets[older]

    def before(self, seq: int) -> int:
        """Return the last known position before all entries from this number onwards."""
        with self._lock:
            return self._offsets[bisect_right(self._seqs, seq) - 1]

    def forget_from(self, offset: int) -> None:
        """Drop the marks of lines that were not written in the end."""
        with self._lock:
            index = max(1, bisect_left(self._offsets, offset))
            del self._seqs[index:]
            del self._offsets[index:]
