"""The sessions that are open: one object for each id, and which session a chat has now."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timezone
from weakref import WeakValueDictionary

from nanoloop.errors import SessionExists, SessionNotFound
from nanoloop.events import Announce, SessionReset, SessionStarted, silent
from nanoloop.protocols import Store
from nanoloop.session.ids import id_for_key
from nanoloop.session.session import Session


class Sessions:
    """Opens sessions from the store and keeps the last used ones.

    As long as anyone holds a session, a summary say, opening it again gives the same object.
    """

    def __init__(self, store: Store, *, limit: int = 1000, announce: Announce = silent) -> None:
        self.store = store
        self._limit = limit
        self._announce = announce
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: OrderedDict[str, Session] = OrderedDict()
        self._id_by_key: OrderedDict[str, str] = OrderedDict()

    async def open(self, session_id: str) -> Session:
        """The session with this id; raises `SessionNotFound`."""
        session = self._alive.get(session_id)
        if session is None:
            loaded = await self.store.load(session_id)
            # Someone else may have opened it meanwhile: the first object is the one.
            session = self._alive.setdefault(session_id, loaded)
        if session.has_expired():
            self.forget(session_id)
            raise SessionNotFound(session_id)
        self._keep(session)
        return session

    async def named(self, session_id: str, *, agent: str | None = None) -> Session:
        """The session with this id; a new one where there is none, or it expired."""
        try:
            return await self.open(session_id)
        except SessionNotFound:
            return await self._create(session_id, session_id, agent)

    async def current(self, key: str, *, agent: str | None = None) -> Session:
        """The session that this chat has now; a new one where it has none, or it expired."""
        session_id = await self.current_id(key)
        try:
            return await self.open(session_id)
        except SessionNotFound:
            return await self._create(key, session_id, agent)

    async def current_id(self, key: str) -> str:
        """The id of the session that this chat has now, or will get."""
        session_id = self._id_by_key.get(key)
        if session_id is None:
            session_id = await self.store.bound(key) or id_for_key(key)
            self._note(key, session_id)
        return session_id

    async def _create(self, key: str, session_id: str, agent: str | None) -> Session:
        try:
            created = await self.store.create(id=session_id, key=key, agent=agent)
        except SessionExists:
            return await self.open(session_id)
        session = self._alive.setdefault(session_id, created)
        self._keep(session)
        self._announce(SessionStarted(session_id=session_id, key=key))
        return session

    async def start_new(self, key: str, *, agent: str | None = None) -> Session:
        """A fresh session for this chat; the one it had stays stored."""
        old_id = await self.current_id(key)
        created = await self._create_stamped(key, agent)
        await self.store.bind(key, created.id)
        self._note(key, created.id)
        self._alive[created.id] = created
        self._keep(created)
        self._announce(SessionReset(key=key, old_session_id=old_id, session_id=created.id))
        return created

    async def _create_stamped(self, key: str, agent: str | None) -> Session:
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        base = f"{id_for_key(key)}@{stamp}"
        for number in range(100):
            session_id = f"{base}-{number:02d}" if number else base
            try:
                return await self.store.create(id=session_id, key=key, agent=agent)
            except SessionExists:
                continue
        raise SessionExists(base)

    async def switch(self, key: str, session_id: str) -> Session:
        """Give this chat another session; raises `SessionNotFound`."""
        session = await self.open(session_id)
        await self.store.bind(key, session_id)
        self._note(key, session_id)
        return session

    def forget(self, session_id: str) -> None:
        """Let go of it, as after a delete."""
        self._recent.pop(session_id, None)
        self._alive.pop(session_id, None)

    def _keep(self, session: Session) -> None:
        self._recent[session.id] = session
        self._recent.move_to_end(session.id)
        if len(self._recent) > self._limit:
            self._recent.popitem(last=False)

    def _note(self, key: str, session_id: str) -> None:
        self._id_by_key[key] = session_id
        self._id_by_key.move_to_end(key)
        if len(self._id_by_key) > self._limit:
            self._id_by_key.popitem(last=False)
