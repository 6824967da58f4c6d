"""The sessions that are open: one object for each id, and which session a chat has now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio

from nanoloop.bounded import BoundedDict
from nanoloop.errors import NotPossible, SessionExists, SessionNotFound, StoreError
from nanoloop.events import SessionReset, SessionStarted, announce
from nanoloop.protocols import ARCHIVED, SessionInfo, Store
from nanoloop.session.entry import MESSAGE, Entry, rfc3339
from nanoloop.session.head import id_for_key
from nanoloop.session.queue import last_exchange
from nanoloop.session.session import Session
from nanoloop.writing import SessionWriter

HANDED_ON = 100
"""Message ids that a chat's next conversation knows of the one before."""
ENTRIES_READ = 500
"""Entries of a history that are read at a time."""


T = TypeVar("T")


class Sessions:
    """Opens sessions from the store and keeps the last used ones.

    As long as anyone holds a session, a summary say, opening it again gives the same object.
    """

    def __init__(self, store: Store, *, limit: int = 1000) -> None:
        self.store = store
        self.writer = SessionWriter(store)
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: BoundedDict[str, Session] = BoundedDict(limit)
        self._id_by_key: BoundedDict[str, str] = BoundedDict(limit)
        self.on_the_way: set[tuple[str, int]] = set()
        """Answers that this process has sent and that may not have arrived: session and number."""

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
        self._recent[session.id] = session
        return session

    async def change(self, session: Session, act: Callable[[Session], T]) -> T:
        """As `SessionWriter.change`; one that is gone is let go of."""
        try:
            return await self.writer.change(session, act)
        except SessionNotFound:
            self.forget(session.id)
            raise

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
            self._id_by_key[key] = session_id
        return session_id

    async def _create(self, key: str, session_id: str, agent: str | None) -> Session:
        try:
            created = await self.store.create(id=session_id, key=key, agent=agent)
        except SessionExists:
            return await self.open(session_id)
        session = self._alive.setdefault(session_id, created)
        self._recent[session.id] = session
        announce(SessionStarted(session_id=session_id, key=key))
        return session

    async def start_new(self, key: str, *, agent: str | None = None) -> Session:
        """A fresh session for this chat; the one it had stays stored."""
        old_id = await self.current_id(key)
        created = await _stamped(
            key, lambda new_id: self.store.create(id=new_id, key=key, agent=agent)
        )
        self._hold(created)
        await self.switch(key, created.id)
        announce(SessionReset(key=key, old_session_id=old_id, session_id=created.id))
        return created

    async def _hand_on(self, old_id: str, session: Session) -> None:
        """Let the next one know what this chat's last messages were: none is answered twice."""
        heard: tuple[str, ...] = ()
        with suppress(SessionNotFound, StoreError):  # a damaged one can be left too
            heard = (await self.open(old_id)).heard[-HANDED_ON:]
        if not all(map(session.has_seen, heard)):
            await self.change(session, lambda now: now.know(heard))

    async def switch(self, key: str, session_id: str) -> Session:
        """Give this chat another session; raises `SessionNotFound`."""
        session = await self.open(session_id)
        await self._hand_on(await self.current_id(key), session)
        await self.store.bind(key, session_id)
        self._id_by_key[key] = session_id
        return session

    # What people do with them

    async def of_key(self, key: str) -> list[SessionInfo]:
        """The sessions that this chat has had, the first one first; without those put away."""
        infos = [info async for info in self.store.list() if info.key == key and not info.archived]
        return sorted(infos, key=lambda info: (info.created_at, info.id))

    async def fork(
        self,
        session_id: str,
        *,
        upto: int | str | None = None,
        new_id: str | None = None,
        key: str | None = None,
    ) -> Session:
        """A copy of its history up to an entry, by number or id; durable when this returns.

        Raises `SessionNotFound`, `SessionExists`, and ValueError where there is no such entry.
        """
        whole = await self.store.get(session_id)
        fork = await anyio.to_thread.run_sync(whole.fork, upto)
        metadata = {name: v for name, v in fork.metadata.items() if name != ARCHIVED}

        async def added(new_id: str) -> Session:
            fork.load_dict({"id": new_id, "key": key, "metadata": metadata})
            await self.store.add(fork)
            return fork

        return await (added(new_id) if new_id else _stamped(key or session_id, added))

    async def undo(self, session: Session) -> list[Entry]:
        """Take back the last exchange, durable when this returns; [] where there is none.

        Raises `NotPossible` where it can't be done.
        """
        if not session.shows_earlier:  # then the window would be empty afterwards
            await self.writer.make_whole(session)
        return await self.change(session, _undone)

    async def erase(self, session_id: str, seqs: Collection[int]) -> Session:
        """Erase these entries for good, durable when this returns; raises `NotPossible`.

        Whoever held another object of this session can't bring them back: its saves conflict.
        """
        session = await self.open(session_id)
        try:
            await self.writer.erase(session, seqs)
        except BaseException:  # what was erased in memory only must not seem to be gone
            self.forget(session_id)
            raise
        return session

    async def correct_summary(self, session: Session, text: str) -> None:
        """Put this text in the place of the summary; durable when this returns."""

        def act(session: Session) -> None:
            is_being_written = session.summary_in_progress
            session.update_summary(text)
            # The one being written finds it changed, and drops its own.
            session.summary_in_progress = is_being_written

        await self.change(session, act)

    async def archive(self, session_id: str, *, archived: bool = True) -> None:
        """Put it away, or get it back; when it was last active stays as it is."""

        def act(session: Session) -> None:
            metadata = {name: v for name, v in session.metadata.items() if name != ARCHIVED}
            metadata |= {ARCHIVED: True} if archived else {}
            session.load_dict({"metadata": metadata, "updated_at": rfc3339(session.updated_at)})

        await self.change(await self.open(session_id), act)

    async def rename(self, session: Session, title: str) -> None:
        """Give it another title, with single spaces; durable when this returns."""

        def act(session: Session) -> None:
            session.title = " ".join(title.split())

        await self.change(session, act)

    def forget(self, session_id: str) -> None:
        """Let go of it, as after a delete."""
        self._recent.pop(session_id, None)
        self._alive.pop(session_id, None)

    def _hold(self, session: Session) -> None:
        self._alive[session.id] = session
        self._recent[session.id] = session


def _undone(session: Session) -> list[Entry]:
    asked = last_exchange(session.entries_between(0, session.last_seq))
    summed_up = session.pending_seq if session.summary_in_progress else session.covered_seq
    if asked and asked[0].seq <= summed_up:
        raise NotPossible(
            "the last exchange is part of the summary already and can't be taken back: "
            "begin a new conversation, or fork this one from an earlier message"
        )
    return session.undo()


async def _stamped(key: str, add: Callable[[str], Awaitable[Session]]) -> Session:
    """What was added under the first id that is free, made of the key and the time."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    base = f"{id_for_key(key)}@{stamp}"
    for number in range(100):
        try:
            return await add(f"{base}-{number:02d}" if number else base)
        except SessionExists:
            continue
    raise SessionExists(base)


def matching(infos: Iterable[SessionInfo], text: str) -> list[SessionInfo]:
    """Those whose id, key or title begins with the text, then those whose title has it."""
    wanted = text.casefold()
    begins: list[SessionInfo] = []
    has: list[SessionInfo] = []
    for info in infos:
        if any(name.casefold().startswith(wanted) for name in _searched_names(info)):
            begins.append(info)
        elif wanted in info.title.casefold():
            has.append(info)
    return begins + has


def _searched_names(info: SessionInfo) -> Iterator[str]:
    key = info.key or ""
    yield from (info.id, key, key.partition(":")[2], info.title)


async def mentions(store: Store, session_id: str, words: str) -> bool:
    """Whether one message of the history has all these words."""
    wanted = words.casefold().split()
    after = 0
    try:
        while entries := await store.entries(session_id, after=after, limit=ENTRIES_READ):
            for entry in entries:
                text = str(entry.content.get("text") or "").casefold()
                if entry.type == MESSAGE and all(word in text for word in wanted):
                    return True
            after = entries[-1].seq
    except (SessionNotFound, StoreError):  # deleted meanwhile, or sealed with another key
        return False
    return False
