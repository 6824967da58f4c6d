"""A file on its way: what is here already, and what fetching it can end in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from nanoloop.errors import NanoloopError

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """How far it is, for whoever watches."""

    step: Literal["waiting", "fetching", "checking"]
    """Waiting is for another process that fetches the same file."""
    done: int = 0
    total: int | None = None


Tell = Callable[[DownloadProgress], None]


@dataclass(slots=True, kw_only=True)
class DownloadPart:
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
        self.tell(DownloadProgress(step="fetching", done=done, total=self.total))

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


_MEGA = 1_000_000
ELSEWHERE = "choose another folder with NANOLOOP_MODELS"


class ModelError(NanoloopError):
    """A model file can't be had."""


class NoSuchModel(ModelError):
    """Neither the catalogue nor the folder has a model of that name."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        advice = "`nanoloop model list` shows what there is"
        if near:
            advice = f"did you mean {' or '.join(map(repr, near))}?"
        super().__init__(f"no model {name!r}: {advice}")


class NotFetched(ModelError):
    """No source could give the file; has a line for each."""

    def __init__(self, name: str, reasons: Sequence[str], *, typed: str = "") -> None:
        """`typed` is what to get it by, where that is not its name."""
        advice = f"`nanoloop model get {typed or name}` goes on where it stopped"
        super().__init__("\n".join((f"model {name} can't be fetched; {advice}", *reasons)))


class NoRoom(ModelError):
    """The disk has less room than the file needs."""

    def __init__(self, folder: Path, *, needed: int, free: int) -> None:
        super().__init__(
            f"{needed / _MEGA:,.0f} MB are needed in {folder} and {free / _MEGA:,.0f} MB are free: "
            f"make room (`nanoloop model remove NAME`), or {ELSEWHERE}"
        )


class FolderClosed(ModelError):
    """The folder for models can't be written."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder} can't be written ({reason}): {ELSEWHERE}")


class SourceFailed(ModelError):
    """One source could not give the file."""


class WrongFile(SourceFailed):
    """What came is not the file that was wanted; nothing of it is kept."""


PREFIX = "local:"
SUFFIX = ".gguf"


def is_local(model: str) -> bool:
    """Whether this names a model file on this machine, and none behind a server."""
    return model.startswith(PREFIX) or model.endswith(SUFFIX)


def file_of(model: str, folder: Path) -> Path:
    """Where the file of a local model is, or will be; `folder` is the one for models."""
    name = model.removeprefix(PREFIX)
    return Path(name).expanduser() if name.endswith(SUFFIX) else folder / f"{name}{SUFFIX}"
