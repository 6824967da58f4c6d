"""Mark sessions that may have pending work, each by an empty file in a folder beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanoloop.files import make_folder, open_file
from nanoloop.stores.snapshot import owes_chat, pending_in

CHAT, SUMMARY = "owing", "pending"
"""The kinds of pending work, messages for a chat and summaries; each has a folder of marks."""
NOTHING: frozenset[str] = frozenset()
ANYTHING = frozenset({CHAT, SUMMARY})


def kinds_owed(head: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of pending work in a session with this head."""
    kinds = [CHAT] if owes_chat(head) else []
    return frozenset([*kinds, SUMMARY] if pending_in(head) else kinds)


class OwedMarks:
    """The marks in one folder: every session with work has one, and sessions without work may.

    A mark is made before a commit that adds work, and removed after the commit that finishes the
    work. To add or remove a mark, lock the session's file, or its name if there is no file. All
    marks are links to one file, because a disk creates and removes links faster than files.
    """

    def __init__(self, folder: Path, *, mark: Path) -> None:
        self._folders = {kind: str(folder / kind) for kind in ANYTHING}
        self._mark = str(mark)

    def add(self, name: str, kinds: Collection[str]) -> None:
        """Mark the session whose file has this name: it may have this kind of work."""
        for kind in kinds:
            path = f"{self._folders[kind]}/{name}"
            try:
                os.link(self._mark, path)
            except FileExistsError:
                continue
            except OSError:  # the first mark, too many links, or links not supported
                make_folder(Path(self._folders[kind]))
                _touch(self._mark)
                _touch(path)

    def remove(self, name: str, kinds: Collection[str]) -> None:
        """Remove the marks of finished work; a leftover mark is harmless."""
        for kind in kinds:
            with suppress(OSError):
                os.unlink(f"{self._folders[kind]}/{name}")  # noqa: PTH108 - a part of each turn

    def names(self, kinds: Collection[str]) -> list[str]:
        """Return the files, without suffix, of the sessions that may have this kind of work."""
        found: set[str] = set()
        for kind in kinds:
            with suppress(FileNotFoundError), os.scandir(self._folders[kind]) as marks:
                found.update(mark.name for mark in marks)
        return sorted(found)


def _touch(path: str) -> None:
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))
