"""What passes between this process and the model's: an order, and a report on it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

MARK = b"nanoloop:"
"""Begins the report, between what llama.cpp says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run and how."""

    path: str
    model: str
    context_tokens: int
    """For each conversation; less where model or memory allow less."""
    parallel: int
    threads: int
    key: str
    """What requests have to show."""

    def line(self) -> bytes:
        """It as the one line that the child reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """The order in such a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The model can be asked; or why it can't be."""

    address: str = ""
    context_tokens: int = 0
    calls_tools: bool = False
    problem: str = ""
    """A sentence with the next step."""

    def line(self) -> bytes:
        """It as the one line that is told apart from all that llama.cpp says."""
        return b"\n" + MARK + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """The report in such a line; None in any other."""
        if not line.startswith(MARK):
            return None
        said: dict[str, Any] = json.loads(line.removeprefix(MARK))
        return cls(**said)
