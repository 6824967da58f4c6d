"""Messages that a person keeps in view, wherever the window is: a few, and short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoloop.errors import NotPossible
from nanoloop.session.arrived import Arrived
from nanoloop.session.changes import SUMMARY
from nanoloop.session.entry import Entry, copied
from nanoloop.session.kept import Kept, kept_in, moved, placed
from nanoloop.session.portable import Portable

PINS = "pins"
MOST = 10
"""Messages that can be pinned at a time."""
PIN_CHARS = 1000
"""Characters of a pinned message that stay in view."""
_WHO_CHARS = 40


class Pinned(Portable):
    """A session with copies of some messages beside its summary, each with its number."""

    _pins: Kept = ()

    @property
    def pins(self) -> Kept:
        """What is pinned, in the order of the log; not to be changed."""
        return tuple(pin for pin in self._pins if not self._log.is_hidden(pin["seq"]))

    def pin(self, entry: Entry) -> None:
        """Keep this message of the log in view; raises `NotPossible` where that can't be."""
        text = str(entry.content.get("text") or "").strip()
        if entry.role is None or not text:
            raise NotPossible(f"#{entry.seq} says nothing that could be pinned")
        with self._lock:
            others = [pin for pin in self.pins if pin["seq"] != entry.seq]
            if len(others) >= MOST:
                raise NotPossible(f"{MOST} messages are pinned already: /unpin one first")
            pin = {"seq": entry.seq, "text": _bounded(text), "who": _speaker(entry)}
            self._pins = tuple(sorted([*others, pin], key=lambda each: int(each["seq"])))
            self._touch(SUMMARY)

    def unpin(self, seq: int | None = None) -> int:
        """Keep it in view no longer, or none of them; returns how many those were."""
        with self._lock:
            left = tuple(pin for pin in self.pins if seq is not None and pin["seq"] != seq)
            count = len(self.pins) - len(left)
            if count:
                self._pins = left
                self._touch(SUMMARY)
            return count

    def clear(self) -> None:
        """Empty the history and everything drawn from it; the state stays."""
        with self._lock:
            super().clear()
            self._pins = ()

    def to_dict(self) -> dict[str, Any]:
        """The complete state, without any secret of the settings."""
        with self._lock:
            data = super().to_dict()
            pins = placed(self.pins, self._whole())
            return {**data, PINS: list(pins)} if pins else data

    def _load_history(self, history: Arrived) -> None:
        super()._load_history(history)
        self._pins = ()  # their numbers were the old history's

    def _load_digests(self, data: Mapping[str, Any], memo_cursor: int | None) -> None:
        super()._load_digests(data, memo_cursor)
        if data.get(PINS) is not None:
            self._pins = moved(kept_in(data[PINS]), self._log.start - 1)

    def _section(self, name: str) -> Any:
        value = super()._section(name)
        return {**value, PINS: copied(self._pins)} if name == SUMMARY and self._pins else value

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        super()._restore(head, sections)
        self._pins = kept_in((sections.get(SUMMARY) or {}).get(PINS))


def _bounded(text: str) -> str:
    left_out = len(text) - PIN_CHARS
    return text if left_out <= 0 else f"{text[:PIN_CHARS]} […{left_out} characters left out]"


def _speaker(entry: Entry) -> str:
    told = entry.metadata.get("sender") if entry.metadata.get("group") else None
    return " ".join(str(told or entry.role).split())[:_WHO_CHARS]
