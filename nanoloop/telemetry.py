"""Turn each event into one log line and one count."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO, get_args

from nanoloop.events import Event, Level

if TYPE_CHECKING:
    from nanoloop.log_lines import Lines, Style

_LEVELS: tuple[Level, ...] = get_args(Level)

_NEVER_LOGGED = frozenset({"text", "content"})
_SUMMED = frozenset(
    {"bytes_cut", "evicted", "expired", "seconds", "tokens_cached", "tokens_in", "tokens_out"}
)
_LATEST = frozenset({"entries", "pending", "sessions"})


class Telemetry:
    """An observer of all events, which never waits and never raises an error."""

    def __init__(
        self,
        *,
        level: Level = "info",
        format: Style = "auto",  # noqa: A002 - the setting's name
        stream: TextIO | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.latest: dict[str, int] = {}
        self._format, self._stream = format, stream or sys.stderr
        self.set_level(level)

    def set_level(self, level: Level) -> None:
        """Log only events of at least this level from now on."""
        self._written = _LEVELS[_LEVELS.index(level) :]

    def __call__(self, event: Event) -> None:
        """Count the event and, if allowed, log it."""
        name = event.name()
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        self._count(name, values)
        if self._stream is not None and event.logged and event.level in self._written:
            self._write(event.level, name, values)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return event counts, sums such as `turn_finished.tokens_in`, and latest values."""
        return {"counts": dict(self.counts), "sums": dict(self.sums), "latest": dict(self.latest)}

    def _count(self, name: str, values: Mapping[str, Any]) -> None:
        self.counts[name] += 1
        for field in _SUMMED & values.keys():
            self.sums[f"{name}.{field}"] += values[field]
        self.latest |= {f"{name}.{field}": values[field] for field in _LATEST & values.keys()}

    def _write(self, level: Level, name: str, values: Mapping[str, Any]) -> None:
        told = {field: value for field, value in values.items() if field not in _NEVER_LOGGED}
        # A log that can't be written, for example on a full disk, must not stop any conversation.
        with suppress(OSError, ValueError):
            getattr(self._lines, level)(name, **told)

    @cached_property
    def _lines(self) -> Lines:
        from nanoloop.log_lines import lines  # noqa: PLC0415 - most commands never write one

        return lines(self._format, self._stream)
