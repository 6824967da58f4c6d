"""How a process that runs for months looks for garbage: seldom, and not in what it began with."""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 20, 20)
"""New objects until the youngest are looked through, and how often that is until older ones are.

A turn makes hundreds that live until its end: with Python's own 700 they are looked through while
they are in use, and taken for older ones.
"""


def look_seldom() -> None:
    """Call it once all is loaded: looking through that now and then would hold up every chat."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
