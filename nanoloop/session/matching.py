"""Finding the entries again that a handler's chat messages stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoloop.session.chat import Span, entries_of, spans_of
from nanoloop.session.entry import Entry, copied


class Handed:
    """Entries as the chat messages that a handler is given, and the way back."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._spans = [span for span in spans_of(entries) if span.message is not None]
        self.messages: list[dict[str, Any]] = [copied(span.message) for span in self._spans]
        """Copies: whatever a handler does to them changes nothing here."""
        self._index = {id(message): index for index, message in enumerate(self.messages)}

    def shown(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """The messages of some of the entries, the same objects where they are among those."""
        by_first = {_name(span): index for index, span in enumerate(self._spans)}
        shown = []
        for span in spans_of(entries):
            if span.message is not None:
                index = by_first.get(_name(span))
                same = index is not None and self._spans[index].message == span.message
                shown.append(self.messages[index] if index is not None and same else span.message)
        return shown

    def is_same(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these are the messages as they were handed out."""
        return list(messages) == [span.message for span in self._spans]

    def resolved(
        self, full: Sequence[Mapping[str, Any]], current: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Entry], list[Entry]]:
        """The entries of a history and of a window on it, the same ones where they share them."""
        groups = self.entries_for(full)
        by_object = {id(m): group for m, group in zip(full, groups, strict=True)}
        taken = {id(message) for message in current}
        rest = [g for m, g in zip(full, groups, strict=True) if id(m) not in taken]
        missing = [message for message in current if id(message) not in by_object]
        found = iter(Handed(_flat(rest)).entries_for(missing))
        shown = [by_object.get(id(message)) or next(found) for message in current]
        return _flat(groups), _flat(shown)

    def entries_for(self, messages: Iterable[Mapping[str, Any]]) -> list[list[Entry]]:
        """For each message the entries it stands for, or new ones where it is none of these."""
        unused = dict(enumerate(self._spans))
        found = [self._take_same(message, unused) for message in messages]
        # From the newest: where two are equal and one was left out, the older one was.
        for index in range(len(found) - 1, -1, -1):
            if isinstance(found[index], Mapping):
                found[index] = self._take_equal(found[index], unused)
        return [list(span) for span in found]

    def _take_same(self, message: Mapping[str, Any], unused: dict[int, Span]) -> Any:
        """The entries of this very object, unless it was changed; else the message."""
        index = self._index.get(id(message))
        if index is None or index not in unused or self._spans[index].message != message:
            return message
        return unused.pop(index).entries

    def _take_equal(self, message: Mapping[str, Any], unused: dict[int, Span]) -> Sequence[Entry]:
        for index in reversed(unused):
            if unused[index].message == message:
                return unused.pop(index).entries
        return entries_of(message)


def _flat(groups: Iterable[Sequence[Entry]]) -> list[Entry]:
    return [entry for group in groups for entry in group]


def _name(span: Span) -> int | str:
    """What tells a span from all others: ids may be given twice, numbers not."""
    return span.entries[0].seq or span.entries[0].id
