"""One line of a session's file: what it says, and where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.stores import encoding

ENTRY, SECTION, HEAD, METADATA = "entry", "section", "head", "metadata"
UNREADABLE = ""
"""The kind of a line that says nothing this or any version understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line as it was read."""

    offset: int
    end: int
    """Where the next line begins."""
    kind: str
    value: Any = None
    """An `Entry`, a section's value, or the whole object of any other line; else the bytes."""
    name: str = ""
    """Which section."""


def encoded(record: Mapping[str, Any]) -> bytes:
    """A record as one line; raises `StoreError` where it can't be JSON."""
    return encoding.encoded(record, kind=record.get("_type", "record")) + b"\n"


def entry_line(entry: Entry) -> bytes:
    """The line of one entry."""
    return encoded({"_type": ENTRY, "seq": entry.seq, **entry.to_dict()})


def section_line(name: str, value: Any) -> bytes:
    """The line of one section's newest value."""
    return encoded({"_type": SECTION, "name": name, "value": value})


def head_line(head: Mapping[str, Any], at: Mapping[str, int]) -> bytes:
    """The line that ends a commit: where everything stands, and at which byte."""
    return encoded({"_type": HEAD, **head, "at": at})


def decoded(data: bytes, offset: int, end: int) -> Line:
    """What a line says; an unreadable one keeps its bytes."""
    try:
        record = json.loads(data.decode())
        return _read(record, offset, end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return Line(offset=offset, end=end, kind=UNREADABLE, value=data)


def _read(record: dict[str, Any], offset: int, end: int) -> Line:
    kind = record["_type"]
    if kind == ENTRY:
        entry = Entry.from_dict(record, seq=int(record["seq"]))
        return Line(offset=offset, end=end, kind=kind, value=entry)
    if kind == SECTION:
        return Line(offset=offset, end=end, kind=kind, value=record["value"], name=record["name"])
    if kind == HEAD:
        _check_head(record)
    return Line(offset=offset, end=end, kind=str(kind), value=record)


def _check_head(record: dict[str, Any]) -> None:
    """Raise where a head has no revision, no last number or no places."""
    int(record["rev"])
    int(record["last"])
    for offset in record["at"].values():
        int(offset)


def lines_in(data: bytes, offset: int) -> Iterator[Line]:
    """The lines of a piece of a file that begins at `offset`; blank ones are passed over."""
    start = 0
    while start < len(data):
        found = data.find(b"\n", start)
        stop = len(data) if found < 0 else found
        end = stop if found < 0 else stop + 1
        if data[start:stop].strip():
            yield decoded(data[start:stop], offset + start, offset + end)
        start = end
