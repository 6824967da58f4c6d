"""The check that nothing was lost: each entry is in the window, pending, or in the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from nanoloop.context import build_messages
from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Where each entry of a session's history is, and what is wrong with that."""

    log: tuple[Entry, ...]
    """The whole history, oldest first."""
    window: tuple[Entry, ...]
    """What the model sees word for word."""
    pending: tuple[Entry, ...]
    """What left the window and waits for its summary."""
    covered: tuple[Entry, ...]
    """What the summary stands for."""
    left_out: tuple[Entry, ...]
    """What a handler shows no more while older entries are shown: pending once those leave."""
    violations: tuple[str, ...]
    """What must not be, in words without anyone's text; empty when all is well."""

    def check(self) -> None:
        """Raise AssertionError with the violations, if there are any."""
        if self.violations:
            raise AssertionError("; ".join(self.violations))


async def coverage(store: Store, session_id: str) -> Coverage:
    """What the store has of this session, read whole and read as the loop does."""
    whole, light = await store.get(session_id), await store.load(session_id)
    listed = await store.entries(session_id)
    report = coverage_of(whole)
    wrong = [*report.violations]
    if _ids(light.window) != _ids(whole.window):
        wrong.append("the window differs between get and load")
    if light.pending_seq != whole.pending_seq or light.covered_seq != whole.covered_seq:
        wrong.append("what is pending differs between get and load")
    if _ids(listed) != _ids(report.log):
        wrong.append(f"entries lists {len(listed)} of {len(report.log)}")
    return replace(report, violations=tuple(wrong))


def coverage_of(session: Session) -> Coverage:
    """The same for a session in memory; raises `HistoryNotLoaded` where it has only its window."""
    log = tuple(sorted(session.history(), key=lambda entry: entry.seq))
    shown = {entry.seq for entry in session.window}
    left = [entry for entry in log if entry.seq not in shown]
    covered = tuple(entry for entry in left if entry.seq <= session.covered_seq)
    pending = tuple(entry for entry in left if session.is_pending(entry))
    placed = {entry.seq for entry in (*covered, *pending)}
    report = Coverage(
        log=log,
        window=session.window,
        pending=pending,
        covered=covered,
        left_out=tuple(entry for entry in left if entry.seq not in placed),
        violations=(),
    )
    return replace(report, violations=tuple(_violations(session, report)))


def _violations(session: Session, report: Coverage) -> Iterable[str]:
    yield from _order(report)
    twice = _seqs(report.pending) & _seqs(report.covered)
    if twice:
        yield f"entries {sorted(twice)} are pending and covered"
    if _seqs(session.pending) != _seqs(report.pending):
        yield "what the session hands to its summariser is not what is pending"
    if len(report.log) != session.entry_count:
        yield f"{len(report.log)} entries in the log, {session.entry_count} counted"
    oldest = min((entry.seq for entry in report.window if entry.seq), default=None)
    if oldest is not None and any(entry.seq < oldest for entry in report.left_out):
        yield "entries from before the window are neither pending nor covered"
    if report.log and not report.window:
        yield "the window is empty and the log is not"
    yield from pair_violations(build_messages("", report.window))


def _order(report: Coverage) -> Iterable[str]:
    seqs = [entry.seq for entry in report.log]
    if any(second <= first for first, second in pairwise(seqs)):
        yield "the log is out of order"
    if len(set(_ids(report.log))) != len(report.log):
        yield "an entry is in the log twice"
    known = [entry.seq for entry in report.window if entry.seq]
    if len(set(known)) != len(known):
        yield "an entry is in the window twice"
    if not set(known) <= set(seqs):
        yield "the window shows entries that are not in the log"


def pair_violations(messages: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What is wrong with calls and results in a request: each call has its result right behind."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield f"message {number} is a tool's result without its call"
            else:
                waiting.remove(str(message["tool_call_id"]))
            continue
        if waiting:
            yield f"message {number} comes before the results of {len(waiting)} calls"
        waiting = [str(call["id"]) for call in message.get("tool_calls") or ()]
    if waiting:
        yield f"{len(waiting)} calls at the end have no result"


def _ids(entries: Iterable[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def _seqs(entries: Iterable[Entry]) -> set[int]:
    return {entry.seq for entry in entries}
