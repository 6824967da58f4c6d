"""Agents in files of their own: `agents/cook.md`, its settings on top and its prompt below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoloop.settings import file as settings_file
from nanoloop.settings.file import SettingsFile, Unreadable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TOML, _YAML = "+++", "---"
"""What stands around the settings on top, and how they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """One agent's file."""

    path: Path
    said: SettingsFile = field(default_factory=SettingsFile)
    unreadable: Unreadable | None = None

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.path.stem


def read(folder: Path) -> Iterator[AgentFile]:
    """Every agent's file in a folder, in the order of their names; the folder may be missing."""
    for path in sorted(folder.glob("[!.]*")):
        if path.suffix in {".md", ".toml"} and path.is_file():
            try:
                yield AgentFile(path=path, said=_said(path))
            except Unreadable as error:
                yield AgentFile(path=path, unreadable=error)


def _said(path: Path) -> SettingsFile:
    if not _NAME.fullmatch(path.stem):
        raise Unreadable(f"{path.stem!r} is no agent's name: use a-z, A-Z, 0-9, _ and -")
    text = settings_file.text_of(path)
    said = settings_file.parse(text) if path.suffix == ".toml" else _with_prompt(text)
    if not said.table:
        raise Unreadable("it says nothing: write the agent's prompt into it")
    return said


def _with_prompt(text: str) -> SettingsFile:
    lines = text.splitlines()
    fence = lines[0].rstrip() if lines else ""
    if fence not in (_TOML, _YAML):
        return _prompted(SettingsFile(), lines, 0)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == fence), None)
    if end is None:
        raise Unreadable(f"{fence} is opened and never closed", 1)
    # The empty line stands for the fence: every line keeps its number.
    top = "\n".join(["", *lines[1:end]])
    said = settings_file.parse(top) if fence == _TOML else _yaml(top)
    return _prompted(said, lines, end + 1)


def _prompted(said: SettingsFile, lines: list[str], begin: int) -> SettingsFile:
    prompt = "\n".join(lines[begin:]).strip()
    if not prompt:
        return said
    if "prompt" in said.table:
        raise Unreadable("the prompt stands on top and below too: keep one", said.lines["prompt"])
    line = next(n for n, text in enumerate(lines, 1) if n > begin and text.strip())
    return replace(
        said, table={**said.table, "prompt": prompt}, lines={**said.lines, "prompt": line}
    )


def _yaml(text: str) -> SettingsFile:
    import yaml  # noqa: PLC0415 - only for who writes YAML

    try:
        table: Any = yaml.safe_load(text)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise Unreadable(f"not YAML: {error.problem}", line) from None
    except yaml.YAMLError:  # a character that no YAML may hold
        raise Unreadable("not YAML") from None
    if table is None:
        return SettingsFile()
    if not isinstance(table, dict):
        raise Unreadable("not a table: write `model: NAME` and the like", 2)
    keys = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    return SettingsFile(table={str(key): value for key, value in table.items()}, lines=keys)
