"""Which key means which session: one tiny file a key, replaced whole."""

from __future__ import annotations

import json
from pathlib import Path

from nanoloop.stores.jsonl.file_names import file_name
from nanoloop.stores.jsonl.writing import replace_file


class Bindings:
    """The keys of one folder."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._durable = durable

    def bind(self, key: str, session_id: str) -> None:
        """From now on this key means that session."""
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"key": key, "session": session_id})
        replace_file(self._path(key), text.encode(), durable=self._durable)

    def bound(self, key: str) -> str | None:
        """The session that this key means, or None."""
        try:
            record = json.loads(self._path(key).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        # On a file system that ignores case another key's file may answer.
        is_ours = isinstance(record, dict) and record.get("key") == key
        return str(record["session"]) if is_ours and record.get("session") else None

    def _path(self, key: str) -> Path:
        return self._folder / f"{file_name(key)}.json"
