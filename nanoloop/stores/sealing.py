"""Sealing: all stored data is encrypted for its place, and a record names the keys used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from itertools import chain
from secrets import token_bytes, token_hex
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from anyio.to_thread import run_sync

from nanoloop.errors import NotReadable, SessionDamaged, SessionNotFound, StoreError
from nanoloop.protocols import Seal
from nanoloop.session.entry import ERASED, Entry, entries_in, rfc3339
from nanoloop.session.head import ABOUT, SETTINGS, WAITING, Changes, ChangeTracker
from nanoloop.session.speech import Person, people_in
from nanoloop.stores.database import COMMIT_ID, Commit, Database, StoredSession
from nanoloop.stores.keys import (
    MARK_OF_KEYS,
    PIECES,
    KeyDestroyed,
    KeysFile,
    KeysWanted,
    Piece,
    SessionKeys,
    apart,
    apart_in,
    beside,
    nth,
    together,
    together_in,
)
from nanoloop.stores.seal_record import (
    LOOKED_AT,
    MARK,
    NO_KEY,
    NO_KEYS_FILE,
    NO_RECORD,
    RECORD,
    SEALED,
    SealRecord,
    is_sealed,
    other_key,
    place,
    rebind,
)
from nanoloop.stores.snapshot import (
    STATE,
    SealedState,
    StoredSnapshot,
    check_numbers,
    decoding,
    merged,
    without_lost,
)

READABLE = ("id", "key", "created_at")
"""The fields of a session's identifying section that stay readable."""
_TAG = "tag"


class Sealing:
    """Encrypts changes and decrypts snapshots; without a seal, both stay in plain text.

    Ids, numbers, types and times stay readable, so that files can be repaired, searched and listed
    without the key, but can't be changed unnoticed. Until everything is encrypted, data that was
    written in plain text or by an earlier version stays readable too.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        self.seal = seal
        self.keys_file: KeysFile | None = getattr(seal, "keys_file", None)
        self.record: SealRecord | None = None
        """The store's record once it has been read; None if nothing was ever encrypted there."""
        self.inherited = b""
        """The secret of the store that this one is a copy of, or empty."""
        self._text = ""
        self._lock = Lock()
        self._states: WeakKeyDictionary[ChangeTracker, SealedState] = WeakKeyDictionary()

    # The store's record

    async def read(self, database: Database) -> None:
        """Read the store's record; raise `NotReadable` if one of its keys is missing."""
        record = await database.bound(RECORD)
        if record is not None:
            self.learn(record)

    async def look_for_seals(self, database: Database, *, now: int) -> None:
        """Examine the newest sessions of an earlier version's store, which has no record.

        Raise `NotReadable` if one is encrypted and none of the keys can decrypt it.
        """
        seen = 0
        async for stored in database.glances(now=now):
            if isinstance(stored, StoredSession):
                self._check_readable(stored.sections[ABOUT])
            seen += 1
            if seen == LOOKED_AT:
                return

    async def prepare(self, database: Database, *, now: int) -> None:
        """Add the key that encrypts from now on to the store's record."""
        while not self.may_write:
            was = await database.bound(RECORD)
            if was is None:
                await self.look_for_seals(database, now=now)
            elif was != self._text:
                self.learn(was)
                continue
            is_empty = was is None and not [name async for name in database.names()]
            if is_empty and self.keys_file is not None:
                await run_sync(self.keys_file.begin)
            is_done = await self._replace(database, self.renewed(is_empty=is_empty), was=was)
            if is_done and is_empty:
                await self.seal_bindings(database)

    async def use_keys(self, database: Database) -> None:
        """Add the keys file to the record; from now on, new sessions get their own keys."""
        await self.prepare(database, now=0)
        while self.keys_file is not None and self.record is not None and not self.record.keys_id:
            keys_id = await run_sync(self.keys_file.begin)
            await self._replace(database, self.keyed(keys_id), was=self._text)
            await self.read(database)

    async def finish(self, database: Database) -> None:
        """Record that all data is encrypted with the first key; from now on, refuse other keys."""
        await self.seal_bindings(database)
        while not await self._replace(database, self.completed(), was=await database.bound(RECORD)):
            await self.read(database)

    async def _replace(self, database: Database, text: str, *, was: str | None) -> bool:
        """Replace the record unless another process did so first."""
        if not await rebind(database, RECORD, text, was=was):
            return False
        self.learn(text)
        return True

    async def seal_bindings(self, database: Database) -> None:
        """Protect the bindings of chats to sessions from changes."""
        found = [item async for item in database.bindings()]
        for key, text in found:
            session_id = self.bound(key, text) if key != RECORD else None
            if session_id is not None and not self._is_of_first(text.partition(" ")[2]):
                await database.bind(key, self.binding(key, session_id))

    @property
    def may_write(self) -> bool:
        """True if the store's record covers what this process would write now."""
        if self.seal is None:
            return self.record is None
        record = self.record
        # The first version's records had no secret.
        return record is not None and self.seal.names[0] in record.keys and record.secret != b""

    @property
    def is_strict(self) -> bool:
        """True if data that is not encrypted for its place counts as damaged."""
        return self.record is not None and self.record.is_whole

    def _is_strict_in(self, state: SealedState | None) -> bool:
        return self.is_strict or (state is not None and state.is_whole)

    def learn(self, text: str) -> None:
        """Use this record from the store; raise `NotReadable` if one of its keys is missing."""
        record = SealRecord.of(text, self.seal)
        if record.keys_id:
            if self.keys_file is None:
                raise NotReadable(NO_KEYS_FILE)
            self.keys_file.check(record.keys_id)
        self.record, self._text = record, text

    def renewed(self, *, is_empty: bool) -> str:
        """Return the current record, extended so that the first key may encrypt."""
        assert self.seal is not None  # noqa: S101 - called only if there is one
        names = self.seal.names
        if self.record is None:
            # Whatever an earlier version sealed, it used some of these keys.
            keys = names[:1] if is_empty else names
            secret = self.inherited or token_bytes(32)
            keys_id = self.keys_file.id if is_empty and self.keys_file is not None else ""
            record = SealRecord(
                id=token_hex(8), keys=keys, is_whole=is_empty, secret=secret, keys_id=keys_id
            )
        else:
            keys = tuple(dict.fromkeys((names[0], *self.record.keys)))
            record = changed(self.record, keys=keys, secret=self.record.secret or token_bytes(32))
        return self._in(record)

    def _in(self, record: SealRecord) -> str:
        assert self.seal is not None  # noqa: S101 - as above
        return record.text(self.seal)

    def keyed(self, keys_id: str) -> str:
        """Return the record with the id of the keys file added."""
        assert self.record is not None  # noqa: S101 - there is one before it is changed
        return self._in(changed(self.record, keys_id=keys_id))

    def completed(self) -> str:
        """Return a record that states that everything is encrypted with the first key."""
        assert self.seal is not None  # noqa: S101 - as above
        assert self.record is not None  # noqa: S101 - something was sealed before
        return self._in(changed(self.record, keys=self.seal.names[:1], is_whole=True))

    # The state of sessions

    def known(self, tracker: ChangeTracker, *, revision: int) -> SealedState | None:
        """Return the session's encryption state at this revision, or None if not remembered."""
        with self._lock:
            state = self._states.get(tracker)
        return state if state is not None and state.revision == revision else None

    def note(self, tracker: ChangeTracker, state: SealedState | None) -> None:
        """Remember the session's encryption state."""
        if state is not None:
            with self._lock:
                self._states[tracker] = state

    # Keys of sessions

    @property
    def is_keyed(self) -> bool:
        """True if new sessions get their own keys."""
        return self.record is not None and self.record.keys_id != ""

    def keys_of(self, state: SealedState) -> SessionKeys:
        """Return the keys of a session that has its own."""
        if self.keys_file is None or self.record is None:
            raise NotReadable(NO_KEYS_FILE)
        return SessionKeys(
            self.keys_file,
            self.record.secret,
            state.born,
            edition=state.edition,
            dying=state.dying,
        )

    def is_deleted(self, head: Mapping[str, Any]) -> bool:
        """Return True if the session with this head was deleted, with all its keys."""
        state = head.get(STATE)
        if self.keys_file is None or not isinstance(state, Mapping) or "edition" not in state:
            return False
        born = str(state.get("born"))
        return born in state.get("dying", ()) or self._is_destroyed(born, refresh=True)

    def _is_destroyed(self, name: str, *, refresh: bool = False) -> bool:
        if self.keys_file is None:
            return False
        if refresh:
            self.keys_file.refresh()
        return self.keys_file.is_gone(name)

    # Sealing

    def commit(
        self,
        session_id: str,
        changes: Changes,
        state: SealedState | None = None,
        *,
        is_all: bool = False,
        rewritten: Sequence[Entry] = (),
        gone: Iterable[int] = (),
        shrinks: int = 0,
        erases: Sequence[Person] | None = None,
        may_add: bool = False,
    ) -> Commit:
        """Return the changes, encrypted to follow `state`; pass `is_all` for a whole session.

        The people in `erases` get new keys, and so do texts made from several people's words. Raise
        `KeysWanted` if keys must be made, unless it `may_add` them, which blocks.
        """
        gone = [*gone]
        erased = sorted({*gone, *(entry.seq for entry in rewritten)})
        if self.seal is None:
            return Commit.of(
                session_id, changes, rewritten=rewritten, erased=erased, shrinks=shrinks
            )
        revision = changes.revision + 1
        state = state or SealedState(
            revision=revision,
            born=token_hex(8),
            is_whole=is_all,
            edition=1 if self.is_keyed else 0,
        )
        state = changed(
            state,
            revision=revision,
            parts={**state.parts, **dict.fromkeys(changes.sections, revision)},
            gone=merged(state.gone, gone),
        )
        if state.is_keyed:
            state = self._with_keys(session_id, state, erases)
        while True:
            try:
                sealed, after = self._changes(session_id, changes, state)
                left = [
                    entry if is_sealed(entry.content) else self._sealed(entry, session_id, state)
                    for entry in rewritten
                ]
                break
            except KeysWanted as wanted:
                if not may_add:
                    raise
                state = changed(state, newest=self._add(wanted.names, changes, state))
        commit = Commit.of(session_id, sealed, rewritten=left, erased=erased, shrinks=shrinks)
        return changed(commit, head=self._tagged(commit.head, session_id, after))

    def _add(self, names: Iterable[str], changes: Changes, state: SealedState) -> str:
        """Make these keys and any others that these changes need; return the last. This blocks."""
        keys = self.keys_of(state)
        people = {keys.person(p): p for entry in changes.entries for p in people_in(entry)}
        owned = (keys.of([person]) for person in people)
        assert self.keys_file is not None  # noqa: S101 - its keys were named before
        return self.keys_file.add([*keys.log, *keys.mixed, *names, *chain.from_iterable(owned)])

    def _changes(
        self, session_id: str, changes: Changes, state: SealedState
    ) -> tuple[Changes, SealedState]:
        """Return the encrypted changes, and the state after them."""
        entries = []
        for entry in changes.entries:
            sealed, state = self._appended(entry, session_id, state)
            entries.append(sealed)
        sections = {n: self._part(session_id, n, v, state) for n, v in changes.sections.items()}
        head = self._head(changes.head, session_id, state)
        return changed(changes, entries=tuple(entries), sections=sections, head=head), state

    def _with_keys(
        self, session_id: str, state: SealedState, erases: Sequence[Person] | None
    ) -> SealedState:
        """Return the state with the keys that its session uses from now on."""
        keys = self.keys_of(state)
        if self.keys_file is None or self._is_destroyed(state.born, refresh=True):
            raise SessionNotFound(session_id)
        if state.newest:
            self.keys_file.check_has(state.newest)
        while any(map(self._is_destroyed, keys.mixed)):  # as in a restored store
            state = changed(state, edition=state.edition + 1)
            keys = self.keys_of(state)
        dying = [name for name in state.dying if not self._is_destroyed(name)]
        if erases is None:
            return changed(state, dying=tuple(dying)) if state.dying else state
        people = [keys.person(person) for person in erases]
        dying += [*keys.mixed, *(name for each in people for name in keys.of([each]))]
        left = tuple(each for each in state.askers.people if each not in people)
        return changed(
            state,
            edition=state.edition + 1,
            dying=tuple(dict.fromkeys(dying)),
            askers=changed(state.askers, people=left),
        )

    def _appended(
        self, entry: Entry, session_id: str, state: SealedState
    ) -> tuple[Entry, SealedState]:
        """Return a log entry, encrypted with the keys of everyone whose words it may contain."""
        if not state.is_keyed:
            return self._sealed(entry, session_id, state), state
        keys = self.keys_of(state)
        people = [keys.person(person) for person in people_in(entry)]
        state = changed(state, askers=state.askers.after(entry, people))
        if entry.role == "user" or entry.type == ERASED:
            return self._sealed(entry, session_id, state), state
        return self._sealed(entry, session_id, state, keys.of(state.askers.people)), state

    def _sealed(
        self, entry: Entry, session_id: str, state: SealedState, names: Sequence[str] = ()
    ) -> Entry:
        """Return the entry, encrypted with the keys of these people; by default, its sender's."""
        where = self._place_of(entry, session_id, state)
        said = {"content": entry.content, "metadata": entry.metadata}
        if state.is_keyed and not names:
            said, names, pieces = apart(said, self.keys_of(state), [])
            return changed(entry, content=self._form(said, where, names, pieces), metadata={})
        return changed(entry, content=self._form(said, where, names), metadata={})

    def _form(
        self, value: Any, where: bytes, names: Sequence[str] = (), pieces: Sequence[Piece] = ()
    ) -> dict[str, Any]:
        """Return a value and its pieces in encrypted form."""
        sealed: dict[str, Any] = {SEALED: self._token(value, beside(where, pieces), names)}
        if pieces:
            tokens = (self._token(v, nth(where, n), k) for n, (v, k) in enumerate(pieces))
            sealed[PIECES] = [*tokens]
        return sealed

    def _place_of(self, entry: Entry, session_id: str, state: SealedState) -> bytes:
        told = (entry.seq, entry.id, entry.type, rfc3339(entry.timestamp))
        return place("entry", self._store, session_id, state.born, *told)

    def _part(self, session_id: str, name: str, value: Any, state: SealedState) -> dict[str, Any]:
        readable = {n: value[n] for n in READABLE if n in value} if name == ABOUT else {}
        where = self._place_of_part(session_id, name, state)
        if not state.is_keyed:
            return {**readable, **self._form(value, where)}
        keys, pieces = self.keys_of(state), list[Piece]()
        names = keys.log if name in {ABOUT, SETTINGS, WAITING} else keys.mixed
        value = apart_in(name, value, keys, pieces)
        return {**readable, **self._form(value, where, names, pieces)}

    def _place_of_part(self, session_id: str, name: str, state: SealedState) -> bytes:
        return place("part", self._store, session_id, state.born, name, state.parts[name])

    def _head(
        self, head: Mapping[str, Any], session_id: str, state: SealedState
    ) -> Mapping[str, Any]:
        """Return the head after encrypting any entries that are only in a handler's window."""
        names = self.keys_of(state).mixed if state.is_keyed else ()
        shown = [
            self._sealed(entries_in([item])[0], session_id, state, names).to_dict()
            if isinstance(item, dict)
            else item
            for item in head.get("shown") or ()
        ]
        return {**head, "shown": shown} if shown else head

    def _tagged(
        self, head: Mapping[str, Any], session_id: str, state: SealedState
    ) -> dict[str, Any]:
        said = state.said()
        whole = {**head, STATE: said}
        tag = self._sealed_bytes(b"", place("head", self._store, session_id, whole))
        return {**whole, STATE: {**said, _TAG: tag}}

    def _token(self, value: Any, where: bytes, names: Sequence[str] = ()) -> str:
        try:
            data = json.dumps(value, default=str).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"this can't be written as JSON ({error}): change it") from error
        if not names:
            return self._sealed_bytes(data, where)
        assert self.keys_file is not None  # noqa: S101 - its keys were named before
        return self.keys_file.seal(names, data, where)

    def _sealed_bytes(self, data: bytes, where: bytes) -> str:
        assert self.seal is not None  # noqa: S101 - called only if there is one
        return self.seal.seal(data, where)

    @property
    def _store(self) -> str:
        if self.record is None:
            raise NotReadable(NO_RECORD)
        return self.record.id

    # Opening

    def state(self, head: Mapping[str, Any], session_id: str) -> SealedState | None:
        """Return the encryption state in a head; None for a plain-text head, if that is allowed.

        Raise `SessionDamaged` if the head was changed, or `NotReadable` if the key is missing.
        """
        said = head.get(STATE)
        if said is None:
            if self.is_strict:
                raise SessionDamaged(session_id, "its head is not sealed")
            return None
        if self.seal is None:
            raise NotReadable(NO_KEY)
        try:
            rest = {name: value for name, value in said.items() if name != _TAG}
            where = place("head", self._store, session_id, {**head, STATE: rest})
            tag = str(said[_TAG])
            if self._lacks_key_of(tag):
                raise NotReadable(other_key(session_id))
            self.seal.open(tag, where)
            return SealedState.of(said, revision=int(head["rev"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SessionDamaged(session_id, "its head was changed after encryption") from error

    def opened(self, snapshot: StoredSnapshot) -> StoredSnapshot:
        """Return the decrypted snapshot; raise `StoreError` if it can't be decrypted.

        Data whose key was destroyed counts as erased, even in an older snapshot.
        """
        name = snapshot.name
        state = self.state(snapshot.head, name)
        if state and self._is_destroyed(state.born):
            raise SessionNotFound(name)
        head = {key: value for key, value in snapshot.head.items() if key != STATE}
        if head.get("shown"):
            shown = [self._shown(item, name, state) for item in head["shown"]]
            head["shown"] = [item for item in shown if item is not None]
        sections = {k: self._opened_part(name, k, v, state) for k, v in snapshot.sections.items()}
        if state and (missing := state.parts.keys() - sections.keys()):
            raise SessionDamaged(name, f"part {min(missing)!r} is missing")
        entries = [self.entry(entry, name, state) for entry in snapshot.entries]
        self.check_numbers(entries, name, state, after=snapshot.after, last=int(head["last"]))
        if state and entries and entries[-1].seq > int(head["last"]):
            raise SessionDamaged(name, f"it ends with entry {head['last']}, but another follows")
        if state and state.is_keyed:
            pairs = zip(snapshot.entries, entries, strict=True)
            lost = {was.seq for was, now in pairs if now.type != was.type}
            head = without_lost(head, sections, lost)
            sections = {k: value for k, value in sections.items() if value is not None}
        return changed(snapshot, head=head, sections=sections, entries=entries, state=state)

    def entry(self, entry: Entry, session_id: str, state: SealedState | None) -> Entry:
        """Return one decrypted entry; same errors as `opened`."""
        where = b"" if state is None else self._place_of(entry, session_id, state)
        what = f"entry {entry.seq}"
        is_strict = self._is_strict_in(state)
        try:
            said = self._value(entry.content, where, session_id, what, is_strict=is_strict)
        except KeyDestroyed:
            return entry.erased()
        if said is entry.content:
            return entry
        with decoding(session_id):
            if PIECES in entry.content:
                said = together(said, self._pieces(entry.content, where, session_id, what))
            opened = changed(entry, content=said["content"], metadata=said["metadata"])
        if state and opened.type != ERASED and state.is_gone(entry.seq):
            raise SessionDamaged(session_id, f"{what} was erased, but is there again")
        return opened

    def _pieces(
        self, value: Mapping[str, Any], where: bytes, session_id: str, what: str
    ) -> list[Any]:
        """Return the pieces of an encrypted value, with None for each whose key was destroyed."""
        found: list[Any] = []
        for number, token in enumerate(value.get(PIECES) or ()):
            piece = {SEALED: token}
            try:
                there = nth(where, number)
                found.append(self._value(piece, there, session_id, what, is_strict=True))
            except KeyDestroyed:
                found.append(None)
        return found

    def check_numbers(
        self,
        entries: Sequence[Entry],
        session_id: str,
        state: SealedState | None,
        *,
        after: int,
        last: int,
    ) -> None:
        """Raise `SessionDamaged` if an entry up to `last` is missing, or any is out of order."""
        if state is not None and self._is_strict_in(state):
            check_numbers([entry.seq for entry in entries], session_id, state, after, last)

    def _shown(self, item: Any, session_id: str, state: SealedState | None) -> Any:
        is_entry = isinstance(item, dict)
        if not is_entry:
            return item
        with decoding(session_id):
            entry = self.entry(entries_in([item])[0], session_id, state)
            return None if entry.type == ERASED else entry.to_dict()

    def _opened_part(
        self, session_id: str, name: str, value: Any, state: SealedState | None
    ) -> Any:
        what = f"part {name!r}"
        if state is not None and name in state.parts:
            where = self._place_of_part(session_id, name, state)
            try:
                said = self._value(value, where, session_id, what, is_strict=True)
            except KeyDestroyed:
                return None
            if not isinstance(value, Mapping) or PIECES not in value:
                return said
            with decoding(session_id):
                pieces = self._pieces(value, where, session_id, what)
                return together_in(name, said, pieces)
        if state is not None and (state.is_whole or is_sealed(value)):
            raise SessionDamaged(session_id, f"{what} does not belong to it")
        return self._value(value, b"", session_id, what, is_strict=self.is_strict)

    def glance(
        self, head: Mapping[str, Any], about: Mapping[str, Any], session_id: str
    ) -> Mapping[str, Any]:
        """Return the section that identifies a session, decrypted if one of the keys fits."""
        try:
            state = self.state(head, session_id)
            value: Mapping[str, Any] = self._opened_part(session_id, ABOUT, about, state)
        except NotReadable:
            return about
        return value

    def _value(
        self, value: Any, where: bytes, session_id: str, what: str, *, is_strict: bool
    ) -> Any:
        if not isinstance(value, Mapping) or SEALED not in value:
            if is_strict:
                raise SessionDamaged(session_id, f"{what} is not sealed")
            return value
        token = str(value[SEALED])
        if token.startswith(f"{MARK_OF_KEYS}."):
            if self.keys_file is None:
                raise NotReadable(NO_KEYS_FILE)
            try:
                return json.loads(self.keys_file.open(token, beside(where, value.get(PIECES))))
            except ValueError:
                raise SessionDamaged(session_id, f"{what} was changed after encryption") from None
        is_former = not is_sealed(value)
        with suppress(ValueError):
            if self.seal is not None and not is_former:
                return json.loads(self.seal.open(token, where))
            if self.seal is not None and is_former and not is_strict:
                return json.loads(self.seal.open_former(token))
        is_ours = not is_former and not self._lacks_key_of(token)
        if self.record is not None and ((is_strict and is_former) or is_ours):
            raise SessionDamaged(session_id, f"{what} was changed after encryption")
        raise NotReadable(other_key(session_id))

    def _check_readable(self, about: Mapping[str, Any]) -> None:
        """Raise `NotReadable` if a session needs another key, or the store's missing record."""
        if SEALED not in about:
            return
        if is_sealed(about):
            raise NotReadable(NO_RECORD)
        if self.seal is None:
            raise NotReadable(NO_KEY)
        self._value(about, b"", str(about.get("id")), "", is_strict=False)

    def _lacks_key_of(self, token: str) -> bool:
        """Return True if this process lacks the key that encrypted the text."""
        return self.seal is None or token.split(".")[1:2] not in [[n] for n in self.seal.names]

    # Keys of chats

    def binding(self, key: str, session_id: str) -> str:
        """Return the text that binds a chat's key to this session."""
        if self.seal is None:
            return session_id
        return f"{session_id} {self._sealed_bytes(b'', self._place_of_key(key, session_id))}"

    def bound(self, key: str, text: str) -> str | None:
        """Return the id of the session that a key is bound to; None for a forged binding."""
        session_id, _, token = text.partition(" ")
        if not token:
            return None if self.is_strict else session_id
        if self.seal is None:
            raise NotReadable(NO_KEY)
        try:
            self.seal.open(token, self._place_of_key(key, session_id))
        except ValueError:
            return None
        return session_id

    def _place_of_key(self, key: str, session_id: str) -> bytes:
        return place("key", self._store, key, session_id)

    # Data that is already sealed

    def is_current(self, stored: StoredSession) -> bool:
        """Return True if the whole session is encrypted with the first key."""
        state = stored.head.get(STATE)
        said = [*stored.sections.values(), *(entry.content for entry in stored.entries)]
        said += [
            item["content"] for item in stored.head.get("shown") or () if isinstance(item, Mapping)
        ]
        if not isinstance(state, Mapping) or not stored.sections.keys() <= state["parts"].keys():
            return False
        return self._is_of_first(str(state[_TAG])) and all(
            isinstance(value, Mapping) and self._is_settled(str(value.get(SEALED)))
            for value in said
        )

    def retagged(self, stored: StoredSession, snapshot: StoredSnapshot) -> Commit | None:
        """Return a commit that encrypts the head again, if everything else has its own keys."""
        state = snapshot.state
        if state is None or not state.is_keyed or not self.is_keyed:
            return None
        return self._in_state(snapshot.name, stored.head, state)

    def ending(self, session_id: str, head: Mapping[str, Any]) -> Commit | None:
        """Return the commit that stops all writing to a session with its own keys."""
        state = self.state(head, session_id)
        if state is None or not state.is_keyed:
            return None
        return self._in_state(session_id, head, changed(state, dying=(*state.dying, state.born)))

    def _in_state(self, session_id: str, head: Mapping[str, Any], state: SealedState) -> Commit:
        plain = {k: v for k, v in head.items() if k not in {STATE, COMMIT_ID}}
        changes = Changes(revision=int(head["rev"]), entries=(), head=plain, sections={}, tick=0)
        commit = Commit.of(session_id, changes)
        return changed(commit, head=self._tagged(commit.head, session_id, state))

    def _is_settled(self, token: str) -> bool:
        """Return True if the text would be encrypted in the same way now."""
        if self.is_keyed:
            return token.startswith(f"{MARK_OF_KEYS}.")
        return self._is_of_first(token)

    def _is_of_first(self, token: str) -> bool:
        return self.seal is not None and token.startswith(f"{MARK}.{self.seal.names[0]}.")
