"""Conditions on sessions, as one types them: `entries>100`, `agent=cook`, `key~telegram`."""

from __future__ import annotations

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import date, datetime, timezone
from difflib import get_close_matches
from typing import Any

from nanoloop.cli.amounts import duration, size_in
from nanoloop.protocols import SessionInfo

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "~": lambda text, part: str(part).casefold() in str(text).casefold(),
}
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
NAMES = tuple(field.name for field in fields(SessionInfo))
_NUMBERS = {field.name for field in fields(SessionInfo) if field.type == "int"}
_TIMES = {field.name for field in fields(SessionInfo) if "datetime" in str(field.type)}
_KINDS = {
    "size": "a size such as 20kB or 1MB",
    **dict.fromkeys(_TIMES, "a date such as 2026-01-31, or an age such as 30d"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a session has to be like."""

    name: str
    holds: Callable[[Any, Any], bool]
    value: Any

    def __call__(self, info: SessionInfo) -> bool:
        """Whether it is; what it doesn't have is like nothing."""
        mine = getattr(info, self.name)
        if mine is None and self.value == "":  # `agent=` is whatever has none
            mine = ""
        return mine is not None and self.holds(mine, self.value)


def condition(text: str) -> Condition:
    """The condition that was typed; raises `ArgumentTypeError` saying how to write it."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no condition: write it as entries>100 or agent=cook")
    name, sign, value = match.groups()
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise ArgumentTypeError(f"a session has no {name!r}: {advice}")
    try:
        return Condition(name, _OPERATORS[sign], _read(name, value))
    except (ValueError, ArgumentTypeError):
        kind = _KINDS.get(name, "a whole number")
        raise ArgumentTypeError(f"{name} is compared with {kind}, not with {value!r}") from None


def _read(name: str, value: str) -> Any:
    if name == "size":
        return size_in(value)
    if name in _NUMBERS:
        return int(value)
    if name in _TIMES:
        if value[-1:].isalpha():  # so long ago: what is less was before that
            return datetime.now(timezone.utc) - duration(value)
        day = date.fromisoformat(value)
        return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return value in {"true", "yes", "1"} if name == "archived" else value
