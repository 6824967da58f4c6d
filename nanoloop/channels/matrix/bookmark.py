"""How far the bot has read, and what it has yet to join: kept in a file, over every restart."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanoloop.stores.folder import make_folder


class Bookmark:
    """The place where the next reading begins."""

    def __init__(self, file: Path | None = None) -> None:
        """With no file it lasts as long as the process."""
        self._file = file
        self._user = ""
        self.since: str | None = None
        """The homeserver's own mark; None where nothing was read yet."""
        self.to_join: list[str] = []
        """Rooms whose invitation was accepted, and that are not joined yet."""
        self.told: list[str] = []
        """Rooms that were told that they can't be read."""
        if file is not None:
            # One that can't be read is begun anew.
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._learn(json.loads(file.read_text(encoding="utf-8")))

    def belongs_to(self, user: str) -> None:
        """Begin anew if it is another account's."""
        if self._user not in ("", user):
            self.since, self.to_join, self.told = None, [], []
        self._user = user

    def move(self, since: str) -> None:
        """All before this mark was handed in."""
        if since != self.since:
            self.since = since
            self.save()

    def save(self) -> None:
        """Make it durable."""
        if self._file is None:
            return
        known = {
            "user": self._user,
            "since": self.since,
            "to_join": self.to_join,
            "told": self.told,
        }
        beside = self._file.with_suffix(".new")
        make_folder(self._file.parent)
        beside.write_text(json.dumps(known), encoding="utf-8")
        beside.replace(self._file)

    def _learn(self, known: dict[str, Any]) -> None:
        self._user, self.since = known["user"], known["since"]
        self.to_join, self.told = [*known["to_join"]], [*known["told"]]
