"""Groups that became supergroups: they got a new id there, and keep their first one here."""

from __future__ import annotations

import json
from pathlib import Path

from nanoloop.stores.folder import make_folder


class Moves:
    """Knows both ids of each, also after a restart where a file is given.

    In a supergroup messages are numbered anew: their ids here hold the chat's, so that none is
    taken for an older one of the same number.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._new: dict[int, int] = {}
        if file is not None and file.exists():
            said = json.loads(file.read_text(encoding="utf-8"))
            self._new = {int(old): new for old, new in said.items()}
        self._old = {new: old for old, new in self._new.items()}

    def learn(self, old: int, new: int) -> None:
        """From now on this group is to be reached under its new id; durable when this returns."""
        if self._new.get(old) == new:
            return
        self._new[old], self._old[new] = new, old
        if self._file is not None:
            make_folder(self._file.parent)
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps(self._new), encoding="utf-8")
            beside.replace(self._file)

    def first(self, chat: int) -> str:
        """The id by which a chat is known here."""
        return str(self._old.get(chat, chat))

    def now(self, chat: str) -> int:
        """The id by which Telegram knows it."""
        return self._new.get(int(chat), int(chat))

    def message(self, chat: int, number: int) -> str:
        """What the message of that number in that chat is called here."""
        return f"{chat}.{number}" if chat in self._old else str(number)

    def number(self, chat: str, message: str) -> int | None:
        """The number of a message in its chat; None where the chat has moved away from it."""
        of, _, number = message.rpartition(".")
        is_there = int(of) == self.now(chat) if of else int(chat) not in self._new
        return int(number) if is_there else None
