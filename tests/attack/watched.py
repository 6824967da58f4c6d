"""`nanoloop`, telling how soon it cuts the connections of a flood.

    python -m tests.attack.watched FILE HEADER_SECONDS WORDS...

For each connection of `tests.attack.flood` a line of JSON is added to the file: how long after it
had reached its bound it ended, in seconds of the server's event loop and of its processor time.
Its own clock goes on in small steps only while the loop runs: what holds up the whole machine
counts little, what the loop waits for counts fully.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from nanoloop.channels import server
from nanoloop.channels.server import HEAD_BYTES, WebServer
from nanoloop.cli import main
from tests.attack.flood import ADDRESS

STEP_SECONDS = 0.02


class Clock:
    """Counts the steps of an event loop."""

    steps = 0
    _is_started = False

    def start(self) -> None:
        """Count from now on, in the loop that runs."""
        if not self._is_started:
            self._is_started = True
            self._step()

    def _step(self) -> None:
        self.steps += 1
        asyncio.get_running_loop().call_later(STEP_SECONDS, self._step)


class _Watched(server._Protocol):
    """Notes when a connection has reached its bound, of bytes or of time, and when it ends."""

    clock = Clock()
    file: Path
    header_seconds: float
    _is_flood = False
    _seen = 0
    _reached: tuple[float, float] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.clock.start()
        self._made = self.clock.steps * STEP_SECONDS
        super().connection_made(transport)
        self._is_flood = bool(self.client) and self.client[0] == ADDRESS

    def data_received(self, data: bytes) -> None:
        self._seen += len(data)
        if self._reached is None and self._seen > HEAD_BYTES + 1000:
            self._reached = self.clock.steps * STEP_SECONDS, time.thread_time()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_flood:
            now, busy = self.clock.steps * STEP_SECONDS, time.thread_time()
            then, was_busy = self._reached or (self._made + self.header_seconds, busy)
            with self.file.open("a") as file:
                file.write(json.dumps([now - then, busy - was_busy]) + "\n")


class _Server(WebServer):
    """Gives nobody more time than so many seconds."""

    most_seconds: float

    def __init__(self, *args: Any, header_seconds: float, **named: Any) -> None:
        seconds = min(header_seconds, self.most_seconds)
        server._Protocol = type("Watched", (_Watched,), {"header_seconds": seconds})  # type: ignore[misc]
        super().__init__(*args, header_seconds=seconds, **named)


if __name__ == "__main__":
    _Watched.file, _Server.most_seconds = Path(sys.argv[1]), float(sys.argv[2])
    server.WebServer = _Server  # type: ignore[misc]
    sys.exit(main(sys.argv[3:]))
