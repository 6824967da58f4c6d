"""What a docstring says of a function and its arguments (Google, NumPy and reST forms)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_HEADING = re.compile(r"(args|arguments|parameters|params)\s*:?", re.IGNORECASE)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")
_REST_ENTRY = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_UNDERLINE = re.compile(r"-{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """A description, and a text for each argument that has one."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, function: object) -> Docstring:
        """Read a function's docstring; without one, everything is empty."""
        text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
        return cls(description=_first_paragraph(text), arguments=_arguments(text.splitlines()))


def _first_paragraph(text: str) -> str:
    first = text.split("\n\n", 1)[0]
    return "" if _is_section(first) else " ".join(first.split())


def _is_section(text: str) -> bool:
    return text.startswith(":param") or bool(_HEADING.fullmatch(text.split("\n", 1)[0]))


def _arguments(lines: list[str]) -> dict[str, str]:
    found = _joined(_rest_lines(lines))
    for index, line in enumerate(lines):
        if _HEADING.fullmatch(line):
            found |= _section(lines[index + 1 :])
    return found


def _section(lines: list[str]) -> dict[str, str]:
    if lines and _UNDERLINE.fullmatch(lines[0]):
        return _joined(_numpy_lines(lines[1:]))
    return _joined(_google_lines(lines))


def _joined(pieces: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Add up the lines that belong to one argument."""
    found: dict[str, str] = {}
    for name, text in pieces:
        found[name] = f"{found.get(name, '')} {text}".strip()
    return {name: text for name, text in found.items() if text}


def _google_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, indent = "", 0
    for line in lines:
        if line and not line[0].isspace():
            return
        depth = len(line) - len(line.lstrip())
        entry = _ENTRY.fullmatch(line.strip()) if not name or depth <= indent else None
        if entry:
            name, indent = entry[1], depth
        if name:
            yield name, entry[2] if entry else line.strip()


def _numpy_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.fullmatch(following):
            return
        entry = _NUMPY_ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
        elif name:
            yield name, line.strip()


def _rest_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line in lines:
        entry = _REST_ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
        elif not line.strip() or not line[0].isspace():
            name = ""
        if name:
            yield name, entry[2] if entry else line.strip()
