"""Three hundred chats that all speak at once: how long until the first words of each answer show.

    python -m tests.bench.crowd [--short]

A whole bot, with SQLite, over the chat platform of `nanoloop.testing.channels`, in one process. The
model takes a second to its first words and says twenty pieces in another; the platform lets a
message be edited once a second. Timed is what people see, from their message to the first words in
their chat, which wait a moment for more on purpose. What everybody says first begins a session.
Each run is a bot of its own, and the best one is judged: what else the machine does only ever adds.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from nanoloop.channels.kit.drafts import FIRST_SECONDS
from nanoloop.channels.kit.platform import Limits, Place, Text
from nanoloop.protocols import OnText, Reply
from nanoloop.testing.channels.fake import FakeChats, FakePlatform
from nanoloop.testing.channels.stage import Bot, comes_to
from tests.bench.report import Report
from tests.bench.samples import Samples

CHATS = 300
MODEL_SECONDS = 1.0
PIECES = 20
PIECE_SECONDS = 0.05
LIMITS = Limits(text=4000, edit_seconds=1.0)
GOAL_SECONDS = 1.5
ROUNDS = ("their first message", "their second one")


class Model:
    """Says a second later what takes another second to say."""

    async def chat(self, *, on_text: OnText | None = None, **_: Any) -> Reply:
        await anyio.sleep(MODEL_SECONDS)
        pieces = [f"word{number} " for number in range(PIECES)]
        for piece in pieces:
            if on_text is not None:
                on_text(piece)
            await anyio.sleep(PIECE_SECONDS)
        return Reply(text="".join(pieces))

    async def close(self) -> None:
        pass


class Watched(FakePlatform):
    """Notes when each chat sees the first words."""

    def __init__(self, chats: FakeChats) -> None:
        super().__init__(chats)
        self.first: dict[str, float] = {}

    async def post(self, place: Place, text: Text, **more: Any) -> str:
        self.first.setdefault(place.chat, time.perf_counter())
        return await super().post(place, text, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What it took when all of them spoke."""

    first: Samples
    cpu_seconds: float
    megabytes: float

    @property
    def slowest(self) -> float:
        return max(self.first.seconds)


async def run() -> list[Round]:
    """One bot, and all that everybody says to it."""
    chats = FakeChats(limits=LIMITS)
    platform = Watched(chats)
    people = await chats.people(CHATS)
    with tempfile.TemporaryDirectory() as folder:
        async with Bot(platform, Path(folder), provider=Model()):
            return [await speak(platform, chats, people, number) for number in range(len(ROUNDS))]


async def speak(
    platform: Watched, chats: FakeChats, people: Sequence[tuple[str, str]], before: int
) -> Round:
    platform.first.clear()
    first, said, worked = Samples(), time.perf_counter(), time.process_time()
    for chat, sender in people:
        await chats.say(chat, "hello", sender=sender)
    for chat, _ in people:
        await comes_to(partial(whole, chats, chat), before + 1, seconds=60)
    first.seconds += [at - said for at in platform.first.values()]
    assert len(first.seconds) == CHATS
    spent = time.process_time() - worked
    return Round(first=first, cpu_seconds=spent, megabytes=megabytes())


async def whole(chats: FakeChats, chat: str) -> int:
    """How many answers are there to their last word."""
    last = f"word{PIECES - 1}"
    return sum(shown.text.rstrip().endswith(last) for shown in await chats.shown(chat))


def megabytes() -> float:
    """What the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def tell(before: float, runs: Sequence[Sequence[Round]]) -> None:
    report = Report(f"{CHATS} chats at once, with a model of {MODEL_SECONDS:g} s")
    best = {
        name: min(rounds, key=lambda seen: seen.slowest)
        for name, rounds in zip(ROUNDS, zip(*runs, strict=True), strict=True)
    }
    report.table(
        f"seconds to the first words, {FIRST_SECONDS} of them waited on purpose; "
        f"the best of {len(runs)} runs; {before:.0f} MB before",
        ("all say", "median s", "p99 s", "slowest s", "CPU s", "MB"),
        [(name, *cells(seen)) for name, seen in best.items()],
    )
    for name, seen in best.items():
        report.goal(f"{name}, slowest", seen.slowest, GOAL_SECONDS, " s")
    report.end()


def cells(seen: Round) -> tuple[str, ...]:
    times = (seen.first.median, seen.first.quantile(0.99), seen.slowest, seen.cpu_seconds)
    return (*(f"{value:.2f}" for value in times), f"{seen.megabytes:.0f}")


async def measure(runs: int) -> tuple[float, list[list[Round]]]:
    before = megabytes()
    return before, [await run() for _ in range(runs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    tell(*anyio.run(measure, 2 if parser.parse_args().short else 6))


if __name__ == "__main__":
    main()
