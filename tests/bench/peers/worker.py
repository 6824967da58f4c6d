"""Inside a system's own process: plays it, and measures, as lines of JSON on stdin ask for.

python -m tests.bench.peers.worker '{"play": "bare", "url": ..., "folder": ...}'
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import anyio
import anyio.to_thread

from tests.bench.bytes_moved import moved
from tests.bench.peers.said import ANSWERED, said

Turn = Callable[[str, str], Awaitable[str]]
"""What a play gives: the answer to a text in a chat."""

AT_ONCE = 50
"""Chats that are begun side by side."""
PAUSE_SECONDS = 0.02
"""Between two turns of a chat that is not in a hurry."""
NEW_CHAT_EVERY = 15
"""Turns after which the bystander begins another chat, long before one of its own is summarised."""
TICK_SECONDS = 0.001


class Worker:
    """One system, and what may be asked of it."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._numbers: dict[str, int] = {}

    async def turns(self, chat: str, count: int, seconds: float) -> dict[str, Any]:
        """So many turns in a chat, one after the other, until the time is up."""
        ends = time.perf_counter() + seconds
        taken: list[float] = []
        with moved() as bytes_moved:
            while len(taken) < count and time.perf_counter() < ends:
                taken.append(await self._one(chat))
        return {"taken": taken, "written": bytes_moved.written, "read": bytes_moved.read}

    async def crowd(self, users: int, seconds: float) -> dict[str, Any]:
        """So many chats at the same time, each speaking again as soon as it was answered.

        Each has said one thing before the clock starts: sessions and connections are there.
        """
        taken: list[float] = []
        errors: list[str] = []
        async with anyio.create_task_group() as warm:
            for number in range(users):
                warm.start_soon(self._one, f"user{users}-{number}")
        ends = time.perf_counter() + seconds

        async def user(number: int) -> None:
            while time.perf_counter() < ends:
                try:
                    took = await self._one(f"user{users}-{number}")
                except Exception as error:  # noqa: BLE001 - counted: the others go on
                    errors.append(repr(error)[:200])
                else:
                    if time.perf_counter() < ends:
                        taken.append(took)

        async with anyio.create_task_group() as group:
            for number in range(users):
                group.start_soon(user, number)
        return {"taken": taken, "errors": len(errors), "error": errors[:1], "seconds": seconds}

    async def beside(self, warm: int, seconds: float) -> dict[str, Any]:
        """A chat that comes to its summary, and another that should notice nothing of it."""
        own: list[float] = []
        other: list[float] = []
        stalls = [0.0]
        for _ in range(warm):
            await self._one("watched")
        ends = time.perf_counter() + seconds

        async def watched() -> None:
            while time.perf_counter() < ends:
                own.append(await self._one("watched"))
                await anyio.sleep(PAUSE_SECONDS)
            group.cancel_scope.cancel()

        async def bystander() -> None:
            while True:
                other.append(await self._one(f"by{len(other) // NEW_CHAT_EVERY}"))
                await anyio.sleep(PAUSE_SECONDS)

        async with anyio.create_task_group() as group:
            group.start_soon(watched)
            group.start_soon(bystander)
            group.start_soon(tick, stalls)
        return {"own": own, "other": other, "stall": max(stalls)}

    async def idle(self, sessions: int) -> dict[str, Any]:
        """What the memory is after so many chats have said one thing each."""
        before = resident()
        limiter = anyio.Semaphore(AT_ONCE)

        async def begin(number: int) -> None:
            async with limiter:
                await self._one(f"idle{number}")

        async with anyio.create_task_group() as group:
            for number in range(sessions):
                group.start_soon(begin, number)
        gc.collect()
        return {"bytes": resident() - before}

    async def memory(self) -> dict[str, Any]:
        """What the process holds now."""
        gc.collect()
        return {"bytes": resident()}

    async def _one(self, chat: str) -> float:
        """The seconds of one turn; raises when the answer is not the model's."""
        number = self._numbers[chat] = self._numbers.get(chat, 0) + 1
        began = time.perf_counter()
        answer = await self._turn(chat, said(number))
        took = time.perf_counter() - began
        if ANSWERED not in answer:
            raise AssertionError(answer[:200])
        return took


async def tick(stalls: list[float]) -> None:
    """Note by how much a short sleep was too long."""
    while True:
        began = time.perf_counter()
        await anyio.sleep(TICK_SECONDS)
        stalls.append(time.perf_counter() - began - TICK_SECONDS)


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def playing(place: dict[str, Any]) -> AsyncIterator[Worker]:
    """A worker for the play that the place names."""
    play = import_module(f"tests.bench.peers.play.{place['play']}")
    async with play.opened(place) as turn:
        yield Worker(turn)


async def obey(place: dict[str, Any], answers: TextIO) -> None:
    """Do what each line asks for, and answer with a line, until there are no more."""

    def say(answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    async with playing(place) as worker:
        say({"bytes": resident()})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            say(await getattr(worker, asked.pop("do"))(**asked))


def main() -> None:
    """Keep stdout for the answers: what a system prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    anyio.run(obey, json.loads(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
