"""Open sessions: one object per session, and the current session of each chat."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import anyio

from nanoloop.bounded import BoundedDict
from nanoloop.errors import (
    AlreadyHeard,
    HistoryNotLoaded,
    IndexUnusable,
    NotPossible,
    NotReadable,
    PartOfSummary,
    SessionDamaged,
    SessionExists,
    SessionNotFound,
    StillAnswering,
    StoreError,
)
from nanoloop.events import SessionReset, SessionStarted, announce
from nanoloop.messages import Inbound
from nanoloop.protocols import ARCHIVED, SessionInfo, Store
from nanoloop.session.approvals import take_along, withdraw
from nanoloop.session.entry import MESSAGE, Entry, files_in, rfc3339
from nanoloop.session.head import id_for_key
from nanoloop.session.queue import AGAIN, last_exchange, without
from nanoloop.session.session import Session
from nanoloop.session.speech import (
    ErasedWords,
    Person,
    erased_quote,
    names_in,
    person_in,
    sender_in,
    stored_quotes,
    with_quotes,
)
from nanoloop.writing import SessionWriter, erased

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

if TYPE_CHECKING:
    from nanoloop.attachments import Attachments

UNSURE_SECONDS = 60
"""The maximum difference between a platform's clock and this machine's."""
ENTRIES_READ = 500
"""How many entries of a session's history are read at a time."""


T = TypeVar("T")


class Sessions:
    """Opens sessions from the store, and keeps the most recent ones in memory.

    While anything else, such as a summary task, refers to a session, opening it again returns the
    same object.
    """

    def __init__(
        self,
        store: Store,
        *,
        limit: int = 1000,
        patience_seconds: float = 0,
        recall: Recall | None = None,
    ) -> None:
        """Create the object; erasing entries also removes them from the index of `recall`."""
        self.store = store
        self._recall = recall
        self.writer = SessionWriter(store, patience_seconds=patience_seconds)
        self.attachments: Attachments | None = getattr(store, "attachments", None)
        """The uploaded files that sessions refer to, or None if the store has none."""
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._recent: BoundedDict[str, Session] = BoundedDict(limit)
        self._id_by_key: BoundedDict[str, str] = BoundedDict(limit)
        self._sent: dict[str, frozenset[int]] = {}
        """The answers that this process has sent and that might not have arrived, by session."""

    async def open(self, session_id: str) -> Session:
        """Return the session with this id, or raise `SessionNotFound` if there is none."""
        session = self._alive.get(session_id)
        if session is None:
            loaded = await self.store.load(session_id)
            # Another task may have opened it in the meantime: the first object wins.
            session = self._alive.setdefault(session_id, loaded)
        if session.has_expired():
            self.forget(session_id)
            raise SessionNotFound(session_id)
        self._recent[session.id] = session
        return session

    def known_id(self, key: str) -> str | None:
        """Return the id of the chat's current session, as far as this process knows."""
        return self._id_by_key.get(key)

    async def seen_at(self, session_id: str, revision: int) -> Session:
        """Return the session as of this commit or a later one; same errors as `open`."""
        session = await self.open(session_id)
        if session.revision < revision:
            await self.writer.catch_up(session, revision)
        return session

    async def fresh(self, session_id: str) -> Session:
        """Return the session as the store has it now; same errors as `open`."""
        if (known := self._alive.get(session_id)) is not None:
            try:
                await self.writer.catch_up(known, await self.store.revision(session_id))
            except SessionNotFound:
                self.forget(session_id)
                raise
        return await self.open(session_id)

    def known(self, key: str) -> Session | None:
        """Return the chat's current session if it is in memory."""
        return self._alive.get(self._id_by_key.get(key) or id_for_key(key))

    def sent_of(self, session_id: str) -> frozenset[int]:
        """Return the session's answers that this process sent and that might not have arrived."""
        return self._sent.get(session_id, frozenset())

    def sent(self, session_id: str, seq: int) -> None:
        """Record that this answer is being sent."""
        self._sent[session_id] = self.sent_of(session_id) | {seq}

    def has_arrived(self, session_id: str, seq: int) -> None:
        """Record that this answer is no longer being sent."""
        left = self.sent_of(session_id) - {seq}
        self._sent.pop(session_id, None)
        if left:
            self._sent[session_id] = left

    async def change(self, session: Session, act: Callable[[Session], T]) -> T:
        """Change a session like `SessionWriter.change`; drop it from memory if it was deleted."""
        try:
            return await self.writer.change(session, act)
        except SessionNotFound:
            if self._alive.get(session.id) is session:  # but not one created since
                self.forget(session.id)
            raise

    async def named(self, session_id: str, *, agent: str | None = None) -> Session:
        """Return the session with this id, or a new one if it doesn't exist or has expired."""
        return await self._open_or_create(session_id, session_id, agent)

    async def current(self, key: str, *, agent: str | None = None) -> Session:
        """Return the chat's current session, or a new one if it has none or the session expired."""
        session = await self._open_or_create(key, await self.current_id(key), agent)
        # Only once the move is durable; otherwise, a crash would leave the key pointing nowhere.
        if session.moved and await self.writer.look(session, attrgetter("moved")):
            session = await self.follow(session, agent=agent)
            self._id_by_key[key] = session.id
            await self.store.bind(key, session.id)  # so that the next reader finds it at once
        return session

    async def follow(self, session: Session, *, agent: str | None = None) -> Session:
        """Return the session where the chat continues, with the messages that waited here."""
        passed = {session.id}
        while session.moved:
            if session.moved in passed:  # they point at each other: the last one wins
                await self.change(session, _welcome)
                break
            key = session.key or session.id
            following = await self._open_or_create(key, session.moved, agent or session.agent)
            await self._pass_on(session, following)
            session = following
            passed.add(session.id)
        return session

    async def outlive(self, old: Session, key: str) -> Session:
        """Return the chat's next session after its session expired, with the waiting messages."""
        session = await self.current(key, agent=old.agent)
        await self._have_taken_over(session, old.waiting, old=old)
        return session

    async def _open_or_create(self, key: str, session_id: str, agent: str | None) -> Session:
        try:
            return await self.open(session_id)
        except SessionNotFound:
            return await self._create(key, session_id, agent)

    async def current_fresh(self, key: str, *, agent: str | None = None) -> Session:
        """Like `current`, but return the session as the store has it now."""
        with suppress(SessionNotFound):
            await self.fresh(await self.current_id(key))
        return await self.current(key, agent=agent)

    async def current_id(self, key: str) -> str:
        """Return the id of the chat's current session, or the id for its first one."""
        session_id = self._id_by_key.get(key)
        if session_id is None:
            session_id = await self.store.bound(key) or id_for_key(key)
            self._id_by_key[key] = session_id
        return session_id

    def note_current(self, key: str, session_id: str) -> None:
        """Record the chat's current session, whichever process has chosen it."""
        self._id_by_key[key] = session_id

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
        """Create a fresh session for the chat; the previous one stays stored."""
        old = await self._left(key)
        created = await _stamped(
            key, lambda new_id: self.store.create(id=new_id, key=key, agent=agent)
        )
        self._hold(created)
        await self._go_on_in(created, key, old)
        old_id = id_for_key(key) if old is None else old.id
        announce(SessionReset(key=key, old_session_id=old_id, session_id=created.id))
        return created

    async def switch(self, key: str, session_id: str) -> Session:
        """Switch the chat to another session, or raise `SessionNotFound` if it does not exist."""
        session = await self.open(session_id)
        await self._go_on_in(session, key, await self._left(key))
        return session

    async def _left(self, key: str) -> Session | None:
        """Return the session that the chat is about to leave, or None if it can't be read."""
        with suppress(SessionDamaged, NotReadable):
            return await self.current(key)
        return None

    async def _go_on_in(self, session: Session, key: str, old: Session | None) -> None:
        """Move the chat and its waiting messages to this session, in one commit to the old one."""
        if old is not None:
            if session is not old:
                await self.change(session, partial(_welcome, old=old))
            while await self.change(old, partial(_leave, moved=session.id)):
                old = await self.follow(old)  # another process was first
        await self.store.bind(key, session.id)
        self._id_by_key[key] = session.id
        if old is not None and old is not session:
            await self._pass_on(old, session)

    async def _pass_on(self, old: Session, session: Session) -> None:
        """Move the waiting messages out of a session that its chat has left."""
        if waiting := old.waiting:
            await self._have_taken_over(session, waiting, old=old)
            with suppress(SessionNotFound):  # deleted meanwhile
                await self.change(old, partial(_hand_over, waiting=waiting))

    async def _have_taken_over(
        self, session: Session, waiting: Sequence[Entry], *, old: Session
    ) -> None:
        """Queue these messages in the session, each only once, even if several processes try."""
        take = partial(self._take_over, session, waiting, old=old)
        await self.writer.together(session.id, take)

    async def _take_over(self, session: Session, waiting: Sequence[Entry], *, old: Session) -> None:
        passed = [_passed_on(entry, session.id) for entry in waiting]
        await self._share(waiting, by=old.id, to=session.id)
        while passed:
            with suppress(AlreadyHeard):  # another process has already moved some
                return await self.change(session, partial(_take_over, waiting=passed))
            known = self.store.has_heard
            passed = [each for each in passed if not await known(session.id, each.id)]
        return None

    # The files that sessions refer to

    async def take(self, session: Session, entry: Entry, act: Callable[[Session], T]) -> T:
        """Like `change`, but first give the session access to the message's files."""
        attachments, files = self.attachments, files_in(entry)
        if attachments is None or not files:
            return await self.change(session, act)

        async def taken() -> T:
            await attachments.refer(session.id, files)
            return await self.change(session, act)

        # A task that erases an earlier message with the same file runs before or after both steps.
        return await self.writer.together(session.id, taken)

    async def _share(self, entries: Iterable[Entry], *, by: str, to: str) -> None:
        """Give another session access to the files of entries that it receives."""
        if self.attachments is not None:
            files = set().union(*map(files_in, entries))
            await self.attachments.share(files, by=by, to=to)

    # Operations for users

    async def of_key(self, key: str) -> list[SessionInfo]:
        """Return the sessions that a chat has had, oldest first, except archived ones."""
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
        """Copy a session up to an entry, by number or id; the copy is durable on return.

        Raise `SessionNotFound`, `SessionExists`, or ValueError if there is no such entry.
        """
        whole = await self.store.get(session_id)
        fork = await anyio.to_thread.run_sync(whole.fork, upto)
        metadata = {name: v for name, v in fork.metadata.items() if name != ARCHIVED}

        async def added(new_id: str) -> Session:
            await self._share(fork.whole(), by=session_id, to=new_id)
            fork.load_dict({"id": new_id, "key": key, "metadata": metadata})
            await self.change(fork, lambda _: None)
            return fork

        return await (added(new_id) if new_id else _stamped(key or session_id, added))

    async def undo(self, session: Session) -> list[Entry]:
        """Undo the last exchange durably and return its entries; [] if there is none.

        Raise `NotPossible` if the exchange can't be undone.
        """
        await self.ready_to_undo(session)
        return await self.change(session, _undone)

    async def ready_to_undo(self, session: Session) -> None:
        """Load the entries that become visible again once the last exchange is undone."""
        if not session.shows_earlier:  # otherwise the window would end up empty
            await self.writer.make_whole(session)

    async def erase(self, session_id: str, seqs: Collection[int]) -> Session:
        """Erase these entries permanently and durably; raise `NotPossible` if one doesn't exist.

        A `Session` object that was loaded earlier can't restore the entries, because saving it
        raises a conflict. Until `finish_erasing` succeeds, the session records that the search
        index may still contain copies.
        """
        session = await self.open(session_id)
        try:
            await self.writer.erase(session, seqs)
        except BaseException:  # the store still has what memory has lost
            self.forget(session_id)
            raise
        return session

    async def erase_speaker(self, session_id: str, person: Person) -> ErasedWords:
        """Permanently erase what a person, given by platform and id, said in this session.

        This covers messages, quotes, waiting messages, the answers to them, and all digests. It is
        durable on return; call `finish_erasing` afterwards, as after `erase`.
        """
        session = await self.open(session_id)
        try:
            return await self.writer.erase_words(session, person)
        except BaseException:  # as in `erase`
            self.forget(session_id)
            raise

    async def speakers(self, session_id: str) -> dict[Person, str]:
        """Return the names of all people with an account who wrote or were quoted in a session."""
        session = await self.fresh(session_id)
        found: dict[Person, str] = {}
        after = 0
        while entries := await self.store.entries(session_id, after=after, limit=ENTRIES_READ):
            for entry in entries:
                found |= names_in(entry)
            after = entries[-1].seq
        for entry in session.waiting:
            found |= names_in(entry)
        return found

    def without_erased(self, session: Session, entry: Entry, message: Inbound) -> Entry | None:
        """Return a message's entry without quotes of people whose words were later erased here.

        Return None if the sender's words were erased. A restored store might not know the message.
        """
        if (erased_at := getattr(self.store, "erased_at", None)) is None:
            return entry

        def is_erased(person: Person | None, said_at: datetime | None) -> bool:
            moment = None if person is None else erased_at(session, person)
            at = said_at or message.time
            return moment is not None and at.timestamp() < moment - UNSURE_SECONDS

        if is_erased(sender_in(entry.metadata), None):
            return None
        times = [quote.time for quote in message.quotes]
        quotes = stored_quotes(entry.metadata)
        left = [
            erased_quote(quote) if is_erased(person_in(quote.get("by")), at) else quote
            for quote, at in zip_longest(quotes, times[: len(quotes)])
        ]
        if left != quotes:
            entry = replace(entry, metadata=with_quotes(entry.metadata, left))
        return entry

    async def finish_erasing(self, session: Session) -> None:
        """Remove any copies of a session's erased entries from the search index.

        Raise `IndexUnusable` if that fails; the session then keeps its record of the copies.
        """
        if not session.erasing:
            return
        upto = session.erasures
        if (destroy_keys := getattr(self.store, "destroy_keys", None)) is not None:
            await destroy_keys(session.id)
        if self._recall is not None:
            await self._recall.leave_out(session)
        await self.change(session, partial(erased, upto=upto))

    async def finish_all_erasing(self) -> None:
        """Finish the erasures that were interrupted when a process stopped, in every session."""
        for owed in [owed async for owed in self.store.owing() if owed.erasing]:
            with suppress(SessionNotFound, SessionDamaged, NotReadable, IndexUnusable):
                await self.finish_erasing(await self.fresh(owed.id))

    async def delete(self, session_id: str) -> None:
        """Delete a session permanently, with its index entries; a missing session is ignored."""
        # The index first: once the session is gone, nothing shows what a crash left in the index.
        with suppress(IndexUnusable):  # raised below
            await self._leave_index(session_id)
        # Any file of a message that arrives meanwhile is deleted before it or together with it.
        await self.writer.together(session_id, partial(self.store.delete, session_id))
        self.forget(session_id)
        await self._leave_index(session_id)  # entries indexed meanwhile

    async def _leave_index(self, session_id: str) -> None:
        if self._recall is not None:
            await self._recall.forget(session_id)

    async def correct_summary(self, session: Session, text: str) -> None:
        """Replace the summary with this text, and make the change durable."""

        def act(session: Session) -> None:
            is_being_written = session.summary_in_progress
            session.update_summary(text)
            # A summary being written then finds this change and is discarded.
            session.summary_in_progress = is_being_written

        await self.change(session, act)

    async def archive(self, session_id: str, *, archived: bool = True) -> None:
        """Archive a session, or restore it, without changing its time of last activity."""

        def act(session: Session) -> None:
            metadata = {name: v for name, v in session.metadata.items() if name != ARCHIVED}
            metadata |= {ARCHIVED: True} if archived else {}
            session.load_dict({"metadata": metadata, "updated_at": rfc3339(session.updated_at)})

        await self.change(await self.open(session_id), act)

    async def rename(self, session: Session, title: str) -> None:
        """Set a session's title, with single spaces, and make the change durable."""

        def act(session: Session) -> None:
            session.title = " ".join(title.split())

        await self.change(session, act)

    def forget(self, session_id: str) -> None:
        """Drop a session from memory, as after a delete."""
        self._recent.pop(session_id, None)
        self._alive.pop(session_id, None)

    def _hold(self, session: Session) -> None:
        self._alive[session.id] = session
        self._recent[session.id] = session


def _undone(session: Session) -> list[Entry]:
    if session.awaiting:
        raise StillAnswering
    check_undo(session)
    return session.undo()


def check_undo(session: Session) -> None:
    """Raise `NotPossible` if the last exchange can't be undone."""
    asked = last_exchange(session.entries_between(0, session.last_seq))
    summed_up = session.pending_seq if session.summary_in_progress else session.covered_seq
    if asked and asked[0].seq <= summed_up:
        raise PartOfSummary


def give_way(session: Session, question: Entry) -> Entry:
    """Undo the last exchange if the question repeats it, and return the question.

    If a summary covers the exchange, it is kept. Call `Sessions.ready_to_undo` first.
    """
    replaced = question.metadata.get(AGAIN)
    asked = last_exchange(session.entries_between(0, session.last_seq)) if replaced else []
    if asked and asked[0].id == replaced:
        with suppress(NotPossible, HistoryNotLoaded):
            _undone(session)
    return without(question, AGAIN)


def _welcome(session: Session, *, old: Session | None = None) -> None:
    """Make the chat continue in this session, even if it had moved on."""
    if old is not None:
        take_along(session, old)
    if session.moved:
        session.move("")


def _leave(session: Session, *, moved: str) -> bool:
    """Make the chat continue in `moved`; return True if it already continues in another session."""
    has_left = session.moved not in {"", moved}
    if not has_left and moved != session.id:
        withdraw(session, "left")
        session.move(moved)
    return has_left


def _take_over(session: Session, *, waiting: Sequence[Entry]) -> None:
    for entry in waiting:
        if session.hear(session.id, entry.id):
            session.hold(entry)


def _passed_on(entry: Entry, session_id: str) -> Entry:
    """Return the entry with an id for the new session, to recognise the entry if it comes back."""
    name = hashlib.sha256(f"{entry.id} {session_id}".encode()).hexdigest()[: len(entry.id)]
    return replace(entry, id=name)


def _hand_over(session: Session, *, waiting: Sequence[Entry]) -> None:
    for entry in waiting:
        session.let_go_held(entry.id)


async def _stamped(key: str, add: Callable[[str], Awaitable[Session]]) -> Session:
    """Add a session under the first free id made from the key and the time, and return it."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    base = f"{id_for_key(key)}@{stamp}"
    for number in range(100):
        try:
            return await add(f"{base}-{number:02d}" if number else base)
        except SessionExists:
            continue
    raise SessionExists(base)


def matching(infos: Iterable[SessionInfo], text: str) -> list[SessionInfo]:
    """Return sessions whose id, key or title begins with the text, then other matching titles."""
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
    """Return True if a single message of the history contains all these words."""
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
