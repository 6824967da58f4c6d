"""Log lines: readable on a terminal, JSON elsewhere. Only this module uses structlog."""

from __future__ import annotations

import os
from typing import Literal, TextIO

import structlog
from structlog.dev import plain_traceback
from structlog.typing import FilteringBoundLogger, Processor

Style = Literal["auto", "text", "json"]
Lines = FilteringBoundLogger


def lines(style: Style, stream: TextIO) -> Lines:
    """Return a logger that writes lines to this stream."""
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _renderer(style, stream),
    ]
    written: Lines = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return written


def _renderer(style: Style, stream: TextIO) -> Processor:
    terminal = stream.isatty()
    if style == "json" or (style == "auto" and not terminal):
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        # Quoted, so that a line break in an id can't forge a log line.
        repr_native_str=True,
        # structlog's default would print local variables, which may contain message text.
        exception_formatter=plain_traceback,
        sort_keys=False,
    )
