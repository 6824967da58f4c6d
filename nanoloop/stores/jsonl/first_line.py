"""The first line of a session's file: who it is and its summary, for people who open the file.

It is a copy with room to grow, rewritten in place; what is true stands in the lines after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoloop.stores.jsonl.lines import METADATA, encoded

ROOM = 4096
"""Bytes of the first line, its newline included; more only when it is created large."""
FORMAT = 1


def first_line(about: Mapping[str, Any], summary: str) -> bytes:
    """The line of a new file, padded."""
    record = _record(about, summary)
    needed = len(encoded(_record(about, ""))) + 1024
    return _padded(record, max(ROOM, needed))


def renewed(
    line: Mapping[str, Any], room: int, *, about: Mapping[str, Any] | None, summary: str | None
) -> bytes:
    """The same line with what changed, in exactly as much room."""
    about = about_in(line) if about is None else about
    summary = str(line.get("summary") or "") if summary is None else summary
    return _padded(_record(about, summary), room)


def about_in(line: Mapping[str, Any]) -> dict[str, Any]:
    """What the line says about the session."""
    return {k: v for k, v in line.items() if k not in {"_type", "format", "summary"}}


def _record(about: Mapping[str, Any], summary: str) -> dict[str, Any]:
    return {"_type": METADATA, "format": FORMAT, **about, "summary": summary}


def _padded(record: Mapping[str, Any], room: int) -> bytes:
    line = _fitting(record, room)
    return line[:-1] + b" " * (room - len(line)) + b"\n"


def _fitting(record: Mapping[str, Any], room: int) -> bytes:
    """The record, with less and less of what is only a copy."""
    whole = encoded(record)
    if len(whole) <= room:
        return whole
    bare = encoded({**record, "summary": ""})
    if len(bare) > room:
        kept = {"_type", "format", "id", "created_at"}
        record = {**{k: v for k, v in record.items() if k in kept}, "summary": ""}
        return encoded(record)
    return _with_shorter_summary(record, room, room - len(bare))


def _with_shorter_summary(record: Mapping[str, Any], room: int, characters: int) -> bytes:
    while True:
        line = encoded({**record, "summary": record["summary"][:characters] + "…"})
        if len(line) <= room:
            return line
        if characters == 0:
            return encoded({**record, "summary": ""})
        characters = characters * 3 // 4
