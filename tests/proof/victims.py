"""Processes that are there to be killed, and where they keep their sessions."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parent.parent.parent
FILES = {"jsonl": "sessions", "sqlite": "sessions.sqlite"}


def url_in(folder, store):
    """The URL of a kind of store in this folder, or the URL itself."""
    return store if ":" in store else f"{store}:{folder}/{FILES[store]}"


class Victim:
    def __init__(self, process):
        self._process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, job):
        await self._process.stdin.send(json.dumps(job).encode() + b"\n")

    async def words(self):
        return (await self._lines.receive_until(b"\n", 10_000)).decode().split()


@asynccontextmanager
async def a_victim():
    command = [sys.executable, "-m", "tests.proof.victim"]
    process = await anyio.open_process(command, cwd=ROOT, stderr=None)
    try:
        yield Victim(process)
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()
