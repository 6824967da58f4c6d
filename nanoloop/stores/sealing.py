"""Sealing: all that is stored is encrypted for its place, and a record says with which keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import pairwise
from secrets import token_bytes, token_hex
from threading import Lock
from typing import Any, Self
from weakref import WeakKeyDictionary

from nanoloop.errors import NotReadable, SessionDamaged, StoreError
from nanoloop.protocols import Seal
from nanoloop.session.entry import ERASED, Entry, entries_in, rfc3339
from nanoloop.session.head import ABOUT, Changes, ChangeTracker
from nanoloop.stores.database import Commit, Database, StoredSession
from nanoloop.stores.snapshot import SealedState, StoredSnapshot, decoding

MARK = "n2"
"""What each sealed text begins with; earlier versions wrote texts that open anywhere."""
RECORD = "nanoloop:seal"
"""The key to which a store's seal record is bound."""
SEALED = "_sealed"
READABLE = ("id", "key", "created_at")
"""What stays readable in the section that identifies the session."""
STATE = "sealed"
"""The head's field with its seal, and with what belongs to the session."""
_TAG = "tag"

_NO_KEY = (
    "what is stored here is encrypted, and store.encryption_key is not set: set it to the key that "
    "encrypted it (NANOLOOP_STORE__ENCRYPTION_KEY); nothing was written"
)
_NO_RECORD = (
    "what is stored here is encrypted, and the record of its keys is missing: restore the whole "
    "store from a backup; nothing was written"
)
_CHANGED = (
    "the record of the keys that encrypt what is stored here was changed by something else: "
    "restore the whole store from a backup; nothing was written"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """What a store knows about its seal; it is kept in the store, and is of no use without a key.

    Everything sealed names the id, so that nothing of another store opens here.
    """

    id: str
    keys: tuple[str, ...]
    """The names of the keys that something may be sealed with."""
    is_whole: bool
    """Whether nothing plain is left, nor anything that an earlier version sealed."""
    secret: bytes
    """For digests that only processes with a key can make, and that no new key changes."""

    def text(self, seal: Seal) -> str:
        """The form in which it is kept."""
        value = {"id": self.id, "keys": [*self.keys], "whole": self.is_whole}
        return json.dumps({**value, "proof": seal.seal(self.secret, place("record", value))})

    @classmethod
    def of(cls, text: str, seal: Seal | None) -> Self:
        """Read it; raises `NotReadable` unless the seal has every key that it names."""
        try:
            value = json.loads(text)
            proof = str(value.pop("proof"))
            names = tuple(map(str, value["keys"]))
            record = cls(id=str(value["id"]), keys=names, is_whole=value["whole"], secret=b"")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NotReadable(_CHANGED) from None
        if seal is None:
            raise NotReadable(_NO_KEY)
        if missing := [name for name in record.keys if name not in seal.names]:
            raise NotReadable(
                "what is stored here is encrypted with a key that store.encryption_key lacks "
                f"(named {missing[0]}; it has {', '.join(seal.names)}): append that key, after a "
                "comma; nothing was written"
            )
        try:
            return changed(record, secret=seal.open(proof, place("record", value)))
        except ValueError:
            raise NotReadable(_CHANGED) from None


def place(*names: object) -> bytes:
    """What a sealed text is bound to."""
    return json.dumps(names, sort_keys=True, default=str, separators=(",", ":")).encode()


class Sealing:
    """Seals changes and opens snapshots; without a seal it only lets plain ones through.

    Ids, numbers, types and times are left as they are, so that files can be repaired, searched and
    listed without the key; the seal of the head, and of each entry, covers them. Until everything
    is sealed, what was written in plain text or by an earlier version stays readable too.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        self.seal = seal
        self.record: SealRecord | None = None
        """The store's record, once it is read; None if nothing was ever sealed there."""
        self.inherited = b""
        """The secret of the store that this one is copied from, if any."""
        self._text = ""
        self._lock = Lock()
        self._states: WeakKeyDictionary[ChangeTracker, SealedState] = WeakKeyDictionary()

    # The store's record

    async def read(self, database: Database) -> None:
        """Read the store's record; raises `NotReadable` if its keys are not all there."""
        record = await database.bound(RECORD)
        if record is not None:
            self.learn(record)

    async def look_for_seals(self, database: Database, *, now: int) -> None:
        """Look at the newest sessions of a store that has no record, as earlier versions made.

        Raises `NotReadable` if one is sealed, and none of the keys opens it.
        """
        seen = 0
        async for stored in database.glances(now=now):
            if isinstance(stored, StoredSession):
                self._check_readable(stored.sections[ABOUT])
            seen += 1
            if seen == LOOKED_AT:
                return

    async def prepare(self, database: Database, *, now: int) -> None:
        """Have the store's record name the key that seals from now on."""
        while not self.may_write:
            was = await database.bound(RECORD)
            if was is None:
                await self.look_for_seals(database, now=now)
            elif was != self._text:
                self.learn(was)
                continue
            is_empty = was is None and not [name async for name in database.names()]
            is_done = await self._replace(database, self.renewed(is_empty=is_empty), was=was)
            if is_done and is_empty:
                await self.seal_bindings(database)

    async def finish(self, database: Database) -> None:
        """Note that everything is sealed with the first key: from now on, nothing else opens."""
        await self.seal_bindings(database)
        while not await self._replace(database, self.completed(), was=await database.bound(RECORD)):
            await self.read(database)

    async def _replace(self, database: Database, text: str, *, was: str | None) -> bool:
        """Replace the record, unless another process was first."""
        if not await rebind(database, RECORD, text, was=was):
            return False
        self.learn(text)
        return True

    async def seal_bindings(self, database: Database) -> None:
        """Seal what the chats' keys are bound to."""
        found = [item async for item in database.bindings()]
        for key, text in found:
            session_id = self.bound(key, text) if key != RECORD else None
            if session_id is not None and not self._is_of_first(text.partition(" ")[2]):
                await database.bind(key, self.binding(key, session_id))

    @property
    def may_write(self) -> bool:
        """Whether the store's record says all that is to be known of what is written now."""
        if self.seal is None:
            return self.record is None
        record = self.record
        # The first records had no secret.
        return record is not None and self.seal.names[0] in record.keys and record.secret != b""

    @property
    def is_strict(self) -> bool:
        """Whether anything that is not sealed in its place is damage."""
        return self.record is not None and self.record.is_whole

    def _is_strict_in(self, state: SealedState | None) -> bool:
        return self.is_strict or (state is not None and state.is_whole)

    def learn(self, text: str) -> None:
        """Note the store's record; raises `NotReadable` if its keys are not all there."""
        self.record, self._text = SealRecord.of(text, self.seal), text

    def renewed(self, *, is_empty: bool) -> str:
        """The record that lets the first key seal, with the present one as its basis."""
        assert self.seal is not None  # noqa: S101 - asked for only where there is one
        names = self.seal.names
        if self.record is None:
            # Whatever an earlier version sealed, it was with some of these.
            keys = names[:1] if is_empty else names
            secret = self.inherited or _new_secret()
            record = SealRecord(id=token_hex(8), keys=keys, is_whole=is_empty, secret=secret)
        else:
            keys = tuple(dict.fromkeys((names[0], *self.record.keys)))
            record = changed(self.record, keys=keys, secret=self.record.secret or _new_secret())
        return record.text(self.seal)

    def completed(self) -> str:
        """The record that says that everything is sealed, with the first key."""
        assert self.seal is not None  # noqa: S101 - as above
        assert self.record is not None  # noqa: S101 - something was sealed before
        return changed(self.record, keys=self.seal.names[:1], is_whole=True).text(self.seal)

    # What sessions were like

    def known(self, tracker: ChangeTracker, *, revision: int) -> SealedState | None:
        """What belonged to that session at this revision, if it is remembered."""
        with self._lock:
            state = self._states.get(tracker)
        return state if state is not None and state.revision == revision else None

    def note(self, tracker: ChangeTracker, state: SealedState | None) -> None:
        """Remember what belongs to that session."""
        if state is not None:
            with self._lock:
                self._states[tracker] = state

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
    ) -> Commit:
        """The changes as they may be written, based on that state; `is_all` of a session."""
        if self.seal is None:
            return Commit.of(
                session_id, changes, rewritten=rewritten, erased=[*gone], shrinks=shrinks
            )
        revision = changes.revision + 1
        state = state or SealedState(revision=revision, born=token_hex(8), is_whole=is_all)
        state = changed(
            state,
            revision=revision,
            parts={**state.parts, **dict.fromkeys(changes.sections, revision)},
            gone=_merged(state.gone, gone),
        )
        sealed = changed(
            changes,
            entries=tuple(self._sealed(entry, session_id, state) for entry in changes.entries),
            sections={n: self._part(session_id, n, v, state) for n, v in changes.sections.items()},
            head=self._head(changes.head, session_id, state),
        )
        commit = Commit.of(
            session_id,
            sealed,
            rewritten=[self._sealed(entry, session_id, state) for entry in rewritten],
            erased=[*gone],
            shrinks=shrinks,
        )
        return changed(commit, head=self._tagged(commit.head, session_id, state))

    def _sealed(self, entry: Entry, session_id: str, state: SealedState) -> Entry:
        said = {"content": entry.content, "metadata": entry.metadata}
        token = self._token(said, self._place_of(entry, session_id, state))
        return changed(entry, content={SEALED: token}, metadata={})

    def _place_of(self, entry: Entry, session_id: str, state: SealedState) -> bytes:
        told = (entry.seq, entry.id, entry.type, rfc3339(entry.timestamp))
        return place("entry", self._store, session_id, state.born, *told)

    def _part(self, session_id: str, name: str, value: Any, state: SealedState) -> dict[str, Any]:
        readable = {n: value[n] for n in READABLE if n in value} if name == ABOUT else {}
        token = self._token(value, self._place_of_part(session_id, name, state))
        return {**readable, SEALED: token}

    def _place_of_part(self, session_id: str, name: str, state: SealedState) -> bytes:
        return place("part", self._store, session_id, state.born, name, state.parts[name])

    def _head(
        self, head: Mapping[str, Any], session_id: str, state: SealedState
    ) -> Mapping[str, Any]:
        """The head; a handler's window may show entries that are in no log."""
        shown = [
            self._sealed(entries_in([item])[0], session_id, state).to_dict()
            if isinstance(item, dict)
            else item
            for item in head.get("shown") or ()
        ]
        return {**head, "shown": shown} if shown else head

    def _tagged(
        self, head: Mapping[str, Any], session_id: str, state: SealedState
    ) -> dict[str, Any]:
        gone = [*map(list, state.gone)]
        said = {"born": state.born, "parts": state.parts, "gone": gone, "whole": state.is_whole}
        whole = {**head, STATE: said}
        tag = self._sealed_bytes(b"", place("head", self._store, session_id, whole))
        return {**whole, STATE: {**said, _TAG: tag}}

    def _token(self, value: Any, where: bytes) -> str:
        try:
            data = json.dumps(value, default=str).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"this can't be written as JSON ({error}): change it") from error
        return self._sealed_bytes(data, where)

    def _sealed_bytes(self, data: bytes, where: bytes) -> str:
        assert self.seal is not None  # noqa: S101 - asked for only where there is one
        return self.seal.seal(data, where)

    @property
    def _store(self) -> str:
        if self.record is None:
            raise NotReadable(_NO_RECORD)
        return self.record.id

    # Opening

    def state(self, head: Mapping[str, Any], session_id: str) -> SealedState | None:
        """What a head says belongs to its session; None if it isn't sealed, and need not be.

        Raises `SessionDamaged` if it is not what was sealed, and `NotReadable` without a key.
        """
        said = head.get(STATE)
        if said is None:
            if self.is_strict:
                raise SessionDamaged(session_id, "its head is not sealed")
            return None
        if self.seal is None:
            raise NotReadable(_NO_KEY)
        try:
            rest = {name: value for name, value in said.items() if name != _TAG}
            where = place("head", self._store, session_id, {**head, STATE: rest})
            tag = str(said[_TAG])
            if self._lacks_key_of(tag):
                raise NotReadable(_other_key(session_id))
            self.seal.open(tag, where)
            return SealedState.of(said, revision=int(head["rev"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SessionDamaged(session_id, "its head is not what was sealed there") from error

    def opened(self, snapshot: StoredSnapshot) -> StoredSnapshot:
        """A stored snapshot, made readable again; raises `StoreError` if it can't be."""
        name = snapshot.name
        state = self.state(snapshot.head, name)
        head = {key: value for key, value in snapshot.head.items() if key != STATE}
        if head.get("shown"):
            head["shown"] = [self._shown(item, name, state) for item in head["shown"]]
        sections = {k: self._opened_part(name, k, v, state) for k, v in snapshot.sections.items()}
        if state and (missing := state.parts.keys() - sections.keys()):
            raise SessionDamaged(name, f"part {min(missing)!r} is missing")
        entries = [self.entry(entry, name, state) for entry in snapshot.entries]
        self.check_numbers(entries, name, state, after=snapshot.after, last=int(head["last"]))
        if state and entries and entries[-1].seq > int(head["last"]):
            raise SessionDamaged(name, f"it ends with entry {head['last']}, and another follows")
        return changed(snapshot, head=head, sections=sections, entries=entries, state=state)

    def entry(self, entry: Entry, session_id: str, state: SealedState | None) -> Entry:
        """One entry, made readable again; raises like `opened`."""
        where = b"" if state is None else self._place_of(entry, session_id, state)
        what = f"entry {entry.seq}"
        is_strict = self._is_strict_in(state)
        said = self._value(entry.content, where, session_id, what, is_strict=is_strict)
        if said is entry.content:
            return entry
        with decoding(session_id):
            opened = changed(entry, content=said["content"], metadata=said["metadata"])
        if state and opened.type != ERASED and state.is_gone(entry.seq):
            raise SessionDamaged(session_id, f"{what} was erased, and is there again")
        return opened

    def check_numbers(
        self,
        entries: Sequence[Entry],
        session_id: str,
        state: SealedState | None,
        *,
        after: int,
        last: int,
    ) -> None:
        """Raise `SessionDamaged` if one is missing up to `last`, or out of order."""
        if state is None or not self._is_strict_in(state):
            return
        numbers = [entry.seq for entry in entries]
        if all(b - a == 1 for a, b in pairwise([after, *numbers, max(last, *numbers[-1:], 0) + 1])):
            return
        if any(b <= a for a, b in pairwise([after, *numbers])):
            raise SessionDamaged(session_id, "its entries are not in their order")
        missing = {*range(after + 1, last + 1)}.difference(numbers)
        if lost := [number for number in missing if not state.is_gone(number)]:
            raise SessionDamaged(session_id, f"entry {min(lost)} is missing")

    def _shown(self, item: Any, session_id: str, state: SealedState | None) -> Any:
        is_entry = isinstance(item, dict)
        if not is_entry:
            return item
        with decoding(session_id):
            return self.entry(entries_in([item])[0], session_id, state).to_dict()

    def _opened_part(
        self, session_id: str, name: str, value: Any, state: SealedState | None
    ) -> Any:
        what = f"part {name!r}"
        if state is not None and name in state.parts:
            where = self._place_of_part(session_id, name, state)
            return self._value(value, where, session_id, what, is_strict=True)
        if state is not None and (state.is_whole or _is_sealed(value)):
            raise SessionDamaged(session_id, f"{what} does not belong to it")
        return self._value(value, b"", session_id, what, is_strict=self.is_strict)

    def glance(
        self, head: Mapping[str, Any], about: Mapping[str, Any], session_id: str
    ) -> Mapping[str, Any]:
        """What identifies a session, as far as the key can decrypt it; raises `SessionDamaged`."""
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
        is_former = not _is_sealed(value)
        with suppress(ValueError):
            if self.seal is not None and not is_former:
                return json.loads(self.seal.open(token, where))
            if self.seal is not None and is_former and not is_strict:
                return json.loads(self.seal.open_former(token))
        is_ours = not is_former and not self._lacks_key_of(token)
        if self.record is not None and ((is_strict and is_former) or is_ours):
            raise SessionDamaged(session_id, f"{what} is not what was sealed there")
        raise NotReadable(_other_key(session_id))

    def _check_readable(self, about: Mapping[str, Any]) -> None:
        """Raise `NotReadable` for a session of a store without a record that no key here opens."""
        if SEALED not in about:
            return
        if _is_sealed(about):
            raise NotReadable(_NO_RECORD)
        if self.seal is None:
            raise NotReadable(_NO_KEY)
        self._value(about, b"", str(about.get("id")), "", is_strict=False)

    def _lacks_key_of(self, token: str) -> bool:
        """Whether it was sealed with a key that another process has and this one lacks."""
        return self.seal is None or token.split(".")[1:2] not in [[n] for n in self.seal.names]

    # Keys of chats

    def binding(self, key: str, session_id: str) -> str:
        """What a chat's key is bound to, in the form in which it is written."""
        if self.seal is None:
            return session_id
        return f"{session_id} {self._sealed_bytes(b'', self._place_of_key(key, session_id))}"

    def bound(self, key: str, text: str) -> str | None:
        """The session that a key is bound to; None if something else wrote that."""
        session_id, _, token = text.partition(" ")
        if not token:
            return None if self.is_strict else session_id
        if self.seal is None:
            raise NotReadable(_NO_KEY)
        try:
            self.seal.open(token, self._place_of_key(key, session_id))
        except ValueError:
            return None
        return session_id

    def _place_of_key(self, key: str, session_id: str) -> bytes:
        return place("key", self._store, key, session_id)

    # What is sealed already

    def is_current(self, stored: StoredSession) -> bool:
        """Whether all of it is sealed with the first key."""
        state = stored.head.get(STATE)
        said = [*stored.sections.values(), *(entry.content for entry in stored.entries)]
        said += [item["content"] for item in stored.head.get("shown") or () if _is_entry(item)]
        if not isinstance(state, Mapping) or not stored.sections.keys() <= state["parts"].keys():
            return False
        return self._is_of_first(str(state[_TAG])) and all(
            isinstance(value, Mapping) and self._is_of_first(str(value.get(SEALED)))
            for value in said
        )

    def _is_of_first(self, token: str) -> bool:
        return self.seal is not None and token.startswith(f"{MARK}.{self.seal.names[0]}.")


LOOKED_AT = 64
"""How many sessions of a store without a record are looked at before it is used."""


async def rebind(database: Database, key: str, session_id: str, *, was: str | None) -> bool:
    """Bind this key unless it is bound to something other than `was`; whether that was done."""
    if (own := getattr(database, "rebind", None)) is not None:
        done: bool = await own(key, session_id, was=was)
        return done
    # A database of another package, which may not know it: two at the same moment could both win.
    if await database.bound(key) != was:
        return False
    await database.bind(key, session_id)
    return True


def _new_secret() -> bytes:
    return token_bytes(32)


def state_in(head: Mapping[str, Any]) -> SealedState | None:
    """What a head that was just sealed says; None if it is plain."""
    said = head.get(STATE)
    return None if said is None else SealedState.of(said, revision=int(head["rev"]))


def _other_key(session_id: str) -> str:
    return (
        f"session {session_id!r} is encrypted, and none of the keys can decrypt it: append the "
        "key it was written with to store.encryption_key (NANOLOOP_STORE__ENCRYPTION_KEY), "
        "after a comma"
    )


def _is_entry(item: Any) -> bool:
    return isinstance(item, Mapping)


def _is_sealed(value: Any) -> bool:
    """Whether this version sealed it."""
    return isinstance(value, Mapping) and str(value.get(SEALED, "")).startswith(f"{MARK}.")


def _merged(
    ranges: Iterable[tuple[int, int]], numbers: Iterable[int]
) -> tuple[tuple[int, int], ...]:
    """Ranges of numbers with these added, as few as possible."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, *((number, number) for number in numbers)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)
