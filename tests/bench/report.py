"""What a benchmark prints: where it ran, its tables, and which goals were met."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("nanoloop-agent", "openai", "httpx2", "anyio", "aiofiles")


class Report:
    """Tables on stdout; at the end 1 for a missed goal, else 0."""

    def __init__(self, title: str) -> None:
        self._missed = 0
        say(f"{title}\n{machine()}\n{versions()}")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows under their columns, the first left, the others right aligned."""
        cells = [[str(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        say(f"\n{title}")
        for row in cells:
            first, *others = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            say("  ".join([row[0].ljust(len(first)), *others]).rstrip())

    def goal(self, name: str, value: float, limit: float, unit: str = "") -> None:
        """Say whether a value stays within its limit."""
        is_met = value <= limit
        self._missed += not is_met
        word = "met   " if is_met else "MISSED"
        say(f"{word} {name}: {value:.2f}{unit}, at most {limit:g}{unit}")

    def end(self) -> None:
        """Leave with 1 when a goal was missed, else with 0."""
        sys.exit(1 if self._missed else 0)


def say(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)  # noqa: T201 - a benchmark prints


def machine() -> str:
    """The system, the processor and how busy it is."""
    load = os.getloadavg()[0]
    return f"{platform.platform()}, {os.cpu_count()} x {_processor()}, load {load:.2f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> str:
    """Python and the libraries that a turn goes through."""
    python = f"Python {platform.python_version()}"
    return ", ".join([python, *(f"{name} {_version(name)}" for name in LIBRARIES)])


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "(not installed)"
