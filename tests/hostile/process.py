"""The attacked daemon from outside: started, watched, asked, ended."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.hostile.mode import SECRETS, TOLD

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 30
LINE_BYTES = 100_000_000
NEVER_LOGGED = (*SECRETS, TOLD)
MEGABYTE = 1e6


@dataclass
class Daemon:
    """One life of it."""

    process: Process
    folder: Path
    url: str
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """When the loop was gone, and how long."""
    is_over: bool = False
    _log_read: int = 0
    _answers: dict[str, Any] = field(default_factory=dict)
    _waiting: dict[str, anyio.Event] = field(default_factory=dict)

    async def ask_whole(self, chat: str, text: str) -> tuple[str, str]:
        """The kind and the text of what the channel without pieces gets."""
        name = uuid4().hex
        came = self._waiting[name] = anyio.Event()
        asked = {"id": name, "chat": chat, "text": text}
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(asked).encode() + b"\n")
        await came.wait()
        said = self._answers.pop(name)
        return said["kind"], said["text"]

    async def read(self, lines: BufferedByteReceiveStream) -> None:
        with suppress(anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                self._take(json.loads(await lines.receive_until(b"\n", LINE_BYTES)))
        self.is_over = True

    def _take(self, line: dict[str, Any]) -> None:
        if "gone" in line:
            self.stalls.append((line["at"], line["own"]))
        elif line["answers"] in self._waiting:
            self._answers[line["answers"]] = line
            self._waiting.pop(line["answers"]).set()

    # What it takes

    def resident(self) -> float:
        """Megabytes of memory, now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak(self) -> float:
        """Megabytes of memory at most since the last `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / MEGABYTE

    def stored(self) -> float:
        """Megabytes of all its files but the log."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files if path.name != "log") / MEGABYTE

    def size_of(self, word: str) -> float:
        """Megabytes of the sessions with this word in their names."""
        store = self.folder / "sessions.sqlite"
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
            asked = "SELECT coalesce(sum(size), 0) FROM session WHERE id LIKE ?"
            return database.execute(asked, (f"%{word}",)).fetchone()[0] / MEGABYTE

    def leaked(self) -> set[str]:
        """The words that its log has since the last time and must not have."""
        with (self.folder / "log").open("rb") as log:
            log.seek(self._log_read)
            said = log.read()
        self._log_read += len(said)
        return {word for word in NEVER_LOGGED if word.encode() in said}

    def kill(self) -> None:
        """End it at once."""
        self.is_over = True
        with suppress(ProcessLookupError):
            self.process.kill()


@asynccontextmanager
async def started(command: list[str], **options: Any) -> AsyncIterator[tuple[Process, Any]]:
    """A process, and the lines that it writes; killed at the end."""
    process = await anyio.open_process([sys.executable, *command], cwd=ROOT, **options)
    try:
        yield process, BufferedByteReceiveStream(process.stdout)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()


@asynccontextmanager
async def a_server(*command: str) -> AsyncIterator[str]:
    """The URL of a model server in a process of its own."""
    async with started([*command], stderr=None) as (_, lines):
        with anyio.fail_after(START_SECONDS):
            url = await lines.receive_until(b"\n", 1000)
        yield url.decode()


@asynccontextmanager
async def a_daemon(folder: Path, group: TaskGroup, *options: str) -> AsyncIterator[Daemon]:
    """A daemon with its data in this folder."""
    command = ["-m", "tests.hostile.daemon", str(folder), *options]
    folder.mkdir(parents=True)  # noqa: ASYNC240 - nothing else goes on yet
    with (folder / "log").open("wb") as log:
        async with started(command, stderr=log) as (process, lines):
            with anyio.fail_after(START_SECONDS):
                told = json.loads(await lines.receive_until(b"\n", 1000))
            daemon = Daemon(process, folder, told["url"])
            group.start_soon(daemon.read, lines)
            yield daemon
