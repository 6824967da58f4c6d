"""The time of one durable turn beside a bare loop that asks the SDK and keeps a list.

    python -m tests.bench.turn_cost [--short]

All kinds take turns in one run, against one server without latency in a process of its own. After
that the bare loop and the durable one alternate in pairs, many turns of each at a stretch, which is
what the goal is about: with a turn of each in turn every one of them finds the caches cold.

At last so many users speak at once, each in a chat with a window of messages, first to one of the
two and then to the other.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import openai

from nanoloop.channels.direct import DirectChannel
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.stores.jsonl.store import JsonlStore
from tests.bench.living import ANSWERED, SAID, entry, running, server
from tests.bench.report import Report
from tests.bench.samples import CELLS, Samples

MODEL = "test-model"
WINDOW = 50
PAIRS = 5
USERS, SHORT_USERS = 200, 40
USER_TURNS = 5
USERS_GOAL = 0.33
GOAL = 0.23
SHORT_GOAL = 0.4
"""Of a hundred turns on a machine that does something else too."""

BARE = "bare loop"
APPENDING = "bare loop that appends JSONL"
BLOCKING = "bare loop, blocking client"
DURABLE = "nanoloop, durable"
FULL = "nanoloop, durable, window of 40 and more"
BARE_STREAM = "bare loop, streaming"
STREAM = "nanoloop, durable, streaming"

Turn = Callable[[], Awaitable[Any]]


class Whole(DirectChannel):
    """A channel for code that wants no pieces."""

    name = "whole"
    streams = False


class BareLoop:
    """What one writes by hand: a list, the SDK, and perhaps a file."""

    def __init__(self, url: str, file: Path | None = None) -> None:
        settings: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": 0}
        settings["timeout"] = 60.0  # the default one ends before so many connections are there
        self._client = openai.AsyncOpenAI(**settings)
        self._blocking = openai.OpenAI(**settings)
        self._file = file.open("a") if file else None
        self._messages = _messages()
        self._users: dict[int, list[Any]] = defaultdict(_messages)

    async def turn(self) -> None:
        request = self._hear()
        reply = await self._client.chat.completions.create(model=MODEL, messages=request)
        self._say(reply.choices[0].message.content)

    async def turn_of(self, user: int) -> None:
        messages = self._users[user]
        messages.append({"role": "user", "content": SAID})
        reply = await self._client.chat.completions.create(model=MODEL, messages=messages[-WINDOW:])
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})

    async def blocking_turn(self) -> None:
        request = self._hear()
        reply = self._blocking.chat.completions.create(model=MODEL, messages=request)
        self._say(reply.choices[0].message.content)

    async def streaming_turn(self) -> None:
        request = self._hear()
        pieces = await self._client.chat.completions.create(
            model=MODEL, messages=request, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        async for piece in pieces:
            if piece.choices:
                text += piece.choices[0].delta.content or ""
        self._say(text)

    def _hear(self) -> list[Any]:
        self._keep({"role": "user", "content": SAID})
        return self._messages[-WINDOW:]

    def _say(self, text: str) -> None:
        assert text == ANSWERED
        self._keep({"role": "assistant", "content": text})

    def _keep(self, message: dict[str, str]) -> None:
        self._messages.append(message)
        if self._file is not None:
            self._file.write(json.dumps(message) + "\n")
            self._file.flush()

    async def close(self) -> None:
        await self._client.close()
        self._blocking.close()
        if self._file is not None:
            self._file.close()


def _messages() -> list[dict[str, str]]:
    return [
        {"role": "user" if number % 2 == 0 else "assistant", "content": SAID}
        for number in range(WINDOW)
    ]


async def measure(
    url: str, rounds: int, users: int
) -> tuple[dict[str, Samples], list[float], list[float]]:
    provider = OpenAIProvider(model=MODEL, api_key="none", base_url=url)
    with tempfile.TemporaryDirectory() as folder:
        bare = BareLoop(url)
        appending = BareLoop(url, Path(folder) / "bare.jsonl")
        async with running(provider, JsonlStore(Path(folder) / "sessions")) as loop:
            whole, pieces = Whole(loop.bus), DirectChannel(loop.bus)

            async def durable() -> None:
                assert (await whole.ask(SAID)).text == ANSWERED

            async def streaming() -> None:
                assert (await pieces.ask(SAID, on_text=len)).text == ANSWERED

            turns: dict[str, Turn] = {
                BARE: bare.turn,
                DURABLE: durable,
                APPENDING: appending.turn,
                STREAM: streaming,
                BARE_STREAM: bare.streaming_turn,
                BLOCKING: bare.blocking_turn,
            }
            samples = await interleaved(turns, rounds, lambda: loop.sessions)
            shares = [await pair(bare.turn, durable, rounds // PAIRS) for _ in range(PAIRS)]

            async def turn_of(user: int) -> None:
                assert (await whole.ask(SAID, chat=str(user))).text == ANSWERED

            for user in range(users):
                await fill(loop.sessions, f"whole:{user}")
            crowds = [
                await crowd(turn_of, users) / await crowd(bare.turn_of, users) for _ in range(3)
            ]
        await bare.close()
        await appending.close()
    await provider.close()
    return samples, shares, crowds


async def fill(sessions: Sessions, key: str) -> None:
    """Give this chat a window of messages."""

    def act(session: Session) -> None:
        for number in range(WINDOW):
            session.add_entry(entry(number))

    await sessions.change(await sessions.current(key), act)


async def crowd(turn: Callable[[int], Awaitable[None]], users: int) -> float:
    """The seconds until each of them has had all of their turns."""

    async def user(number: int) -> None:
        for _ in range(USER_TURNS):
            await turn(number)

    begun = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(users):
            group.start_soon(user, number)
    return time.perf_counter() - begun


async def pair(bare: Turn, durable: Turn, rounds: int) -> float:
    """What the one takes, in turns of the other: medians of many turns in a row."""
    medians = []
    for turn in (bare, durable):
        samples = Samples()
        for _ in range(rounds):
            with samples.timed():
                await turn()
        medians.append(samples.median)
    return medians[1] / medians[0]


async def interleaved(
    turns: dict[str, Turn], rounds: int, sessions: Callable[[], Any]
) -> dict[str, Samples]:
    """Each kind in each round, the order moving on by one."""
    samples = {name: Samples() for name in (*turns, FULL)}
    names = list(turns)
    for number in range(-rounds // 10, rounds):  # the first ones warm up
        if number == 0:
            gc.collect()
            for kind in samples.values():
                kind.seconds.clear()
        for name in names:
            with samples[name].timed():
                await turns[name]()
            if name == DURABLE:
                session = await sessions().current("whole:default")
                if len(session.window) >= WINDOW * 0.8:
                    samples[FULL].seconds.append(samples[name].seconds[-1])
        names.append(names.pop(0))
    return samples


def tell(
    samples: dict[str, Samples], shares: list[float], crowds: list[float], *, goal: float
) -> None:
    report = Report("One durable turn beside a bare loop over the last 50 messages")
    base = samples[BARE].median
    shown = [BARE, APPENDING, BLOCKING, DURABLE, FULL, BARE_STREAM, STREAM]
    report.table(
        f"{len(samples[BARE].seconds)} turns of each, taking turns",
        ("", *CELLS, "of bare"),
        [(name, *samples[name].cells(), f"{samples[name].median / base:.2f}") for name in shown],
    )
    report.goal(f"a durable turn, in bare turns: the median of {PAIRS} pairs", median(shares), goal)
    streamed = samples[STREAM].median / samples[BARE_STREAM].median
    report.goal(
        "with many users, in bare turns: the median of 3", median(crowds), max(goal, USERS_GOAL)
    )
    report.goal("streaming, in bare streaming turns", streamed, SHORT_GOAL)
    report.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    is_short = parser.parse_args().short
    with server() as url:
        rounds, users = (100, SHORT_USERS) if is_short else (1000, USERS)
        measured = anyio.run(measure, url, rounds, users)
    tell(*measured, goal=SHORT_GOAL if is_short else GOAL)


if __name__ == "__main__":
    main()
