"""A session as text, and back: JSON or YAML, whole or in part."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

Format = Literal["json", "yaml"]
_ODD = re.compile("[\x80-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
"""Characters that YAML takes for line ends or refuses, unless they are escaped."""


def dumped(data: Mapping[str, Any], format: str = "json") -> str:  # noqa: A002 - the seed's name
    """The data as text in this format; values that JSON doesn't know become text."""
    text = json.dumps(data, ensure_ascii=False, default=str, indent=2)
    if _checked(format) == "json":
        return text
    import yaml  # noqa: PLC0415 - only who asks for YAML pays for it

    is_plain = not _ODD.search(text)
    return str(yaml.safe_dump(json.loads(text), allow_unicode=is_plain, sort_keys=False, width=100))


def parsed(
    text: str | bytes | Mapping[str, Any],
    format: str | None = None,  # noqa: A002 - the seed's name
    key_path: str | None = None,
) -> Mapping[str, Any]:
    """The mapping in a text, or at a dotted path in it.

    Raises ValueError with the place for a broken text, TypeError for anything but a mapping.
    """
    value = text if isinstance(text, Mapping) else _value_in(text, format)
    for name in key_path.split(".") if key_path else ():
        if not isinstance(value, Mapping):
            raise TypeError(f"nothing can be under {name!r} of {key_path!r}: {_kind(value)}")
        if name not in value:
            raise ValueError(f"there is no {name!r} on the way of {key_path!r}")
        value = value[name]
    if not isinstance(value, Mapping):
        raise TypeError(f"a session is an object with keys, not {_kind(value)}")
    return value


def _value_in(text: str | bytes, format: str | None) -> Any:  # noqa: A002 - as above
    if isinstance(text, bytes):
        text = text.decode()
    if not isinstance(text, str):
        raise TypeError(f"a session is read from text or a mapping, not {_kind(text)}")
    if not text.strip():
        raise TypeError("a session is an object with keys, not an empty text")
    return _json(text) if _checked(format or _guessed(text)) == "json" else _yaml(text)


def _guessed(text: str) -> Format:
    return "json" if text.lstrip()[0] in '{["' else "yaml"


def _checked(format: str) -> str:  # noqa: A002 - as above
    if format.lower() not in ("json", "yaml"):
        raise ValueError(f"{format!r} is no format of a session: use 'json' or 'yaml'")
    return format.lower()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as broken:
        raise ValueError(f"this JSON is broken: {broken}") from broken  # its text has the place


def _yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - only who reads YAML pays for it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        place = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = getattr(broken, "problem", None) or broken
        raise ValueError(f"this YAML is broken{place}: {problem}") from broken


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
