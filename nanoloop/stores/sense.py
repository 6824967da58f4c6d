"""Whether what is stored of a session makes sense: seen where it is decoded, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nanoloop.errors import NanoloopError, SessionDamaged
from nanoloop.session.changes import ABOUT, HEARD, WAITING
from nanoloop.session.entry import Entry, from_rfc3339

_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_NEEDED = ("rev", "last")
_NUMBERS = (*_NEEDED, "start", "window", "count", "covered", "awaiting", "waiting", "turns")
_LISTS = ("hidden", "shown", "unsent", "spent")
_TIMES = ("updated_at", "expires_at")

Decode = Callable[[Any], Any]
"""From what a row has to the value that was stored."""


def as_it_is(value: Any) -> Any:
    """Decode nothing: it was done."""
    return value


@contextmanager
def making_sense(session_id: str) -> Iterator[None]:
    """Raise `SessionDamaged` for whatever goes wrong in here with the values of this session."""
    try:
        yield
    except NanoloopError:  # some of these are KeyErrors too
        raise
    except _NONSENSE as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SessionDamaged(session_id, what) from error


def head_of(session_id: str, raw: Any, decode: Decode) -> Mapping[str, Any]:
    """A head; raises `SessionDamaged`."""
    with making_sense(session_id):
        return _checked_head(decode(raw))


def _checked_head(head: Any) -> Mapping[str, Any]:
    _must(isinstance(head, Mapping), "its head is no object")
    for name in _NUMBERS:
        is_right = isinstance(head.get(name, 0), int) and (name in head or name not in _NEEDED)
        _must(is_right, f"its head has no number {name}")
    for name in _LISTS:
        _must(isinstance(head.get(name) or [], (list, tuple)), f"its head has no list {name}")
    for pair in head.get("hidden") or ():
        _must(_is_range(pair), "its head has a range of entries that is none")
    for name in _TIMES:
        _must(_is_time(head.get(name)), f"its head has no time {name}")
    return dict(head)


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
    """Sections, that of who it is among them; raises `SessionDamaged`."""
    with making_sense(session_id):
        sections = {name: decode(raw) for name, raw in pairs}
        _must(ABOUT in sections, "it doesn't say who it is")
        for name, value in sections.items():
            kinds = (Mapping, list) if name in {WAITING, HEARD} else Mapping
            _must(value is None or isinstance(value, kinds), f"its section {name!r} is none")
        _must(sections[ABOUT].get("id") == session_id, "it says it is another session")
        return sections


def entries_of(session_id: str, pairs: Iterable[tuple[int, Any]], decode: Decode) -> list[Entry]:
    """Entries with their numbers; raises `SessionDamaged`."""
    entries = []
    for seq, raw in pairs:
        try:
            entries.append(Entry.from_dict(decode(raw), seq=int(seq)))
        except _NONSENSE as error:
            raise SessionDamaged(session_id, f"entry {seq}: {error}") from error
    return entries


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
