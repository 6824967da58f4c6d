"""The package index, by the user's own pip or uv and whatever index, proxy or mirror these know."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import anyio
from anyio.abc import Process

from nanoloop.models.errors import SourceFailed

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
