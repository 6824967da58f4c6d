"""A store over any database; it handles time, encryption, order and errors for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from aiofiles.os import wrap
from anyio.abc import TaskGroup

from nanoloop.errors import (
    SessionDamaged,
    SessionExists,
    SessionNotFound,
    StoreConflict,
    StoreError,
)
from nanoloop.events import SessionUnreadable, announce
from nanoloop.protocols import Node, OwedSession, Seal, SessionInfo
from nanoloop.session.conversation import PARTS
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.head import (
    ABOUT,
    Changes,
    Identity,
    new_id,
    numbered,
    seconds_of,
)
from nanoloop.session.session import Session
from nanoloop.session.speech import Askers, ErasedWords, Person, people_in
from nanoloop.stores.database import (
    COMMIT_ID,
    Commit,
    Database,
    HeardMessage,
    StoredSession,
    TriedCommits,
    micros,
    size_of,
)
from nanoloop.stores.keys import KeyDestroyed, KeysWanted
from nanoloop.stores.seal_record import RECORD
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.snapshot import (
    SealedState,
    StoredSnapshot,
    decoding,
    first_revision,
    has_expired,
    info_of,
    is_visible,
    odd_numbers,
    state_in,
    window_start,
)
from nanoloop.stores.sweep import SWEEP_SECONDS, delete, destroy_replaced, end, settle, sweep
from nanoloop.writing import WriteOrder

WORDS_AT_ONCE = 500
"""How many entries are searched for a person's words at a time."""


class DatabaseStore:
    """Stores sessions as rows: adds new data and commits the head in the same step."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self.database = database
        """The database that holds the sessions."""
        self.clock = clock
        self.sealing = sealing or Sealing(seal)
        self.order = WriteOrder()
        """The queue of writers for each session."""
        self._tried = TriedCommits()
        self._closed = anyio.Event()
        self._is_ready = False
        """True once the encryption record has been read."""
        self._swept_in: TaskGroup | None = None
        self.sweep_seconds: float = SWEEP_SECONDS
        """How often expired data is removed, inside `async with`."""

    # Sessions

    async def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the original API's name
        key: str | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        replace: bool = False,
        new_id: Callable[[], str] = new_id,
    ) -> Session:
        """Create a durable session; raise `SessionExists` if the id is taken, unless `replace`.

        By default, `new_id` supplies the id, with -01, -02 … appended if it is taken.
        """
        about = Identity(
            id=new_id() if id is None else id,
            key=key,
            created_at=self.clock(),
            ttl=seconds_of(ttl),
            sliding=sliding,
            metadata=metadata or {},
            agent=agent,
        )
        if id is not None:
            return await self._created(about, replace=replace)
        for name in numbered(about.id):
            with suppress(SessionExists):
                return await self._created(changed(about, id=name))
        raise AssertionError("unreachable: the numbers never run out")

    async def _created(self, about: Identity, *, replace: bool = False) -> Session:
        session = Session(about=about, clock=self.clock)
        await self.add(session, replace=replace)
        return session

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Make a session created elsewhere durable; raise `SessionExists` if its id is taken."""
        await self.order.write(session.id, lambda: self._begin(session, may_replace=replace))

    async def _begin(self, session: Session, *, may_replace: bool) -> None:
        while True:
            old = await (await self._ready()).head(session.id)
            living = old if self._is_living(old) else None
            if living is not None and not may_replace:
                if not self._tried.settle(session, living):
                    raise SessionExists(session.id)
                await self._commit(session)  # the changes since it was added
                return
            # A replacement continues the count, so that an object of the old session can't commit.
            revision = first_revision() if living is None else int(living["rev"])
            changes = changed(first_changes(session, session.changes()), revision=revision)
            await self._for_writing()
            commit = await self._sealed(session.id, changes, is_all=True)
            over = None if old is None else int(old["rev"])
            self._tried.note(session, changes, commit)
            if await (await self._ready()).insert(commit, over=over):
                self._heard(session, changes, commit)
                await destroy_replaced(self.sealing, session.id, old)
                return

    async def get(self, session_id: str) -> Session:
        """Return a session with its history; raise `SessionNotFound` if missing or expired."""
        snapshot = await self.snapshot(session_id)
        snapshot.tell_of_odd()
        session = await wrap(snapshot.to_session)(self.clock)  # slow, so not in the event loop
        self.sealing.note(session.tracker, snapshot.state)
        return session

    async def load(self, session_id: str) -> Session:
        """Return a session with only its window, however long its history; same errors as `get`."""
        stored = self._living(session_id, await (await self._ready()).window(session_id))
        after = window_start(stored.head) - 1
        if not stored.has_all(after=after):  # the head doesn't say where the window begins
            return await self.get(session_id)
        snapshot = self._snapshot(stored, after=after)
        snapshot.tell_of_odd()
        session = snapshot.to_session(self.clock)
        self.sealing.note(session.tracker, snapshot.state)
        return session

    def _snapshot(self, stored: StoredSession, *, after: int) -> StoredSnapshot:
        snapshot = StoredSnapshot(
            head=stored.head,
            sections=stored.sections,
            entries=stored.entries,
            after=after,
            unreadable=stored.unreadable,
        )
        opened = self.sealing.opened(snapshot)
        odd = odd_numbers(stored.head, opened.sections)
        words = [f"its number {name} is invalid" for name in odd]
        return changed(opened, odd=odd, unreadable=[*opened.unreadable, *words]) if odd else opened

    async def save(self, session: Session) -> None:
        """Make all changes to the session durable together, or none of them.

        Raise `SessionNotFound` if the session was deleted or expired, `StoreConflict` if another
        writer was first, and `AlreadyHeard` if one of its messages was recorded before; in these
        cases, load the session again.
        """
        await self.order.write(session.id, lambda: self._commit(session))

    async def _commit(self, session: Session) -> None:
        while (changes := session.changes()) is not None:
            state = await self._state(session, changes.revision)
            commit = await self._sealed(session.id, changes, state)
            if await self._try(session, changes, commit):
                return
        await self.revision(session.id)

    async def _sealed(self, session_id: str, *args: Any, **how: Any) -> Commit:
        """Return these changes, encrypted; use a thread if keys have to be made."""
        try:
            return self.sealing.commit(session_id, *args, **how)
        except KeysWanted:
            with suppress(KeyDestroyed):
                return await wrap(self.sealing.commit)(session_id, *args, **how, may_add=True)
        # Another process has meanwhile erased somebody's words.
        raise StoreConflict(session_id, mine=0, theirs=0)

    async def _try(self, session: Session, changes: Changes, commit: Commit) -> bool:
        """Write this commit; return False if an earlier commit of ours was written instead."""
        # Recorded first, because a cancelled task or another event loop never gets the answer.
        self._tried.note(session, changes, commit)
        try:
            await self._committed(commit)
        except StoreConflict:
            head = await (await self._ready()).head(session.id)
            if head is None or not self._tried.settle(session, head, refused=changes):
                raise
            return head.get(COMMIT_ID) == commit.commit_id
        self._heard(session, changes, commit)
        return True

    def _heard(self, session: Session, changes: Changes, commit: Commit) -> None:
        session.committed(changes)
        self.sealing.note(session.tracker, state_in(commit.head))
        self._tried.forget(session, upto=changes)

    async def _state(self, session: Session, revision: int) -> SealedState | None:
        """Return the encryption state of the stored session, for a commit at this revision."""
        await self._for_writing()
        if self.sealing.seal is None:
            return None
        if (known := self.sealing.known(session.tracker, revision=revision)) is not None:
            return known
        head = await (await self._ready()).head(session.id)
        # At any other revision, the commit will be refused anyway.
        is_there = head is not None and head["rev"] == revision
        return self.sealing.state(head, session.id) if head is not None and is_there else None

    async def _committed(self, commit: Commit) -> None:
        stood = await (await self._ready()).commit(commit, now=self._now())
        if stood is None:
            raise SessionNotFound(commit.id)
        if stood != commit.revision:
            raise StoreConflict(commit.id, mine=commit.revision, theirs=stood)

    async def revision(self, session_id: str) -> int:
        """Return the number of stored commits in the session; same errors as `get`."""
        return int((await self._living_head(session_id))["rev"])

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the entries with `after < seq <= upto`, oldest first, at most `limit`."""
        while True:
            head = await self._living_head(session_id)
            try:
                return await self._entries(session_id, head, after=after, upto=upto, limit=limit)
            except SessionDamaged:
                # If the session was erased or replaced between two reads, the two don't match.
                if await self._living_head(session_id) == head:
                    raise

    async def _entries(
        self,
        session_id: str,
        head: Mapping[str, Any],
        *,
        after: int,
        upto: int | None,
        limit: int | None,
    ) -> list[Entry]:
        state = self.sealing.state(head, session_id)
        found: list[Entry] = []
        after = max(after, int(head.get("start", 1)) - 1)
        newest = min(int(head["last"]), int(head["last"]) if upto is None else upto)
        while limit is None or len(found) < limit:
            wanted = None if limit is None else limit - len(found)
            database = await self._ready()
            page = await database.between(session_id, after=after, upto=upto, limit=wanted)
            is_last = wanted is None or len(page) < wanted  # otherwise some were undone
            last = newest if is_last else page[-1].seq
            self.sealing.check_numbers(page, session_id, state, after=after, last=last)
            visible = (entry for entry in page if is_visible(head, entry.seq))
            found += [self.sealing.entry(entry, session_id, state) for entry in visible]
            if is_last:
                break
            after = page[-1].seq
        return found

    async def _living_head(self, session_id: str) -> Mapping[str, Any]:
        head = await (await self._ready()).head(session_id)
        if head is None or not self._is_living(head):
            raise SessionNotFound(session_id)
        return head

    def _is_living(self, head: Mapping[str, Any] | None) -> bool:
        """Return True if the head's session was neither deleted nor has expired."""
        if head is None or has_expired(head, self.clock()):
            return False
        return not self.sealing.is_deleted(head)

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Remove these entries from the session and from the store; same errors as `save`."""
        await self.order.write(session.id, lambda: self._erase(session, seqs))

    async def _erase(self, session: Session, seqs: Collection[int]) -> None:
        is_done = False
        while not is_done:
            await self._catch_up(session)
            state = await self._state(session, session.revision)
            stored = [entry for seq in sorted(seqs) for entry in await self._at(session.id, seq)]
            said = [self.sealing.entry(entry, session.id, state) for entry in stored]
            session.erase(seqs, stored=said)
            left = [entry.erased() for entry in stored]
            shrinks = sum(map(size_of, stored)) - sum(map(size_of, left))
            is_done = await self._commit_erased(
                session, state, erases=(), rewritten=left, gone=seqs, shrinks=shrinks
            )
        await self.destroy_keys(session.id)

    async def _commit_erased(
        self, session: Session, state: SealedState | None, **erased: Any
    ) -> bool:
        """Commit an erasure, and replace the key for all texts made from several people's words."""
        if state is not None and state.is_keyed:
            session.touch(*PARTS.keys() & state.parts.keys())
        changes = session.changes()
        assert changes is not None  # noqa: S101 - an erasure is a change
        commit = await self._sealed(session.id, changes, state, **erased)
        return await self._try(session, changes, commit)

    async def destroy_keys(self, session_id: str) -> None:
        """Destroy the keys of this session's erased words; complete any interrupted erasure."""
        keys_file = self.sealing.keys_file
        if keys_file is None:
            return
        with suppress(SessionNotFound):
            state = self.sealing.state(await self._living_head(session_id), session_id)
            if state is not None and state.dying:
                await wrap(keys_file.destroy)(state.dying)

    async def words_of(self, session_id: str, person: Person) -> ErasedWords:
        """Return everything that this person said in a session, even if undone, with the answers.

        Raise the same errors as `get`.
        """
        words, askers, after = ErasedWords(), Askers(), 0
        while True:
            state = self.sealing.state(await self._living_head(session_id), session_id)
            database = await self._ready()
            page = await database.between(session_id, after=after, upto=None, limit=WORDS_AT_ONCE)
            for entry in (self.sealing.entry(stored, session_id, state) for stored in page):
                people = people_in(entry)
                askers = askers.after(entry, [*map(repr, people)])
                words.take(entry, person, is_answer=repr(person) in askers.people)
            if len(page) < WORDS_AT_ONCE:
                return words
            after = page[-1].seq

    async def erase_words(self, session: Session, person: Person, words: ErasedWords) -> None:
        """Save a session from which these words of this person were just erased.

        Raise the same errors as `save`.
        """
        await self.order.write(session.id, lambda: self._erase_words(session, person, words))

    async def _erase_words(self, session: Session, person: Person, words: ErasedWords) -> None:
        await self._catch_up(session)
        state = await self._state(session, session.revision)
        left = [*(entry.erased() for entry in words.gone.values()), *words.left.values()]
        if not left and session.last_seq:  # files are cleaned only when an entry is rewritten
            left = [*await self._at(session.id, session.last_seq)]
        left.sort(key=lambda entry: entry.seq)
        erased = {"rewritten": left, "gone": [*words.gone], "erases": [person]}
        while not await self._commit_erased(session, state, **erased):
            state = await self._state(session, session.revision)
        await self.destroy_keys(session.id)

    def erased_at(self, session: Session, person: Person) -> float | None:
        """Return when this person's words were last erased in the session, in seconds since 1970.

        None means that they never were, or that finding out would mean reading the session.
        """
        state = self.sealing.known(session.tracker, revision=session.revision)
        if state is None or not state.is_keyed:
            return None
        return self.sealing.keys_of(state).erased_at(person)

    async def _catch_up(self, session: Session) -> None:
        """Update the session to the stored revision; raise `StoreConflict` if that fails."""
        head = await self._living_head(session.id)
        mine, theirs = session.revision, int(head["rev"])
        if mine != theirs and not self._tried.settle(session, head):
            raise StoreConflict(session.id, mine=mine, theirs=theirs)

    async def _at(self, session_id: str, seq: int) -> Collection[Entry]:
        return await (await self._ready()).between(session_id, after=seq - 1, upto=seq, limit=1)

    async def delete(self, session_id: str) -> None:
        """Delete a session permanently; a missing session is ignored."""
        await self.order.write(session_id, lambda: self._delete(session_id))

    async def _delete(self, session_id: str) -> None:
        await delete(self.sealing, await self._ready(), session_id)

    async def snapshot(self, session_id: str) -> StoredSnapshot:
        """Return everything stored about a session, for another store; same errors as `get`."""
        stored = self._living(session_id, await (await self._ready()).whole(session_id))
        return await wrap(self._snapshot)(stored, after=0)

    async def restore(self, snapshot: StoredSnapshot, *, replace: bool = False) -> None:
        """Store a session just as another store had it; raise `SessionExists` unless `replace`."""
        name = snapshot.name
        await self.order.write(name, lambda: self._restore(name, snapshot, may_replace=replace))

    async def _restore(self, name: str, snapshot: StoredSnapshot, *, may_replace: bool) -> None:
        await self._for_writing()
        commit = await wrap(self._whole)(snapshot, snapshot.to_changes())
        while True:
            old = await (await self._ready()).head(name)
            if old is not None and self._is_living(old) and not may_replace:
                if old.get(COMMIT_ID) == commit.commit_id:  # written, but the reply was lost
                    return
                raise SessionExists(name)
            if await (await self._ready()).insert(
                commit, over=None if old is None else int(old["rev"])
            ):
                await destroy_replaced(self.sealing, name, old)
                return

    # All sessions

    async def list(self) -> AsyncIterator[SessionInfo]:
        """Yield all unexpired sessions, most recently active first; announce damaged sessions."""
        async for stored in (await self._ready()).glances(now=self._now()):
            try:
                if isinstance(stored, StoredSession) and self.sealing.is_deleted(stored.head):
                    continue
                info = self._info(stored)
            except SessionDamaged as damaged:
                announce(SessionUnreadable(session_id=damaged.session_id))
            else:
                yield info

    def _info(self, stored: StoredSession | SessionDamaged) -> SessionInfo:
        if isinstance(stored, SessionDamaged):
            raise stored
        about = stored.sections[ABOUT]
        with decoding(about["id"]):
            seen = self.sealing.glance(stored.head, about, about["id"])
            return info_of(stored.head, seen, size=stored.size)

    async def names(self) -> AsyncIterator[str]:
        """Yield the id of every session, even if it is expired or damaged."""
        async for name in (await self._ready()).names():
            yield name

    async def delete_expired(self) -> int:
        """Delete expired sessions and return how many; message ids expire after 72 hours."""
        database = await self._ready()
        if self.sealing.is_keyed:
            expired = [
                stored
                async for stored in database.glances(now=0)
                if isinstance(stored, StoredSession) and has_expired(stored.head, self.clock())
            ]
            await end(self.sealing, database, expired)
        removed = await database.delete_expired(now=self._now())
        if self.sealing.is_keyed:
            await settle(self.sealing, database, self.order)
        return removed

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Return True if the chat received a message with this id within the last 72 hours."""
        return await (await self._ready()).has_heard(chat, message_id)

    async def heard(self) -> AsyncIterator[HeardMessage]:
        """Yield all messages recorded in the last 72 hours, for another store."""
        async for message in (await self._ready()).heard():
            yield message

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        """Record these messages just as another store recorded them."""
        await (await self._ready()).hear(messages)

    async def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Yield each session with an unanswered question, a waiting message or an unsent answer.

        With `pending`, also yield sessions whose summary is behind.
        """
        async for owed in (await self._ready()).owing(now=self._now(), pending=pending):
            yield owed

    # Processes

    async def beat(self, node: Node) -> Sequence[Node]:
        """Record that this process is alive; return all recent processes."""
        return await (await self._ready()).beat(node)

    async def leave(self, node_id: str) -> None:
        """Forget this process; an unknown one is ignored."""
        await (await self._ready()).leave(node_id)

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        """Bind this key to a session, and make the binding durable."""
        with anyio.CancelScope(shield=True):
            await self._for_writing()
            await (await self._ready()).bind(key, self.sealing.binding(key, session_id))

    async def bound(self, key: str) -> str | None:
        """Return the id of the session bound to this key, or None."""
        found = await (await self._ready()).bound(key)
        session_id = None if found is None else self.sealing.bound(key, found)
        if found is not None and session_id is None:
            announce(SessionUnreadable(session_id=found.partition(" ")[0]))
        return session_id

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        """Yield every key and its session's id."""
        async for key, text in (await self._ready()).bindings():
            session_id = self.sealing.bound(key, text) if key != RECORD else None
            if session_id is not None:
                yield key, session_id

    # Opening and closing

    async def __aenter__(self) -> Self:
        """Remove expired data automatically until the block ends, and then close the store."""
        group = anyio.create_task_group()
        self._swept_in = await group.__aenter__()
        work = partial(sweep, self, every_seconds=self.sweep_seconds)
        group.start_soon(work, name="sweep")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Close the store; an error from the block is passed on unchanged."""
        group, self._swept_in = self._swept_in, None
        assert group is not None  # noqa: S101 - entered before it is left
        # The group must receive a cancellation, but would wrap any other error in its own.
        is_failure = isinstance(error, Exception)
        given = (None, None, None) if is_failure else (kind, error, trace)
        try:
            await self.close()
        finally:
            group.cancel_scope.cancel()
            is_handled = await group.__aexit__(*given)
        return is_handled and not is_failure

    async def close(self) -> None:
        """Release the database; closing twice is allowed."""
        if not self._closed.is_set():
            self._closed.set()
            with anyio.CancelScope(shield=True):
                await self.database.close()

    async def wait_closed(self) -> None:
        """Wait until the store is closed."""
        await self._closed.wait()

    async def _ready(self) -> Database:
        """Return the database once its key fits; raise `NotReadable`, or `StoreError`."""
        if self._closed.is_set():
            raise StoreError("the store is closed: open a new one")
        # Until there is a record, another process may create one.
        if not self._is_ready or (self.sealing.seal and self.sealing.record is None):
            await self.sealing.read(self.database)
            self._is_ready = True
        keys_file = self.sealing.keys_file if self.sealing.is_keyed else None
        if keys_file is not None and keys_file.is_behind():
            await wrap(keys_file.refresh)()
        return self.database

    # Encryption

    async def check_seal(self) -> None:
        """Raise `NotReadable` if the stored data is encrypted and none of the keys fits."""
        database = await self._ready()
        if self.sealing.record is None:
            await self.sealing.look_for_seals(database, now=self._now())

    async def _for_writing(self) -> None:
        database = await self._ready()
        if not self.sealing.may_write:
            await self.sealing.prepare(database, now=self._now())

    async def secret(self) -> bytes:
        """Return the secret shared by all processes with a key; it survives a change of keys."""
        await self._for_writing()
        assert self.sealing.record is not None  # noqa: S101 - written if there was none
        return self.sealing.record.secret

    async def reseal(self, session_id: str) -> bool:
        """Encrypt a session again with the first key; return False if there was nothing to do.

        Raise the same errors as `get`.
        """
        await self._for_writing()
        return await self.order.write(session_id, lambda: self._reseal(session_id))

    async def _reseal(self, session_id: str) -> bool:
        database = await self._ready()
        while True:
            stored = self._living(session_id, await database.whole(session_id))
            snapshot = await wrap(self._snapshot)(stored, after=0)
            if self.sealing.is_current(stored):
                return False
            if (retagged := self.sealing.retagged(stored, snapshot)) is not None:
                if await database.commit(retagged, now=self._now()) == retagged.revision:
                    return True
                continue
            revision = int(snapshot.head["rev"])
            changes = changed(snapshot.to_changes(), revision=revision)
            commit = await wrap(self._whole)(snapshot, changes)
            if await database.insert(commit, over=revision):
                return True

    def _whole(self, snapshot: StoredSnapshot, changes: Changes) -> Commit:
        """Return a session as one commit, encrypted, without the entries that are already lost."""
        there = {entry.seq for entry in snapshot.entries}
        lost = {*range(1, int(snapshot.head.get("last", 0)) + 1)} - there
        commit = self.sealing.commit(snapshot.name, changes, is_all=True, gone=lost, may_add=True)
        return changed(commit, erased=frozenset())

    async def use_keys(self) -> None:
        """Give each new session its own keys, and encrypt all keys with the first key."""
        await self.sealing.use_keys(await self._ready())
        if self.sealing.keys_file is not None:
            await wrap(self.sealing.keys_file.rewrap)()

    async def finish_sealing(self) -> None:
        """Record that all sessions are encrypted with the first key, and refuse other keys."""
        database = await self._ready()
        await self.sealing.finish(database)
        if (clean := getattr(database, "clean", None)) is not None:
            await clean()

    # Calling the database

    def _now(self) -> int:
        return micros(self.clock())

    def _living(self, session_id: str, stored: StoredSession | None) -> StoredSession:
        if stored is None or not self._is_living(stored.head):
            raise SessionNotFound(session_id)
        return stored


def first_changes(session: Session, changes: Changes | None) -> Changes:
    """Return all changes of a new session; raise `StoreError` if it already belongs to a store."""
    if changes is None or ABOUT not in changes.sections or changes.revision:
        raise StoreError(f"session {session.id!r} already belongs to a store: fork it")
    return changes
