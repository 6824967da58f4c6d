"""The bound on a history, and who takes what grows beyond it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanoloop.session.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Keep the newest entries; hand the older ones on."""

    keep: int = 1000
    """Entries that a history holds at most."""
    take: Callable[[list[Entry]], object]
    """Gets the old entries before they go; if it raises, they stay."""
