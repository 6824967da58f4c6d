"""Saying more in the user's settings file, where everything else stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from nanoloop.errors import SettingsError
from nanoloop.settings.file import Unreadable, parse, text_of
from nanoloop.stores.jsonl.writing import replace_file

_FOR_ITS_OWNER = 0o600


def write(path: Path, said: Mapping[str, str]) -> None:
    """Say these things, by their dotted keys, in a file that is made where it is missing.

    A file with a key is for its owner's eyes. Raises `SettingsError` where the file is not
    understood; it is then as it was.
    """
    path = path.resolve()  # a link stays one
    mode = path.stat().st_mode & 0o777 if path.exists() else _FOR_ITS_OWNER
    text = with_settings(_text(path), said)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode(), durable=True)
    path.chmod(_FOR_ITS_OWNER if any(map(_is_key, said)) else mode)


def with_settings(text: str, said: Mapping[str, str]) -> str:
    """The text with these settings in it; raises `SettingsError` where that can't be done."""
    try:
        before = parse(text)
        lines = text.splitlines(keepends=True)
        put = [_put(lines, before.lines, key, value) for key, value in said.items()]
        fresh = [line for line in put if line]
        # First of all lines: after the first table they would belong to it.
        after = "".join(fresh + ["\n"] * bool(fresh and lines) + lines)
        if parse(after).table == _with_all(before.table, said):
            return after
    except Unreadable:
        pass
    wanted = " and ".join(key for key in said)
    raise SettingsError(f"the settings file is not understood: write {wanted} into it by hand")


def _put(lines: list[str], places: Mapping[str, int], key: str, value: str) -> str:
    """Say it where the key or its table stands; returns what has to stand above all tables."""
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


def _with_all(table: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """The table with these dotted keys in it."""
    after = deepcopy(dict(table))
    for key, value in said.items():
        *above, name = key.split(".")
        inner = after
        for part in above:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return after


def _is_key(key: str) -> bool:
    return key.rpartition(".")[2] == "api_key"


def _text(path: Path) -> str:
    try:
        return text_of(path) if path.exists() else ""
    except Unreadable as error:
        raise SettingsError(f"{path}: {error}") from None
