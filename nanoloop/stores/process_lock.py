"""One process owns a folder or file at a time; the lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from nanoloop.errors import StoreLocked
from nanoloop.session.entry import rfc3339
from nanoloop.stores.folder import make_folder


class ProcessLock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, path: Path, *, of: Path, clock: Callable[[], datetime]) -> None:
        """`path` is the lock's own file, `of` what it stands for."""
        self._path = path
        self._of = of
        self._clock = clock
        self._guard = Lock()
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._fd is not None

    def take(self) -> None:
        """Own it, its folder made where it is missing; raises `StoreLocked` naming who does."""
        with self._guard:
            if self._fd is not None:
                return
            make_folder(self._path.parent)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._lock(fd)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(str(self._of), _owner(os.pread(fd, 4096, 0))) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(self._card()).encode(), 0)

    def _card(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": rfc3339(self._clock()),
            "command": Path(sys.argv[0]).name if sys.argv else "",
        }

    def release(self) -> None:
        """Let others have it; without the lock there is nothing to do."""
        with self._guard:
            if self._fd is not None:
                # Emptied, not removed: whoever opened the file already must lock the same one.
                os.ftruncate(self._fd, 0)
                os.close(self._fd)
                self._fd = None


def _owner(card: bytes) -> str:
    try:
        owner = json.loads(card)
        text = f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
    return f"{text} ({owner['command']})" if owner.get("command") else text
