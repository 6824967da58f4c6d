"""The settings file: which one it is, what it says, and on which line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "nanoloop.toml"


class Unreadable(Exception):
    """The file is not there, may not be read, or is no TOML."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What one file says."""

    table: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """On which line each dotted key or table begins, counted from 1."""


def find(cwd: Path, user_folder: Path) -> Path | None:
    """The file of the working folder, else of the user, else None."""
    places = (cwd / NAME, user_folder / NAME)
    return next((place for place in places if place.is_file()), None)


def read(path: Path) -> SettingsFile:
    """What the file says; raises `Unreadable`."""
    return parse(text_of(path))


def text_of(path: Path) -> str:
    """The file's text; raises `Unreadable`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("not a text file in UTF-8") from None
    except OSError as error:
        raise Unreadable(f"can't be read: {error.strerror}") from None


def parse(text: str) -> SettingsFile:
    """What the TOML says; raises `Unreadable`."""
    try:
        return SettingsFile(table=tomllib.loads(text), lines=_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(str(error), text) from None


def _no_toml(reason: str, text: str) -> Unreadable:
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    if place is None:
        return Unreadable(f"not TOML: {reason}")
    line = int(place[1]) if place[1] else len(text.splitlines())
    return Unreadable(f"not TOML: {reason[: place.start()]}", line)


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    table = ""
    for number, statement in _statements(text):
        said = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(said)
            found.setdefault(table, number)
        else:
            for key in _keys(said):
                found[f"{table}.{key}".lstrip(".")] = number
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or assignment with its first line: as many lines as it takes to be TOML."""
    begin, parts = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        parts += line
        if _is_toml(parts):
            yield begin, parts
            begin, parts = number + 1, ""


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _header(said: Any) -> str:
    names = []
    while said:
        said = said[-1] if isinstance(said, list) else said
        for name in said:
            names.append(name)
            said = said[name]
    return ".".join(names)


def _keys(said: Mapping[str, Any]) -> Iterator[str]:
    for name, value in said.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in _keys(value))
