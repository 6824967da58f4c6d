"""What an import brings, read and checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.chat import begins_apart, entries_of, messages_of
from nanoloop.session.entry import Entry, from_rfc3339
from nanoloop.session.ids import checked_id
from nanoloop.session.matching import Handed

FULL, CURRENT = "full_chat_history", "current_chat_history"


_COUNTS = ("turns", "last_resize_turn", "memo_cursor", "summary_cursor", "max_history")
_TIMES = ("created_at", "updated_at", "expires_at")
_MAPPINGS = ("settings", "state", "metadata", "last_resize")
_INNER = ("_turns", "_last_resize_turn", "_memo_cursor")
"""The seed's own names for the counts."""


def checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with counts as numbers; raises TypeError or ValueError where anything is amiss."""
    data = {(name[1:] if name in _INNER else name): value for name, value in data.items()}
    if data.get("id") is not None:
        checked_id(data["id"])
    for name in _COUNTS:
        if data.get(name) is not None:
            data[name] = int(data[name])
    for name in _TIMES:
        from_rfc3339(data.get(name))
    for name in _MAPPINGS:
        if data.get(name) is not None and not isinstance(data[name], Mapping):
            raise TypeError(f"{name} is an object with keys, not {type(data[name]).__name__}")
    return data


def positions(window: Sequence[Entry], entries: Sequence[Entry]) -> list[int | dict[str, Any]]:
    """The window as places in the history; an entry that is in none stands there itself."""
    places = {entry.seq: index for index, entry in enumerate(entries)}
    return [places[e.seq] if e.seq in places else e.to_dict() for e in window]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A history that an import brings; read before anything is changed."""

    entries: Sequence[Entry]
    window: Sequence[Entry]


def arrived(data: Mapping[str, Any]) -> Arrived | None:
    """The history in the data, None where it brings none; raises TypeError or ValueError.

    `entries` say more than `full_chat_history`; where someone changed that, it is what counts.
    """
    if data.get("entries") is None and data.get(FULL) is None:
        return None
    entries = [Entry.from_dict(item) for item in _list(data, "entries")]
    full = _messages(data, FULL)
    if full is not None and (data.get("entries") is None or messages_of(entries) != full):
        entries = _entries_of_all(full)
        return Arrived(entries=entries, window=_window(data, entries, None))
    return Arrived(entries=entries, window=_window(data, entries, data.get("window")))


def _window(data: Mapping[str, Any], entries: Sequence[Entry], places: Any) -> Sequence[Entry]:
    current = _messages(data, CURRENT)
    if isinstance(places, list):
        shown = [_at(place, entries) for place in places]
        if current is None or messages_of(shown) == current:
            return shown
    if current is None:
        return entries
    groups = Handed(entries).entries_for(current)
    return [entry for group in groups for entry in group]


def _at(place: Any, entries: Sequence[Entry]) -> Entry:
    if isinstance(place, Mapping):
        return Entry.from_dict(place)
    if not isinstance(place, int) or not 0 <= place < len(entries):
        raise ValueError(f"{place!r} is no place in a history of {len(entries)} entries")
    return entries[place]


def _entries_of_all(messages: Sequence[Mapping[str, Any]]) -> list[Entry]:
    entries: list[Entry] = []
    for message in messages:
        entries += begins_apart(entries_of(message), entries[-1] if entries else None)
    return entries


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if value is not None and not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is a list, not {type(value).__name__}")
    return list(value or ())


def _messages(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]] | None:
    if data.get(name) is None:
        return None
    messages = _list(data, name)
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"{name} has messages, not {type(message).__name__}")
    return messages
