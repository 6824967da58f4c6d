"""What was uploaded goes with the last message that refers to it, whoever erases that."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync

from nanoloop.channels.attachments import SCHEME
from nanoloop.errors import SessionDamaged, SessionNotFound
from nanoloop.session.changes import WAITING
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.stores.jsonl.writing import replace_file

NOTE = ".forgetting"
"""The file that names those which may have to go, beside them."""
READ_AT_ONCE = 500
"""Entries that are looked through at a time."""
_REFERENCE = re.compile(rf"{SCHEME}([0-9a-f]{{40}})")


class Forgetting:
    """The store that it is given, which lets go of uploaded files too.

    A file stays as long as any session refers to it; one that can't be read refers to none.
    """

    def __init__(self, store: Any, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Erase as the store does, then the files that only these entries referred to."""
        gone = await self._noted(await self._files_of(session.id, seqs))
        await self._store.erase(session, seqs)
        await self._let_go(gone)

    async def delete(self, session_id: str) -> None:
        """Delete as the store does, then the files that only this session referred to."""
        gone = await self._noted(await self._files_ever_of(session_id))
        await self._store.delete(session_id)
        await self._let_go(gone)

    async def delete_expired(self) -> int:
        """As the store does; then what was noted and is there still, after a kill say."""
        removed = int(await self._store.delete_expired())
        await self._let_go(await self._noted(set()))
        return removed

    def _has_any(self) -> bool:
        # In no thread: where nothing is uploaded, nothing waits on the way to the store.
        return self._folder.is_dir()

    async def _noted(self, gone: set[str]) -> set[str]:
        """These and what was noted before, on the disk until it is settled."""
        return await run_sync(self._note, gone) if self._has_any() else gone

    def _note(self, gone: set[str]) -> set[str]:
        file = self._folder / NOTE
        known = set(file.read_text().split()) if file.exists() else set()
        if gone - known:
            replace_file(file, " ".join(gone | known).encode(), durable=True)
        return gone | known

    async def _let_go(self, gone: set[str]) -> None:
        if not gone:
            return
        for session_id in [info.id async for info in self._store.list()]:
            gone -= await self._files_of(session_id)
            if not gone:
                break
        await run_sync(self._remove, gone)

    def _remove(self, gone: Collection[str]) -> None:
        for name in gone:
            # What is known of it goes first: a half of it is none.
            for suffix in (".json", ".data"):
                (self._folder / f"{name}{suffix}").unlink(missing_ok=True)
        (self._folder / NOTE).unlink(missing_ok=True)

    async def _files_of(self, session_id: str, seqs: Collection[int] | None = None) -> set[str]:
        """The files that a session refers to, or these entries of it."""
        found: set[str] = set()
        if not self._has_any():
            return found
        with suppress(SessionNotFound, SessionDamaged):
            if seqs is None:
                waiting = (await self._store.load(session_id)).waiting
                found.update(*map(_files_in, waiting))
            async for entry in self._entries(session_id, seqs):
                found |= _files_in(entry)
        return found

    async def _files_ever_of(self, session_id: str) -> set[str]:
        """The same with those of what was taken back, or stands before a reset."""
        found: set[str] = set()
        if self._has_any():
            with suppress(SessionNotFound, SessionDamaged):
                snapshot = await self._store.snapshot(session_id)
                found.update(_REFERENCE.findall(str(snapshot.sections.get(WAITING))))
                found.update(*map(_files_in, snapshot.entries))
        return found

    async def _entries(self, session_id: str, seqs: Collection[int] | None) -> AsyncIterator[Entry]:
        after, upto = (
            (0, None) if seqs is None else (min(seqs, default=1) - 1, max(seqs, default=0))
        )
        part = {"upto": upto, "limit": READ_AT_ONCE}
        while some := await self._store.entries(session_id, after=after, **part):
            for entry in some:
                if seqs is None or entry.seq in seqs:
                    yield entry
            after = some[-1].seq


def _files_in(entry: Entry) -> set[str]:
    told = (entry.content.get("parts"), entry.metadata.get("attachments"))
    return set(_REFERENCE.findall(str(told))) if any(told) else set()
