"""The cost of a turn, and of opening a session, by the length of its history.

    python -m tests.bench.flat_cost [--short]

The model answers in the process itself, so that nothing but the loop and the store is measured.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import anyio

from nanoloop.channels.direct import DirectChannel
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.jsonl.store import JsonlStore
from tests.bench.bytes_moved import moved
from tests.bench.living import ANSWERED, SAID, running, with_history
from tests.bench.report import Report
from tests.bench.samples import Samples, ms

SIZES = (10, 1_000, 10_000, 100_000)
GOAL = 1.2
CYCLE = 20
"""Turns from one trim to the next: whole cycles see the same windows at every size."""
WORDS = len((SAID + ANSWERED).encode())
"""Bytes that a turn says."""
BESIDE_GOAL = 1250
"""Bytes that a turn may write beside the words: ids, times, senders, whose the chat is, a head for
each commit."""


@dataclass(slots=True)
class Cost:
    """What a session of one size costs."""

    turn: Samples = field(default_factory=Samples)
    reopen: Samples = field(default_factory=Samples)
    written: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    reopen_read: list[int] = field(default_factory=list)
    kilobytes: float = 0


def session_id(messages: int) -> str:
    return f"direct:{messages}"


def scripted() -> ScriptedProvider:
    return ScriptedProvider(otherwise=ANSWERED, keep_calls=0)


async def build(folder: Path, sizes: tuple[int, ...]) -> None:
    store = JsonlStore(folder)
    for messages in sizes:
        await with_history(store, session_id(messages), messages)
    await store.close()


async def reopen(folder: Path, costs: dict[int, Cost], repeats: int) -> None:
    """Load each session in a store that has never seen it, taking turns."""
    for _ in range(repeats):
        for messages, cost in costs.items():
            store = JsonlStore(folder)
            with moved() as bytes_moved, cost.reopen.timed():
                await store.load(session_id(messages))
            cost.reopen_read.append(bytes_moved.read)
            await store.close()


async def take_turns(folder: Path, costs: dict[int, Cost], cycles: int) -> None:
    """One turn in each session, again and again; the first cycle warms up."""
    async with running(scripted(), JsonlStore(folder)) as loop:
        direct = DirectChannel(loop.bus)
        for turn in range((cycles + 1) * CYCLE):
            for messages, cost in costs.items():
                with moved() as bytes_moved:
                    with cost.turn.timed():
                        await direct.ask(SAID, chat=str(messages))
                    await loop.summarizer.drain(5)  # its bytes are this session's too
                if turn < CYCLE:
                    cost.turn.seconds.clear()
                else:
                    cost.written.append(bytes_moved.written)
                    cost.read.append(bytes_moved.read)


async def weigh(folder: Path, messages: int) -> float:
    """Kilobytes that are held in memory for one session after a cycle of turns."""
    gc.collect()
    tracemalloc.start()
    try:
        async with running(scripted(), JsonlStore(folder)) as loop:
            direct = DirectChannel(loop.bus)
            for _ in range(CYCLE):
                await direct.ask(SAID, chat=str(messages))
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / 1024
    finally:
        tracemalloc.stop()


async def measure(sizes: tuple[int, ...], cycles: int) -> dict[int, Cost]:
    costs = {messages: Cost() for messages in sizes}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        await build(folder, sizes)
        await reopen(folder, costs, repeats=5 * cycles)
        await take_turns(folder, costs, cycles)
        await weigh(folder, sizes[0])  # what is made once is made now
        for messages, cost in costs.items():
            cost.kilobytes = await weigh(folder, messages)
    return costs


def tell(costs: dict[int, Cost]) -> None:
    report = Report("What a turn costs, by the length of the history before it")
    turns = len(next(iter(costs.values())).turn.seconds)
    report.table(
        f"{turns} turns of each size, taking turns",
        ("messages", "turn ms", "p99", "bytes written", "bytes read", "memory KiB"),
        [
            (
                f"{messages:,}",
                ms(cost.turn.median),
                ms(cost.turn.quantile(0.99)),
                f"{mean(cost.written):.0f}",
                f"{mean(cost.read):.0f}",
                f"{cost.kilobytes:.0f}",
            )
            for messages, cost in costs.items()
        ],
    )
    report.table(
        "Opening the session again, in a store that has never seen it",
        ("messages", "load ms", "p99", "bytes read"),
        [
            (
                f"{messages:,}",
                ms(cost.reopen.median),
                ms(cost.reopen.quantile(0.99)),
                f"{median(cost.reopen_read):.0f}",
            )
            for messages, cost in costs.items()
        ],
    )
    judge(report, list(costs.values()))
    report.end()


def judge(report: Report, costs: list[Cost]) -> None:
    """Compare the longest histories with the shortest."""
    kinds = {
        "turn, time": [cost.turn.median for cost in costs],
        "turn, bytes written": [mean(cost.written) for cost in costs],
        "turn, bytes read": [mean(cost.read) + 1 for cost in costs],
        "turn, memory": [cost.kilobytes for cost in costs],
    }
    for name, values in kinds.items():
        report.goal(f"{name}, worst size beside the smallest", max(values) / values[0], GOAL)
    loads = [cost.reopen.median for cost in costs[1:]]
    report.goal("load, time, worst size beside 1,000", max(loads) / loads[0], GOAL)
    reads = [median(cost.reopen_read) for cost in costs[1:]]
    report.goal("load, bytes read, worst size beside 1,000", max(reads) / reads[0], GOAL)
    beside = max(median(cost.written) for cost in costs) - WORDS
    report.goal("a turn without a trim, written beside the words", beside, BESIDE_GOAL, " bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    is_short = parser.parse_args().short
    sizes, cycles = (SIZES[:3], 5) if is_short else (SIZES, 30)
    tell(anyio.run(measure, sizes, cycles))


if __name__ == "__main__":
    main()
