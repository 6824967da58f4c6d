"""Bytes that this process has read and written in files, as the kernel counts them; Linux only.

What goes through sockets is not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COUNTERS = Path("/proc/self/io")


@dataclass(slots=True)
class Moved:
    """What was moved while a block ran."""

    read: int = 0
    written: int = 0


@contextmanager
def moved() -> Iterator[Moved]:
    """Count what all threads move inside the block."""
    found = Moved()
    looking = _counted()[0]
    read, written = _counted()
    looking = read - looking  # reading the counters counts as well
    yield found
    now_read, now_written = _counted()
    found.read = now_read - read - looking
    found.written = now_written - written


def _counted() -> tuple[int, int]:
    lines = COUNTERS.read_text().splitlines()
    numbers = {name: int(count) for name, _, count in (line.partition(":") for line in lines)}
    return numbers["rchar"], numbers["wchar"]
