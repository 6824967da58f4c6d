"""Marks sessions that may owe something, with an empty file beside them for each."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanoloop.files import make_folder, open_file
from nanoloop.stores.snapshot import owes_chat, pending_in

CHAT, SUMMARY = "owing", "pending"
"""What is owed to a chat, and an owed summary; each kind has its own folder of marks."""
NOTHING: frozenset[str] = frozenset()
ANYTHING = frozenset({CHAT, SUMMARY})


def kinds_owed(head: Mapping[str, Any]) -> frozenset[str]:
    """What is owed in a session with this head."""
    kinds = [CHAT] if owes_chat(head) else []
    return frozenset([*kinds, SUMMARY] if pending_in(head) else kinds)


class OwedMarks:
    """The marks of one folder of sessions: perhaps one too many, never one too few.

    A mark is made before the commit that owes, and removed after the one that doesn't. To add or
    remove one, lock the session's file, or its name if there is no file. All marks are links to one
    file: a disk makes and removes links faster than files, and much faster when done often.
    """

    def __init__(self, folder: Path, *, mark: Path) -> None:
        self._folders = {kind: str(folder / kind) for kind in ANYTHING}
        self._mark = str(mark)

    def add(self, name: str, kinds: Collection[str]) -> None:
        """Mark what may be owed from now on in the session whose file has this name."""
        for kind in kinds:
            path = f"{self._folders[kind]}/{name}"
            try:
                os.link(self._mark, path)
            except FileExistsError:
                continue
            except OSError:  # the first one, or too many, or a disk that knows but one name a file
                make_folder(Path(self._folders[kind]))
                _touch(self._mark)
                _touch(path)

    def remove(self, name: str, kinds: Collection[str]) -> None:
        """Unmark what is no longer owed there; a leftover mark does no harm."""
        for kind in kinds:
            with suppress(OSError):
                os.unlink(f"{self._folders[kind]}/{name}")  # noqa: PTH108 - a part of each turn

    def names(self, kinds: Collection[str]) -> list[str]:
        """The files, without their suffix, of the sessions that may owe one of these."""
        found: set[str] = set()
        for kind in kinds:
            with suppress(FileNotFoundError), os.scandir(self._folders[kind]) as marks:
                found.update(mark.name for mark in marks)
        return sorted(found)


def _touch(path: str) -> None:
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))
