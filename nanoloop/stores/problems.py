"""What is wrong with a stored session, in words without anyone's text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from nanoloop.errors import SessionDamaged
from nanoloop.session.entry import utc_now
from nanoloop.stores.snapshot import Snapshot, window_start


def problems_of(snapshot: Snapshot) -> Iterator[str]:
    """What doesn't fit together in it."""
    yield from snapshot.unreadable
    if "updated_at" not in snapshot.head:
        yield "nothing says where it stands: its head is missing"
    try:
        snapshot.to_session(utc_now)
        # What its values are is settled: now whether they agree.
        yield from _in_numbers(snapshot)
        yield from _in_head(snapshot)
    except SessionDamaged as damaged:
        yield damaged.what


def _in_numbers(snapshot: Snapshot) -> Iterator[str]:
    numbers = [entry.seq for entry in snapshot.entries]
    for before, after in pairwise([0, *numbers]):
        if after <= before:
            yield f"entry {after} stands behind entry {before}"
        elif after > before + 1:
            yield f"entries {before + 1} to {after - 1} are missing"
    last = int(snapshot.head.get("last", 0))
    if last > (numbers[-1] if numbers else 0):
        yield f"the newest entry should be {last}, and is {numbers[-1] if numbers else 'missing'}"


def _in_head(snapshot: Snapshot) -> Iterator[str]:
    head = snapshot.head
    last = int(head.get("last", 0))
    if int(head.get("covered", 0)) > last:
        yield f"the summary stands for entries up to {head['covered']}, and there are {last}"
    if window_start(head) > last + 1:
        yield f"the window begins at {window_start(head)}, and there are {last} entries"
    if int(head.get("awaiting", 0)) > last:
        yield f"entry {head['awaiting']} awaits an answer, and there are {last}"
