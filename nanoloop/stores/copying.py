"""Whole sessions checked, or copied to another store: each verified, and none copied twice."""

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
    """Sessions that were already there, and identical."""
    entries: int = 0
    """The entries in all of these sessions."""
    keys: int = 0
    left_out: int = 0
    """Sessions that can't be read, here or there."""


Tell = Callable[[str, Copied], None]
"""Called for each session that has been dealt with."""
Warn = Callable[[str, str], None]
"""Called for each damaged session, with what is wrong."""


async def copy(
    source: DatabaseStore,
    target: DatabaseStore,
    *,
    replace: bool = False,
    tell: Tell = lambda *_: None,
    warn: Warn = lambda *_: None,
) -> Copied:
    """Copy every session and key, except those that are already there and identical.

    Logins to the page are not copied: people log in again where they are served from now on.
    An unreadable session is skipped; of a partly readable one, the readable part is copied.
    A damaged one in the target stays as it is, unless `replace`. If interrupted, the same call
    resumes it. Raises `SessionDiffers` unless `replace`, and `StoreError` for a session that isn't
    the same after it was written.
    """
    done = Copied()
    # All names first: what is written meanwhile must not move the pages under our feet.
    names = await names_to_copy(source)
    if (record := source.sealing.record) is not None:  # chats whose key has a digest go on
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
    """The sessions that `copy` looks at."""
    return [name async for name in source.names() if name != LOGINS]


async def taken(source: DatabaseStore, name: str) -> StoredSnapshot | str:
    """The whole session, or why it can't be read; raises if nothing can be read any more."""
    try:
        return await source.snapshot(name)
    except SessionDamaged as damaged:
        return damaged.what
    except StoreError as error:
        await source.bound("")  # raises where it is not this session, but the store that fails
        return str(error)


async def _copy_one(
    snapshot: StoredSnapshot, target: DatabaseStore, done: Copied, *, may_replace: bool, warn: Warn
) -> None:
    name = snapshot.name
    theirs = await _theirs(target, name)
    if isinstance(theirs, StoredSnapshot) and digest(theirs) == digest(snapshot):
        done.same += 1
    elif theirs is None or may_replace:
        if isinstance(theirs, str):  # what can't be read can't be written over everywhere
            await target.delete(name)
        await target.restore(snapshot, replace=may_replace)
        if damage := await _verify(target, name, snapshot):
            warn(name, f"it can't be read in the target, where it was copied to: {damage}")
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
    """What the target has under this name, or why that can't be read."""
    try:
        return await taken(target, name)
    except SessionNotFound:
        return None


def _damage(theirs: StoredSnapshot | str) -> str:
    """What is wrong with it; "" if nothing is."""
    problems = [theirs] if isinstance(theirs, str) else list(problems_of(theirs))
    more = f", and {len(problems) - 1} problems more" if problems[1:] else ""
    return f"{problems[0]}{more}" if problems else ""


async def _verify(target: DatabaseStore, name: str, snapshot: StoredSnapshot) -> str:
    """What can't be read of what was just written; "" if it is the same."""
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
    """Seal every session with the first key, and note it once nothing else is left.

    If interrupted, the same call resumes it. What can't be read stays as it is.
    """
    done = Copied()
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
    """Prevent messages answered here from being answered again there."""
    page: list[HeardMessage] = []
    async for message in source.heard():
        page.append(message)
        if len(page) == HEARD_AT_ONCE:
            await target.hear(page)
            page = []
    await target.hear(page)


def digest(snapshot: StoredSnapshot) -> str:
    """A short text that snapshots with the same content share, wherever they come from."""
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
    """Check every session in full, without changing anything."""
    for name in [name async for name in store.names()]:
        try:
            found = await taken(store, name)
        except SessionNotFound:  # deleted or expired
            continue
        problems = (found,) if isinstance(found, str) else tuple(problems_of(found))
        yield Checked(id=name, problems=problems)


def problems_of(snapshot: StoredSnapshot) -> Iterator[str]:
    """Everything in it that is unreadable or inconsistent."""
    yield from snapshot.unreadable
    if "updated_at" not in snapshot.head:
        yield "its head is missing"
    try:
        snapshot.to_session(utc_now)
        # What its values are is settled: now whether they agree.
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
        yield f"the summary stands for entries up to {head['covered']}, and there are {last}"
    if window_start(head) > last + 1:
        yield f"the window begins at {window_start(head)}, and there are {last} entries"
    if int(head.get("awaiting", 0)) > last:
        yield f"entry {head['awaiting']} awaits an answer, and there are {last}"
