"""What one save and one load of the JSONL store take, at growing lengths of history.

python tests/bench/store_cost.py [COUNT ...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from nanoloop.session.entry import Entry
from nanoloop.stores.jsonl import JsonlStore
from nanoloop.stores.jsonl.store import Durability

SIZES = (10, 1_000, 10_000, 100_000)
ROUNDS = 2_000
TEXT = "What was said is about as long as this line, give or take a few words. " * 2


async def grow(folder: Path, count: int) -> None:
    """Store one session of so many messages, summarised up to its window."""
    store = JsonlStore(folder)
    session = await store.create(id="s")
    for start in range(0, count, 500):
        for number in range(start, min(start + 500, count)):
            session.add_entry(Entry.message("assistant" if number % 2 else "user", TEXT))
        session.trim_if_needed(50, 10)
        session.update_summary("They spoke of many things.", seq=session.pending_seq)
        await store.save(session)
        session.release()
    await store.close()


async def timed(work: Callable[[], Awaitable[object]], rounds: int) -> list[float]:
    """Microseconds of each round, sorted."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - begin) * 1e6)
    return sorted(taken)


async def measured(folder: Path, durability: Durability) -> str:
    """One line of numbers for the session in this folder."""
    store = JsonlStore(folder, durability=durability)
    session = await store.load("s")

    async def save() -> None:
        session.add_entry(Entry.message("user", TEXT))
        session.trim_if_needed(50, 10)
        await store.save(session)
        session.release()

    loads = await timed(lambda: store.load("s"), 50)
    saves = await timed(save, ROUNDS if durability == "flush" else 100)
    await store.close()
    return (
        f"save p50 {saves[len(saves) // 2]:7.0f} us  p99 {saves[len(saves) * 99 // 100]:7.0f} us"
        f"   load p50 {loads[len(loads) // 2]:7.0f} us"
    )


async def main(sizes: tuple[int, ...]) -> None:
    """Print a table."""
    for count in sizes:
        folder = Path(tempfile.mkdtemp())
        try:
            await grow(folder, count)
            for durability in ("flush", "fsync"):
                line = await measured(folder, durability)  # type: ignore[arg-type]
                print(f"{count:>8} {durability}  {line}")  # noqa: T201 - it shows its numbers
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    chosen = tuple(int(word) for word in sys.argv[1:] if word.isdigit())
    anyio.run(main, chosen or (SIZES[:2] if "--short" in sys.argv else SIZES))
