"""The beginning of a file that is being fetched; kept when fetching stops, and gone on with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from nanoloop.models.errors import NoRoom

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is, for whoever watches."""

    step: Literal["waiting", "fetching", "checking"]
    """Waiting is for another process that fetches the same file."""
    done: int = 0
    total: int | None = None


Tell = Callable[[Progress], None]


@dataclass(slots=True, kw_only=True)
class Part:
    """What is there of a file so far, always its beginning, whichever source it came from."""

    path: Path
    total: int | None
    """How long the whole is, once that is known."""
    sha256: str | None
    tell: Tell

    @property
    def size(self) -> int:
        """How much is there."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, as far as its length tells."""
        return self.total is not None and self.size == self.total

    @property
    def tag(self) -> str | None:
        """What the server called this version of the file, where no sum can tell versions apart."""
        return self._tag_file.read_text() if self._tag_file.exists() else None

    @property
    def _tag_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.tag")

    def begin(self, tag: str | None) -> None:
        """Start from nothing, with the version that the server names."""
        self.cut(0)
        self._tag_file.unlink(missing_ok=True)
        if tag is not None:
            self._tag_file.write_text(tag)

    def cut(self, size: int) -> None:
        """Keep so many bytes and no more."""
        with self.path.open("ab") as file:
            file.truncate(size)

    def need_room(self, *, beside: int = 0) -> None:
        """Raise `NoRoom` where what is missing, and so much beside it, does not fit."""
        needed = (self.total or 0) - self.size + beside
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise NoRoom(self.path.parent, needed=needed, free=free)

    def grows(self) -> IO[bytes]:
        """Its file, open at its end."""
        return self.path.open("ab")

    def append(self, source: IO[bytes]) -> None:
        """Add all that the source has."""
        with self.grows() as file:
            while piece := source.read(PIECE_BYTES):
                file.write(piece)
        self.told(self.size)

    def told(self, done: int) -> None:
        """Tell that so much is there."""
        self.tell(Progress(step="fetching", done=done, total=self.total))

    def become(self, path: Path) -> None:
        """Take the name of the whole file; from then on it survives a power cut too."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(path)
        self._tag_file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Keep nothing of it."""
        self.path.unlink(missing_ok=True)
        self._tag_file.unlink(missing_ok=True)
