"""Each event is one line of the log and one count. The only file that knows structlog."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal, TextIO

import structlog
from structlog.dev import plain_traceback
from structlog.typing import FilteringBoundLogger, Processor

from nanoloop.events import Announce, Event, Level

_NEVER_LOGGED = frozenset({"text", "content"})
_SUMMED = frozenset(
    {"bytes_cut", "evicted", "expired", "seconds", "tokens_cached", "tokens_in", "tokens_out"}
)
_LATEST = frozenset({"entries", "pending", "sessions"})


class Telemetry:
    """Hears every event; it never waits for anyone, and never raises."""

    def __init__(
        self,
        *,
        level: Level = "info",
        format: Literal["auto", "text", "json"] = "auto",  # noqa: A002 - the setting's name
        stream: TextIO | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.latest: dict[str, int] = {}
        self.listeners: list[Announce] = []
        """Who else hears every event."""
        self._format, self._stream = format, stream or sys.stderr
        self.set_level(level)

    def set_level(self, level: Level) -> None:
        """From now on write lines of at least this level."""
        self._log = _logger(level, self._format, self._stream)

    def __call__(self, event: Event) -> None:
        """Count it and, where it may be logged, write it down."""
        name = event.name()
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        self._count(name, values)
        if event.logged:
            self._write(event.level, name, values)
        for hear in self.listeners:
            hear(event)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """How often each event happened, sums such as `turn_finished.tokens_in`, latest values."""
        return {"counts": dict(self.counts), "sums": dict(self.sums), "latest": dict(self.latest)}

    def _count(self, name: str, values: Mapping[str, Any]) -> None:
        self.counts[name] += 1
        for field in _SUMMED & values.keys():
            self.sums[f"{name}.{field}"] += values[field]
        self.latest |= {f"{name}.{field}": values[field] for field in _LATEST & values.keys()}

    def _write(self, level: Level, name: str, values: Mapping[str, Any]) -> None:
        told = {field: value for field, value in values.items() if field not in _NEVER_LOGGED}
        # A log that can't be written, on a full disk or a closed terminal, stops no conversation.
        with suppress(OSError, ValueError):
            getattr(self._log, level)(name, **told)


def _logger(level: Level, style: str, stream: TextIO) -> FilteringBoundLogger:
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _renderer(style, stream),
    ]
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return logger


def _renderer(style: str, stream: TextIO) -> Processor:
    terminal = stream.isatty()
    if style == "json" or (style == "auto" and not terminal):
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=terminal and "NO_COLOR" not in os.environ,
        # Quoted, so that an id with a line break in it can't forge a line.
        repr_native_str=True,
        # structlog's own choice would draw local values, which may be message text.
        exception_formatter=plain_traceback,
        sort_keys=False,
    )
