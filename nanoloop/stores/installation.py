"""Check that a data folder's store contains the folder's conversations and was not emptied.

The folder has an id. Each store that the folder uses has this id among its keys, and so does each
copy of the store.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from aiofiles.os import wrap

from nanoloop.errors import StoreNotOurs
from nanoloop.events import DatabaseSetAside, Event, SessionsCounted, StoreJoined, announce
from nanoloop.files import read_file, save_json
from nanoloop.protocols import Store

KEY = "nanoloop:installation"
"""The key bound to the newest folder's id; with an id appended, that folder's own key."""


class Installation:
    """A data folder and the store in its settings; also observes the store's events."""

    def __init__(self, file: Path, *, place: str) -> None:
        self._file = file
        self.place = place
        """The store's location, in human-readable form."""
        self._id = ""
        self._used = ""
        """The store in which the conversations were last seen; "" if there were none yet."""
        self._is_entered = False
        """True if the open store has the folder's id."""

    async def check(self, store: Store) -> None:
        """Raise `StoreNotOurs` if the conversations were in another store; write nothing.

        Raise `NotReadable` if the store is encrypted and no key fits.
        """
        if (check_seal := getattr(store, "check_seal", None)) is not None:
            await check_seal()
        self._id, self._used = await _known(self._file)
        if await self._is_known_to(store) or not self._used:
            return
        raise StoreNotOurs(self.place, used=self._used, is_empty=await _is_empty(store))

    async def enter(self, store: Store) -> None:
        """Like `check`, and then record the folder and the store in each other."""
        await self.check(store)
        if await self._is_known_to(store):
            self._is_entered = True
            return
        with suppress(OSError):  # a read-only folder can't record the store
            await self.adopt(store)

    async def adopt(self, store: Store) -> None:
        """Use this store from now on, regardless of what was used before and who else uses it."""
        self._id = self._id or (await _known(self._file))[0] or token_hex(8)
        self._used = ""
        # The file first, so that a process starting at the same time uses the same id.
        await wrap(self._save)()
        is_shared = await store.bound(KEY) not in {None, self._id}
        await store.bind(f"{KEY}:{self._id}", self._id)
        await store.bind(KEY, self._id)
        self._is_entered = True
        if is_shared:
            announce(StoreJoined(place=self.place))

    def hear(self, event: Event) -> None:
        """Record where the conversations are once there are any, or that the file was set aside."""
        if isinstance(event, SessionsCounted) and event.sessions and self._is_entered:
            self._note(self.place)
        elif isinstance(event, DatabaseSetAside):  # already reported; the new file has no id yet
            self._is_entered = False
            self._note("")

    def _note(self, place: str) -> None:
        if self._id and self._used != place:
            self._used = place
            with suppress(OSError):  # as above
                self._save()

    async def _is_known_to(self, store: Store) -> bool:
        return bool(self._id) and await store.bound(f"{KEY}:{self._id}") == self._id

    def _save(self) -> None:
        save_json(self._file, {"id": self._id, "store": self._used})


async def _known(file: Path) -> tuple[str, str]:
    """Return the folder's id and where its conversations last were, or "" for both."""
    try:
        value = json.loads(await read_file(file) or b"")
        return str(value["id"]), str(value["store"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


async def _is_empty(store: Store) -> bool:
    async for _ in store.list():
        return False
    return True
