"""The only way to change a stored session: apply an act, and repeat it after a conflict."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from random import uniform
from typing import Any, TypeVar

import anyio

from nanoloop.errors import (
    AlreadyHeard,
    NotPossible,
    NotReadable,
    SessionDamaged,
    SessionNotFound,
    StepRefused,
    StoreConflict,
    StoreError,
    TurnLost,
)
from nanoloop.protocols import Store
from nanoloop.session.queue import FOLLOWS, Run, Stage, Think, erased_name, message_id_of
from nanoloop.session.session import Session
from nanoloop.session.speech import ErasedWords, Person, people_in

TRIES = 100
"""How many other writers in a row may be first before the write fails."""
BETWEEN_TRIES_SECONDS = (0.001, 0.1)
AWAY_SECONDS = 1.0
"""How long to wait before retrying a store that was unavailable for too long."""

T = TypeVar("T")


def is_away(error: Exception) -> bool:
    """Return True if the whole store is unreachable, not just a single session."""
    of_one = (SessionDamaged, NotReadable, StoreConflict)
    return isinstance(error, StoreError) and not isinstance(error, of_one)


@dataclass(slots=True)
class Claim:
    """A running command, which the first commit in its session removes from the queue."""

    session_id: str
    entry_id: str
    is_let_go: bool = False

    def act(self, session: Session, act: Callable[[Session], T]) -> T:
        """Apply an act and remove the command; raise `TurnLost` if it was run elsewhere."""
        waits_here = any(entry.id == self.entry_id for entry in session.waiting)
        if not waits_here or session.moved:  # it moved too, and runs there
            raise TurnLost(session.id)
        done = act(session)  # this may raise
        session.let_go_held(self.entry_id)
        return done


_CLAIM: ContextVar[Claim | None] = ContextVar("claim", default=None)


@contextmanager
def claiming(claim: Claim) -> Iterator[Claim]:
    """Run the block so that its first write removes this command from the queue."""
    before = _CLAIM.set(claim)
    try:
        yield claim
    finally:
        _CLAIM.reset(before)


def _claim_in(session_id: str) -> Claim | None:
    """Return the session's running command if it has not been removed yet."""
    claim = _CLAIM.get()
    is_open = claim is not None and claim.session_id == session_id and not claim.is_let_go
    return claim if is_open else None


async def leave_alone() -> None:
    """Wait before retrying a store whose outage was already reported to the chat."""
    await anyio.sleep(AWAY_SECONDS)


class SessionWriter:
    """Writes sessions to a store, one change at a time for each session."""

    def __init__(self, store: Store, *, patience_seconds: float = 0) -> None:
        """Create the writer; an unreachable store is retried for `patience_seconds`."""
        self.store = store
        self._patience_seconds = patience_seconds
        # Use the store's own order if it has one, so that a nested save needs no second turn.
        self._order: WriteOrder = getattr(store, "order", None) or WriteOrder()

    async def change(self, session: Session, act: Callable[[Session], T]) -> T:
        """Apply `act` to a session durably, and return its result; the only way to write.

        `act` never waits. If another writer was first, the object is updated and `act` runs again,
        so create ids and times before it, and announce events after it. Raise `SessionNotFound` if
        the session was deleted or has expired, `AlreadyHeard` if `act` accepted a message that was
        accepted before, and `StepRefused` if it made a forbidden step (`FOLLOWS`), in which case
        the object is updated too.
        """
        claim = _claim_in(session.id)
        if claim is None:
            return await self._order.write(session.id, partial(self._change, session, act))
        done = await self._order.write(
            session.id, partial(self._change, session, partial(claim.act, act=act))
        )
        claim.is_let_go = True
        return done

    async def look(self, session: Session, act: Callable[[Session], T]) -> T:
        """Return the result of a read-only `act`, once all changes are durable."""
        if session.tracker.is_saved and not self._order.is_writing(session.id):
            return act(session)
        return await self.change(session, act)

    async def together(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do this work, with all its writes, between two other changes of the session."""
        return await self._order.write(session_id, work)

    async def _change(self, session: Session, act: Callable[[Session], T]) -> T:
        for number in range(TRIES):
            is_all_its_own = session.tracker.is_saved
            before, first = _stage_of(session), session.waiting[:1]
            done = act(session)
            after = _stage_of(session)
            is_overtaken = before is Run and after is Think and first == session.waiting[:1]
            if is_overtaken or (after is not before and after not in FOLLOWS[before]):
                if session.revision:
                    await self._renew(session)
                raise StepRefused(session.id, before.__name__, after.__name__)
            try:
                await self._save(session)
            except StoreConflict:
                if number:
                    await anyio.sleep(uniform(*BETWEEN_TRIES_SECONDS))  # noqa: S311
                await self._renew(session)
            except AlreadyHeard:
                await self._renew(session)
                if is_all_its_own:  # otherwise, an earlier act may have caused it
                    raise
            else:
                return done
        raise StoreConflict(session.id, mine=session.revision, theirs=session.revision)

    async def _save(self, session: Session) -> None:
        if session.tracker.is_saved and session.revision:
            return
        # A session that no store knows yet was created elsewhere and attached.
        save = self.store.save if session.revision else self.store.add
        await self._patiently(partial(save, session))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the store, retrying while it is unavailable, at least once.

        A suspended process counts the suspension as an outage, so its patience may be over at once.
        """
        give_up = time.monotonic() + self._patience_seconds
        for number, pause in enumerate(chain((0.05, 0.1, 0.2, 0.5), repeat(1.0))):
            try:
                return await ask()
            except StoreError as error:
                if not is_away(error) or not self._patience_seconds:
                    raise
                if number and time.monotonic() + pause > give_up:
                    raise
            await anyio.sleep(pause)
        raise AssertionError("unreachable: the pauses never run out")

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Erase these entries as `Store.erase` does; raise `NotPossible` if one doesn't exist.

        The same commit records that copies may remain, until `erased` removes that record.
        """
        claim = _claim_in(session.id)
        await self._order.write(session.id, partial(self._erase, session, seqs, claim))
        if claim is not None:
            claim.is_let_go = True

    async def _erase(self, session: Session, seqs: Collection[int], claim: Claim | None) -> None:
        for _ in range(TRIES):
            if wrong := [seq for seq in seqs if not 0 < seq <= session.last_seq]:
                raise NotPossible(f"there is no message #{wrong[0]} here")
            try:
                names = await self._names_of(session, seqs)
                act = partial(_owe_erasing, seqs=seqs, names=names)
                if claim is None:
                    act(session)
                else:
                    claim.act(session, act)
                return await self.store.erase(session, seqs)
            except (StoreConflict, AlreadyHeard):
                await self._renew(session)
        raise StoreConflict(session.id, mine=session.revision, theirs=session.revision)

    async def erase_words(self, session: Session, person: Person) -> ErasedWords:
        """Permanently erase everything a person has said in this session; return what was erased.

        Otherwise, this is like `erase`. Raise `NotPossible` if the store can't erase a person's
        words.
        """
        return await self._order.write(session.id, partial(self._erase_words, session, person))

    async def _erase_words(self, session: Session, person: Person) -> ErasedWords:
        if not hasattr(self.store, "words_of"):
            raise NotPossible("this store can't erase what one person said: erase messages instead")
        store: Any = self.store
        for _ in range(TRIES):
            words: ErasedWords = await store.words_of(session.id, person)
            waiting = [entry for entry in session.waiting if person in people_in(entry)]
            try:
                names = await self._names_of(session, words.gone)
                _owe_erasing(session, seqs=words.seqs, names=names, is_all=True)
                session.erase_words(person, words)
                words.waiting = waiting
                await store.erase_words(session, person, words)
            except (StoreConflict, AlreadyHeard):
                await self._renew(session)
            else:
                return words
        raise StoreConflict(session.id, mine=session.revision, theirs=session.revision)

    async def _names_of(self, session: Session, seqs: Collection[int]) -> list[str]:
        """Return the names that will mark these messages as erased, unless already stored."""
        between = {"after": min(seqs, default=1) - 1, "upto": max(seqs, default=0)}
        entries = await self.store.entries(session.id, **between)
        ids = {message_id_of(entry) for entry in entries if entry.seq in seqs} - {None}
        names, chat = [erased_name(str(each)) for each in sorted(ids, key=str)], _chat_of(session)
        return [name for name in names if not await self.store.has_heard(chat, name)]

    async def catch_up(self, session: Session, revision: int) -> None:
        """Update the session to the stored state, which was at this commit a moment ago."""
        await self._order.write(session.id, partial(self._catch_up, session, revision))

    async def _catch_up(self, session: Session, revision: int) -> None:
        if session.revision != revision and session.tracker.is_saved:
            await self._renew(session)

    async def make_whole(self, session: Session) -> None:
        """Load the session's whole history into memory."""
        if not session.log.is_whole:
            await self._order.write(session.id, partial(self._renew, session, whole=True))

    async def _renew(self, session: Session, *, whole: bool = False) -> None:
        """Update the object to the stored state; raise `SessionNotFound` if it was deleted."""
        read = self.store.get if whole or session.log.is_whole else self.store.load
        fresh = await self._patiently(partial(read, session.id))
        if fresh.created_at != session.created_at:  # deleted and created again
            raise SessionNotFound(session.id)
        session.renew(fresh)


def _stage_of(session: Session) -> Stage:
    return session.queue.stage(session.awaiting, session.moved)


def _chat_of(session: Session) -> str:
    return session.key or session.id


def _owe_erasing(
    session: Session, *, seqs: Iterable[int], names: Iterable[str], is_all: bool = False
) -> None:
    """Record that these entries must also be removed outside the store.

    A late edit of such a message must not bring its text back either. With `is_all`, the
    search index drops the whole session and indexes the remaining entries again.
    """
    with session.lock:
        for name in names:
            session.hear(_chat_of(session), name)
        # An index that has missed more than is recorded drops the whole session.
        session.erasures += len(session.erasing) + 2 if is_all else 1
        session.erasing = (*session.erasing, _ranges(seqs))
        session.touch()


def erased(session: Session, *, upto: int) -> None:
    """Record that no copies remain of entries erased up to this erasure."""
    with session.lock:
        left = max(0, session.erasures - upto)
        if left < len(session.erasing):
            session.erasing = session.erasing[len(session.erasing) - left :]
            session.touch()


def _ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the numbers as ranges, each with its first and last number."""
    found: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


Place = tuple[AbstractEventLoop, str]


class WriteOrder:
    """Serves writers first come, first served, for each session and event loop.

    No event loop waits for another, which could wait for it in turn. Nothing waits for a write
    whose task asyncio has cancelled: stores compare revisions, and so detect conflicts with such a
    write. A write inside the same task's own turn never waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[anyio.Event]] = {}
        """The tasks waiting for each running write to end."""
        self._writers: dict[Place, object] = {}
        """The task that is writing now."""

    async def write(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run this work when its turn comes; once started, it is finished even if cancelled."""
        place, me = (asyncio.get_running_loop(), session_id), asyncio.current_task()
        if place not in self._waiting:
            self._waiting[place] = deque()
        elif self._writers.get(place) is me:
            return await work()
        else:
            await self._turn(place)
        self._writers[place] = me
        try:
            with anyio.CancelScope(shield=True):
                result = await work()
        finally:
            self._pass_on(place)
        return result

    def is_writing(self, session_id: str) -> bool:
        """Return True if this event loop is writing the session."""
        return (asyncio.get_running_loop(), session_id) in self._waiting

    async def _turn(self, place: Place) -> None:
        mine = anyio.Event()
        self._waiting[place].append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._pass_on(place)
            else:
                self._waiting[place].remove(mine)
            raise

    def _pass_on(self, place: Place) -> None:
        self._writers.pop(place, None)
        waiting = self._waiting[place]
        if waiting:
            waiting.popleft().set()
        else:
            del self._waiting[place]
