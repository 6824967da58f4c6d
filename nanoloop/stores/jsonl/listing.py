"""A folder of sessions at a glance, a few files at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nanoloop.errors import SessionDamaged
from nanoloop.events import Event, FileUnreadable
from nanoloop.protocols import SessionInfo
from nanoloop.stores.jsonl.file_names import name_of
from nanoloop.stores.jsonl.history import glance
from nanoloop.stores.sealing import Sealing
from nanoloop.stores.sense import making_sense

BATCH = 64
"""Files that one visit of a thread looks at."""


class Listing:
    """The session files of one folder."""

    def __init__(self, folder: Path, *, suffix: str, sealing: Sealing) -> None:
        self._folder = folder
        self._suffix = suffix
        self._sealing = sealing
        self._heard: list[Event] = []

    def take_heard(self) -> list[Event]:
        """What there is to tell since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def batches(self) -> list[Sequence[Path]]:
        """The files, the last written first, in small groups."""
        try:
            with os.scandir(self._folder) as items:
                files = [item for item in items if item.name.endswith(self._suffix)]
        except FileNotFoundError:
            return []
        files.sort(key=_written, reverse=True)
        paths = [Path(file.path) for file in files]
        return [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]

    def glances(self, paths: Sequence[Path]) -> list[SessionInfo]:
        """What these files tell; one that is gone or can't be opened is passed over."""
        infos = []
        for path in paths:
            try:
                infos.append(self._glance(path))
            except FileNotFoundError:
                continue
            except (OSError, SessionDamaged) as error:
                self._heard.append(FileUnreadable(file=path.name, error=type(error).__name__))
        return infos

    def names(self, paths: Sequence[Path]) -> list[str]:
        """The ids that these files belong to, whatever is in them."""
        return [self._id_of(path) for path in paths]

    def _id_of(self, path: Path) -> str:
        name = path.name.removesuffix(self._suffix)
        session_id = name_of(name)
        if session_id is None:  # the file's name is a shortened one
            with suppress(OSError, SessionDamaged):
                return self._glance(path).id
        return session_id or name

    def _glance(self, path: Path) -> SessionInfo:
        name = path.name.removesuffix(self._suffix)
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            session_id = name_of(name) or name
            with making_sense(session_id):
                return glance(fd, size, session_id=session_id, sealing=self._sealing)
        finally:
            os.close(fd)


def _written(item: os.DirEntry[str]) -> int:
    try:
        return item.stat().st_mtime_ns
    except OSError:
        return 0
