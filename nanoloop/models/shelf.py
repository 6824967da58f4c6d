"""The folder for model files: what is on it, whole or in part, and taking something away."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from nanoloop.models.catalogue import known
from nanoloop.models.errors import ModelError, NoSuchModel
from nanoloop.models.fetching import part_of
from nanoloop.models.naming import SUFFIX


def names(folder: Path) -> list[str]:
    """The models whose files are here, whole or in part."""
    found = {path.name.removesuffix(".part") for path in _files(folder)}
    return sorted(name.removesuffix(SUFFIX) for name in found)


def name_on(folder: Path, name: str) -> str:
    """The name as the folder has it; raises `NoSuchModel`, or says how to fetch it."""
    here, name = names(folder), name.removeprefix("local:").removesuffix(SUFFIX)
    if name in here:
        return name
    if known(name):
        raise NotHere(name)
    raise NoSuchModel(name, get_close_matches(name, here, n=2))


def path_of(folder: Path, name: str) -> Path:
    """Where the whole file is; raises `NoSuchModel`."""
    path = folder / f"{name_on(folder, name)}{SUFFIX}"
    if not path.is_file():
        raise NotHere(path.stem)
    return path


def kept_bytes(folder: Path, name: str) -> int:
    """How much of it is here."""
    path = folder / f"{name}{SUFFIX}"
    return sum(file.stat().st_size for file in (path, part_of(path)) if file.is_file())


def remove(folder: Path, name: str) -> None:
    """Take its file away, and what was fetched of it."""
    path = folder / f"{name}{SUFFIX}"
    for file in (path, part_of(path), part_of(path).with_suffix(".part.tag")):
        file.unlink(missing_ok=True)


class NotHere(NoSuchModel):
    """The catalogue has it, the folder does not."""

    def __init__(self, name: str) -> None:
        ModelError.__init__(self, f"{name} is not here yet: `nanoloop model get {name}`")


def _files(folder: Path) -> list[Path]:
    whole, parts = folder.glob(f"[!.]*{SUFFIX}"), folder.glob(f"[!.]*{SUFFIX}.part")
    return [path for path in (*whole, *parts) if path.is_file()]
