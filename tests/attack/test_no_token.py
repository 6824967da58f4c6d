"""Whoever reaches the port and holds no token takes neither memory nor the page from others."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import anyio
import httpx2
import pytest

from nanoloop.files import raise_open_files
from tests.attack.flood import BOUND_BYTES, KINDS
from tests.openai_server import OpenAIServer
from tests.stages.command_line import ROOT, CommandLine, line_with

pytestmark = pytest.mark.slow
FILES = 1024
SECONDS = 2
MB = 1_000_000
TOKEN = "a-token-of-some-length"


class Limited(CommandLine):
    """A `nanoloop` that may open so many files, and no more."""

    def words(self, *words):
        command = ["bash", "-c", f'ulimit -n {FILES} && exec "$@"', "limited"]
        return [*command, *super().words(*words)]


class Daemon:
    """One that serves the page."""

    def __init__(self, pid, port):
        self.pid, self.port = pid, port

    @property
    def resident_bytes(self):
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def client(self):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url, limits = f"http://127.0.0.1:{self.port}", httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=url, headers=headers, limits=limits)


@pytest.fixture
def many_files():
    assert raise_open_files() > 2 * FILES


@pytest.fixture
async def daemon(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with OpenAIServer(otherwise="Here you are.") as server:
        nanoloop = Limited(tmp_path, server.url)
        tokens = json.dumps({"tester": {"token": TOKEN}})
        nanoloop.set(NANOLOOP_CHANNELS__WEB__TOKENS=tokens)
        files = {"stdin": subprocess.DEVNULL}
        async with (
            nanoloop.started("serve", "--port", str(port), **files) as process,
            anyio.create_task_group() as group,
        ):
            await line_with(process.stderr, "channel_started")
            group.start_soon(read_out, process.stderr)
            yield Daemon(process.pid, port)
            group.cancel_scope.cancel()


async def read_out(lines):
    """Let no full pipe hold up the process."""
    async for _ in lines:
        pass


async def seconds_of_requests(daemon, during):
    """What a neighbour's requests take while this goes on, and what that returns."""
    taken, found = [], []

    async def go_on():
        found.append(await during())

    async with daemon.client() as client, anyio.create_task_group() as group:
        group.start_soon(go_on)
        while not found:
            began = time.perf_counter()
            assert (await client.get("/api/sessions")).status_code == 200
            taken.append(time.perf_counter() - began)
            await anyio.sleep(0.02)
    return taken, found[0]


async def flood(daemon, kind):
    words = [sys.executable, "-m", "tests.attack.flood", kind, str(daemon.port), str(SECONDS)]
    done = await anyio.run_process(words, cwd=ROOT)
    return json.loads(done.stdout)


async def calm(daemon):
    return (await seconds_of_requests(daemon, lambda: anyio.sleep(1)))[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_no_request_needs_is_cut_and_costs_no_memory_and_no_neighbour(daemon, kind):
    before = await calm(daemon)
    resident = daemon.resident_bytes
    taken, found = await seconds_of_requests(daemon, lambda: flood(daemon, kind))
    assert daemon.resident_bytes - resident < 30 * MB
    assert found["cut"] >= found["made"] - 10  # the last ones end with the flood
    assert found["cut"] >= 5
    assert found["most_bytes"] < 20 * BOUND_BYTES
    assert median(taken) < max(2 * median(before), 0.05)


async def test_a_short_trailer_is_no_attack(daemon):
    head = (
        "POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nX-Nanoloop: 1\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = f"2\r\n{{}}\r\n0\r\nX-Sum: {'a' * 1000}\r\n\r\n"
    async with await anyio.connect_tcp("127.0.0.1", daemon.port) as connection:
        await connection.send((head + body).encode())
        with anyio.fail_after(5):
            assert (await connection.receive()).startswith(b"HTTP/1.1 20")


@pytest.mark.usefixtures("many_files")
async def test_more_half_requests_than_it_may_open_files_shut_nobody_out(daemon):
    halves = []

    async def half_requests():
        for _ in range(FILES + 100):
            connection = await anyio.connect_tcp("127.0.0.1", daemon.port)
            await connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            halves.append(connection)
        await anyio.sleep(1)

    taken, _ = await seconds_of_requests(daemon, half_requests)
    for _ in range(5):  # a client that comes only now
        async with daemon.client() as client:
            assert (await client.get("/healthz")).status_code == 200
    assert max(taken) < 1
    for connection in halves:
        await connection.aclose()


@pytest.mark.usefixtures("many_files")
async def test_a_token_that_opens_streams_without_end_leaves_room_for_others(daemon):
    async with daemon.client() as reader, anyio.create_task_group() as group:
        codes = []

        async def read():
            with suppress(httpx2.TransportError):  # cut before it came to its turn
                async with reader.stream("GET", "/api/events", timeout=None) as stream:
                    codes.append(stream.status_code)
                    async for _ in stream.aiter_lines():
                        pass

        for _ in range(FILES):
            group.start_soon(read)
        with anyio.fail_after(20):
            while len(codes) < 100 or codes[-1] == 200:  # noqa: ASYNC110 - seen on the wire
                await anyio.sleep(0.05)
        async with daemon.client() as other:
            assert (await other.get("/healthz")).status_code == 200
        assert codes.count(200) > 100
        assert 503 in codes
        group.cancel_scope.cancel()
