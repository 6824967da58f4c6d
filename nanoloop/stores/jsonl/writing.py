"""Writing files so that no half of anything is ever found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def replace_file(path: Path, data: bytes | Iterable[bytes], *, durable: bool) -> None:
    """Put a whole file, or its pieces, in the place of another or of none: never a half of it."""
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for piece in (data,) if isinstance(data, bytes) else data:
            write_all(fd, piece)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    fresh.replace(path)
    if durable:
        sync_folder(path.parent)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte where the file stands."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
