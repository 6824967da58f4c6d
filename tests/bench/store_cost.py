"""What one save and one load take in each store, at growing lengths of history.

    python -m tests.bench.store_cost [--short] [--stores jsonl,sqlite]

A save commits one new message and the head with it; a load has the window only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from tests.bench.report import Report
from tests.bench.samples import Samples, ms

SIZES = (10, 1_000, 10_000, 100_000)
SAVES, LOADS = 2_000, 300
TEXT = "What was said is about as long as this line, give or take a few words. " * 2
GOAL_MS = 0.20
"""What openai-agents' SQLiteSession takes to append one message, without a head, on such a
machine."""
FLAT_GOAL = 1.5
"""A load from the longest history over one from a thousand messages, whose window is the same."""
COLUMNS = ("store", "messages", "save p50 ms", "p99", "load p50 ms", "p99")

Open = Callable[[], Store]


@contextmanager
def memory() -> Iterator[Open]:
    store = InMemoryStore()
    yield lambda: store


@contextmanager
def redis(*options: str) -> Iterator[Open]:
    from nanoloop.stores.redis import RedisStore  # noqa: PLC0415 - only where it is asked for
    from tests.servers.redis import Redis  # noqa: PLC0415

    with Redis(*options) as server:
        yield lambda: RedisStore(server.url)


@contextmanager
def postgres(*options: str) -> Iterator[Open]:
    from nanoloop.stores.postgres import PostgresStore  # noqa: PLC0415 - as above
    from tests.servers.postgres import Postgres  # noqa: PLC0415

    with Postgres(*options) as server:
        yield lambda: PostgresStore(server.url)


@contextmanager
def files(make: Callable[[Path], Store]) -> Iterator[Open]:
    with TemporaryDirectory() as folder:
        yield lambda: make(Path(folder) / "sessions.sqlite")


STORES: dict[str, Callable[[], AbstractContextManager[Open]]] = {
    "memory": memory,
    "jsonl": lambda: files(JsonlStore),
    "jsonl fsync": lambda: files(lambda path: JsonlStore(path, durability="fsync")),
    "sqlite": lambda: files(SqliteStore),
    "sqlite fsync": lambda: files(lambda path: SqliteStore(path, durability="fsync")),
    "redis": redis,
    "redis fsync": lambda: redis("--appendonly", "yes", "--appendfsync", "always"),
    "postgres": postgres,
    "postgres fsync": lambda: postgres("--fsync=on"),
}
"""How to have each store, empty, for a while."""


async def grow(store: Store, count: int) -> None:
    """Store one session of so many messages, summarised up to its window."""
    session = await store.create(id="s")
    for start in range(0, count, 500):
        for number in range(start, min(start + 500, count)):
            role = "assistant" if number % 2 else "user"
            metadata = {"message_id": f"{number}"} if role == "user" else {}
            session.add_entry(Entry.message(role, TEXT, metadata=metadata))
        session.trim_if_needed(50, 10)
        session.update_summary("They spoke of many things.", seq=session.pending_seq)
        await store.save(session)
        session.release()


async def measured(open_store: Open, count: int, rounds: int) -> tuple[Samples, Samples]:
    """Saves and loads of one session of so many messages."""
    store = open_store()
    await grow(store, count)
    saves, loads = Samples(), Samples()
    for _ in range(max(rounds * LOADS // SAVES, 10)):
        with loads.timed():
            session = await store.load("s")
    for _ in range(rounds):
        session.add_entry(Entry.message("user", TEXT))
        session.trim_if_needed(50, 10)
        with saves.timed():
            await store.save(session)
        session.release()
    await store.close()
    return saves, loads


def table(report: Report, names: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
    """One line for each store and size, and which goals were met."""
    rows, taken = [], {}
    for name in names:
        for size in sizes:
            with STORES[name]() as open_store:
                saves, loads = taken[name, size] = anyio.run(measured, open_store, size, rounds)
            cells = [
                ms(value) for each in (saves, loads) for value in (each.median, each.quantile(0.99))
            ]
            rows.append((name, f"{size:,}", *cells))
    report.table("One message committed with its head; one window read", COLUMNS, rows)
    if "sqlite" in names:
        slowest = max(taken["sqlite", size][0].median for size in sizes)
        report.goal("sqlite save p50", slowest * 1e3, GOAL_MS, " ms")
    for name in names:
        ratio = taken[name, sizes[-1]][1].median / taken[name, sizes[1]][1].median
        report.goal(f"{name} load, {sizes[-1]:,} messages to {sizes[1]:,}", ratio, FLAT_GOAL)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--stores", default=",".join(STORES), help="names, behind commas")
    args = parser.parse_args()
    report = Report("Stores")
    sizes, rounds = (SIZES[:3], 300) if args.short else (SIZES, SAVES)
    table(report, args.stores.split(","), sizes, rounds)
    report.end()


if __name__ == "__main__":
    main()
