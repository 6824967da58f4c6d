"""A session as stores keep it: head, sections and entries, all checked when read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from nanoloop.errors import NanoloopError, SessionDamaged, StoreError
from nanoloop.events import NumberMended, announce
from nanoloop.protocols import ARCHIVED, OwedSession, SessionInfo
from nanoloop.session.entry import UNDATED, Entry, copied, dated, from_rfc3339
from nanoloop.session.head import (
    ABOUT,
    MEMO,
    SUMMARY,
    WAITING,
    Changes,
    is_place,
    place_in,
    spent_in,
)
from nanoloop.session.queue import MESSAGE_ID
from nanoloop.session.session import Session
from nanoloop.session.speech import Askers

STATE = "sealed"
"""The head's field for the session's encryption state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedState:
    """The metadata of an encrypted session, which is stored encrypted in its head."""

    revision: int
    born: str
    """A random name that changes whenever the whole session is written again."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """The revision at which each section was written."""
    gone: tuple[tuple[int, int], ...] = ()
    """The ranges of entries that were erased, or already missing when the session was encrypted."""
    is_whole: bool = False
    """True if every part is encrypted in the current form."""
    edition: int = 0
    """The number of the key for texts made from several people's words; 0 without own keys."""
    dying: tuple[str, ...] = ()
    """Names of keys that are about to be destroyed, so that nothing more is encrypted with them."""
    newest: str = ""
    """The session's newest key; a keys file without it is an older copy."""
    askers: Askers = field(default_factory=Askers)
    """Digests of the people whose words the latest turn may contain."""

    @property
    def is_keyed(self) -> bool:
        """True if the session and each person in it have their own keys."""
        return self.edition > 0

    def said(self) -> dict[str, Any]:
        """Return the state as a head's field."""
        said = {
            "born": self.born,
            "parts": self.parts,
            "gone": [*map(list, self.gone)],
            "whole": self.is_whole,
        }
        if not self.is_keyed:
            return said
        asked = {"people": [*self.askers.people], "answered": self.askers.is_answered}
        keys = {"edition": self.edition, "dying": [*self.dying], "newest": self.newest}
        return {**said, **keys, **asked}

    @classmethod
    def of(cls, said: Mapping[str, Any], *, revision: int) -> SealedState:
        """Read the state from a head; raise LookupError, TypeError or ValueError if invalid."""
        parts = {str(name): int(number) for name, number in said["parts"].items()}
        gone = tuple((int(first), int(last)) for first, last in said["gone"])
        return cls(
            revision=revision,
            born=str(said["born"]),
            parts=parts,
            gone=gone,
            is_whole=said["whole"] is True,
            edition=int(said.get("edition", 0)),
            dying=tuple(map(str, said.get("dying", ()))),
            newest=str(said.get("newest", "")),
            askers=Askers(
                tuple(map(str, said.get("people", ()))),
                is_answered=said.get("answered", True) is True,
            ),
        )

    def is_gone(self, seq: int) -> bool:
        """Return True if this entry was erased or lost, so that no trace of it may remain."""
        return any(first <= seq <= last for first, last in self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A session as a store has it, with all entries numbered above `after`."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    after: int = 0
    unreadable: Sequence[str] = ()
    """Descriptions of the parts that could not be read."""
    odd: Sequence[str] = ()
    """The names of the session's numbers that were invalid."""
    state: SealedState | None = None
    """The encryption state from the head, once it has been decrypted."""

    def to_session(self, clock: Callable[[], datetime]) -> Session:
        """Create a session object that shares no mutable data with any other."""
        with decoding(self.name):
            return Session.restored(
                head=self.head,
                sections=copied(self.sections),
                entries=self.entries,
                after=self.after,
                clock=clock,
            )

    def tell_of_odd(self) -> None:
        """Announce which of the session's numbers were invalid."""
        for name in self.odd:
            announce(NumberMended(session_id=self.name, number=name))

    @property
    def name(self) -> str:
        """The session's id."""
        return str(self.sections[ABOUT]["id"])

    def to_changes(self) -> Changes:
        """Return everything as one commit, for a store that has nothing of this session yet."""
        return Changes(
            revision=int(self.head["rev"]) - 1,
            entries=tuple(self.entries),
            head=self.head,
            sections=self.sections,
            tick=0,
        )


def state_in(head: Mapping[str, Any]) -> SealedState | None:
    """Return the encryption state in a head just written; None if it is plain text."""
    said = head.get(STATE)
    return None if said is None else SealedState.of(said, revision=int(head["rev"]))


def merged(
    ranges: Iterable[tuple[int, int]], numbers: Iterable[int]
) -> tuple[tuple[int, int], ...]:
    """Return the ranges with these numbers added, merged into as few as possible."""
    found: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, *((number, number) for number in numbers)]):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def check_numbers(
    numbers: Sequence[int], session_id: str, state: SealedState, after: int, last: int
) -> None:
    """Raise `SessionDamaged` if an entry up to `last` is missing, or any is out of order."""
    if all(b - a == 1 for a, b in pairwise([after, *numbers, max(last, *numbers[-1:], 0) + 1])):
        return
    if any(b <= a for a, b in pairwise([after, *numbers])):
        raise SessionDamaged(session_id, "its entries are out of order")
    missing = {*range(after + 1, last + 1)}.difference(numbers)
    if lost := [number for number in missing if not state.is_gone(number)]:
        raise SessionDamaged(session_id, f"entry {min(lost)} is missing")


def without_lost(
    head: Mapping[str, Any], sections: Mapping[str, Any], lost: Collection[int]
) -> dict[str, Any]:
    """Return a session's head without its lost entries and sections."""
    found = dict(head)
    if SUMMARY in sections and sections[SUMMARY] is None:  # all that left the window is pending
        found["covered"] = 0
    if isinstance(waiting := sections.get(WAITING), list):
        found["waiting"] = len(waiting)
    if found.get("awaiting") in lost:
        found["awaiting"] = 0
    if found.get("unsent"):
        found["unsent"] = [seq for seq in found["unsent"] if seq not in lost]
    return found


def first_revision() -> int:
    """Return the revision at which a new session starts counting its commits.

    It is random, so that an object of a deleted session can't write to a new session with the same
    name.
    """
    return secrets.randbelow(1 << 31)


def window_start(head: Mapping[str, Any]) -> int:
    """Return the lowest entry number that the window shows."""
    shown = [seq for seq in head.get("shown") or () if isinstance(seq, int)]
    start = int(head.get("window", 1))
    return start if head.get("shown") is None else min([*shown, int(head.get("last", 0)) + 1])


def pending_start(head: Mapping[str, Any]) -> int:
    """Return the lowest entry number that no summary covers."""
    return max(int(head.get("covered", 0)), int(head.get("start", 1)) - 1) + 1


def is_visible(head: Mapping[str, Any], seq: int) -> bool:
    """Return True if an entry belongs to the current history and was not undone."""
    if seq < int(head.get("start", 1)):
        return False
    return not any(first <= seq <= last for first, last in head.get("hidden") or ())


def expiry(head: Mapping[str, Any]) -> datetime | None:
    """Return the time after which the session counts as expired, or None if it never does."""
    text = head.get("expires_at")
    return from_rfc3339(text) if text else None


def has_expired(head: Mapping[str, Any], now: datetime) -> bool:
    """Return True once the expiry time has passed."""
    moment = expiry(head)
    return moment is not None and now > moment


def info_of(head: Mapping[str, Any], about: Mapping[str, Any], *, size: int) -> SessionInfo:
    """Return the session's overview."""
    return SessionInfo(
        id=about["id"],
        key=about.get("key"),
        title=about.get("title", ""),
        agent=about.get("agent"),
        entries=int(head.get("count", 0)),
        created_at=from_rfc3339(about.get("created_at")),
        updated_at=from_rfc3339(head.get("updated_at")),
        expires_at=expiry(head),
        awaiting=int(head.get("awaiting", 0)),
        pending=pending_in(head),
        size=size,
        archived=bool((about.get("metadata") or {}).get(ARCHIVED)),
        waiting=int(head.get("waiting", 0)),
        unsent=len(head.get("unsent") or ()),
        erasures=int(head.get("erasures", 0)),
        **spent_in(head),
    )


OWES_NOTHING, OWES_CHAT, OWES_SUMMARY = 0, 1, 2


def owes(head: Mapping[str, Any]) -> int:
    """Return the most urgent kind of pending work in this session, or none."""
    if owes_chat(head):
        return OWES_CHAT
    return OWES_SUMMARY if pending_in(head) else OWES_NOTHING


def owes_chat(head: Mapping[str, Any]) -> bool:
    """Return True if the session has work for its chat: a question, a waiting message or an answer.

    Also return True if copies of erased entries may be left, because the same process removes them.
    """
    is_owed = head.get("awaiting") or head.get("waiting") or head.get("unsent")
    return bool(is_owed or head.get("erasing"))


def owed_session(session_id: str, head: Mapping[str, Any]) -> OwedSession:
    """Return the session's row in an index of pending work."""
    return OwedSession(
        id=session_id,
        revision=int(head["rev"]),
        by=str(head.get("by") or ""),
        erasing=bool(head.get("erasing")),
    )


def owed_in(raw: Any, decode: Decode) -> int:
    """Return the kind of pending work in a session with this head; none for a damaged head."""
    try:
        return owes(head_of("", raw, decode))
    except SessionDamaged:
        return OWES_NOTHING


def chat_of(session_id: str, about: Any, decode: Decode) -> str:
    """Return the key of a session's chat from the section that identifies the session."""
    with suppress(*_NONSENSE):
        return str(decode(about).get("key") or session_id)
    return session_id


NOTED = "heard"
"""The section in which earlier versions kept some message ids; it is ignored."""


def noted_in(raw: Any, decode: Decode) -> list[str]:
    """Return the message ids in this section, or none if it is encrypted or missing."""
    with suppress(*_NONSENSE):
        found = decode(raw)
        named = [_noted(each) for each in found] if isinstance(found, list) else ()
        return [str(name) for name in named if name is not None]
    return []


def _noted(item: Any) -> Any:
    return item["metadata"].get(MESSAGE_ID) if isinstance(item, dict) else item


def pending_in(head: Mapping[str, Any]) -> int:
    """Return how many entries have left the window but are not in a summary."""
    first, last = pending_start(head), window_start(head) - 1
    hidden = [max(0, min(last, b) - max(first, a) + 1) for a, b in head.get("hidden") or ()]
    count: int = last - first + 1 - sum(hidden)
    return max(0, count)


_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PLACES = (
    *("last", "start", "window", "count", "covered", "awaiting", "waiting", "turns", "epoch"),
    *("claims", "stopped", "erasures"),
)
_LISTS = ("hidden", "shown", "unsent", "spent", "erasing")
_MAPPINGS = ("resized", "senders")
_TIMES = ("updated_at", "expires_at")

Decode = Callable[[Any], Any]
"""Converts a row's value back to the value that was stored."""


def as_it_is(value: Any) -> Any:
    """Return the value unchanged, because it is already decoded."""
    return value


@contextmanager
def decoding(session_id: str) -> Iterator[None]:
    """Raise `SessionDamaged` for any error that an invalid value causes in the block."""
    try:
        yield
    except NanoloopError:  # some of these are KeyErrors too
        raise
    except _NONSENSE as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SessionDamaged(session_id, what) from error


def head_of(session_id: str, raw: Any, decode: Decode) -> Mapping[str, Any]:
    """Decode and check a head; raise `SessionDamaged` if it is invalid."""
    with decoding(session_id):
        return _checked_head(decode(raw))


class MendedHead(dict[str, Any]):
    """A head whose invalid numbers were replaced in a way that loses no message."""

    names: tuple[str, ...] = ()
    """The names of the replaced numbers."""


def _mended(head: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the head with valid numbers."""
    least = {"start": 1}
    odd = [n for n in _PLACES if n in head and place_in(head[n], -1) < least.get(n, 0)]
    resized = head.get("resized") or {}
    odd_resized = [n for n in ("turn", "seq") if not is_place(resized.get(n, 0))]
    if not odd and not odd_resized:
        return head
    mended = MendedHead(head)
    mended.names = (*odd, *(f"resized.{name}" for name in odd_resized))
    start = max(1, place_in(head.get("start", 1)))
    count = place_in(head.get("count", 0)) + sum(b - a + 1 for a, b in head.get("hidden") or ())
    instead = {"start": start, "window": start, "last": start + count - 1}
    mended |= {name: instead.get(name, 0) for name in odd}
    if resized:
        places = {name: place_in(resized.get(name, 0)) for name in ("turn", "seq")}
        places["turn"] = min(places["turn"], place_in(mended.get("turns", 0)))
        mended["resized"] = {**resized, **places}
    return mended


def odd_numbers(head: Mapping[str, Any], sections: Mapping[str, Any]) -> list[str]:
    """Return the names of the stored numbers that are invalid."""
    digests = {name: sections.get(name) or {} for name in (SUMMARY, MEMO)}
    odd = [f"{name}.seq" for name, said in digests.items() if not is_place(said.get("seq", 0))]
    return [*getattr(head, "names", ()), *odd]


def _checked_head(head: Any) -> Mapping[str, Any]:
    _must(isinstance(head, Mapping), "its head is not an object")
    _must(isinstance(head.get("rev"), int), "its head has no number rev")
    _must("last" in head, "its head has no number last")
    for name in _LISTS:
        _must(isinstance(head.get(name) or [], (list, tuple)), f"its head has no list {name}")
    for pair in head.get("hidden") or ():
        _must(_is_range(pair), "its head has an invalid range of entries")
    for ranges in head.get("erasing") or ():
        is_list = isinstance(ranges, (list, tuple))
        _must(is_list and all(map(_is_range, ranges)), "its head has invalid erased ranges")
    for name in _TIMES:
        _must(_is_time(head.get(name)), f"its head has no time {name}")
    for name in _MAPPINGS:
        _must(isinstance(head.get(name) or {}, Mapping), f"its head has no object {name}")
    return _mended(dict(head))


def _is_range(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and [type(n) for n in pair] == [int, int]


def _is_time(text: Any) -> bool:
    try:
        from_rfc3339(text)
    except ValueError:
        return False
    return True


def sections_of(
    session_id: str, pairs: Iterable[tuple[str, Any]], decode: Decode
) -> dict[str, Any]:
    """Decode the sections, including the identity; raise `SessionDamaged` if one is invalid."""
    with decoding(session_id):
        sections = {name: decode(raw) for name, raw in pairs if name != NOTED}
        _must(ABOUT in sections, "its id is missing")
        for name, value in sections.items():
            kinds = (Mapping, list) if name == WAITING else Mapping
            _must(value is None or isinstance(value, kinds), f"its section {name!r} is invalid")
        _must(sections[ABOUT].get("id") == session_id, "it belongs to another session")
        return sections


def entries_of(session_id: str, pairs: Iterable[tuple[int, Any]], decode: Decode) -> list[Entry]:
    """Decode entries and their numbers; raise `SessionDamaged` if one is invalid."""
    entries = []
    for seq, raw in pairs:
        try:
            entries.append(Entry.from_dict(decode(raw), seq=int(seq), undated=UNDATED))
        except _NONSENSE as error:
            raise SessionDamaged(session_id, f"entry {seq}: {error}") from error
    return dated(entries)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def encoded(value: Any, *, kind: str = "record") -> bytes:
    """Encode a value as one line of JSON; raise `StoreError` if it has no JSON form."""
    try:
        return _as_json(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair needs an escape
        return _as_ascii(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"this {kind} can't be written as JSON ({error}): change it") from error


_as_json = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":")).encode
_as_ascii = json.JSONEncoder(default=str, separators=(",", ":")).encode
