"""One commit as bytes: entries, the sections that changed, and last the head with its places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanoloop.session.changes import ABOUT, SUMMARY, Changes
from nanoloop.stores.jsonl.first_line import first_line
from nanoloop.stores.jsonl.lines import entry_line, head_line, section_line
from nanoloop.stores.jsonl.marks import Marks
from nanoloop.stores.jsonl.standing import PENDING, WINDOW, Standing
from nanoloop.stores.snapshot import pending_start, window_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is written, and where the file stands once it is."""

    data: bytes
    standing: Standing


def commit_of(
    changes: Changes, *, head: Mapping[str, Any], at: Mapping[str, int], base: int, marks: Marks
) -> Commit:
    """The bytes of these changes, to be written at `base`."""
    data = bytearray()
    for entry in changes.entries:
        marks.add(entry.seq, base + len(data))
        data += entry_line(entry)
    places = dict(at)
    for name, value in changes.sections.items():
        places[name] = base + len(data)
        data += section_line(name, value)
    places[WINDOW] = marks.before(window_start(head))
    places[PENDING] = marks.before(pending_start(head))
    data += head_line(head, places)
    standing = Standing(head=dict(head), at=places, size=base + len(data))
    return Commit(data=bytes(data), standing=standing)


def new_file(changes: Changes, *, head: Mapping[str, Any], marks: Marks) -> Commit:
    """The bytes of a file that begins with these changes."""
    first = first_line(changes.sections[ABOUT], summary_text(changes.sections) or "")
    rest = commit_of(changes, head=head, at={}, base=len(first), marks=marks)
    return Commit(data=first + rest.data, standing=rest.standing)


def summary_text(sections: Mapping[str, Any]) -> str | None:
    """The summary's words, where it is among these sections; "" where they are sealed."""
    value = sections.get(SUMMARY)
    if isinstance(value, Mapping):
        value = value.get("value", "")
    return None if value is None else str(value)
