"""The one way to write a session: an act, done again if another writer was first."""

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
from typing import TypeVar

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
from nanoloop.session.queue import FOLLOWS, Stage, erased_name, message_id_of
from nanoloop.session.session import Session

TRIES = 100
"""How many other writers in a row may be first before giving up."""
BETWEEN_TRIES_SECONDS = (0.001, 0.1)
AWAY_SECONDS = 1.0
"""How long to wait before trying a store again that stayed unreachable for too long."""

T = TypeVar("T")


def is_away(error: Exception) -> bool:
    """Whether the error means that the store can't be reached, not just that one session failed."""
    of_one = (SessionDamaged, NotReadable, StoreConflict)
    return isinstance(error, StoreError) and not isinstance(error, of_one)


@dataclass(slots=True)
class Claim:
    """A command that is being run: the first commit in its session releases it, exactly once."""

    session_id: str
    entry_id: str
    is_let_go: bool = False

    def act(self, session: Session, act: Callable[[Session], T]) -> T:
        """Do this, and release the command with it; raises `TurnLost` if it was run elsewhere."""
        waits_here = any(entry.id == self.entry_id for entry in session.waiting)
        if not waits_here or session.moved:  # then it goes along, and is run there
            raise TurnLost(session.id)
        done = act(session)  # which may refuse it
        session.let_go_held(self.entry_id)
        return done


_CLAIM: ContextVar[Claim | None] = ContextVar("claim", default=None)


@contextmanager
def claiming(claim: Claim) -> Iterator[Claim]:
    """Treat what is written inside as done by this command."""
    before = _CLAIM.set(claim)
    try:
        yield claim
    finally:
        _CLAIM.reset(before)


def _claim_in(session_id: str) -> Claim | None:
    """The command of this session that is being run here and not yet released."""
    claim = _CLAIM.get()
    is_open = claim is not None and claim.session_id == session_id and not claim.is_let_go
    return claim if is_open else None


async def leave_alone() -> None:
    """Wait to retry a store that has been away for so long that the chat must be told."""
    await anyio.sleep(AWAY_SECONDS)


class SessionWriter:
    """Writes sessions to a store, the changes of each one after another."""

    def __init__(self, store: Store, *, patience_seconds: float = 0) -> None:
        """A store that can't be reached is retried for `patience_seconds`."""
        self.store = store
        self._patience_seconds = patience_seconds
        # The store's own, where it has one: what is saved in a turn needs no second one.
        self._order: WriteOrder = getattr(store, "order", None) or WriteOrder()

    async def change(self, session: Session, act: Callable[[Session], T]) -> T:
        """Do this to a session and make it durable: the one way to write. Returns what `act` does.

        `act` never waits. If another writer was first, the object is brought up to date and `act`
        runs again: make ids and times before it, announce events after it. Raises
        `SessionNotFound` if the session was deleted or has expired, `AlreadyHeard` if `act` took
        what was taken before, and `StepRefused` if it did what a chat never does (`FOLLOWS`); the
        object is then brought up to date, too.
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
        """The result of `act`, which changes nothing, once everything new is durable."""
        if session.tracker.is_saved and not self._order.is_writing(session.id):
            return act(session)
        return await self.change(session, act)

    async def together(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do this, with all that it writes, between two other changes of the session."""
        return await self._order.write(session_id, work)

    async def _change(self, session: Session, act: Callable[[Session], T]) -> T:
        for number in range(TRIES):
            is_all_its_own = session.tracker.is_saved
            before = _stage_of(session)
            done = act(session)
            if (after := _stage_of(session)) is not before and after not in FOLLOWS[before]:
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
                if is_all_its_own:  # else what an earlier act was to take may be what was heard
                    raise
            else:
                return done
        raise StoreConflict(session.id, mine=session.revision, theirs=session.revision)

    async def _save(self, session: Session) -> None:
        if session.tracker.is_saved and session.revision:
            return
        # One that no store knows yet was made elsewhere and attached.
        save = self.store.save if session.revision else self.store.add
        await self._patiently(partial(save, session))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the store answers; while it is away it is asked again, once in any case.

        A process that was suspended took that time for the store's: its patience may be over.
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
        """Erase these entries for good, like `Store.erase`; raises `NotPossible` for any others.

        The same commit notes that copies of them may be left, until `erased` clears that.
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

    async def _names_of(self, session: Session, seqs: Collection[int]) -> list[str]:
        """The names by which the chat will know that these were erased, if it doesn't yet."""
        between = {"after": min(seqs, default=1) - 1, "upto": max(seqs, default=0)}
        entries = await self.store.entries(session.id, **between)
        ids = {message_id_of(entry) for entry in entries if entry.seq in seqs} - {None}
        names, chat = [erased_name(str(each)) for each in sorted(ids, key=str)], _chat_of(session)
        return [name for name in names if not await self.store.has_heard(chat, name)]

    async def catch_up(self, session: Session, revision: int) -> None:
        """Bring it up to the stored state, which was at this commit just now."""
        await self._order.write(session.id, partial(self._catch_up, session, revision))

    async def _catch_up(self, session: Session, revision: int) -> None:
        if session.revision != revision and session.tracker.is_saved:
            await self._renew(session)

    async def make_whole(self, session: Session) -> None:
        """Load the session's whole history into memory."""
        if not session.log.is_whole:
            await self._order.write(session.id, partial(self._renew, session, whole=True))

    async def _renew(self, session: Session, *, whole: bool = False) -> None:
        """Bring this object up to the stored state; raises `SessionNotFound`."""
        read = self.store.get if whole or session.log.is_whole else self.store.load
        fresh = await self._patiently(partial(read, session.id))
        if fresh.created_at != session.created_at:  # deleted, and another was made under its id
            raise SessionNotFound(session.id)
        session.renew(fresh)


def _stage_of(session: Session) -> Stage:
    return session.queue.stage(session.awaiting, session.moved)


def _chat_of(session: Session) -> str:
    return session.key or session.id


def _owe_erasing(session: Session, *, seqs: Iterable[int], names: Iterable[str]) -> None:
    """Note that what is about to be erased must be removed everywhere else too.

    An edit of such a message that is delivered later must not bring its words back either.
    """
    with session.lock:
        for name in names:
            session.hear(_chat_of(session), name)
        session.erasures += 1
        session.erasing = (*session.erasing, _ranges(seqs))
        session.touch()


def erased(session: Session, *, upto: int) -> None:
    """Note that no copy is left of anything erased up to this erasure."""
    with session.lock:
        left = max(0, session.erasures - upto)
        if left < len(session.erasing):
            session.erasing = session.erasing[len(session.erasing) - left :]
            session.touch()


def _ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The same numbers as ranges, from the first to the last of each."""
    found: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if found and seq == found[-1][1] + 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)


Place = tuple[AbstractEventLoop, str]


class WriteOrder:
    """First come, first served, for each session in each event loop.

    No event loop waits for another, which may be waiting for it, and nothing waits for a write
    whose task asyncio cancelled: by the revision, a store detects changes taken before such a
    write. What a task writes within its own turn never waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[anyio.Event]] = {}
        """The tasks waiting behind each running write."""
        self._writers: dict[Place, object] = {}
        """The task whose turn it is."""

    async def write(self, session_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do this when its turn comes; once begun, it is finished and its result is returned."""
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
        """Whether a write of this session is running in this event loop."""
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
