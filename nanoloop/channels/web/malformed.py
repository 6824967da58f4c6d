"""What is wrong with what a request says: which field, what it was if that is short, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHOWN = 60
"""Characters of a value that are said again."""
_SECRET = re.compile(r"token|key|secret|passw", re.IGNORECASE)
_WRONG = {
    "bool": "not true or false",
    "dict": "not an object",
    "int": "not a whole number",
    "list": "not a list",
    "model": "not an object",
    "string": "not a text",
}
"""What a value is not, by the first word of the error's kind."""
_BOUNDS = {
    "greater_than_equal": "is {value}, less than {ge}",
    "less_than_equal": "is {value}, more than {le}",
    "literal_error": "is {value}, not {expected}",
    "string_pattern_mismatch": "is {value}, not like {pattern}",
    "string_too_long": "is too long: at most {max_length} characters",
    "string_too_short": "is too short: at least {min_length}",
    "too_long": "has too many: at most {max_length}",
    "too_short": "has too few: at least {min_length}",
}


def quoted(text: object) -> str:
    """What was asked for, in quotes, as much of it as a sentence bears."""
    return repr(str(text)[:SHOWN])


def problem_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """The field that is wrong, or nothing for the whole, and a sentence that begins with it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return where, f"{where or 'the body'} {_wrong(first, where, model)}"


def _wrong(first: ErrorDetails, where: str, model: type[BaseModel]) -> str:
    kind, facts = first["type"], first.get("ctx", {})
    value = _shown(first["input"], where)
    if kind == "extra_forbidden":
        return _unknown(where, model)
    if kind == "missing":
        return "is missing"
    if kind == "json_invalid":
        return f"is no JSON: {facts['error']}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format_map({**facts, "value": value})
    wrong = _WRONG.get(kind.partition("_")[0])
    return f"is {value}, {wrong}" if wrong else f"is not right: {first['msg']}"


def _unknown(where: str, model: type[BaseModel]) -> str:
    known: Mapping[str, Any] = model.model_fields
    near = get_close_matches(where, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"is not known: {advice}"


def _shown(value: Any, where: str) -> str:
    """The value where it is short and nobody's secret, else what kind of thing it is."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    said = json.dumps(value, default=str)
    is_long = len(said) > SHOWN
    return "(not shown)" if _SECRET.search(where) else f"{said[:SHOWN]}…" if is_long else said
