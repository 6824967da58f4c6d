"""Finding a session among many: by its names, by its title, by what was said in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.entry import MESSAGE

PAGE = 500
"""Entries of a history that are read at a time."""


def found(infos: Iterable[SessionInfo], text: str) -> list[SessionInfo]:
    """Those whose id, key or title begins with the text, then those whose title has it."""
    wanted = text.casefold()
    begins: list[SessionInfo] = []
    has: list[SessionInfo] = []
    for info in infos:
        if any(name.casefold().startswith(wanted) for name in _names(info)):
            begins.append(info)
        elif wanted in info.title.casefold():
            has.append(info)
    return begins + has


def _names(info: SessionInfo) -> Iterator[str]:
    key = info.key or ""
    yield from (info.id, key, key.partition(":")[2], info.title)


async def says(store: Store, session_id: str, words: str) -> bool:
    """Whether one message of the history has all these words."""
    wanted = words.casefold().split()
    after = 0
    try:
        while entries := await store.entries(session_id, after=after, limit=PAGE):
            for entry in entries:
                text = str(entry.content.get("text") or "").casefold()
                if entry.type == MESSAGE and all(word in text for word in wanted):
                    return True
            after = entries[-1].seq
    except (SessionNotFound, StoreError):  # deleted meanwhile, or sealed with another key
        return False
    return False
