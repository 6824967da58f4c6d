"""Which processes are alive, for stores in files on this machine: one small file per process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nanoloop.files import file_name, load_file, make_folder, open_file, save_json
from nanoloop.protocols import Node
from nanoloop.stores.database import FORGET_NODE_SECONDS, NODE_SECONDS, granted

LOCK_SECONDS = 1.0
"""How long a beat waits for another's: less than the time between two of them."""
_PAUSE_SECONDS = 0.005
_SUFFIX = ".json"


class NodeFiles:
    """A folder beside the store; it blocks, so call it in worker threads.

    Its cost grows only with the processes of the last hour. It doesn't survive a power loss, as no
    process does. The clock is the machine's, which all its processes share and nobody sets.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is created by the first beat."""
        self._folder = folder

    def beat(self, node: Node) -> Sequence[Node]:
        """Like `Database.beat`; raises OSError."""
        make_folder(self._folder)
        with self._alone() as is_alone:
            known, now = self._read()
            holds = granted(node, known.values())
            if not is_alone:
                # Whoever has the lock, and was stopped with it, may be taking what we want.
                holds &= _held(known.get(node.id))
            known[node.id] = replace(node, holds=holds, age=0.0)
            save_json(self._file(node.id), _dumped(known[node.id], seen=now))
        return list(known.values())

    def leave(self, node_id: str) -> None:
        """Like `Database.leave`; raises OSError."""
        self._file(node_id).unlink(missing_ok=True)

    def _file(self, node_id: str) -> Path:
        return self._folder / f"{file_name(node_id)}{_SUFFIX}"

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process beats meanwhile; a process that was stopped blocks no other."""
        fd = open_file(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            yield _is_locked(fd)
        finally:
            os.close(fd)

    def _read(self) -> tuple[dict[str, Node], float]:
        """All processes heard from recently, and the time; the files of others are removed."""
        files = list(self._folder.glob(f"*{_SUFFIX}"))
        found = [(file, _loaded(file)) for file in files]
        now = time.monotonic()
        known: dict[str, Node] = {}
        for file, loaded in found:
            # Seen later than now was before the machine was started again.
            if loaded is not None and 0 <= (age := now - loaded[1]) < FORGET_NODE_SECONDS:
                known[loaded[0].id] = replace(loaded[0], age=age)
            else:
                file.unlink(missing_ok=True)
        return known, now


def _is_locked(fd: int) -> bool:
    """Lock it; False if another process holds it for too long."""
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
        else:
            return True
        time.sleep(_PAUSE_SECONDS)


def _held(node: Node | None) -> frozenset[str]:
    """What no other process can have got since."""
    return node.holds if node is not None and node.age < NODE_SECONDS else frozenset()


def _dumped(node: Node, *, seen: float) -> dict[str, object]:
    return {
        "id": node.id,
        "place": node.place,
        "pid": node.pid,
        "holds": sorted(node.holds),
        "seen": seen,
    }


def _loaded(file: Path) -> tuple[Node, float] | None:
    """A process and when it was last heard from; None if the file is gone or isn't ours."""
    try:
        value = json.loads(load_file(file))
        node = Node(
            id=str(value["id"]),
            place=str(value["place"]),
            pid=int(value["pid"]),
            holds=frozenset(map(str, value["holds"])),
        )
        return node, float(value["seen"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
