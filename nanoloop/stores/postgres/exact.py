"""JSON that JSONB takes and gives back as it was. Pure.

JSONB refuses NUL and half a surrogate pair, sorts keys, and writes 1e22 without its exponent.
What would change stands in it twice: in outline for queries, and as a string for us.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.stores.encoding import encoded

EXACT = "_exact"
"""The key of the whole value, as JSON in a string."""
_ENTRY_LEVELS, _LEVELS = 2, 1
"""So many outermost levels are read by their keys alone: there the order may be any."""


def packed(value: Any) -> str:
    """A head or section as a row has it; raises `StoreError` where it is no JSON."""
    text = encoded(value)
    fits = isinstance(value, Mapping) and EXACT not in value and _fits(value, _LEVELS)
    return text.decode() if fits else _twice(text, _LEVELS)


def packed_entry(entry: Entry, text: bytes) -> str:
    """An entry as a row has it; `text` is its JSON."""
    fits = _fits([entry.id, entry.type], 0) and all(
        _fits(part, _ENTRY_LEVELS - 1) for part in (entry.content, entry.metadata)
    )
    return text.decode() if fits else _twice(text, _ENTRY_LEVELS)


def unpacked(text: str) -> Any:
    """The value again."""
    value = json.loads(text)
    return json.loads(value[EXACT]) if isinstance(value, dict) and EXACT in value else value


def _twice(text: bytes, levels: int) -> str:
    outline = _outline(json.loads(text), levels)
    return json.dumps({**(outline or {}), EXACT: text.decode()})


def _outline(value: Any, levels: int) -> Any:
    """Its words and numbers so many levels deep; None for the rest."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "?")
    if isinstance(value, dict) and levels > 0:
        inner = ((_outline(k, 0), _outline(v, levels - 1)) for k, v in value.items())
        return {key: item for key, item in inner if item is not None}
    return value if isinstance(value, int) else None


def _fits(value: Any, levels: int) -> bool:
    """Whether JSONB gives it back the same, but for the order of keys in the outermost levels."""
    if isinstance(value, Mapping):
        keys = list(value)
        is_kept = _are_plain(keys) and (levels > 0 or keys == sorted(keys, key=_jsonb_order))
        return is_kept and _all_fit(value.values(), levels - 1)
    if isinstance(value, (list, tuple)):
        return _all_fit(value, 0)
    return value is None or any(isinstance(value, kind) and ok(value) for kind, ok in _SIMPLE)


def _all_fit(values: Iterable[Any], levels: int) -> bool:
    return all(_fits(value, levels) for value in values)


def _are_plain(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) and is_plain(key) for key in keys)


def _jsonb_order(key: str) -> tuple[int, bytes]:
    data = key.encode()
    return len(data), data


def is_plain(text: str) -> bool:
    """Whether PostgreSQL takes it as text: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_short(number: float) -> bool:
    is_negative_zero = number == 0 and math.copysign(1, number) < 0
    return math.isfinite(number) and "e" not in repr(number) and not is_negative_zero


_SIMPLE: tuple[tuple[type, Callable[[Any], bool]], ...] = (
    (str, is_plain),
    (int, lambda _: True),
    (float, _is_short),
)

_QUOTE = '"'


def plain(text: str) -> str:
    """Any text as one that PostgreSQL takes: itself, or in quotes with escapes."""
    is_itself = is_plain(text) and not text.startswith(_QUOTE)
    return text if is_itself else json.dumps(text)


def unplain(text: str) -> str:
    """The text again."""
    return json.loads(text) if text.startswith(_QUOTE) else text
