"""Read settings files with their line numbers, and write settings into them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanoloop.errors import FileRefused, SettingsError
from nanoloop.files import open_beneath, replace_file
from nanoloop.settings.keys import all_in

NAME = "nanoloop.toml"


class UnreadableFile(Exception):
    """The file is missing, can't be read, or is not valid TOML."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """The content of one file."""

    table: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line, counted from 1, on which each dotted key or table begins."""
    text: str = ""
    """The text that was parsed."""


def read_file(path: Path, *, beneath: Path | None = None) -> SettingsFile:
    """Read a settings file, or raise `UnreadableFile` if it can't be read or parsed.

    `beneath` is described at `text_of`.
    """
    text = text_of(path, beneath=beneath)
    return replace(parse(text), text=text)


_MOST_BYTES = 1_000_000
"""The maximum size of a settings file in bytes."""


def text_of(path: Path, *, beneath: Path | None = None) -> str:
    """Return the file's text, or raise `UnreadableFile` if it can't be read.

    `beneath` is a folder that someone else may have filled; links inside it are not followed.
    """

    def opened(name: str, flags: int) -> int:
        if beneath is None:
            return os.open(name, flags)
        return open_beneath(beneath, path.relative_to(beneath).as_posix(), flags)

    try:
        with open(path, "rb", opener=opened) as file:
            said = file.read(_MOST_BYTES + 1)
        if len(said) > _MOST_BYTES:
            raise UnreadableFile(f"larger than {_MOST_BYTES:,} bytes: it is not a settings file")
        return said.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UnreadableFile("not a text file in UTF-8") from None
    except FileRefused:
        raise UnreadableFile(
            "links are not followed in the current folder: put the file itself there, or name the "
            f"settings file with --config {NAME}"
        ) from None
    except OSError as error:
        raise UnreadableFile(f"can't be read: {error.strerror}") from None


def parse(text: str) -> SettingsFile:
    """Parse TOML text, or raise `UnreadableFile` if its syntax is wrong."""
    try:
        return SettingsFile(table=tomllib.loads(text), lines=_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(str(error), text) from None


def _no_toml(reason: str, text: str) -> UnreadableFile:
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    if place is None:
        return UnreadableFile(f"not valid TOML: {reason}")
    line = int(place[1]) if place[1] else len(text.splitlines())
    return UnreadableFile(f"not valid TOML: {reason[: place.start()]}", line)


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    table = ""
    for number, statement in _statements(text):
        said = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(said)
            found.setdefault(table, number)
        else:
            for key, _ in all_in(said):
                found[f"{table}.{key}".lstrip(".")] = number
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each header or assignment, which may span lines, with the number of its first line."""
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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TOML, _YAML = "+++", "---"
"""The lines around the settings at the top of an agent's file, which also show the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """One agent's file."""

    path: Path
    said: SettingsFile = field(default_factory=SettingsFile)
    unreadable: UnreadableFile | None = None

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.path.stem


def read_agents(folder: Path, *, beneath: Path | None = None) -> Iterator[AgentFile]:
    """Yield the agents' files in a folder, sorted by name; the folder need not exist.

    `beneath` is described at `text_of`.
    """
    for path in sorted(folder.glob("[!.]*")):
        if path.suffix in {".md", ".toml"} and path.is_file():
            try:
                yield AgentFile(path=path, said=_said(path, beneath))
            except UnreadableFile as error:
                yield AgentFile(path=path, unreadable=error)


def digest_of(text: str, agents: Iterable[AgentFile]) -> str:
    """Return a digest of a settings file's text and of the agents' files beside it."""
    texts = {NAME: text} | {f"agents/{each.path.name}": each.said.text for each in agents}
    return sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def _said(path: Path, beneath: Path | None) -> SettingsFile:
    if not _NAME.fullmatch(path.stem):
        raise UnreadableFile(f"{path.stem!r} is not a valid agent name: use a-z, A-Z, 0-9, _ and -")
    text = text_of(path, beneath=beneath)
    said = parse(text) if path.suffix == ".toml" else _with_prompt(text)
    if not said.table:
        raise UnreadableFile("it is empty: write the agent's prompt in it")
    return replace(said, text=text)


def _with_prompt(text: str) -> SettingsFile:
    lines = text.splitlines()
    fence = lines[0].rstrip() if lines else ""
    if fence not in (_TOML, _YAML):
        return _prompted(SettingsFile(), lines, 0)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == fence), None)
    if end is None:
        raise UnreadableFile(f"{fence} is opened but never closed", 1)
    # The empty line replaces the fence, so that every line keeps its number.
    top = "\n".join(["", *lines[1:end]])
    said = parse(top) if fence == _TOML else _yaml(top)
    return _prompted(said, lines, end + 1)


def _prompted(said: SettingsFile, lines: list[str], begin: int) -> SettingsFile:
    prompt = "\n".join(lines[begin:]).strip()
    if not prompt:
        return said
    if "prompt" in said.table:
        raise UnreadableFile(
            "the prompt is set both at the top and below: keep one", said.lines["prompt"]
        )
    line = next(n for n, text in enumerate(lines, 1) if n > begin and text.strip())
    return replace(
        said, table={**said.table, "prompt": prompt}, lines={**said.lines, "prompt": line}
    )


def _yaml(text: str) -> SettingsFile:
    import yaml  # noqa: PLC0415 - only needed for YAML

    try:
        table: Any = yaml.safe_load(text)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise UnreadableFile(f"not valid YAML: {error.problem}", line) from None
    except yaml.YAMLError:  # a character that YAML doesn't allow
        raise UnreadableFile("not YAML") from None
    if table is None:
        return SettingsFile()
    if not isinstance(table, dict):
        raise UnreadableFile("not a table: write lines such as `model: NAME`", 2)
    keys = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    return SettingsFile(table={str(key): value for key, value in table.items()}, lines=keys)


_FOR_ITS_OWNER = 0o600


def write(path: Path, said: Mapping[str, Any]) -> str:
    """Write settings, given by their dotted keys, to a file, and create the file if necessary.

    A file with a secret is readable only by its owner. Raise `SettingsError` if the file can't be
    edited, which leaves it unchanged. Return the file's new text.
    """
    path = path.resolve()  # a link stays a link
    mode = path.stat().st_mode & 0o777 if path.exists() else _FOR_ITS_OWNER
    text = with_settings(_text(path), said)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode(), durable=True)
    path.chmod(_FOR_ITS_OWNER if any(map(_is_key, said)) else mode)
    return text


def with_settings(text: str, said: Mapping[str, Any]) -> str:
    """Return the text with these settings added; raise `SettingsError` if that is impossible."""
    try:
        before = parse(text)
        lines = text.splitlines(keepends=True)
        put = [_put(lines, before.lines, key, value) for key, value in said.items()]
        fresh = [line for line in put if line]
        # Above all other lines, because after the first table header they would belong to that
        # table.
        after = "".join(fresh + ["\n"] * bool(fresh and lines) + lines)
        if parse(after).table == _with_all(before.table, said):
            return after
    except UnreadableFile:
        pass
    wanted = " and ".join(key for key in said)
    raise SettingsError(f"the settings file can't be edited: add {wanted} to it by hand")


def _put(lines: list[str], places: Mapping[str, int], key: str, value: Any) -> str:
    """Set the key in its place or table, or return the text to put above all tables."""
    table, _, name = key.rpartition(".")
    said = f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    whole = said.replace(name, key, 1)
    if key in places:
        place = places[key] - 1
        lines[place] = whole if lines[place].lstrip().startswith(key) else said
    elif table in places and lines[places[table] - 1].lstrip().startswith("["):
        place = places[table] - 1
        lines[place] = f"{lines[place].rstrip()}\n{said}"
    else:
        return whole
    return ""


def _with_all(table: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with these dotted keys set."""
    after = deepcopy(dict(table))
    for key, value in said.items():
        *above, name = key.split(".")
        inner = after
        for part in above:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return after


_KEY = re.compile(r"(api_?key|token|secret|password)$", re.IGNORECASE)


def _is_key(key: str) -> bool:
    return _KEY.search(key) is not None


def _text(path: Path) -> str:
    try:
        return text_of(path) if path.exists() else ""
    except UnreadableFile as error:
        raise SettingsError(f"{path}: {error}") from None
