"""The processes that are alive, for file-based stores: one small file per process."""

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
"""How long a heartbeat waits for a lock; less than the time between heartbeats."""
_PAUSE_SECONDS = 0.005
_SUFFIX = ".json"


class NodeFiles:
    """A folder of heartbeat files beside the store.

    Methods block: call them in worker threads. The cost depends only on the number of processes in
    the last hour. The files need not survive a power loss, since no process does. They use the
    machine's monotonic clock, which all of its processes share and nobody can set.
    """

    def __init__(self, folder: Path) -> None:
        """Create the object; the first heartbeat creates the folder."""
        self._folder = folder

    def beat(self, node: Node) -> Sequence[Node]:
        """Like `Database.beat`; raise OSError if the files can't be written."""
        make_folder(self._folder)
        with self._alone() as is_alone:
            known, now = self._read()
            holds = granted(node, known.values())
            if not is_alone:
                # A suspended process that holds the lock may be about to take an account that we
                # want.
                holds &= _held(known.get(node.id))
            known[node.id] = replace(node, holds=holds, age=0.0)
            save_json(self._file(node.id), _dumped(known[node.id], seen=now))
        return list(known.values())

    def leave(self, node_id: str) -> None:
        """Like `Database.leave`; raise OSError if the file can't be deleted."""
        self._file(node_id).unlink(missing_ok=True)

    def _file(self, node_id: str) -> Path:
        return self._folder / f"{file_name(node_id)}{_SUFFIX}"

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield True if this process got the lock, without waiting long for a suspended process."""
        fd = open_file(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            yield _is_locked(fd)
        finally:
            os.close(fd)

    def _read(self) -> tuple[dict[str, Node], float]:
        """Return all recent processes and the time; delete the files of the others."""
        files = list(self._folder.glob(f"*{_SUFFIX}"))
        found = [(file, _loaded(file)) for file in files]
        now = time.monotonic()
        known: dict[str, Node] = {}
        for file, loaded in found:
            # A time in the future comes from before the machine was restarted.
            if loaded is not None and 0 <= (age := now - loaded[1]) < FORGET_NODE_SECONDS:
                known[loaded[0].id] = replace(loaded[0], age=age)
            else:
                file.unlink(missing_ok=True)
        return known, now


def _is_locked(fd: int) -> bool:
    """Lock the file; return False if another process holds the lock for too long."""
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
    """Return the accounts of a process if it is still alive; otherwise an empty set."""
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
    """Return a process and the time of its heartbeat, or None if the file is missing or invalid."""
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
