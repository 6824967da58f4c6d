"""The processes that serve the chats in one store.

Each process sends a heartbeat every two seconds.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Self

import anyio
from anyio.abc import TaskGroup

from nanoloop.bounded import BoundedDict
from nanoloop.defaults import NODE_SECONDS, STORE_TIMEOUT_SECONDS
from nanoloop.errors import StoreError
from nanoloop.protocols import Node, Store

BEAT_SECONDS = 2.0
LOOK_SECONDS = 0.5
"""How often to check for other processes' changes, while there are other processes."""
SURE_SECONDS = NODE_SECONDS - 1
"""How long after a confirmed heartbeat no other process can consider this one dead."""
AGAIN_SECONDS = 0.1
"""The delay before an unconfirmed heartbeat is repeated while a caller waits for it."""
LEAVE_SECONDS = 2.0
GONE_LIMIT = 10_000
"""How many dead processes are remembered."""


class Nodes:
    """This process and the other living processes that the store knows."""

    def __init__(self, store: Store, *, patience_seconds: float = STORE_TIMEOUT_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self.me = token_urlsafe(6)
        """The name of this process, new for each run."""
        self._store = store
        self._others: dict[str, float] = {}
        """The other living processes; for each, the age of its heartbeat at the last check."""
        self._gone: BoundedDict[str, None] = BoundedDict(GONE_LIMIT)
        self._wanted: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()
        self._uses: dict[str, anyio.CancelScope] = {}
        """The cancel scopes of the work for each account that only this process may use."""
        self._looked_at = _now() - NODE_SECONDS
        self.lapses = 0
        """How often this process was silent for so long that another could consider it dead."""
        self._beating = anyio.Lock()
        self._has_left = False
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        with suppress(StoreError):  # unavailable now: the next heartbeat tries again
            await self.beat()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        # A separate task, so that a waiting chat can't delay the heartbeat.
        self._group.start_soon(self._keep_beating, name="beat")
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        assert self._group is not None  # noqa: S101 - entered before it is left
        self._has_left = True
        self._group.cancel_scope.cancel()
        try:
            return await self._group.__aexit__(*exc)  # type: ignore[arg-type]
        finally:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True), suppress(StoreError):
                async with self._beating:  # no heartbeat may follow
                    await self._store.leave(self.me)  # others take over its work at once

    async def _keep_beating(self) -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            with suppress(StoreError):
                await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat and learn which processes are alive; raise `StoreError` if it fails."""
        asked_at = _now()
        async with self._beating:
            if self._looked_at > asked_at or self._has_left:  # another caller sent one meanwhile
                return
            # Measured from before the store receives it, so that no other process counts from an
            # earlier time.
            now = _now()
            mine = Node(id=self.me, place=PLACE, pid=os.getpid(), holds=self._wanted)
            rows = await self._told(mine)
            self.lapses += not self._is_sure
            dead = [row.id for row in rows if row.id != self.me and is_dead(row)]
            for name in dead:
                await self._store.leave(name)
            self._note(rows, dead, now)

    async def _told(self, mine: Node) -> Sequence[Node]:
        # Not cancelled, because a write in a thread would still happen, only later.
        with anyio.move_on_after(SURE_SECONDS, shield=True):
            return await self._store.beat(mine)
        raise StoreError("the store is not responding")

    def _note(self, rows: Collection[Node], dead: Collection[str], now: float) -> None:
        self._held = next((row.holds for row in rows if row.id == self.me), frozenset())
        living = {
            row.id: row.age
            for row in rows
            if row.id != self.me and row.id not in dead and row.age < NODE_SECONDS
        }
        for name in living:
            self._gone.pop(name, None)
        for name in {*self._others, *dead} - living.keys():
            self._gone[name] = None
        self._others, self._looked_at = living, now
        for account in self._uses.keys() - self._held:  # this process was considered dead
            self._uses[account].cancel()

    @property
    def held(self) -> frozenset[str]:
        """The chat platform accounts that only this process may use."""
        return self._held

    # Living processes

    @property
    def living(self) -> frozenset[str]:
        """The other processes that are alive, as far as this one knows."""
        return frozenset(name for name in self._others if self._lives(name))

    @property
    def look_seconds(self) -> float:
        """The delay before the next check for other processes' changes.

        If no other process is alive, the delay is longer.
        """
        return LOOK_SECONDS if self.living else BEAT_SECONDS

    def is_other(self, name: str) -> bool:
        """Return True if another process with this name is alive, or may be."""
        if not name or name == self.me:
            return False
        return self._lives(name) if name in self._others else name not in self._gone

    def _lives(self, name: str) -> bool:
        return self._others[name] + _now() - self._looked_at < NODE_SECONDS

    async def ask_after(self, *names: str) -> None:
        """Find out which of these processes are alive, if that is unknown; raise `StoreError`."""
        known = ("", self.me)
        names = tuple(name for name in names if name not in known)
        if unknown := {n for n in names if n not in self._others and n not in self._gone}:
            await self._beat_patiently()
            for name in unknown - self._others.keys():
                self._gone[name] = None

    async def _beat_patiently(self) -> None:
        """Send a heartbeat, retrying; raise `StoreError` once the store counts as unavailable."""
        left = self._patience_seconds
        while True:
            began = _now()
            try:
                return await self.beat()
            except StoreError:
                # It takes no longer than this, unless the whole process was suspended meanwhile.
                left -= min(_now() - began, SURE_SECONDS) + AGAIN_SECONDS
                if left <= 0:
                    raise
                await anyio.sleep(AGAIN_SECONDS)

    def is_sure(self, since: int) -> bool:
        """Return True if no other process can have considered this one dead since then.

        `since` is the number of `lapses` at that time.
        """
        return self.lapses == since and self._is_sure

    @property
    def _is_sure(self) -> bool:
        return _now() - self._looked_at < SURE_SECONDS

    # Exclusive accounts

    async def holding(
        self,
        account: str,
        work: Callable[[], Awaitable[None]],
        *,
        waits: Callable[[bool], object],
    ) -> None:
        """Run this work while no other process uses the chat platform account.

        `waits` is called with True when the work has to wait, and with False when it can start. If
        another process took the account because this one was considered dead, the work is cancelled
        and waits again.
        """
        while True:
            is_waiting = False
            while not await self._has(account):
                if not is_waiting:
                    waits(True)
                is_waiting = True
                await anyio.sleep(BEAT_SECONDS)
            if is_waiting:
                waits(False)
            with anyio.CancelScope() as scope:
                self._uses[account] = scope
                try:
                    return await work()
                finally:
                    del self._uses[account]
                    self._wanted -= {account}

    async def _has(self, account: str) -> bool:
        self._wanted |= {account}
        with suppress(StoreError):  # unavailable: the owner is unknown
            await self.beat()
            if account in self._held:
                return True
        self._wanted -= {account}
        return False


def _now() -> float:
    """Return the time of a clock that keeps running during sleep, if the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def _place() -> str:
    """Return the place within which a process id is unique: this boot and this pid namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


PLACE = _place()


def is_dead(node: Node) -> bool:
    """Return True for a process in this place that has ended, however recent its last heartbeat."""
    return node.place == PLACE and not is_there(node.pid)


def is_there(pid: int) -> bool:
    """Return True if a process with this id runs in this place."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    with suppress(OSError):  # ended, but not yet reaped
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
    return True
