"""A system, or the model server, in a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, Self
from urllib.request import urlopen

from tests.bench.peers.said import MODEL, PROMPT, said
from tests.bench.peers.systems import System

ROOT = Path(__file__).parents[3]
SERVER = Path(__file__).parent / "model_server.py"
LIMIT_SECONDS = 300
"""For what a worker is asked to do."""


class Broken(Exception):
    """A system's process ended, or was ended because it took too long."""


class Process:
    """A system that plays until the end of the block; it can be asked for what `Worker` does."""

    def __init__(self, system: System, python: Path, url: str, **place: Any) -> None:
        self.system = system
        self._python = python
        self._place = {"play": system.play, "url": url, **system.place, **place}
        self.start_bytes = 0
        """Its memory once it could answer."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            place = json.dumps({**self._place, "folder": stack.enter_context(folder)})
            self._errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            # Last in, first out: closing its stdin ends it.
            self._process = stack.enter_context(self._started(place))
            self.start_bytes = self._answer()["bytes"]
            self._all = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._limit(10):
            self._all.close()

    def _started(self, place: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._python), "-m", "tests.bench.peers.worker", place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

    def ask(self, what: str, **values: Any) -> dict[str, Any]:
        """What the worker answers; raises `Broken`."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": what, **values}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise Broken(self._last_words()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with self._limit(LIMIT_SECONDS):
            line = self._process.stdout.readline()
        if not line:
            raise Broken(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    @contextmanager
    def _limit(self, seconds: float) -> Iterator[None]:
        timer = Timer(seconds, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1][:200] if lines else "it took too long"


@contextmanager
def model_server(**options: Any) -> Iterator[str]:
    """The URL of a model server with these options."""
    words = [word for name, value in options.items() for word in option(name, value)]
    command = [sys.executable, str(SERVER), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def option(name: str, value: Any) -> list[str]:
    """As it stands on a command line."""
    word = f"--{name.replace('_', '-')}"
    return [word] if value is True else [word, str(value)]


def told(url: str) -> dict[str, int]:
    """What a server was asked so far."""
    with urlopen(url.removesuffix("/v1") + "/told") as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


def rate(url: str, *, connections: int = 4, rounds: int = 1000) -> float:
    """Answers a second that the server gives to someone who does nothing but ask."""
    address = url.split("/")[2].split(":")
    messages = [{"role": "user", "content": said(number)} for number in range(50)]
    body = json.dumps({"model": MODEL, "messages": [{"content": PROMPT}, *messages]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    lines = [socket.create_connection((address[0], int(address[1]))) for _ in range(connections)]
    began = time.perf_counter()
    for _ in range(rounds):
        for line in lines:
            line.sendall(request)
        for line in lines:
            line.recv(65536)
    took = time.perf_counter() - began
    for line in lines:
        line.close()
    return connections * rounds / took
