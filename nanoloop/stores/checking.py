"""Looking at every stored session whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from nanoloop.errors import SessionNotFound
from nanoloop.stores.copying import Movable, taken
from nanoloop.stores.problems import problems_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One session, looked at."""

    id: str
    problems: tuple[str, ...]


async def check(store: Movable) -> AsyncIterator[Checked]:
    """Look at every session whole; nothing is changed."""
    for name in [name async for name in store.names()]:
        try:
            found = await taken(store, name)
        except SessionNotFound:  # deleted or expired
            continue
        problems = (found,) if isinstance(found, str) else tuple(problems_of(found))
        yield Checked(id=name, problems=problems)
