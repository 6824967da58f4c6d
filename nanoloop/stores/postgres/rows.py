"""Sessions and entries as rows, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import UUID

from nanoloop.errors import SessionDamaged
from nanoloop.session.entry import Entry
from nanoloop.stores import sense
from nanoloop.stores.database import Commit, Stored, text_of
from nanoloop.stores.postgres.exact import packed, packed_entry, plain, unpacked, unplain
from nanoloop.stores.sense import head_of, sections_of

if TYPE_CHECKING:
    from asyncpg import Record

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def moment(micros: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=micros)


def arguments(commit: Commit, token: UUID) -> tuple[Any, ...]:
    """What the statements that write a session want, in their order."""
    ids = [commit.message_ids.get(entry.seq) for entry in commit.entries]
    heard = sum(name is not None for name in ids)
    return (
        plain(commit.id),
        commit.revision,
        token,
        packed(commit.head),
        commit.window,
        moment(commit.updated_at),
        None if commit.expires_at is None else moment(commit.expires_at),
        commit.grows,
        heard,
        list(commit.sections),
        [packed(value) for value in commit.sections.values()],
        [entry.seq for entry in commit.entries],
        [
            None if name is None else heard - nth
            for name, nth in zip(ids, _counted(ids), strict=True)
        ],
        [None if name is None else plain(name) for name in ids],
        [packed_entry(*pair) for pair in zip(commit.entries, commit.texts, strict=True)],
    )


def _counted(ids: Iterable[str | None]) -> Iterable[int]:
    """How many there are up to each of them."""
    return accumulate(int(name is not None) for name in ids)


def rewritten(commit: Commit) -> tuple[Any, ...]:
    """What the statement that erases wants."""
    entries = commit.rewritten
    return (
        plain(commit.id),
        [entry.seq for entry in entries],
        [packed_entry(entry, text_of(entry)) for entry in entries],
    )


def stored(session_id: str, row: Record, entries: Iterable[Record] | None = None) -> Stored:
    """A session from a row of `window`; its entries may come from rows of their own."""
    pairs = zip(row["seqs"] or (), row["contents"] or (), strict=True)
    sections = zip(row["names"] or (), row["values"] or (), strict=True)
    return Stored(
        head=head_of(session_id, row["head"], unpacked),
        sections=sections_of(session_id, sections, unpacked),
        entries=sense.entries_of(session_id, pairs, unpacked)
        if entries is None
        else entries_of(session_id, entries),
        seen=dict(zip(row["seen_seqs"] or (), map(unplain, row["seen_ids"] or ()), strict=True)),
        size=row["size"],
    )


def glance(row: Record) -> Stored | SessionDamaged:
    """A session from a row of `glances`."""
    return Stored.glance(unplain(row["id"]), row["head"], row["value"], row["size"], unpacked)


def entries_of(session_id: str, rows: Iterable[Record]) -> list[Entry]:
    """Entries from rows of `between`."""
    pairs = ((row["seq"], row["content"]) for row in rows)
    return sense.entries_of(session_id, pairs, unpacked)
