"""Digests that replace entries outside the window, and quotes from those entries.

A quote is a small JSON object, in which `seq` is the number of the entry that it comes from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nanoloop.errors import NotPinnable, PinsFull
from nanoloop.session.entry import Entry, copied
from nanoloop.session.head import place_in
from nanoloop.session.speech import (
    GROUP,
    SOMEONE,
    Passage,
    name_of,
    passages_of,
    stored_speaker,
)

Quotes = tuple[Mapping[str, Any], ...]
MOST_PINS = 10
"""How many messages can be pinned at a time."""
PIN_CHARS = 1000
"""How many characters of a pinned message stay in view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A value that covers every entry up to a sequence number; it is stored as one record."""

    value: Any
    seq: int = 0

    def dump(self) -> dict[str, Any]:
        """Return the form that stores save."""
        return {"value": copied(self.value), "seq": self.seq}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Digest:
        """Read the stored form."""
        return cls(value=copied(stored.get("value", {})), seq=place_in(stored.get("seq", 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Digest):
    """A summary text, with its ledger, pins and costs."""

    value: str = ""
    ledger: Quotes = ()
    """The quotes kept beside the text."""
    pins: Quotes = ()
    """The messages that the user keeps in view, in log order."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """The cost of all summaries so far."""

    def dump(self) -> dict[str, Any]:
        """Return the stored form, without empty values."""
        beside = {
            "ledger": copied(self.ledger),
            "spent": dict(self.spent),
            "pins": copied(self.pins),
        }
        said = {name: value for name, value in beside.items() if value}
        return {"value": self.value, "seq": self.seq, **said}

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Summary:
        """Read the stored form."""
        return cls(
            value=str(stored.get("value", "")),
            seq=place_in(stored.get("seq", 0)),
            ledger=quotes_in(stored.get("ledger")),
            pins=quotes_in(stored.get("pins")),
            spent={name: int(count) for name, count in (stored.get("spent") or {}).items()},
        )

    def renewed(
        self,
        text: str,
        *,
        seq: int,
        ledger: Iterable[Mapping[str, Any]] | None,
        spent: Mapping[str, int] | None,
    ) -> Summary:
        """Return the next summary: any new ledger replaces the old one, and the costs add up."""
        ledger = self.ledger if ledger is None else quotes_in(tuple(ledger))
        spent = added(self.spent, spent or {})
        return replace(self, value=text, seq=seq, ledger=ledger, spent=spent)

    def without(self, seqs: Collection[int], *, start: int) -> Summary:
        """Return the summary without erased entries, or an empty one if it covered any of them."""
        pins = tuple(pin for pin in self.pins if pin["seq"] not in seqs)
        if seqs and min(seqs) <= self.seq:
            return Summary(seq=start, pins=pins, spent=self.spent)
        return replace(self, pins=pins)


def added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add two counts by name."""
    names = {**counts, **more}
    return {name: counts.get(name, 0) + more.get(name, 0) for name in names}


def pinned(pins: Quotes, entry: Entry) -> Quotes:
    """Return the pins with this message added; raise `NotPossible` if it can't be pinned."""
    said = next((one for one in _as_pinned(entry) if one.text.strip()), None)
    if entry.role is None or said is None:
        raise NotPinnable(entry.seq)
    others = [pin for pin in pins if pin["seq"] != entry.seq]
    if len(others) >= MOST_PINS:
        raise PinsFull(MOST_PINS)
    pin = {"seq": entry.seq, "text": _bounded(said.text.strip()), **source_of(said, entry)}
    return tuple(sorted([*others, pin], key=lambda each: int(each["seq"])))


def _bounded(text: str) -> str:
    left_out = len(text) - PIN_CHARS
    return text if left_out <= 0 else f"{text[:PIN_CHARS]} […{left_out} characters left out]"


def _as_pinned(entry: Entry) -> list[Passage]:
    """Return a message's texts, starting with the one that its sender typed."""
    return sorted(passages_of(entry), key=lambda one: not one.is_typed)


def source_of(said: Passage, entry: Entry) -> dict[str, Any]:
    """Return a quote's source: the speaker, the account and, if not typed, how it was said."""
    by = said.speaker if said.kind == "overheard" else said.by
    is_named = said.kind in {"overheard", "report"} or entry.metadata.get(GROUP)
    if by is None or not is_named:
        source: dict[str, Any] = {"who": str(entry.role)}
    else:
        source = {"who": name_of(by) or SOMEONE}
        if by.id:
            source["speaker"] = stored_speaker(by, platform=by.platform)
    return source if said.is_typed else {**source, "how": said.kind}


def quotes_in(stored: Any) -> Quotes:
    """Return the valid quotes in stored or exported data."""
    found = stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ()
    return tuple(
        dict(item)
        for item in found
        if isinstance(item, Mapping) and isinstance(item.get("seq"), int) and item.get("text")
    )


def quotes_by_place(items: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> Quotes:
    """Return the quotes, numbered by the positions of their entries among `entries`, from 1."""
    seqs = [entry.seq for entry in entries]
    return tuple({**item, "seq": bisect_right(seqs, int(item["seq"]))} for item in items)


def quotes_moved(items: Iterable[Mapping[str, Any]], by: int) -> Quotes:
    """Return the quotes with this amount added to their numbers."""
    return tuple({**item, "seq": int(item["seq"]) + by} for item in items)
