"""Moving sessions from one store to another: each verified, and none copied twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from nanoloop.errors import SessionDamaged, SessionDiffers, SessionNotFound, StoreError
from nanoloop.session.entry import Entry
from nanoloop.stores.problems import problems_of
from nanoloop.stores.snapshot import Snapshot


class Movable(Protocol):
    """A store whose sessions can be taken elsewhere as they are."""

    def names(self) -> AsyncIterator[str]:
        """The id of every session, expired or not, whatever it looks like inside."""
        ...

    async def snapshot(self, session_id: str) -> Snapshot:
        """All there is of one; raises `SessionNotFound`."""
        ...

    async def restore(self, snapshot: Snapshot, *, replace: bool = False) -> None:
        """Have one as another store had it; raises `SessionExists` unless `replace`."""
        ...

    async def delete(self, session_id: str) -> None:
        """Remove it for good, whatever it looks like inside."""
        ...

    def bindings(self) -> AsyncIterator[tuple[str, str]]:
        """Every key and its session."""
        ...

    async def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        ...

    async def bound(self, key: str) -> str | None:
        """The session bound to this key, or None."""
        ...


@dataclass(slots=True, kw_only=True)
class Copied:
    """What a copy came to."""

    copied: int = 0
    same: int = 0
    """Sessions that were there already, and the same."""
    entries: int = 0
    """In all of these."""
    keys: int = 0
    left_out: int = 0
    """Sessions that can't be read, here or there."""


Tell = Callable[[str, Copied], None]
"""Hears of each session that has been dealt with."""
Warn = Callable[[str, str], None]
"""Hears of a session that is damaged, and what is wrong."""


async def copy(
    source: Movable,
    target: Movable,
    *,
    replace: bool = False,
    tell: Tell = lambda *_: None,
    warn: Warn = lambda *_: None,
) -> Copied:
    """Copy every session and key; what is there already, and the same, is left alone.

    One that can't be read is left out; of one that can in part, that is copied. One that is damaged
    in the target is left as it is, unless `replace`. Interrupted, it goes on where it was when it
    is run again. Raises `SessionDiffers` unless `replace`, and
    `StoreError` for a session that isn't the same after it was written.
    """
    done = Copied()
    # All names first: what is written meanwhile must not move the pages under our feet.
    for name in [name async for name in source.names()]:
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
    return done


async def taken(source: Movable, name: str) -> Snapshot | str:
    """All there is of a session, or why it can't be read; raises where nothing can be any more."""
    try:
        return await source.snapshot(name)
    except SessionDamaged as damaged:
        return damaged.what
    except StoreError as error:
        await source.bound("")  # raises where it is not this session, but the store that fails
        return str(error)


async def _copy_one(
    snapshot: Snapshot, target: Movable, done: Copied, *, may_replace: bool, warn: Warn
) -> None:
    name = snapshot.name
    theirs = await _theirs(target, name)
    if isinstance(theirs, Snapshot) and digest(theirs) == digest(snapshot):
        done.same += 1
    elif theirs is None or may_replace:
        if isinstance(theirs, str):  # what can't be read can't be written over everywhere
            await target.delete(name)
        await target.restore(snapshot, replace=may_replace)
        await _verify(target, name, snapshot)
        done.copied += 1
    elif damage := _damage(theirs):
        warn(name, f"that of the target is damaged, and only --replace replaces it: {damage}")
        done.left_out += 1
        return
    else:
        raise SessionDiffers(name)
    done.entries += len(snapshot.entries)


async def _theirs(target: Movable, name: str) -> Snapshot | str | None:
    """What the target has under this name, or why that can't be read."""
    try:
        return await taken(target, name)
    except SessionNotFound:
        return None


def _damage(theirs: Snapshot | str) -> str:
    """What is wrong with it; "" where nothing is."""
    problems = [theirs] if isinstance(theirs, str) else list(problems_of(theirs))
    more = f", and {len(problems) - 1} problems more" if problems[1:] else ""
    return f"{problems[0]}{more}" if problems else ""


async def _verify(target: Movable, name: str, snapshot: Snapshot) -> None:
    if digest(await target.snapshot(name)) != digest(snapshot):
        raise StoreError(
            f"session {name!r} is not the same after it was copied: is something else writing to "
            "the target? stop it, and copy again with --replace"
        )


async def _copy_keys(source: Movable, target: Movable, done: Copied) -> None:
    async for key, session_id in source.bindings():
        if await target.bound(key) != session_id:
            await target.bind(key, session_id)
        done.keys += 1


def digest(snapshot: Snapshot) -> str:
    """A short text that two snapshots share when they say the same, wherever they come from."""
    said = hashlib.sha256()
    for part in (snapshot.head, snapshot.sections, *(_told(e) for e in snapshot.entries)):
        said.update(json.dumps(part, sort_keys=True, default=str).encode())
        said.update(b"\n")
    return said.hexdigest()


def _told(entry: Entry) -> list[object]:
    return [entry.seq, entry.to_dict()]
