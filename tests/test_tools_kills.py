"""`kill -9` in the middle of calls, in a real daemon with a user's own tools from its settings.

The far side is a file, to which each call adds a line before it waits at a gate, a named pipe that
the test opens. The model asks for all four tools at once.
"""

import json
import os
import random
import subprocess
from contextlib import suppress

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import CommandLine

pytestmark = pytest.mark.timeout(1800)
MODULE = '''
import os
from pathlib import Path

from nanoloop import current_call, tool

HERE = Path(os.environ["HERE"])
LEDGER = HERE / "ledger"


def work(what, number):
    call = current_call()
    with LEDGER.open("a") as ledger:
        ledger.write(f"{what} {number} {call.call} {call.attempt} {call.message}\\n")
    if (gate := HERE / f"gate-{number}-{call.attempt}").exists():
        gate.read_text()
    return f"{what} {number} done"


@tool(effect="reads")
def look(number: int) -> str:
    """Look."""
    return work("look", number)


@tool
def pay(number: int) -> str:
    """Pay."""
    return work("pay", number)


@tool(idempotent=True)
def put(number: int) -> str:
    """Put."""
    return work("put", number)


def found(call: str) -> str | None:
    """What the far side has of a call."""
    lines = map(str.split, LEDGER.read_text().splitlines())
    mine = (f"{what} {number} found" for what, number, name, *_ in lines if name == call)
    return next(mine, None)


@tool(settle=found)
def send(number: int) -> str:
    """Send."""
    return work("send", number)
'''
TOOLS = ("look", "pay", "put", "send")
SETTINGS = (
    "message_buffer_limit = 1000\n[tools.functions]\n"
    + "".join(f'{name} = "mine:{name}"\n' for name in TOOLS)
    + f"[agents.assistant]\ntools = {json.dumps(TOOLS)}\n"
)
UNKNOWN = "Error: interrupted by a restart; it is unknown whether it took effect"


def talk(request):
    """Ask for all tools, then tell what they returned."""
    messages = request.json["messages"]
    said = messages[-1]
    if said["role"] == "user":
        number = said["content"].split()[-1]
        asked = ((f"{name}-{number}", name, f'{{"number": {number}}}') for name in TOOLS)
        return Answer(tool_calls=tuple(asked))
    return json.dumps([m["content"] for m in messages[-len(TOOLS) :]])


class World:
    """A daemon that can be killed, its far side and its gates."""

    def __init__(self, folder, url):
        self.folder = folder
        self.nanoloop = CommandLine(folder, url)
        self.nanoloop.set(HERE=str(folder))
        self.nanoloop.data.mkdir(mode=0o700)
        (self.nanoloop.data / "tools").mkdir(mode=0o700)
        (self.nanoloop.data / "tools" / "mine.py").write_text(MODULE)
        (folder / "n.toml").write_text(SETTINGS)
        (folder / "ledger").touch()

    def started(self):
        return self.nanoloop.started(
            "run", "--config", "n.toml", "--model", "m", stdin=subprocess.PIPE, stderr=None
        )

    def close_gate(self, number, attempt=1):
        os.mkfifo(self.folder / f"gate-{number}-{attempt}")

    @property
    def ledger(self):
        """What each call did: tool, number, our id of the call, attempt, message."""
        lines = (self.folder / "ledger").read_text().splitlines()
        return [tuple(line.split(maxsplit=4)) for line in lines]

    async def until(self, count):
        """Wait until the far side has so many lines."""
        with anyio.fail_after(60):
            while len(self.ledger) < count:  # noqa: ASYNC110 - another process writes it
                await anyio.sleep(0.01)


async def killed(process):
    process.kill()
    await process.wait()


async def answer_of(process):
    lines = BufferedByteReceiveStream(process.stdout)
    with anyio.fail_after(60):
        while not (line := await lines.receive_until(b"\n", 100_000)).startswith(b"["):
            pass
    return json.loads(line)


@pytest.fixture
async def world(tmp_path):
    async with OpenAIServer(otherwise=talk) as server:
        yield World(tmp_path, server.url)


@pytest.mark.slow
async def test_a_kill_in_the_middle_of_calls_repeats_only_what_is_safe(world):
    world.close_gate(1)
    async with world.started() as process:
        await process.stdin.send(b"go 1\n")
        await world.until(4)
        await killed(process)
    before = {line[0]: line for line in world.ledger}
    world.close_gate(1, attempt=2)
    async with world.started() as process:
        await world.until(6)
        await killed(process)  # in the middle of what it does again
    async with world.started() as process:
        answer = await answer_of(process)
    assert answer == ["look 1 done", UNKNOWN, "put 1 done", "send 1 found"]
    again = sorted(world.ledger[4:])
    calls = [(what, number, name, attempt) for what, number, name, attempt, _ in again]
    assert calls == [
        (what, "1", before[what][2], attempt) for what in ("look", "put") for attempt in "23"
    ]
    assert {message for *_, message in world.ledger} == {"go 1"}


@pytest.mark.slow
async def test_a_call_that_is_not_cut_off_runs_once(world):
    async with world.started() as process:
        await process.stdin.send(b"go 1\n")
        assert await answer_of(process) == [f"{name} 1 done" for name in TOOLS]
        await killed(process)
    assert sorted(line[0] for line in world.ledger) == [*TOOLS]


@pytest.mark.long
async def test_fifty_kills_in_the_middle_of_calls_leave_an_exact_ledger(world):
    draw, kills, number = random.Random(1), 0, 0
    while kills < 50:
        number += 1
        many = draw.randint(0, 3)
        for attempt in range(1, many + 1):
            world.close_gate(number, attempt)
        count = len(world.ledger)
        for life in range(many + 1):
            async with world.started() as process:
                if life == 0:
                    await process.stdin.send(f"go {number}\n".encode())
                if life < many:
                    await world.until(count := count + (2 if life else 4))
                    await killed(process)
                    kills += 1
                    continue
                cut_off = [
                    f"look {number} done",
                    UNKNOWN,
                    f"put {number} done",
                    f"send {number} found",
                ]
                whole = [f"{name} {number} done" for name in TOOLS]
                assert await answer_of(process) == (cut_off if many else whole)
        here = [line for line in world.ledger if line[1] == str(number)]
        for name in TOOLS:
            mine = [line for line in here if line[0] == name]
            repeats = many if name in {"look", "put"} else 0
            assert [line[3] for line in mine] == [str(n) for n in range(1, repeats + 2)]
            assert len({line[2] for line in mine}) == 1
        for attempt in range(1, many + 1):
            with suppress(FileNotFoundError):
                (world.folder / f"gate-{number}-{attempt}").unlink()
