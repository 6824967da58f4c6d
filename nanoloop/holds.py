"""Messages that come while an answer is under way: durable in their session before their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from nanoloop.errors import NanoloopError
from nanoloop.events import Announce, MessageRepeated
from nanoloop.intake import inbound_of, user_entry
from nanoloop.lanes import Lanes
from nanoloop.messages import Delivery, Inbound
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Held:
    """A message that its session keeps, and whose turn is still to come."""

    session_id: str
    entry_id: str
    message: Inbound


class Holds:
    """Keeps them one after the other for each chat, then hands them to its lane."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        into: Callable[[str, Held | Delivery], Awaitable[None]],
        amend: Callable[[str, Session, Inbound], Awaitable[None]],
        limit: int,
        announce: Announce,
    ) -> None:
        self._sessions = sessions
        self._into = into
        self._amend = amend
        self._announce = announce
        self._lanes: Lanes[str, Delivery] = Lanes(self._hold, limit=limit, name="hold")
        self.put_nowait = self._lanes.put_nowait
        self.is_busy = self._lanes.is_busy
        self.waiting = self._lanes.waiting
        self.idle = self._lanes.idle

    async def __aenter__(self) -> Self:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._lanes.__aexit__(*exc)

    async def _hold(self, key: str, delivery: Delivery) -> None:
        item: Held | Delivery | None
        try:
            item = await self.keep(key, delivery)
        except NanoloopError:  # it stays unacknowledged until its turn, and may be durable then
            item = delivery
        if item is not None:
            with suppress(
                RuntimeError
            ):  # the lanes have ended: its turn comes after the next start
                await self._into(key, item)

    async def keep(self, key: str, delivery: Delivery) -> Held | None:
        """Make it durable and acknowledge it; None where it asks for no turn of its own."""
        message = delivery.message
        session = await self._sessions.current(key, agent=message.agent)
        held = None
        if message.edits or message.deletes:
            await self._amend(key, session, message)
        elif not await self.is_repeated(key, session, message):
            entry = user_entry(message)
            session.hold(entry)
            await self._sessions.store.save(session)
            held = Held(session.id, entry.id, message)
        await delivery.ack()
        return held

    async def is_repeated(self, key: str, session: Session, message: Inbound) -> bool:
        """Whether this chat said so before; then what it said is durable when this returns."""
        if message.message_id is None or not session.has_seen(message.message_id):
            return False
        self._announce(MessageRepeated(key=key, message_id=message.message_id))
        # The first one may be on its way to the store still.
        await self._sessions.store.save(session)
        return True

    async def take(self, item: Held, session: Session) -> Entry | None:
        """The message for its turn in this session; None where it was taken back meanwhile."""
        if item.session_id == session.id:
            return session.take_held(item.entry_id)
        # The chat began anew since. The new conversation has it before the old one lets go of it.
        old = await self._sessions.open(item.session_id)
        return next((entry for entry in old.waiting if entry.id == item.entry_id), None)

    async def let_go(self, item: Held, session: Session) -> None:
        """Have an earlier conversation forget what a newer one has now."""
        if item.session_id != session.id:
            old = await self._sessions.open(item.session_id)
            old.take_held(item.entry_id)
            await self._sessions.store.save(old)


def held_in(session: Session, *, key: str) -> list[Held]:
    """What a session kept before a restart, oldest first."""
    return [
        Held(session.id, entry.id, replace(inbound_of(entry), key=key)) for entry in session.waiting
    ]
