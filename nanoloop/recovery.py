"""After a restart: what an earlier process left is taken up, the oldest first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nanoloop.errors import SessionNotFound
from nanoloop.holds import Held, Left, held_in
from nanoloop.lanes import Lanes
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Bus, SessionInfo
from nanoloop.sessions import Sessions


class Recovery:
    """Puts messages, answers and unfinished summaries back where they are worked on."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        summarizer: Summarizer,
        bus: Bus,
        lanes: Lanes[str, Any],
        failed: Callable[[str, Exception], object],
    ) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self._bus = bus
        self._lanes = lanes
        self._failed = failed

    async def recover(self) -> None:
        """Take up what is left in every session; what is worked on already is not done twice."""
        # All names first, as what is taken up is written to. The oldest of them first: a chat's
        # older conversation comes before its newer one.
        left = [info async for info in self._sessions.store.list() if _is_left(info)]
        for info in reversed(left):
            await self._try(info.key or info.id, info.id)

    async def recover_chat(self, key: str) -> None:
        """The same for the session that one chat has now."""
        with suppress(SessionNotFound):
            await self._take_up(key, await self._sessions.current_id(key))

    async def _try(self, key: str, session_id: str) -> None:
        try:
            await self._take_up(key, session_id)
        except SessionNotFound:  # deleted meanwhile
            return
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            self._failed(session_id, error)

    async def _take_up(self, key: str, session_id: str) -> None:
        session = await self._sessions.open(session_id)
        self._summarizer.fire_and_forget(session)
        if session.awaiting or session.unsent:
            self._lanes.put_nowait(key, Left(session_id), bounded=False)
        there = {item.entry_id for item in self._lanes.items(key) if isinstance(item, Held)}
        for held in held_in(session, key=key):
            if held.message.channel in self._bus.channels and held.entry_id not in there:
                self._lanes.put_nowait(key, held, bounded=False)


def _is_left(info: SessionInfo) -> bool:
    return bool(info.awaiting or info.pending or info.waiting or info.unsent)
