"""Messages that come while an answer is under way: durable in their session before their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from nanoloop.errors import NanoloopError, SessionNotFound
from nanoloop.events import MessageRepeated, announce
from nanoloop.intake import amended_by, inbound_of, user_entry
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


@dataclass(frozen=True, slots=True)
class Left:
    """What an earlier process left to do in a session, before anything new."""

    session_id: str


class Holds:
    """Keeps them one after the other for each chat, then hands them to its lane."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        into: Callable[[str, Held | Delivery], Awaitable[None]],
        amend: Callable[[str, Session, Inbound], Awaitable[None]],
        failed: Callable[[str, Exception], object],
        limit: int,
    ) -> None:
        self._sessions = sessions
        self._into = into
        self._amend = amend
        self._failed = failed
        self._lanes: Lanes[str, Delivery] = Lanes(self._hold, limit=limit, name="hold")
        self.put_nowait = self._lanes.put_nowait
        self.is_busy = self._lanes.is_busy
        self.idle = self._lanes.idle

    def waiting(self, key: str) -> int:
        """Messages of this chat that are not in its lane yet, the one being kept among them."""
        return self._lanes.waiting(key) + self._lanes.is_busy(key)

    async def __aenter__(self) -> Self:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._lanes.__aexit__(*exc)

    async def _hold(self, key: str, delivery: Delivery) -> None:
        item: Held | Delivery | None
        try:
            item = await self.keep(key, delivery)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            self._failed(key, error)
            item = delivery  # not acknowledged before its turn, which tries again
        if item is not None:
            # Where the lanes have ended, its turn comes after the next start.
            with suppress(RuntimeError):
                await self._into(key, item)

    async def keep(self, key: str, delivery: Delivery) -> Held | None:
        """Make it durable and acknowledge it; None where it asks for no turn of its own."""
        try:
            return await self._keep(key, delivery)
        except SessionNotFound:  # deleted by another process: the chat begins anew
            return await self._keep(key, delivery)

    async def _keep(self, key: str, delivery: Delivery) -> Held | None:
        message = delivery.message
        session = await self._sessions.current(key, agent=message.agent)
        held, is_owed = None, True
        if await self.is_repeated(key, session, message):
            is_owed = False
        elif amended_by(message):
            await self._amend(key, session, message)
        else:
            entry = user_entry(message)
            await self._hold_in(session, entry)
            held = Held(session.id, entry.id, message)
        await delivery.ack(owed=is_owed)
        return held

    async def _hold_in(self, session: Session, entry: Entry) -> None:
        try:
            await self._sessions.change(session, lambda now: now.hold(entry))
        except Exception:
            session.drop_held(entry)  # or its turn would take it for a repetition
            raise

    async def is_repeated(self, key: str, session: Session, message: Inbound) -> bool:
        """Whether this chat said so before; then what it said is durable when this returns."""
        name = message.message_id
        # A change may come under the name of what it changes.
        if name is None or name == amended_by(message) or not session.has_seen(name):
            return False
        announce(MessageRepeated(key=key, message_id=name))
        # The first one may be on its way to the store still.
        await self._sessions.change(session, lambda _: None)
        return True

    async def take(self, item: Held, session: Session) -> Entry | None:
        """The message for its turn in this session; None where it was taken back, or had it."""
        if any(entry.id == item.entry_id for entry in session.window):
            return None  # an earlier process ended before the old conversation let go of it
        if item.session_id != session.id:
            return await self._in_old(item)
        name = item.message.message_id
        was_kept = name is not None and session.has_seen(name)
        held = session.take_held(item.entry_id)
        # Its conversation may have been deleted, and begun anew under the same id.
        return held or (None if was_kept else user_entry(item.message))

    async def _in_old(self, item: Held) -> Entry | None:
        """The chat began anew since: the new one has it before the old one lets go of it."""
        try:
            old = await self._sessions.open(item.session_id)
        except SessionNotFound:  # it expired: what was said in it last is no part of that
            return user_entry(item.message)
        return next((entry for entry in old.waiting if entry.id == item.entry_id), None)

    async def let_go(self, item: Held, session: Session) -> None:
        """Have an earlier conversation forget what a newer one has now."""
        if item.session_id != session.id:
            with suppress(NanoloopError):  # then the next start sees that it had its turn
                old = await self._sessions.open(item.session_id)
                await self._sessions.change(old, lambda now: now.let_go_held(item.entry_id))


def held_in(session: Session, *, key: str) -> list[Held]:
    """What a session kept before a restart, oldest first."""
    return [
        Held(session.id, entry.id, replace(inbound_of(entry), key=key)) for entry in session.waiting
    ]
