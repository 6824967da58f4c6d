"""Messages between nanoloop and the model's process: an order and a report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

MARK = b"nanoloop:"
"""Marks the report among llama.cpp's own output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An order to run a model."""

    path: str
    model: str
    context_tokens: int
    """The context length per conversation; it is reduced if the model or the memory requires it."""
    parallel: int
    threads: int
    key: str
    """The key that requests must contain."""

    def line(self) -> bytes:
        """Encode the order as the line that the process reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Decode the order from the line that `line` returned."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Reports that the model is ready, or why it can't be run."""

    address: str = ""
    context_tokens: int = 0
    calls_tools: bool = False
    problem: str = ""
    """A sentence that includes the next step."""

    def line(self) -> bytes:
        """Encode the report as a line that differs from llama.cpp's own output."""
        return b"\n" + MARK + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """Decode the report from the line that `line` returned; return None for any other line."""
        if not line.startswith(MARK):
            return None
        said: dict[str, Any] = json.loads(line.removeprefix(MARK))
        return cls(**said)
