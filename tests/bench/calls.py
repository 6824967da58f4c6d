"""Functions called while a block runs, in this thread and in those that begin in it: a cost that
no busy machine changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Calls:
    """How many calls there were, of Python's functions and of C's."""

    def __init__(self) -> None:
        self.count = 0

    def _hear(self, _frame: FrameType, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count from here to the end of the block; begin it before the event loop."""
        sys.setprofile(self._hear)
        threading.setprofile(self._hear)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
