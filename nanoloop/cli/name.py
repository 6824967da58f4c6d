"""Which stored session is meant, and a store to find it in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches

from nanoloop.cli.chat import CHANNEL, key_of
from nanoloop.errors import SessionNotFound
from nanoloop.parts import make_store
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.ids import id_for_key
from nanoloop.session.session import Session
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry


@asynccontextmanager
async def opened(settings: Settings, *, read_only: bool = True) -> AsyncIterator[Store]:
    """The store of these settings, closed at the end."""
    telemetry = Telemetry(level="warning", format=settings.log.format)
    store = make_store(settings, telemetry, read_only=read_only)
    try:
        yield store
    finally:
        await store.close()


class _NoSuchName(SessionNotFound):
    """Nothing stored has this name."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        super().__init__(name)
        self._near = near

    def __str__(self) -> str:
        near = " or ".join(map(repr, self._near))
        hint = f"did you mean {near}?" if near else "`nanoloop sessions list` shows what there is"
        return f"no session {self.session_id!r}: {hint}"


async def find(store: Store, name: str) -> Session:
    """The session with this id; else the one a key has now; else the one `chat --session` means."""
    async for session_id in _candidates(store, name):
        with suppress(SessionNotFound):
            return await store.load(session_id)
    names = [known async for info in store.list() for known in _names(info)]
    raise _NoSuchName(name, get_close_matches(name, names, n=3))


async def _candidates(store: Store, name: str) -> AsyncIterator[str]:
    yield name
    for key in (name, key_of(name)):
        yield await store.bound(key) or id_for_key(key)


def _names(info: SessionInfo) -> Iterator[str]:
    yield info.id
    if info.key is not None and info.key.startswith(f"{CHANNEL}:"):
        yield info.key.removeprefix(f"{CHANNEL}:")
