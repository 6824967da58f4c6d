"""One token sends without end in six ways: what another token and a chat notice of it.

    python -m tests.bench.fairness [--short]

A whole bot with a web and a chat platform, and a model that takes a third of a second for each
call. Another process sends by one token, as fast as it is answered: messages to its sessions, whole
conversations without a session, answers and events that are streamed, uploads, large bodies, new
sessions. A second token and a chat do a turn a second, first alone and then beside all that; how
long theirs take is compared within the run. The API's own limit of requests is lifted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from nanoloop.app import App
from nanoloop.channels.kit.channel import PlatformChannel
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import comes_to, open_to_all
from tests.bench.report import Report
from tests.bench.samples import CELLS, Samples
from tests.web_server import OTHER, TOKEN, TOKENS, bearer

MODEL_SECONDS = 0.3
ALONE_SECONDS, SECONDS = 20, 60
SHORT_ALONE_SECONDS, SHORT_SECONDS = 4, 8
EVERY_SECONDS = 1.0
TURNS = (512, 8)
SIDE_BY_SIDE = 16
"""Requests of each way that are always open."""
MEDIAN_GOAL, TAIL_GOAL = 2.0, 4.0
WAYS = ("sessions", "stateless", "streams", "uploads", "large bodies", "new sessions")
COMPLETIONS = "/v1/chat/completions"
LARGE = "large " * 160_000
UPLOAD = "upload " * 50_000


# The one that sends without end


@dataclass(slots=True)
class Flood:
    """Sends by one token, in each way as much as is taken."""

    http: aiohttp.ClientSession
    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    number: Any = field(default_factory=count)

    async def run(self, seconds: float) -> None:
        """All six at once."""
        sessions = [await self._begin() for _ in range(SIDE_BY_SIDE)]
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                for session in sessions:
                    sends = (
                        partial(self._say, session),
                        self._ask,
                        partial(self._ask, stream=True),
                        self._upload,
                        partial(self._ask, LARGE),
                        self._say_anew,
                    )
                    for way, send in zip(WAYS, sends, strict=True):
                        group.start_soon(self._endlessly, way, send)
                    group.start_soon(self._read, session)

    async def _endlessly(self, way: str, send: Callable[[], Awaitable[int]]) -> None:
        while True:
            status = await send()
            (self.served if status < 300 else self.refused)[way] += 1

    async def _post(self, path: str, **more: Any) -> tuple[int, bytes]:
        async with self.http.post(path, **more) as response:
            return response.status, await response.read()

    async def _begin(self) -> str:
        _, told = await self._post("/api/sessions", json={})
        return str(json.loads(told)["id"])

    async def _say(self, session: str) -> int:
        said = {"text": f"flood {next(self.number)}"}
        return (await self._post(f"/api/sessions/{session}/messages", json=said))[0]

    async def _say_anew(self) -> int:
        return await self._say(await self._begin())

    async def _ask(self, text: str = "flood", *, stream: bool = False) -> int:
        return (await self._post(COMPLETIONS, json=asked(text, stream=stream)))[0]

    async def _upload(self) -> int:
        text = f"{next(self.number)} {UPLOAD}"
        return (await self._post("/api/attachments", data=text.encode()))[0]

    async def _read(self, session: str) -> None:
        while True:
            async with self.http.get(f"/api/sessions/{session}/events") as response:
                async for _ in response.content:
                    pass


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [{"role": "user", "content": text}], **more}


async def flood(url: str, seconds: float) -> None:
    """Send without end, and then say what came of it."""
    lines = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=bearer(TOKEN), connector=lines) as http:
        sending = Flood(http)
        await sending.run(seconds)
    json.dump({"served": sending.served, "refused": sending.refused}, sys.stdout)


# Those who do a turn a second


@dataclass(slots=True)
class Seen:
    """What the others saw."""

    alone: dict[str, Samples] = field(default_factory=dict)
    beside: dict[str, Samples] = field(default_factory=dict)
    flood: dict[str, dict[str, int]] = field(default_factory=dict)
    """What was served of it, and what refused."""


class Neighbours:
    """A token and a chat."""

    def __init__(self, http: aiohttp.ClientSession, chats: FakeChats) -> None:
        self._http = http
        self._chats = chats
        self._said = count(1)

    async def turns(self, seconds: float) -> dict[str, Samples]:
        """A turn a second of each for so long; all of them are answered."""
        timed = {"a token": Samples(), "a chat": Samples()}
        (chat, sender), *_ = await self._chats.people(1)
        async with anyio.create_task_group() as group:
            for number in range(int(seconds / EVERY_SECONDS)):
                group.start_soon(self._ask, timed["a token"], number)
                group.start_soon(self._say, timed["a chat"], chat, sender)
                await anyio.sleep(EVERY_SECONDS)
        return timed

    async def _ask(self, timed: Samples, number: int) -> None:
        with timed.timed():
            said = asked(f"hello {number}", user="kitchen")
            async with self._http.post(COMPLETIONS, json=said) as response:
                assert response.status == 200, await response.text()
                await response.read()

    async def _say(self, timed: Samples, chat: str, sender: str) -> None:
        number = next(self._said)
        with timed.timed():
            await self._chats.say(chat, f"hello {number}", sender=sender)
            await comes_to(partial(answered, self._chats, chat, number), True, seconds=60)


async def answered(chats: FakeChats, chat: str, number: int) -> bool:
    """Whether this has its answer."""
    wanted = f"You said: hello {number}"
    return any(shown.text == wanted for shown in await chats.shown(chat))


def shortly(messages: Any, *_: object) -> str:
    """Say again how a message begins."""
    return f"You said: {messages[-1]['content'][:20]}"


@asynccontextmanager
async def serving(chats: FakeChats, turns: int) -> AsyncIterator[str]:
    """A bot that answers so many at once."""
    with tempfile.TemporaryDirectory() as folder:
        web = {"port": 0, "tokens": TOKENS, "requests_per_minute": 10**7}
        loop = {"max_concurrent_turns": turns, "shutdown_turns_seconds": 1}
        settings = Settings(data=Path(folder), channels={"web": web}, loop=loop)
        provider = ScriptedProvider(otherwise=shortly, delay_seconds=MODEL_SECONDS, keep_calls=0)
        telemetry = Telemetry(format="json", level="error", stream=StringIO())
        app = App.of(settings, provider=provider, telemetry=telemetry)
        channel = make_with_program(settings, "web", app)
        app.add(channel)
        app.add(PlatformChannel(chats.platform(), rules=open_to_all(), folder=Path(folder)))
        url = channel.bind()
        async with anyio.create_task_group() as group:
            group.start_soon(app.run)
            yield url
            app.stop()


async def measure(alone: float, beside: float) -> dict[int, Seen]:
    """Where turns are many, and where they are few."""
    return {turns: await run(alone, beside, turns) for turns in TURNS}


async def run(alone: float, beside: float, turns: int) -> Seen:
    """First they are alone, then not."""
    chats, seen = FakeChats(), Seen()
    async with (
        serving(chats, turns) as url,
        aiohttp.ClientSession(url, headers=bearer(OTHER)) as http,
    ):
        others = Neighbours(http, chats)
        await others.turns(2)  # everything is loaded, every session made
        seen.alone = await others.turns(alone)
        command = [sys.executable, "-m", "tests.bench.fairness", "--flood", url, str(beside + 1)]
        async with await anyio.open_process(command, stderr=None) as process:
            await anyio.sleep(1)  # it is under way
            seen.beside = await others.turns(beside)
            assert process.stdout is not None
            told = b"".join([piece async for piece in process.stdout])
        seen.flood = json.loads(told)
    assert len(seen.flood["served"]) == len(WAYS), seen.flood
    # Where turns are few it waits for itself: its conversations for its many sessions.
    assert sum(seen.flood["served"].values()) > SIDE_BY_SIDE * beside, "it sent next to nothing"
    return seen


def tell(measured: dict[int, Seen]) -> None:
    report = Report(f"One token sends without end: others' turns, {MODEL_SECONDS} s of them model")
    for turns, seen in measured.items():
        tell_of(report, turns, seen)
    report.end()


def tell_of(report: Report, turns: int, seen: Seen) -> None:
    rows = [(f"{who}, alone", *timed.cells()) for who, timed in seen.alone.items()]
    rows += [(f"{who}, beside it", *timed.cells()) for who, timed in seen.beside.items()]
    title = f"{turns} turns side by side at most, a turn every {EVERY_SECONDS:g} s"
    report.table(title, ("whose", *CELLS), rows)
    served, refused = seen.flood["served"], seen.flood["refused"]
    sent = [(way, served[way], refused.get(way, 0)) for way in WAYS]
    report.table("what it sent", ("way", "served", "refused"), sent)
    for who, timed in seen.beside.items():
        alone = seen.alone[who]
        report.goal(f"{who}: median", timed.median / alone.median, MEDIAN_GOAL, " times")
        tail = timed.quantile(0.99) / alone.quantile(0.99)
        report.goal(f"{who}: p99", tail, TAIL_GOAL, " times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    parser.add_argument("--flood", nargs=2, metavar=("URL", "SECONDS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.flood:
        url, seconds = args.flood
        anyio.run(flood, url, float(seconds))
        return
    times = (SHORT_ALONE_SECONDS, SHORT_SECONDS) if args.short else (ALONE_SECONDS, SECONDS)
    tell(anyio.run(measure, *times))


if __name__ == "__main__":
    main()
