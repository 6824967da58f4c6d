"""Which key means which session: one tiny file a key, replaced whole."""

from __future__ import annotations

import json
from pathlib import Path

from nanoloop.files import make_folder, replace_file
from nanoloop.stores.jsonl.file_names import file_name


class Bindings:
    """The keys of one folder."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._durable = durable

    def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        make_folder(self._folder)
        text = json.dumps({"key": key, "session": session_id})
        replace_file(self._path(key), text.encode(), durable=self._durable)

    def bound(self, key: str) -> str | None:
        """The session that this key means, or None."""
        found = _read(self._path(key))
        # On a file system that ignores case another key's file may answer.
        return found[1] if found and found[0] == key else None

    def all(self) -> list[tuple[str, str]]:
        """Every key and its session."""
        return [found for path in sorted(self._folder.glob("*.json")) if (found := _read(path))]

    def _path(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.json"


def _read(path: Path) -> tuple[str, str] | None:
    try:
        record = json.loads(path.read_bytes())
        return str(record["key"]), str(record["session"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
