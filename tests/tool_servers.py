"""Tool servers for tests: programs that misbehave as their folder says, and what runs them."""

import json
import os
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from nanoloop.protocols import ToolCall
from nanoloop.tools.servers import ToolServerPlace, ToolServers
from nanoloop.tools.toolbox import Toolbox

LINES = Path(__file__).parent / "servers" / "mcp_lines.py"
LONG = 300.0
"""Longer than any test: what takes as long is stuck."""


class Folder:
    """Where a server looks up how to behave, and leaves what it did."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def set(self, *how):
        for each in how:
            (self.path / each).touch()
        return self

    def unset(self, *how):
        for each in how:
            (self.path / each).unlink()

    def place(self, name="files", **more):
        command = (sys.executable, str(LINES), str(self.path))
        return ToolServerPlace(**{"name": name, "command": command, "timeout_seconds": LONG} | more)

    def setting(self):
        """The same as a settings file has it."""
        return f"command = {json.dumps(self.place().command)}"

    @property
    def pids(self):
        """The processes that were started so far."""
        return [int(pid) for pid in self._lines("pids")]

    @property
    def ledger(self):
        return self._lines("ledger")

    def _lines(self, name):
        with suppress(FileNotFoundError):
            return (self.path / name).read_text().split("\n")[:-1]
        return []

    async def until(self, name):
        while not (self.path / name).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.005)


@asynccontextmanager
async def running(*places, data, wait=True, sampling=None):
    """These servers while they run, each connected or known not to be."""
    servers = ToolServers(places, folder=data)
    servers.sampling = sampling
    async with anyio.create_task_group() as group:
        group.start_soon(servers.run)
        if wait:
            for server in servers:
                await server.settled()
        yield servers
        group.cancel_scope.cancel()


def box(servers):
    return Toolbox([tool for source in servers.sources for tool in source.tools.values()])


async def call(servers, name, /, **arguments):
    """What a model is told that calls a tool now."""
    asked = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return (await box(servers).run(asked)).text


async def until(state):
    while not state():  # noqa: ASYNC110 - another process decides
        await anyio.sleep(0.005)


def is_alive(pid):
    """Whether the process runs; one that has ended and is still listed does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def processes_of(folder):
    """The processes that have this folder in their command line, guards and all."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if str(folder.path).encode() in words and is_alive(entry.name):
                    found.append(int(entry.name))
    return found
