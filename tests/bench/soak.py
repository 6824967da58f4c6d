"""A million turns over ten thousand chats: memory, open files and the time of a turn stay flat.

    python -m tests.bench.soak [--turns 1000000] [--chats 10000] [--store sqlite] [--short]

The model answers in the process itself. Chats take turns, so that sessions are let go and opened
again all the time; summaries run beside. It is looked at in twenty steps; the first eight, in which
windows fill up for the first time, don't count.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.protocols import Store
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from tests.bench.living import ANSWERED, SAID
from tests.bench.report import Report, say

STORES = {
    "memory": lambda _: InMemoryStore(),
    "jsonl": JsonlStore,
    "sqlite": lambda folder: SqliteStore(folder / "sessions.sqlite"),
}
STEPS = 20
AT_ONCE = 16
"""Chats that are being answered at each moment."""
WARM = 8
"""Steps until windows have been cut in most chats."""
OPEN_SHARE = 0.2
"""The part of the chats whose sessions are kept open."""
MEMORY_GOAL = 5
"""Megabytes that the last six steps may add."""
TIME_GOAL = 1.15
TASKS_GOAL = 20
"""The loop's own, and summaries that are just being written."""


@dataclass(frozen=True, slots=True)
class Look:
    """How things stand after a step."""

    turns: int
    megabytes: float
    files: int
    tasks: int
    microseconds: float
    """Of the processor, for a turn of this step: other programs don't count."""


@asynccontextmanager
async def talking(store: Store, open_sessions: int) -> AsyncIterator[DirectChannel]:
    """A loop and the channel that all chats come by."""
    provider = ScriptedProvider(otherwise=ANSWERED, keep_calls=0)
    loop = AgentLoop(provider=provider, store=store, open_sessions=open_sessions)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield DirectChannel(loop.bus)
        loop.bus.close()
    await store.close()


async def soak(store: Store, *, turns: int, chats: int) -> list[Look]:
    """So many turns; one look at each step, the first when every chat has said something."""
    chance = random.Random(1)
    count = turns // STEPS
    async with talking(store, int(chats * OPEN_SHARE)) as channel:
        await _ask(channel, [f"chat {number}" for number in range(chats)])
        looks = []
        for step in range(STEPS):
            names = [f"chat {chance.randrange(chats)}" for _ in range(count)]
            before = time.process_time()
            await _ask(channel, names)
            seconds = time.process_time() - before
            looks.append(_look((step + 1) * count, seconds / count * 1e6))
            say(f"... {looks[-1].turns:,} turns, {looks[-1].megabytes:.0f} MB")
    return looks


async def _ask(channel: DirectChannel, names: list[str]) -> None:
    async def ask() -> None:
        while names:
            await channel.ask(SAID, chat=names.pop())

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(ask)


def _look(turns: int, microseconds: float) -> Look:
    gc.collect()
    return Look(
        turns=turns,
        megabytes=_resident() / 1e6,
        files=len(list(Path("/proc/self/fd").iterdir())),
        tasks=len(anyio.get_running_tasks()),
        microseconds=microseconds,
    )


def _typical(looks: list[Look]) -> float:
    return median(look.microseconds for look in looks)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def stay_on_one_processor() -> None:
    """With several the threads fight over the interpreter, the more the quieter the machine is."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    """Print the steps, and whether they are flat."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak")
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--store", choices=tuple(STORES), default="sqlite")
    parser.add_argument("--short", action="store_true", help="10,000 turns over 100 chats")
    args = parser.parse_args()
    turns, chats = (10_000, 100) if args.short else (args.turns, args.chats)
    stay_on_one_processor()
    report = Report(f"{turns:,} turns over {chats:,} chats, {args.store}")
    with tempfile.TemporaryDirectory() as folder:
        looks = anyio.run(_soak, STORES[args.store](Path(folder)), turns, chats)
    rows = [
        (
            f"{look.turns:,}",
            f"{look.megabytes:.1f}",
            look.files,
            look.tasks,
            f"{look.microseconds:.0f}",
        )
        for look in looks
    ]
    report.table("after", ("turns", "MB", "files", "tasks", "µs a turn"), rows)
    half = WARM + (STEPS - WARM) // 2
    first, second = looks[WARM:half], looks[half:]
    grown = second[-1].megabytes - first[-1].megabytes
    report.goal("memory added by the last steps", grown, MEMORY_GOAL, " MB")
    report.goal("open files added", second[-1].files - first[-1].files, 2)
    report.goal("tasks left", second[-1].tasks, TASKS_GOAL)
    report.goal(
        "a turn, in turns of the steps before", _typical(second) / _typical(first), TIME_GOAL
    )
    report.end()


async def _soak(store: Store, turns: int, chats: int) -> list[Look]:
    return await soak(store, turns=turns, chats=chats)


if __name__ == "__main__":
    main()
