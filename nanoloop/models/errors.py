"""What can go wrong with model files.

ModelError
├── NoSuchModel      the catalogue and the folder have none of that name
├── NotFetched       no source could give the file
├── NoRoom           the disk has less room than the file needs
├── FolderClosed     the folder for models can't be written
└── SourceFailed     one source could not give it; the next one is tried
    └── WrongFile    what came is another file
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nanoloop.errors import NanoloopError

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
