"""What a store keeps of a session: its head, sections and entries, checked when they are read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedState:
    """What belongs to a sealed session: its head says it, under a seal."""

    revision: int
    born: str
    """A random name, another one each time that all of it is written anew."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """At which revision each section was written."""
    gone: tuple[tuple[int, int], ...] = ()
    """Ranges of the entries that were erased, or were missing when it was sealed."""
    is_whole: bool = False
    """Whether nothing of it is plain, or sealed by an earlier version."""

    @classmethod
    def of(cls, said: Mapping[str, Any], *, revision: int) -> SealedState:
        """Read it from a head; raises LookupError, TypeError or ValueError if it is invalid."""
        parts = {str(name): int(number) for name, number in said["parts"].items()}
        gone = tuple((int(first), int(last)) for first, last in said["gone"])
        return cls(
            revision=revision,
            born=str(said["born"]),
            parts=parts,
            gone=gone,
            is_whole=said["whole"] is True,
        )

    def is_gone(self, seq: int) -> bool:
        """Whether nothing must be left of that entry."""
        return any(first <= seq <= last for first, last in self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A session as a store has it, with all entries whose number is above `after`."""

    head: Mapping[str, Any]
    sections: Mapping[str, Any]
    entries: Sequence[Entry]
    after: int = 0
    unreadable: Sequence[str] = ()
    """Which parts of it could not be read, in words."""
    odd: Sequence[str] = ()
    """Which of its numbers were invalid."""
    state: SealedState | None = None
    """What its head says under its seal, once that is opened."""

    def to_session(self, clock: Callable[[], datetime]) -> Session:
        """A new session object that shares nothing mutable with any other."""
        with decoding(self.name):
            return Session.restored(
                head=self.head,
                sections=copied(self.sections),
                entries=self.entries,
                after=self.after,
                clock=clock,
            )

    def tell_of_odd(self) -> None:
        """Announce the numbers that were invalid."""
        for name in self.odd:
            announce(NumberMended(session_id=self.name, number=name))

    @property
    def name(self) -> str:
        """The session's id."""
        return str(self.sections[ABOUT]["id"])

    def to_changes(self) -> Changes:
        """All of it as one commit, for a store that has none of it."""
        return Changes(
            revision=int(self.head["rev"]) - 1,
            entries=tuple(self.entries),
            head=self.head,
            sections=self.sections,
            tick=0,
        )


def first_revision() -> int:
    """The revision at which a new session starts to count its commits.

    It is random: an object of a deleted session must not fit its successor of the same name.
    """
    return secrets.randbelow(1 << 31)


def window_start(head: Mapping[str, Any]) -> int:
    """The lowest number that the window shows."""
    shown = [seq for seq in head.get("shown") or () if isinstance(seq, int)]
    start = int(head.get("window", 1))
    return start if head.get("shown") is None else min([*shown, int(head.get("last", 0)) + 1])


def pending_start(head: Mapping[str, Any]) -> int:
    """The lowest number that no summary covers."""
    return max(int(head.get("covered", 0)), int(head.get("start", 1)) - 1) + 1


def is_visible(head: Mapping[str, Any], seq: int) -> bool:
    """Whether an entry belongs to the present history and was not taken back."""
    if seq < int(head.get("start", 1)):
        return False
    return not any(first <= seq <= last for first, last in head.get("hidden") or ())


def expiry(head: Mapping[str, Any]) -> datetime | None:
    """The moment after which the session is gone; None for never."""
    text = head.get("expires_at")
    return from_rfc3339(text) if text else None


def has_expired(head: Mapping[str, Any], now: datetime) -> bool:
    """Whether it has expired, which is strictly after the given moment."""
    moment = expiry(head)
    return moment is not None and now > moment


def info_of(head: Mapping[str, Any], about: Mapping[str, Any], *, size: int) -> SessionInfo:
    """The session at a glance."""
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
    """What is owed in this session: something to its chat, else a summary, else nothing."""
    if owes_chat(head):
        return OWES_CHAT
    return OWES_SUMMARY if pending_in(head) else OWES_NOTHING


def owes_chat(head: Mapping[str, Any]) -> bool:
    """Whether a question has no answer, something waits, or an answer isn't sent.

    Or copies of what was erased may be left: whoever answers here removes them.
    """
    is_owed = head.get("awaiting") or head.get("waiting") or head.get("unsent")
    return bool(is_owed or head.get("erasing"))


def owed_session(session_id: str, head: Mapping[str, Any]) -> OwedSession:
    """The session's row in an index of owed work."""
    return OwedSession(
        id=session_id,
        revision=int(head["rev"]),
        by=str(head.get("by") or ""),
        erasing=bool(head.get("erasing")),
    )


def owed_in(raw: Any, decode: Decode) -> int:
    """What is owed in a session with this head; nothing if it is damaged, as it can't be opened."""
    try:
        return owes(head_of("", raw, decode))
    except SessionDamaged:
        return OWES_NOTHING


def chat_of(session_id: str, about: Any, decode: Decode) -> str:
    """The key of the chat that a session was made for, from the section that identifies it."""
    with suppress(*_NONSENSE):
        return str(decode(about).get("key") or session_id)
    return session_id


NOTED = "heard"
"""The section in which earlier versions kept the ids of some messages; it is skipped."""


def noted_in(raw: Any, decode: Decode) -> list[str]:
    """The ids in it, or those of the waiting messages in it; none if it is sealed or missing."""
    with suppress(*_NONSENSE):
        found = decode(raw)
        named = [_noted(each) for each in found] if isinstance(found, list) else ()
        return [str(name) for name in named if name is not None]
    return []


def _noted(item: Any) -> Any:
    return item["metadata"].get(MESSAGE_ID) if isinstance(item, dict) else item


def pending_in(head: Mapping[str, Any]) -> int:
    """How many entries have left the window and are in no summary."""
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
"""Turns what a row has into the value that was stored."""


def as_it_is(value: Any) -> Any:
    """The value unchanged: it is already decoded."""
    return value


@contextmanager
def decoding(session_id: str) -> Iterator[None]:
    """Raise `SessionDamaged` for anything that goes wrong in here with this session's values."""
    try:
        yield
    except NanoloopError:  # some of these are KeyErrors too
        raise
    except _NONSENSE as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SessionDamaged(session_id, what) from error


def head_of(session_id: str, raw: Any, decode: Decode) -> Mapping[str, Any]:
    """A head; raises `SessionDamaged`."""
    with decoding(session_id):
        return _checked_head(decode(raw))


class MendedHead(dict[str, Any]):
    """A head with invalid numbers that were replaced in a way that loses no message."""

    names: tuple[str, ...] = ()
    """The names of these numbers."""


def _mended(head: Mapping[str, Any]) -> Mapping[str, Any]:
    """The head, with numbers that can be used."""
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
    """The names of the stored numbers that are invalid."""
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
    """Sections, including the one that identifies the session; raises `SessionDamaged`."""
    with decoding(session_id):
        sections = {name: decode(raw) for name, raw in pairs if name != NOTED}
        _must(ABOUT in sections, "its id is missing")
        for name, value in sections.items():
            kinds = (Mapping, list) if name == WAITING else Mapping
            _must(value is None or isinstance(value, kinds), f"its section {name!r} is invalid")
        _must(sections[ABOUT].get("id") == session_id, "it belongs to another session")
        return sections


def entries_of(session_id: str, pairs: Iterable[tuple[int, Any]], decode: Decode) -> list[Entry]:
    """Entries with their numbers; raises `SessionDamaged`."""
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
    """A value as one line of JSON; raises `StoreError` if that is not possible."""
    try:
        return _as_json(value, ascii_only=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair: only an escape can carry it
        return _as_json(value, ascii_only=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"this {kind} can't be written as JSON ({error}): change it") from error


def _as_json(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, default=str, separators=(",", ":"))
