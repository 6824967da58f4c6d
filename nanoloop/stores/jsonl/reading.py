"""Reading a session's file: forward from a place, backward from its end, and by search."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nanoloop.stores.jsonl.lines import ENTRY, HEAD, UNREADABLE, Line, decoded, lines_in

CHUNK = 64 * 1024
"""Bytes that are read at once."""
PROBE = 4 * 1024
"""Bytes read to see which entry stands at a place."""
BREATH = 32
"""Lines after which other threads get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lines of a file."""

    lines: tuple[Line, ...]
    start: int
    """Where they begin."""
    size: int
    """Where the last whole line ends."""
    torn: int
    """Bytes after that, of a line that was never finished."""
    open_ended: bool
    """Whether the last line is whole but for its newline."""

    @property
    def head_index(self) -> int:
        """Which of the lines is the last head; -1 where none is."""
        kinds = [line.kind for line in self.lines]
        return len(kinds) - 1 - kinds[::-1].index(HEAD) if HEAD in kinds else -1


def read_span(fd: int, start: int, stop: int) -> bytes:
    """The bytes from `start` to `stop`, or to the end of the file."""
    pieces = []
    while start < stop and (piece := os.pread(fd, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_tail(fd: int, size: int, chunk: int = CHUNK) -> Tail:
    """The last lines, at least as many as it takes to have a head among them."""
    while True:
        tail = _tail_from(fd, max(0, size - chunk), size)
        if tail is not None and (tail.start == 0 or tail.head_index >= 0):
            return tail
        chunk *= 4


def _tail_from(fd: int, start: int, size: int) -> Tail | None:
    """The whole lines in the last bytes; None where a line is longer than they are."""
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


def lines_from(fd: int, start: int, stop: int, chunk: int = CHUNK) -> Iterator[Line]:
    """The lines from `start`, where one begins, to `stop`, where one ends."""
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
                time.sleep(0)  # a long history read in this thread must not starve the event loop
            yield line
        rest = data[whole:]
        grown = chunk if whole else grown * 2  # a line longer than this: read it in few steps


def line_at(fd: int, offset: int, size: int) -> Line | None:
    """The line that begins at this byte; None where none does."""
    if not 0 <= offset < size or not begins_line(fd, offset):
        return None
    return next(lines_from(fd, offset, size, PROBE), None)


def begins_line(fd: int, offset: int) -> bool:
    """Whether a line begins at this byte."""
    return offset == 0 or os.pread(fd, 1, offset - 1) == b"\n"


def search(fd: int, seq: int, low: int, size: int) -> int:
    """A byte close before the entry with this number, and not before `low`.

    Strides get longer until one goes too far, then halves: near places cost nothing, far ones
    little. It relies on entries standing in the order of their numbers.
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


def _entry_near(fd: int, offset: int, stop: int) -> Line | None:
    """The first entry that begins after this byte and before `stop`."""
    start = _next_line(fd, offset, stop)
    if start is None:
        return None
    entries = (line for line in lines_from(fd, start, stop, PROBE) if line.kind == ENTRY)
    found = next(entries, None)
    # The piece may end inside a line, whose remains say nothing.
    return found if found is not None and found.offset < stop else None


def _next_line(fd: int, offset: int, stop: int) -> int | None:
    while offset < stop:
        data = read_span(fd, offset, min(stop, offset + PROBE))
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += max(1, len(data))
    return None
