"""What of a conversation is where: in the window, pending, in the summary, in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.tokens import entry_tokens, text_tokens

WIDTH = 60
"""Signs of the bar."""
SIGNS = {"summarised": "=", "pending": ".", "window": "#", "left_out": "-"}
"""A sign for each place; `left_out` is what a handler shows nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some entries of the log, counted."""

    entries: int
    messages: int
    tokens: int
    first: int
    """The lowest number, 0 where there is none."""
    last: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Part:
        """Count these."""
        return cls(
            entries=len(entries),
            messages=message_count(entries),
            tokens=sum(map(entry_tokens, entries)),
            first=entries[0].seq if entries else 0,
            last=entries[-1].seq if entries else 0,
        )


class Picture:
    """One session and its whole log, by where each entry is."""

    def __init__(self, session: Session, entries: Sequence[Entry]) -> None:
        shown = {entry.seq for entry in session.window}
        self._session = session
        self._places = [_place(session, entry, shown) for entry in entries]
        self.log = Part.of(entries)
        self.parts = {name: Part.of([*self._at(entries, name)]) for name in SIGNS}

    def _at(self, entries: Iterable[Entry], name: str) -> Iterable[Entry]:
        return (e for e, place in zip(entries, self._places, strict=True) if place == name)

    @property
    def summary_tokens(self) -> int:
        """Tokens of the summary's text."""
        return text_tokens(self._session.summary)

    @property
    def ledger_tokens(self) -> int:
        """Tokens of what the ledger keeps."""
        return sum(text_tokens(_said(item)) for item in self._session.ledger)

    def bar(self) -> str:
        """The log from its first entry to its last, a sign for one entry or for some."""
        count = len(self._places)
        step = max(1, -(-count // WIDTH))
        return "".join(SIGNS[self._places[index]] for index in range(0, count, step))

    def text(self) -> str:
        """All of it for people."""
        session = self._session
        reach = f"for all up to #{session.covered_seq}" if session.summary else "none yet"
        kept = f"{len(session.ledger)} kept word for word"
        rows = (
            f"  [{self.bar()}]",
            f"  {'  '.join(f'{SIGNS[name]} {_title(name)}' for name in self._named)}\n",
            _row("", "entries", "tokens", ""),
            _part_row("log", self.log),
            *(_part_row(f"  {_title(name)}", self.parts[name]) for name in self._named),
            _row("summary", "", self.summary_tokens, reach),
            _row("ledger", "", self.ledger_tokens, kept),
        )
        return "\n".join(rows)

    @property
    def _named(self) -> list[str]:
        return [name for name in SIGNS if name != "left_out" or self.parts[name].entries]

    def facts(self) -> dict[str, Any]:
        """The same for scripts, without what was said."""
        session = self._session
        parts = {"log": self.log, **self.parts}
        return {
            "id": session.id,
            **{name: _facts(part) for name, part in parts.items()},
            "summary": {"tokens": self.summary_tokens, "covers_up_to": session.covered_seq},
            "ledger": {"tokens": self.ledger_tokens, "items": len(session.ledger)},
            "spent": dict(session.summary_spent),
        }


def _place(session: Session, entry: Entry, shown: set[int]) -> str:
    if entry.seq in shown:
        return "window"
    if session.is_pending(entry):
        return "pending"
    return "summarised" if entry.seq <= session.covered_seq else "left_out"


def _title(name: str) -> str:
    return name.replace("_", " ")


def _facts(part: Part) -> dict[str, int]:
    return {name: getattr(part, name) for name in Part.__slots__}


def _part_row(name: str, part: Part) -> str:
    numbers = f"#{part.first} to #{part.last}, {part.messages} messages" if part.entries else ""
    return _row(name, part.entries, part.tokens, numbers)


def _row(name: str, count: object, tokens: object, more: str) -> str:
    return f"  {name:14}{count:>8}{tokens:>9}  {more}".rstrip()


def _said(item: Mapping[str, Any]) -> str:
    return str(item.get("near") or item["text"])
