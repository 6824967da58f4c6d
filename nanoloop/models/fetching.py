"""Fetching a model file: from the first source that has it, checked, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.models.catalogue import Model, find
from nanoloop.models.errors import FolderClosed, NoRoom, NotFetched, SourceFailed, WrongFile
from nanoloop.models.part import Part, Progress, Tell

_MAGIC = b"GGUF"
_LOOK_SECONDS = 0.2


def nobody(_: Progress) -> None:
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
    part = Part(path=part_of(path), total=model.size_bytes, sha256=model.sha256, tell=tell)
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


def _check(part: Part) -> None:
    """Raise `WrongFile` where it is another file than the one that was wanted."""
    part.tell(Progress(step="checking", done=part.size, total=part.total))
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
            tell(Progress(step="waiting"))
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
