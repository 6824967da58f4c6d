"""Many open event streams at once: what one costs, and how long until an answer begins.

    python -m tests.bench.streams [--short]

The server is a process of its own with a scripted model that answers at once; each stream has a
session. All of them say something at the same moment, again and again; the time runs from the
request to the first piece of its answer on the stream. What one stream's share of the slowest
begin is must not grow with their number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import anyio
from anyio.abc import SocketStream

from nanoloop.app import App
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from tests.bench.report import Report
from tests.bench.samples import Samples, ms

FEW, MANY = 10, 500
SHARE_GOAL = 1.5
MEMORY_GOAL = 40
"""Kilobytes that an idle stream may take in the server, its session's feed included."""
FEW_ROUNDS = 5
"""Rounds with few for each one with many: they are short, and differ more."""
FIRST = b"event: text"
WAIT_SECONDS = 60


@dataclass
class Stream:
    """One session with a reader, and where to speak."""

    session: str
    events: SocketStream
    port: int


@dataclass
class Run:
    """What was measured with so many streams."""

    count: int
    begins: list[float] = field(default_factory=list)
    """The p99 of each round."""
    memory: float = 0
    """Kilobytes for each idle stream."""

    @property
    def begin(self) -> float:
        """The p99 in the middle of all rounds."""
        return median(self.begins)


async def serve(folder: Path) -> None:
    web = {"port": 0, "open_on_loopback": True, "requests_per_minute": 10**7}
    settings = Settings(data=folder, channels={"web": web}, loop={"shutdown_turns_seconds": 1})
    provider = ScriptedProvider(otherwise="Here you are, with a few words.", keep_calls=0)
    app = App.of(settings, provider=provider, telemetry=Telemetry(level="error"))
    channel = make_with_program(settings, "web", app)
    print(channel.bind(), flush=True)  # noqa: T201 - for who started it
    app.add(channel)
    await app.run()


def request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Nanoloop: 1\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{head}\r\n".encode() + data


async def until(stream: SocketStream, mark: bytes, seen: bytes = b"") -> bytes:
    """What came up to this mark and with it."""
    with anyio.fail_after(WAIT_SECONDS):
        while mark not in seen:
            seen += await stream.receive()
    return seen


async def opened(port: int) -> Stream:
    """A new session, read by nobody yet."""
    posts = await anyio.connect_tcp("127.0.0.1", port)
    await posts.send(request("POST", "/api/sessions", {}))
    answer = await until(posts, b"}")
    await posts.aclose()
    events = await anyio.connect_tcp("127.0.0.1", port)
    return Stream(json.loads(answer.partition(b"\r\n\r\n")[2])["id"], events, port)


async def read(stream: Stream) -> None:
    await stream.events.send(request("GET", f"/api/sessions/{stream.session}/events"))
    await until(stream.events, b"event: hello")


async def speak(stream: Stream, posts: SocketStream, samples: Samples) -> None:
    said = request("POST", f"/api/sessions/{stream.session}/messages", {"text": "Hello."})
    with samples.timed():
        await posts.send(said)
        seen = await until(stream.events, FIRST)
    await until(stream.events, b"event: answer", seen)
    await until(posts, b"message_id")
    await posts.aclose()


def kilobytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1000


async def readied(run: Run, port: int, pid: int) -> list[Stream]:
    """Streams that are read by someone each; what one takes is noted."""
    streams = [await opened(port) for _ in range(run.count)]
    before = kilobytes(pid)
    for stream in streams:
        await read(stream)
    run.memory = (kilobytes(pid) - before) / run.count
    return streams


async def speak_all(streams: list[Stream]) -> float:
    """The p99 of one round."""
    samples = Samples()
    posts = [await anyio.connect_tcp("127.0.0.1", stream.port) for stream in streams]
    async with anyio.create_task_group() as group:
        for stream, connection in zip(streams, posts, strict=True):
            group.start_soon(speak, stream, connection, samples)
    return samples.quantile(0.99)


async def measure(runs: tuple[Run, Run], rounds: int, port: int, pid: int) -> None:
    """Rounds with few and with many, taking turns: what else the machine does hits both."""
    all_streams = [await readied(run, port, pid) for run in runs]
    for number in range(rounds + 1):
        for run, streams in zip(runs, all_streams, strict=True):
            times = FEW_ROUNDS if run.count == FEW else 1
            begins = [await speak_all(streams) for _ in range(times)]
            run.begins += begins if number else []  # the first round warms up
    for stream in itertools.chain(*all_streams):
        await stream.events.aclose()


def measured(rounds: int) -> tuple[Run, Run]:
    """A run with few and one with many, against a server in a process of its own."""
    runs = Run(FEW), Run(MANY)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tests.bench.streams", "--serve", folder]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(":")[2])
            try:
                uvloop = {"use_uvloop": True}
                anyio.run(measure, runs, rounds, port, server.pid, backend_options=uvloop)
            finally:
                server.kill()
    return runs


def tell(few: Run, many: Run) -> None:
    report = Report("Open event streams that all speak at the same moment")
    rows = [
        (r.count, ms(r.begin), f"{r.begin / r.count * 1e3:.3f}", f"{r.memory:.1f}")
        for r in (few, many)
    ]
    columns = ("streams", "p99 to the first piece, ms", "share of one, ms", "kB an idle one")
    report.table(f"The median of {len(many.begins)} rounds", columns, rows)
    share = many.begin / many.count / (few.begin / few.count)
    report.goal(f"a share with {MANY} beside one with {FEW}", share, SHARE_GOAL)
    report.goal("memory of an idle stream", many.memory, MEMORY_GOAL, " kB")
    report.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, for CI")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.serve:
        anyio.run(serve, Path(args.serve), backend_options={"use_uvloop": True})
        return
    tell(*measured(3 if args.short else 10))


if __name__ == "__main__":
    main()
