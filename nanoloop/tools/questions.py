"""Questions of a tool to the person: the form that a running call wants filled in."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nanoloop.errors import ToolError

MOST_FIELDS = 20
LONGEST_FIELD_NAME = 40
MOST_CHOICES, LONGEST_CHOICE = 30, 50
"""How many choices of a field are shown in nanoloop's own words, and how long each may be."""
LONGEST_CHOICES = 500
"""How many characters of other choices are quoted with the message."""
LONGEST_FORM = 20_000
"""How many characters of JSON a form may have."""
LONGEST_MESSAGE = 2_000
"""How many characters of a question the person is shown."""
LONGEST_STATE = 100_000
"""How many characters of JSON a tool may have kept until the answer."""
DECLINE: Mapping[str, Any] = {"action": "decline"}
_TRUE, _FALSE = frozenset({"yes", "true", "1", "on"}), frozenset({"no", "false", "0", "off"})


UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable but are invisible."""


def is_plain(text: str) -> bool:
    """Return True if the text is on one line and every character of it can be seen."""
    return text.isprintable() and not UNSEEN.search(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """What a tool asks the person before its call can continue."""

    form: Mapping[str, Any]
    """The `message`, and the `fields` to fill in: a JSON schema each, by name."""
    state: Mapping[str, Any]
    """What the tool gets back with the answer, as JSON."""


def tool_question(
    message: str, fields: object, required: object, state: Mapping[str, Any]
) -> ToolQuestion:
    """Return a question within its limits; raise `ToolError` if it can't be asked."""
    if not isinstance(fields, Mapping):
        raise _not_asked()
    if len(fields) > MOST_FIELDS or len(json.dumps(state)) > LONGEST_STATE:
        raise ToolError("it asks the user for more than can be asked here")
    known = {name: _field(name, field) for name, field in fields.items()}
    needed = [name for name in known if isinstance(required, list) and name in required]
    quoted = (message[:LONGEST_MESSAGE], *_quoted_choices(known))
    form = {
        "message": "\n".join(quoted)[: 2 * LONGEST_MESSAGE],
        "fields": known,
        "required": needed,
    }
    if len(json.dumps(form)) > LONGEST_FORM:
        raise ToolError("it asks the user for more than can be asked here")
    return ToolQuestion(form=form, state=state)


def _not_asked() -> ToolError:
    return ToolError("it asks the user for something that can't be asked here")


_FIELD_NAME = re.compile(rf"[\w.-]{{1,{LONGEST_FIELD_NAME}}}")


def _field(name: str, field: Any) -> dict[str, Any]:
    kind = field.get("type") if isinstance(field, Mapping) else None
    is_usable = isinstance(kind, str) and kind in _READERS
    if not is_usable or not _FIELD_NAME.fullmatch(name) or not is_plain(name):
        raise _not_asked()
    choices = field.get("enum")
    if not isinstance(choices, list):
        return {"type": kind}
    if not 0 < len(choices) < LONGEST_FORM or not all(map(_is_choice, choices)):
        raise _not_asked()
    return {"type": kind, "enum": list(choices)}


def _is_choice(value: object) -> bool:
    """Return True if a person can read and type this choice."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    is_short = isinstance(value, bool | float | str) or (
        isinstance(value, int) and abs(value) < _LARGEST
    )
    return is_short and is_plain(str(value))


_LARGEST = 10**LONGEST_CHOICE
_ODD = re.compile("[/`|<>@\\[\\]]")
"""What makes links, mentions and code of a text on chat platforms."""


def _is_shown(choices: list[Any]) -> bool:
    """Return True if the choices are fit for a sentence of our own."""
    words = [str(each) for each in choices]
    return len(words) <= MOST_CHOICES and all(
        0 < len(word) <= LONGEST_CHOICE and not _ODD.search(word) for word in words
    )


def _quoted_choices(fields: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return lines for the choices that are not shown in a sentence of our own."""
    lists = {name: field.get("enum") or [] for name, field in fields.items()}
    lines = [f"{name}: {', '.join(map(str, c))}" for name, c in lists.items() if not _is_shown(c)]
    return [
        line if len(line) <= LONGEST_CHOICES else f"{line[:LONGEST_CHOICES]} […]" for line in lines
    ]


def fields_text(form: Mapping[str, Any]) -> str:
    """Return how to write an answer: a word for one field, `NAME=…` for several."""
    fields: Mapping[str, Any] = form.get("fields") or {}
    if len(fields) == 1:
        return _values(next(iter(fields.values())))
    return " ".join(f"{name}={_values(field)}" for name, field in fields.items())


def _values(field: Mapping[str, Any]) -> str:
    choices = field.get("enum") or []
    if choices and _is_shown(choices):
        return "|".join(map(str, choices))
    return {"boolean": "yes|no", "string": "TEXT", "array": "TEXT,TEXT"}.get(
        field["type"], "NUMBER"
    )


def needs_words(form: Mapping[str, Any]) -> bool:
    """Return True if a plain yes does not answer the form."""
    fields: Mapping[str, Any] = form.get("fields") or {}
    is_yes_or_no = len(fields) == 1 and _only(fields)["type"] == "boolean"
    return bool(form.get("required")) and not is_yes_or_no


def _only(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(next(iter(fields.values())))


def accepted(form: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Return the answer with the person's words in the fields, or None if they don't fit."""
    fields: Mapping[str, Any] = form.get("fields") or {}
    words = _words(fields, text)
    if words is None or not set(form.get("required") or ()) <= words.keys() <= fields.keys():
        return None
    found = {name: _value(fields[name], word) for name, word in words.items()}
    if None in found.values():
        return None
    return {"action": "accept", "content": found}


def _words(fields: Mapping[str, Any], text: str) -> dict[str, str] | None:
    """Return the text for each field, or None if it can't be taken apart."""
    if not text:
        is_yes = len(fields) == 1 and _only(fields)["type"] == "boolean"
        return {next(iter(fields)): "yes"} if is_yes else {}
    if len(fields) == 1:
        return {next(iter(fields)): text}
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        return None
    return {name: word for name, _, word in pairs} if all(mark for _, mark, _ in pairs) else None


def _value(field: Mapping[str, Any], word: str) -> Any:
    """Return a field's value, or None if the word is not of its type."""
    choices = field.get("enum")
    if choices is not None:
        return next((choice for choice in choices if str(choice) == word), None)
    try:
        return _READERS[field["type"]](word)
    except ValueError:
        return None


def _finite(word: str) -> float | None:
    number = float(word)
    return number if math.isfinite(number) else None


def _truth(word: str) -> bool | None:
    low = word.lower()
    return low in _TRUE if low in _TRUE | _FALSE else None


_READERS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "integer": int,
    "number": _finite,
    "boolean": _truth,
    "array": lambda word: [each.strip() for each in word.split(",")],
}
