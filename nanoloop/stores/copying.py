"""Check whole sessions, or copy them to another store; each copy is verified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from nanoloop.errors import NotReadable, SessionDamaged, SessionDiffers, SessionNotFound, StoreError
from nanoloop.protocols import LOGINS
from nanoloop.session.entry import Entry, utc_now
from nanoloop.stores.database import COMMIT_ID, HeardMessage
from nanoloop.stores.snapshot import StoredSnapshot, window_start

if TYPE_CHECKING:
    from nanoloop.stores.store import DatabaseStore


@dataclass(slots=True, kw_only=True)
class Copied:
    """The result of a copy."""

    copied: int = 0
    same: int = 0
    """Sessions that the target already had, with identical content."""
    entries: int = 0
    """The number of entries in all copied or identical sessions."""
    keys: int = 0
    left_out: int = 0
    """Sessions that can't be read in the source or in the target."""


Tell = Callable[[str, Copied], None]
"""Called after each session that was processed."""
Warn = Callable[[str, str], None]
"""Called with a description of the damage for each damaged session."""


async def copy(
    source: DatabaseStore,
    target: DatabaseStore,
    *,
    replace: bool = False,
    tell: Tell = lambda *_: None,
    warn: Warn = lambda *_: None,
) -> Copied:
    """Copy every session and key, except those that the target already has with identical content.

    Logins to the web page are not copied, so people have to log in again. An unreadable session is
    skipped, and a partly readable one is copied as far as possible. A damaged session in the target
    is kept unless `replace` is set. If a copy is interrupted, repeat the same call to resume it.
    Raise `SessionDiffers` if the target has another version of a session and `replace` is not set.
    Raise `StoreError` if a session differs after it was written.
    """
    done = Copied()
    # List all names first, because sessions written meanwhile would shift the pages.
    names = await names_to_copy(source)
    if (record := source.sealing.record) is not None:  # for chat keys that are digests
        target.sealing.inherited = record.secret
    for name in names:
        try:
            found = await taken(source, name)
        except SessionNotFound:  # deleted or expired
            continue
        for what in [found] if isinstance(found, str) else found.unreadable:
            warn(name, what)
        if isinstance(found, str):
            done.left_out += 1
        else:
            await _copy_one(found, target, done, may_replace=replace, warn=warn)
        tell(name, done)
    await _copy_keys(source, target, done)
    await _copy_heard(source, target)
    return done


async def names_to_copy(source: DatabaseStore) -> list[str]:
    """Return the ids of the sessions that `copy` processes."""
    return [name async for name in source.names() if name != LOGINS]


async def taken(source: DatabaseStore, name: str) -> StoredSnapshot | str:
    """Return a session, or the reason why it can't be read; raise if the store itself fails."""
    try:
        return await source.snapshot(name)
    except SessionDamaged as damaged:
        return damaged.what
    except StoreError as error:
        await source.bound("")  # raises if the store fails, not just this session
        return str(error)


async def _copy_one(
    snapshot: StoredSnapshot, target: DatabaseStore, done: Copied, *, may_replace: bool, warn: Warn
) -> None:
    name = snapshot.name
    theirs = await _theirs(target, name)
    if isinstance(theirs, StoredSnapshot) and digest(theirs) == digest(snapshot):
        done.same += 1
    elif theirs is None or may_replace:
        if isinstance(theirs, str):  # not every store can overwrite unreadable data
            await target.delete(name)
        await target.restore(snapshot, replace=may_replace)
        if damage := await _verify(target, name, snapshot):
            warn(name, f"the copy in the target can't be read: {damage}")
            done.left_out += 1
            return
        done.copied += 1
    elif damage := _damage(theirs):
        warn(name, f"it is damaged in the target: use --replace to overwrite it: {damage}")
        done.left_out += 1
        return
    else:
        raise SessionDiffers(name)
    done.entries += len(snapshot.entries)


async def _theirs(target: DatabaseStore, name: str) -> StoredSnapshot | str | None:
    """Return the target's session, the reason why it can't be read, or None if it doesn't exist."""
    try:
        return await taken(target, name)
    except SessionNotFound:
        return None


def _damage(theirs: StoredSnapshot | str) -> str:
    """Describe a session's damage; return "" if there is none."""
    problems = [theirs] if isinstance(theirs, str) else list(problems_of(theirs))
    more = f", and {len(problems) - 1} more problems" if problems[1:] else ""
    return f"{problems[0]}{more}" if problems else ""


async def _verify(target: DatabaseStore, name: str, snapshot: StoredSnapshot) -> str:
    """Compare a session just written with its original; return the damage, or ""."""
    written = await taken(target, name)
    if isinstance(written, str):
        return written
    if digest(written) != digest(snapshot):
        raise StoreError(
            f"session {name!r} is different after copying: stop anything else that writes to the "
            "target, and copy again with --replace"
        )
    return ""


async def seal_all(
    store: DatabaseStore, *, tell: Tell = lambda *_: None, warn: Warn = lambda *_: None
) -> Copied:
    """Encrypt every session with the first key, and reject all other keys afterwards.

    With a keys file, each session gets its own keys. If the work is interrupted, repeat the same
    call to resume it. Data that can't be read is left unchanged.
    """
    done = Copied()
    await store.use_keys()
    for name in [name async for name in store.names()]:
        try:
            if await store.reseal(name):
                done.copied += 1
            else:
                done.same += 1
        except SessionNotFound:  # deleted or expired
            continue
        except SessionDamaged as damaged:
            done.left_out += 1
            warn(name, damaged.what)
        except NotReadable as error:
            done.left_out += 1
            warn(name, str(error))
        tell(name, done)
    if not done.left_out:
        await store.finish_sealing()
    return done


async def _copy_keys(source: DatabaseStore, target: DatabaseStore, done: Copied) -> None:
    async for key, session_id in source.bindings():
        if await target.bound(key) != session_id:
            await target.bind(key, session_id)
        done.keys += 1


HEARD_AT_ONCE = 500


async def _copy_heard(source: DatabaseStore, target: DatabaseStore) -> None:
    """Prevent messages that were answered in the source from being answered again in the target."""
    page: list[HeardMessage] = []
    async for message in source.heard():
        page.append(message)
        if len(page) == HEARD_AT_ONCE:
            await target.hear(page)
            page = []
    await target.hear(page)


def digest(snapshot: StoredSnapshot) -> str:
    """Return a short text that is identical for snapshots with the same content, from any store."""
    said = hashlib.sha256()
    head = {name: value for name, value in snapshot.head.items() if name != COMMIT_ID}
    for part in (head, snapshot.sections, *(_told(e) for e in snapshot.entries)):
        said.update(json.dumps(part, sort_keys=True, default=str).encode())
        said.update(b"\n")
    return said.hexdigest()


def _told(entry: Entry) -> list[object]:
    return [entry.seq, entry.to_dict()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of checking one session."""

    id: str
    problems: tuple[str, ...]


async def check(store: DatabaseStore) -> AsyncIterator[Checked]:
    """Check every session completely, without changing anything."""
    for name in [name async for name in store.names()]:
        try:
            found = await taken(store, name)
        except SessionNotFound:  # deleted or expired
            continue
        problems = (found,) if isinstance(found, str) else tuple(problems_of(found))
        yield Checked(id=name, problems=problems)


def problems_of(snapshot: StoredSnapshot) -> Iterator[str]:
    """Yield a description of each unreadable or inconsistent part of a session."""
    yield from snapshot.unreadable
    if "updated_at" not in snapshot.head:
        yield "its head is missing"
    try:
        snapshot.to_session(utc_now)
        # Each value is valid on its own: now check that they agree.
        yield from _in_numbers(snapshot)
        yield from _in_head(snapshot)
    except SessionDamaged as damaged:
        yield damaged.what


def _in_numbers(snapshot: StoredSnapshot) -> Iterator[str]:
    numbers = [entry.seq for entry in snapshot.entries]
    for before, after in pairwise([0, *numbers]):
        if after <= before:
            yield f"entry {after} comes after entry {before}"
        elif after > before + 1:
            yield f"entries {before + 1} to {after - 1} are missing"
    last = int(snapshot.head.get("last", 0))
    if last > (numbers[-1] if numbers else 0):
        yield f"the newest entry should be {last}, and is {numbers[-1] if numbers else 'missing'}"


def _in_head(snapshot: StoredSnapshot) -> Iterator[str]:
    head = snapshot.head
    last = int(head.get("last", 0))
    if int(head.get("covered", 0)) > last:
        yield f"the summary covers entries up to {head['covered']}, but there are only {last}"
    if window_start(head) > last + 1:
        yield f"the window begins at {window_start(head)}, but there are only {last} entries"
    if int(head.get("awaiting", 0)) > last:
        yield f"entry {head['awaiting']} awaits an answer, but there are only {last} entries"
