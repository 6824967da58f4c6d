"""Saying more in the user's settings file, where everything else stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nanoloop.errors import SettingsError
from nanoloop.settings.file import Unreadable, parse, text_of
from nanoloop.stores.jsonl.writing import replace_file

_FOR_ITS_OWNER = 0o600


def write(path: Path, said: Mapping[str, str]) -> None:
    """Say these things above all tables, in a file that is made where it is missing.

    A file with a key is for its owner's eyes. Raises `SettingsError` where the file is not
    understood; it is then as it was.
    """
    path = path.resolve()  # a link stays one
    mode = path.stat().st_mode & 0o777 if path.exists() else _FOR_ITS_OWNER
    text = with_settings(_text(path), said)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode(), durable=True)
    path.chmod(_FOR_ITS_OWNER if "api_key" in said else mode)


def with_settings(text: str, said: Mapping[str, str]) -> str:
    """The text with these settings in it; raises `SettingsError` where that can't be done."""
    try:
        before = parse(text)
        lines = text.splitlines(keepends=True)
        fresh = []
        for key, value in said.items():
            line = f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
            if key in before.lines:
                lines[before.lines[key] - 1] = line
            else:
                fresh.append(line)
        # First of all lines: after the first table they would belong to it.
        after = "".join(fresh + ["\n"] * bool(fresh and lines) + lines)
        if parse(after).table == {**before.table, **said}:
            return after
    except Unreadable:
        pass
    wanted = " and ".join(key for key in said)
    raise SettingsError(f"the settings file is not understood: write {wanted} into it by hand")


def _text(path: Path) -> str:
    try:
        return text_of(path) if path.exists() else ""
    except Unreadable as error:
        raise SettingsError(f"{path}: {error}") from None
