"""Fetching a model's file: in parts, resumed, checked by its sum."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.models.catalogue import Model, find, known
from nanoloop.models.part import (
    SUFFIX,
    DownloadPart,
    DownloadProgress,
    FolderClosed,
    ModelError,
    NoRoom,
    NoSuchModel,
    NotFetched,
    SourceFailed,
    Tell,
    WrongFile,
)

_MAGIC = b"GGUF"
_LOOK_SECONDS = 0.2


def nobody(_: DownloadProgress) -> None:
    """Whom to tell where nobody wants to know."""


async def fetch(
    model: Model | str, folder: Path, *, hub: str | None = None, tell: Tell = nobody
) -> Path:
    """The model's file in this folder, fetched where it is missing; raises `ModelError`.

    What came before a failure or a stop is kept, and the next call goes on from there. Two that
    fetch the same file, in whatever processes, don't meet: the second waits for the first.
    """
    model = find(model) if isinstance(model, str) else model
    path = folder / model.file
    if path.exists():
        return path
    with _as_folder_errors(folder):
        _make(folder)
        async with _alone(path, tell):
            if not path.exists():  # another process may have been first
                await _fetch(model, path, hub, tell)
    return path


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def part_of(path: Path) -> Path:
    """Where the beginning of a file is kept until the rest is there."""
    return path.with_name(f"{path.name}.part")


async def _fetch(model: Model, path: Path, hub: str | None, tell: Tell) -> None:
    part = DownloadPart(path=part_of(path), total=model.size_bytes, sha256=model.sha256, tell=tell)
    reasons = []
    for source in model.sources:
        try:
            if not part.is_whole:
                await source.fetch(part, hub)
            await run_sync(_check, part)
            return part.become(path)
        except WrongFile as error:
            part.discard()
            reasons.append(f"{source}: {error}")
        except SourceFailed as error:
            reasons.append(f"{source}: {error}")
    if not part.size:
        part.discard()
    raise NotFetched(model.name, reasons, typed=model.typed)


def _check(part: DownloadPart) -> None:
    """Raise `WrongFile` where it is another file than the one that was wanted."""
    part.tell(DownloadProgress(step="checking", done=part.size, total=part.total))
    if part.total not in (None, part.size):
        raise WrongFile(f"{part.size:,} bytes came and not {part.total:,}")
    with part.path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise WrongFile("what came is no GGUF file")
        file.seek(0)
        if part.sha256 is None:
            return
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != part.sha256.lower():
        raise WrongFile(f"what came has the sha256 {found} and not {part.sha256}")


@asynccontextmanager
async def _alone(path: Path, tell: Tell) -> AsyncIterator[None]:
    """Nobody else fetches this file meanwhile; the lock goes with the process, however it ends."""
    # The lock's file stays: whoever opened it already must lock the same one.
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        while not _is_locked(fd):
            tell(DownloadProgress(step="waiting"))
            await anyio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _as_folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(folder).free
            raise NoRoom(folder, needed=free + 1, free=free) from None
        raise FolderClosed(folder, error.strerror or str(error)) from None


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
