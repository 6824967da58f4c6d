"""A session taken along: exported whole, imported whole or in part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from nanoloop.session.arrived import CURRENT, FULL, Arrived, arrived, checked, positions
from nanoloop.session.changes import ABOUT, MEMO, SETTINGS, STATE, SUMMARY
from nanoloop.session.chat import spans_of
from nanoloop.session.codec import dumped, parsed
from nanoloop.session.entry import copied, from_rfc3339, rfc3339
from nanoloop.session.kept import kept_in, moved, placed
from nanoloop.session.log import Digest
from nanoloop.session.options import Options
from nanoloop.session.resizing import Resizing

_POSITIONS = (CURRENT, "memo_cursor", "summary_cursor")
"""What means a place in the whole history."""


class Portable(Resizing):
    """A session that can be written down and read again."""

    # Export

    def to_dict(self) -> dict[str, Any]:
        """The complete state, without any secret of the settings."""
        with self._lock:
            entries = self._whole()
            beside = {"ledger": list(placed(self._kept, entries))} if self._kept else {}
            return {
                **self._about(),
                "updated_at": rfc3339(self._updated_at),
                "expires_at": rfc3339(self._expires_at) if self._expires_at else None,
                "memo": copied(self._memo.value),
                "summary": self.summary,
                **beside,
                FULL: self.full_chat_history,
                CURRENT: self.current_chat_history,
                "settings": self._options.exported(),
                "state": copied(self._state),
                "turns": self._turns,
                "last_resize_turn": self.last_resize_turn,
                "last_resize": self.last_resize,
                "memo_cursor": self.memo_cursor,
                "summary_cursor": sum(entry.seq <= self._summary.seq for entry in entries),
                "entries": [entry.to_dict() for entry in entries],
                "window": positions(self._log.window, entries),
            }

    def dump(self, format: str = "json") -> str:  # noqa: A002 - the seed's name
        """The complete state as JSON or YAML text."""
        return dumped(self.to_dict(), format)

    def dump_json(self) -> str:
        """The complete state as JSON text."""
        return self.dump("json")

    def dump_yaml(self) -> str:
        """The complete state as YAML text."""
        return self.dump("yaml")

    # Import

    def load_json(self, text: str, key_path: str | None = None) -> Self:
        """As `load`, from JSON."""
        return self.load_dict(parsed(text, "json", key_path))

    def load_yaml(self, text: str, key_path: str | None = None) -> Self:
        """As `load`, from YAML."""
        return self.load_dict(parsed(text, "yaml", key_path))

    def load_dict(self, data: Mapping[str, Any]) -> Self:
        """Take in what `to_dict` gave, or a part of it; what is absent stays as it is.

        Raises TypeError or ValueError for what is none; nothing has changed then. A session that
        a store knows keeps its id.
        """
        data = checked(parsed(data))
        history = arrived(data)
        with self._lock:
            if history is None and any(data.get(name) is not None for name in _POSITIONS):
                self._whole()
            if data.get("id") is not None and not self.revision:
                self._id = data["id"]
            self._load_about(data)
            memo_cursor = self._cursor(data, history)
            if history is not None:
                self._load_history(history)
            elif data.get(CURRENT) is not None:
                self._show_messages(data[CURRENT])
            self._load_digests(data, memo_cursor)
            self._load_counts(data, history)
            self._touch(ABOUT, STATE, SUMMARY, MEMO, SETTINGS)
            if data.get("updated_at"):
                self._updated_at = from_rfc3339(data["updated_at"])
        return self

    def _load_about(self, data: Mapping[str, Any]) -> None:
        names = ("key", "agent", "title", "metadata", "max_history", "ttl", "sliding", "created_at")
        given = {name: data[name] for name in names if name in data}
        self._restore_about({**self._about(), **given})
        if "expires_at" in data:
            expires_at = data["expires_at"]
            self._expires_at = from_rfc3339(expires_at) if expires_at else None
        if isinstance(data.get("state"), Mapping):
            self._state = copied(data["state"])
        if isinstance(data.get("settings"), Mapping):
            self._options.replace(Options(data["settings"]).explicit())

    def _cursor(self, data: Mapping[str, Any], history: Arrived | None) -> int | None:
        if data.get("memo_cursor") is not None:
            return int(data["memo_cursor"])
        return None if history is None or not self._log.is_whole else self.memo_cursor

    def _load_history(self, history: Arrived) -> None:
        self.reset_history()
        new = {id(entry): self._log.append(entry) for entry in history.entries}
        for entry in new.values():
            self._ledger.add(entry)
            self._count(entry)
        self._log.show(new.get(id(entry), entry) for entry in history.window)

    def _load_digests(self, data: Mapping[str, Any], memo_cursor: int | None) -> None:
        memo = copied(data["memo"]) if "memo" in data else self._memo.value
        seq = self._memo.seq if memo_cursor is None else self._seq_behind(memo_cursor)
        self._memo = Digest(value=memo, seq=seq)
        covered = self._summary.seq
        if data.get("summary_cursor") is not None:
            entries = self._whole()[: int(data["summary_cursor"])]
            covered = entries[-1].seq if entries else self._log.start - 1
        summary = self.summary if data.get("summary") is None else str(data["summary"])
        self._summary = Digest(value=summary, seq=covered)
        if data.get("summary") is not None:
            self._kept = moved(kept_in(data.get("ledger")), self._log.start - 1)

    def _load_counts(self, data: Mapping[str, Any], history: Arrived | None) -> None:
        if data.get("turns") is not None:
            self._turns = int(data["turns"])
        last = data.get("last_resize") or {}
        if data.get("last_resize_turn") is not None or last:
            turn = int(data.get("last_resize_turn") or last.get("turn") or 0)
            seq = self.memo_seq if history is not None else self._resized_seq
            resized = {"type": None, "reason": None, **last, "turn": turn, "seq": seq}
            self._last_resize = resized if turn or last else {}

    def _seq_behind(self, messages: int) -> int:
        """The number of the last entry of so many messages of the history."""
        spans = [s for s in spans_of(self._whole()) if s.message is not None][:messages]
        return spans[-1].entries[-1].seq if spans else self._log.start - 1
