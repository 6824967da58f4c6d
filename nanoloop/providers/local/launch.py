"""Messages between this process and the model's: an order, and a report on it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

MARK = b"nanoloop:"
"""Marks the report among llama.cpp's own output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run and how."""

    path: str
    model: str
    context_tokens: int
    """Per conversation; less if the model or the memory allows less."""
    parallel: int
    threads: int
    key: str
    """The key that requests must carry."""

    def line(self) -> bytes:
        """The order as the one line that the child reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Read the order from the line that `line` made."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Says that the model is ready, or why it can't be."""

    address: str = ""
    context_tokens: int = 0
    calls_tools: bool = False
    problem: str = ""
    """A sentence that includes the next step."""

    def line(self) -> bytes:
        """The report as a line that differs from llama.cpp's own output."""
        return b"\n" + MARK + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """Read the report from the line that `line` made; None for any other line."""
        if not line.startswith(MARK):
            return None
        said: dict[str, Any] = json.loads(line.removeprefix(MARK))
        return cls(**said)
