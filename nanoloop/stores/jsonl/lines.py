"""The lines of a session's file: their content and positions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanoloop.session.entry import UNDATED, Entry
from nanoloop.session.head import is_place, place_in
from nanoloop.stores.snapshot import encoded

ENTRY, SECTION, HEAD, METADATA = "entry", "section", "head", "metadata"
UNREADABLE = ""
"""The kind for lines that can't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line read from the file."""

    offset: int
    end: int
    """The offset at which the next line begins."""
    kind: str
    value: Any = None
    """An `Entry`, a section's value, or another line's object; the raw bytes if unreadable."""
    name: str = ""
    """The section's name."""


def encoded_line(record: Mapping[str, Any]) -> bytes:
    """Encode a record as one line; raise `StoreError` if it has no JSON form."""
    return encoded(record, kind=record.get("_type", "record")) + b"\n"


def entry_line(seq: int, text: bytes) -> bytes:
    """Return an entry's line, given its number and its JSON without the number."""
    return b'{"_type":"entry","seq":%d,%s\n' % (seq, text[1:])


def section_line(name: str, value: Any) -> bytes:
    """Return the line for a section's newest value."""
    return encoded_line({"_type": SECTION, "name": name, "value": value})


def head_line(head: Mapping[str, Any], at: Mapping[str, int], took: Collection[str] = ()) -> bytes:
    """Return the line that ends a commit, with the head and the byte position of each part.

    `took` lists the chats whose messages the commit records.
    """
    return encoded_line({"_type": HEAD, **head, **({"took": [*took]} if took else {}), "at": at})


def decoded(data: bytes, offset: int, end: int) -> LogLine:
    """Decode a line; an unreadable line keeps its bytes."""
    try:
        record = json.loads(data.decode())
        return _read(record, offset, end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return LogLine(offset=offset, end=end, kind=UNREADABLE, value=data)


def _read(record: dict[str, Any], offset: int, end: int) -> LogLine:
    kind = record["_type"]
    if kind == ENTRY:
        entry = Entry.from_dict(record, seq=int(record["seq"]), undated=UNDATED)
        return LogLine(offset=offset, end=end, kind=kind, value=entry)
    if kind == SECTION:
        return LogLine(
            offset=offset, end=end, kind=kind, value=record["value"], name=record["name"]
        )
    if kind == HEAD:
        _check_head(record)
    return LogLine(offset=offset, end=end, kind=str(kind), value=record)


def _check_head(record: dict[str, Any]) -> None:
    """Raise an error if a head has no revision, last number or positions.

    Invalid positions are dropped; invalid numbers are corrected when they are read.
    """
    int(record["rev"])
    places = record["at"].items()
    record |= {"last": record["last"], "at": {n: place_in(at) for n, at in places if is_place(at)}}


def lines_in(data: bytes, offset: int) -> Iterator[LogLine]:
    """Yield the lines in the part of a file that begins at `offset`; skip blank lines."""
    start = 0
    while start < len(data):
        found = data.find(b"\n", start)
        stop = len(data) if found < 0 else found
        end = stop if found < 0 else stop + 1
        if data[start:stop].strip():
            yield decoded(data[start:stop], offset + start, offset + end)
        start = end


ROOM = 4096
"""The usual size of the first line in bytes, with its newline; some lines are created larger."""
FORMAT = 2
"""The format of these files; earlier versions only know format 1, which has no marks."""


def first_line(about: Mapping[str, Any], summary: str) -> bytes:
    """Return the padded first line of a new file."""
    record = _record(about, summary)
    needed = len(encoded_line(_record(about, ""))) + 1024
    return _padded(record, max(ROOM, needed))


def renewed(
    line: Mapping[str, Any], room: int, *, about: Mapping[str, Any] | None, summary: str | None
) -> bytes:
    """Return the first line with these changes, padded to exactly the same size."""
    about = about_in(line) if about is None else about
    summary = str(line.get("summary") or "") if summary is None else summary
    return _padded(_record(about, summary), room)


def about_in(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session's identity from the first line."""
    return {k: v for k, v in line.items() if k not in {"_type", "format", "summary"}}


def _record(about: Mapping[str, Any], summary: str) -> dict[str, Any]:
    return {"_type": METADATA, "format": FORMAT, **about, "summary": summary}


def _padded(record: Mapping[str, Any], room: int) -> bytes:
    line = _fitting(record, room)
    return line[:-1] + b" " * (room - len(line)) + b"\n"


def _fitting(record: Mapping[str, Any], room: int) -> bytes:
    """Return the record as a line that fits, leaving out values that are only copies."""
    whole = encoded_line(record)
    if len(whole) <= room:
        return whole
    bare = encoded_line({**record, "summary": ""})
    if len(bare) > room:
        kept = {"_type", "format", "id", "created_at"}
        record = {**{k: v for k, v in record.items() if k in kept}, "summary": ""}
        return encoded_line(record)
    return _with_shorter_summary(record, room, room - len(bare))


def _with_shorter_summary(record: Mapping[str, Any], room: int, characters: int) -> bytes:
    while True:
        line = encoded_line({**record, "summary": record["summary"][:characters] + "…"})
        if len(line) <= room:
            return line
        if characters == 0:
            return encoded_line({**record, "summary": ""})
        characters = characters * 3 // 4
