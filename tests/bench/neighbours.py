"""Two hundred chats side by side, one of them odd: what the others notice of it.

    python -m tests.bench.neighbours [--short]

Each chat speaks once a period, one after the other within it, so that the loop is busy but not
behind. A ticker beside them measures how long the event loop was not to be had. Each kind is run
a few times and judged by its best run: what else the machine does only ever adds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from nanoloop import AgentLoop, tool
from nanoloop.channels.direct import DirectChannel
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.jsonl.store import JsonlStore
from tests.bench.living import ANSWERED, SAID, running, with_history
from tests.bench.report import Report
from tests.bench.samples import Samples, ms

CHATS = 200
ODD = "odd"
ODD_ID = f"direct:{ODD}"
SUMMARY_SECONDS = 2
TICK_SECONDS = 0.001
MEDIAN_GOAL = 1.2
TAIL_GOAL = 0.02
"""Seconds that the odd one may add to the others' p99: a busy machine adds some, a wait for the odd
one would be seconds."""
STALL_GOAL = 0.05
"""Seconds for which the event loop may be gone at once, with 1 or 2 processors."""

HANG, CRASH = "use the tool that hangs", "crash"


@tool
async def hang() -> str:
    """Never return."""
    await anyio.sleep_forever()
    return ""


async def model(messages: Any, *_: Any) -> Reply | str:
    """Answer at once, but for the odd requests."""
    if messages[0]["content"].startswith("You keep the memory"):
        await anyio.sleep(SUMMARY_SECONDS)
        return "They talked about the market."
    if messages[-1]["content"] == CRASH:
        raise RuntimeError
    if messages[-1]["content"] == HANG:
        call = ToolCall(id="call_1", name="hang", arguments="{}")
        return Reply(tool_calls=(call,), finish_reason="tool_calls")
    return ANSWERED


@dataclass(slots=True)
class Run:
    """What one run showed."""

    turns: Samples = field(default_factory=Samples)
    stall: float = 0
    """Seconds for which the event loop was gone, at most."""


def median(run: Run) -> float:
    return run.turns.median


def p99(run: Run) -> float:
    return run.turns.quantile(0.99)


def stall(run: Run) -> float:
    return run.stall


@dataclass(slots=True, kw_only=True)
class Kind:
    """One way to be odd."""

    history: int = 0
    window: int = 10
    says: str | None = None
    """What it says in place of what the others say; None for no odd chat at all."""
    beside: Callable[[AgentLoop], Awaitable[Any]] | None = None
    """What goes on at the same time."""
    is_odd: Callable[[AgentLoop, Sequence[str]], bool] = lambda *_: True
    """Whether it was odd enough, by the loop at the end and the kinds of its answers."""
    is_judged: bool = True
    runs: list[Run] = field(default_factory=list)

    def best(self, value: Callable[[Run], float]) -> float:
        """The lowest of all runs."""
        return min(value(run) for run in self.runs)


async def read_whole(loop: AgentLoop) -> None:
    """Read the odd chat's whole history, as an export does."""
    await loop.sessions.store.get(ODD_ID)


def is_hanging(loop: AgentLoop, answers: Sequence[str]) -> bool:
    return loop.is_answering(ODD_ID) and not answers


def has_crashed(_: AgentLoop, answers: Sequence[str]) -> bool:
    return "error" in answers


def has_answered(_: AgentLoop, answers: Sequence[str]) -> bool:
    return "answer" in answers


def has_begun_a_summary(loop: AgentLoop, answers: Sequence[str]) -> bool:
    return loop.summarizer.running == 1 and "answer" in answers


def kinds(long: int, *, with_export: bool) -> dict[str, Kind]:
    exported = Kind(history=long, beside=read_whole, is_judged=False)
    return {
        "none": Kind(),
        "its tool hangs": Kind(says=HANG, is_odd=is_hanging),
        "it crashes": Kind(says=CRASH, is_odd=has_crashed),
        f"it has {long:,} messages": Kind(says=SAID, history=long, is_odd=has_answered),
        f"its summary takes {SUMMARY_SECONDS} s": Kind(
            says=SAID, history=60, window=50, is_odd=has_begun_a_summary
        ),
        **({f"{long:,} messages are exported": exported} if with_export else {}),
    }


async def run(kind: Kind, periods: int, seconds: float) -> Run:
    """One run of one kind, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = JsonlStore(folder)
        if kind.history:
            await with_history(store, ODD_ID, kind.history, window=kind.window)
        await store.close()
        provider = ScriptedProvider(otherwise=model, keep_calls=0)
        options = {"shutdown_turns_seconds": 0.05, "shutdown_summaries_seconds": 0.05}
        async with running(provider, JsonlStore(folder), tools=[hang], **options) as loop:
            direct = DirectChannel(loop.bus)
            await all_speak(direct, Run(), 1, seconds / 2)  # every session is made
            async with anyio.create_task_group() as beside:
                answers: list[str] = []
                if kind.says is not None:
                    beside.start_soon(speak_oddly, direct, kind.says, seconds, answers)
                if kind.beside is not None:
                    beside.start_soon(kind.beside, loop)
                seen = Run()
                await all_speak(direct, seen, periods, seconds)
                assert kind.is_odd(loop, answers)
                beside.cancel_scope.cancel()
    return seen


async def all_speak(direct: DirectChannel, seen: Run, periods: int, seconds: float) -> None:
    async with anyio.create_task_group() as ticker:
        ticker.start_soon(tick, seen)
        async with anyio.create_task_group() as chats:
            for number in range(CHATS - 1):
                waits = [seconds * number / CHATS, *[seconds] * (periods - 1)]
                chats.start_soon(speak, direct, f"chat{number}", seen, waits)
        ticker.cancel_scope.cancel()


async def speak(direct: DirectChannel, chat: str, seen: Run, waits: Sequence[float]) -> None:
    for wait in waits:
        await anyio.sleep(wait)
        with seen.turns.timed():
            answer = await direct.ask(SAID, chat=chat)
        assert answer.text == ANSWERED


async def speak_oddly(direct: DirectChannel, says: str, seconds: float, answers: list[str]) -> None:
    while True:
        answers.append((await direct.ask(says, chat=ODD)).kind)
        await anyio.sleep(seconds)


async def tick(seen: Run) -> None:
    """Note by how much a short sleep was too long."""
    while True:
        began = time.perf_counter()
        await anyio.sleep(TICK_SECONDS)
        seen.stall = max(seen.stall, time.perf_counter() - began - TICK_SECONDS)


def tell(measured: dict[str, Kind]) -> None:
    report = Report(f"{CHATS} chats side by side, one of them odd: the others' turns")
    alone = measured["none"]
    report.table(
        f"{len(alone.runs)} runs a kind with {len(alone.runs[0].turns.seconds)} turns each, "
        "taking turns; the best run of each",
        ("the odd one", "median ms", "p99 ms", "longest stall ms"),
        [
            (name, ms(kind.best(median)), ms(kind.best(p99)), ms(kind.best(stall)))
            for name, kind in measured.items()
        ],
    )
    for name, kind in measured.items():
        if kind.is_judged and kind is not alone:
            judge(report, name, kind, alone)
    report.end()


def judge(report: Report, name: str, kind: Kind, alone: Kind) -> None:
    middle = kind.best(median) / alone.best(median)
    report.goal(f"{name}: median beside none", middle, MEDIAN_GOAL)
    more = kind.best(p99) - alone.best(p99)
    report.goal(f"{name}: p99 above none", more * 1e3, TAIL_GOAL * 1e3, " ms")
    report.goal(f"{name}: longest stall", kind.best(stall) * 1e3, STALL_GOAL * 1e3, " ms")


async def measure(
    measured: dict[str, Kind], runs: int, periods: int, seconds: float
) -> dict[str, Kind]:
    for _ in range(runs):
        for kind in measured.values():
            kind.runs.append(await run(kind, periods, seconds))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    is_short = parser.parse_args().short
    measured = kinds(10_000 if is_short else 100_000, with_export=not is_short)
    plan = (2, 2, 0.4) if is_short else (4, 2, 0.8)
    tell(anyio.run(measure, measured, *plan))


if __name__ == "__main__":
    main()
