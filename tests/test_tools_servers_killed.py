"""Real servers in a whole program, from settings alone: killed inside calls, and called for long.

The short forms are among the slow tests; `.ci/slow pytest` runs each in its whole length.
"""

import asyncio
import gc
import json
import os
import re
import signal
import statistics
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.parts import make_logins
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.tool_sources import server_places
from nanoloop.tools.servers import ToolServers
from tests.test_tools_servers_oauth import MACHINE, Tickets
from tests.test_tools_servers_real import installed, page
from tests.tool_servers import call as said_by
from tests.tool_servers import is_alive, until

__all__ = ["page"]
PROGRAMS = ("time", "web", "files", "all")
GONE = re.compile(r"\w+ went away during the call: [^.]+; (call it again|the call may or may .+)")
BACK_SECONDS = 2.0
"""How much longer the next call may take than a start and a call of that server alone."""
NEIGHBOUR_SECONDS = 0.5


@pytest.fixture
def tickets(tmp_path):
    tickets = Tickets(tmp_path / "tickets")
    tickets.start()
    yield tickets
    tickets.kill()


@pytest.fixture
def calls(tmp_path, monkeypatch, tickets, page):
    """Writes the settings of five servers; returns a call of each, as name and arguments."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHOSE", str(tmp_path))  # which marks their processes
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/tea.txt").write_text("green")
    commands = {
        "time": (installed("mcp-server-time"),),
        "web": (installed("mcp-server-fetch"), "--allow-private-ips"),
        "files": (installed("mcp-server-filesystem"), str(tmp_path / "docs")),
        "all": (installed("mcp-server-everything"), "stdio"),
    }
    lines = ['model = "ollama:none"', "log.level = 'error'", "[tools]", "budget_tokens = 100_000"]
    for name, command in commands.items():
        table = f"[tools.servers.{name}]", f"command = {json.dumps(command)}", 'env = ["WHOSE"]'
        lines += table
    lines += ["[tools.servers.tickets]", f'url = "{tickets.issuer}/mcp"', MACHINE]
    lines += ['client_secret = "very-secret"', f'issuer = "{tickets.issuer}"']
    Path("n.toml").write_text("\n".join(lines))
    return {
        "time": ("time__get_current_time", {"timezone": "Europe/Berlin"}),
        "web": ("web__fetch", {"url": page, "raw": True}),
        "files": ("files__read_text_file", {"path": str(tmp_path / "docs/tea.txt")}),
        "all": ("all__echo", {"message": "hi"}),
        "tickets": ("tickets__echo", {"text": "hi"}),
    }


ANSWERS = {
    "time": "timezone",
    "web": "It is green.",
    "files": "green",
    "all": "hi",
    "tickets": "hi",
}


def caller(calls):
    """A model that calls what it is asked to, and repeats what it is told."""

    def answer(messages, tools, _):
        said = messages[-1]
        if said["role"] == "tool":
            return f"told: {said['content']}"
        name, arguments = calls.get(str(said["content"]).strip(), ("", {}))
        if not tools or not name:
            return "hello"
        return Reply(tool_calls=(ToolCall(id="", name=name, arguments=json.dumps(arguments)),))

    return ScriptedProvider(otherwise=answer, keep_calls=0)


def load():
    return Settings.load(config="n.toml", flags={"data": "data"})


async def seconds_alone(calls):
    """How long each server takes to start and to answer, by itself."""
    seconds = {}
    for place in server_places(load()):
        began = time.monotonic()
        servers = ToolServers([place], folder=Path("alone"), logins=make_logins(load()))
        async with servers.started():
            name, arguments = calls[place.name]
            assert ANSWERS[place.name] in await said_by(servers, name, **arguments)
            seconds[place.name] = time.monotonic() - began
    return seconds


@asynccontextmanager
async def serving(calls):
    app = App.of(load(), provider=caller(calls))
    chat = DirectChannel(app.loop.bus)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        for server in app.tool_servers:
            await until(lambda server=server: server.state == "connected")
        yield app, chat
        app.stop()


async def ask(chat, text, of="a"):
    return (await chat.ask(text, chat=of)).text


def pids(whose):
    """The programs of servers, by process id, guards and shells too."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and is_alive(entry.name):
                is_ours = f"WHOSE={whose}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if is_ours:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")
    return found


def program_of(name, whose):
    """The process of this server itself, beside its guard."""
    mark = {"all": b"everything", "files": b"filesystem", "web": b"fetch"}.get(name, b"time")
    (pid,) = (
        pid
        for pid, words in pids(whose).items()
        if not words[0].endswith(b"sh") and any(mark in word for word in words)
    )
    return pid


class Stopped:
    """A server that was stopped, so that a call of it hangs until it is killed."""

    def __init__(self, name, tickets, whose):
        self.is_web = name == "tickets"
        self.tickets = tickets
        self.pid = tickets.process.pid if self.is_web else program_of(name, whose)
        os.kill(self.pid, signal.SIGSTOP)

    async def kill(self):
        """Kill it; return when it could be called again at the earliest."""
        os.kill(self.pid, signal.SIGKILL)
        if self.is_web:  # nobody but the test starts it again
            self.tickets.kill()
            await run_sync(self.tickets.start)
        return time.monotonic()


async def neighbour(chat, seconds):
    """Another chat, which asks all the time; notes how long each answer took."""
    while True:
        began = time.monotonic()
        assert await ask(chat, "Hi", of="b") == "hello"
        seconds.append(time.monotonic() - began)
        await anyio.sleep(0.01)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
async def test_servers_killed_inside_calls_cost_a_sentence_each(calls, tickets, tmp_path, times):
    waited, back, alone = [], {name: [] for name in calls}, await seconds_alone(calls)
    async with serving(calls) as (app, chat), anyio.create_task_group() as group:
        group.start_soon(neighbour, chat, waited)
        by_name = {server.name: server for server in app.tool_servers}
        for name in [*calls] * times:
            before = by_name[name].used
            stopped = Stopped(name, tickets, tmp_path)
            told = []

            async def call(name=name, told=told):
                told.append(await ask(chat, name))

            async with anyio.create_task_group() as hanging:
                hanging.start_soon(call)
                await until(lambda n=name, b=before: by_name[n].used > b)
                began = await stopped.kill()
            assert GONE.fullmatch(told[0].removeprefix("told: Error: ")), told
            assert ANSWERS[name] in await ask(chat, name)
            back[name].append(round(time.monotonic() - began, 2))
        group.cancel_scope.cancel()
    waited.sort()
    late = {name: statistics.median(back[name]) - alone[name] for name in calls}
    assert max(late.values()) < BACK_SECONDS, (back, alone)
    assert waited[int(len(waited) * 0.99)] < NEIGHBOUR_SECONDS, statistics.median(waited)
    await until(lambda: {*pids(tmp_path)} <= {tickets.process.pid})  # guards and all


def held():
    """How many descriptors and tasks there are, and how much memory in MB."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    memory = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000
    return len([*Path("/proc/self/fd").iterdir()]), len(asyncio.all_tasks()), memory


@pytest.mark.parametrize(
    ("turns", "megabytes"),
    [
        pytest.param(400, 15, marks=pytest.mark.slow),
        pytest.param(10_000, 30, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
async def test_turns_with_calls_leave_nothing_behind(calls, turns, megabytes):
    async with serving(calls) as (_, chat):
        names = [name for name in calls if name != "web"]  # which starts a program for each page

        async def some(count):
            for number in range(count):
                name = names[number % len(names)]
                assert ANSWERS[name] in await ask(chat, name, of=f"chat {number % 20}")

        await some(turns // 4)
        files, tasks, memory = held()
        await some(turns - turns // 4)
        files_now, tasks_now, memory_now = held()
    assert files_now <= files + 3, (files, files_now)
    assert tasks_now <= tasks + 3, (tasks, tasks_now)
    assert memory_now < memory + megabytes, (memory, memory_now)
