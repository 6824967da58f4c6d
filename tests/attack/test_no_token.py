"""Whoever reaches the port and holds no token takes neither memory nor the page from others."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from nanoloop.files import raise_open_files
from nanoloop.testing.channels.stage import comes_to
from tests.attack.flood import BOUND_BYTES, KINDS
from tests.openai_server import OpenAIServer
from tests.servers.telegram import TOKEN as BOT_TOKEN
from tests.stages.command_line import ROOT, CommandLine
from tests.stages.telegram import free_port, telegram

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
    """One that serves the page, and hears of Telegram's messages by a webhook."""

    def __init__(self, pid, port, telegram):
        self.pid, self.port = pid, port
        self._telegram = telegram
        self.targets = {
            "page": [str(port)],
            "page, with a token": [str(port), "--path=/api/attachments", f"--token={TOKEN}"],
            "webhook": [str(self.webhook_port), "--path=/telegram"],
        }
        """The words for `tests.attack.flood`, by what is flooded."""

    @property
    def webhook_port(self):
        return int(urlsplit(self._telegram.webhook[0]).port)

    @property
    def resident_bytes(self):
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def client(self):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url, limits = f"http://127.0.0.1:{self.port}", httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=30)

    async def ask(self, client):
        """What a neighbour asks of the page, and of the webhook."""
        assert (await client.get("/api/sessions")).status_code == 200
        url, secret = self._telegram.webhook
        header = {"X-Telegram-Bot-Api-Secret-Token": secret}
        assert (await client.post(url, json=UPDATE, headers=header)).status_code == 200


UPDATE = {"update_id": 1, "message": {}}


@pytest.fixture
def many_files():
    assert raise_open_files() > 2 * FILES


@pytest.fixture
async def daemon(tmp_path):
    port, webhook = free_port(), free_port()
    async with OpenAIServer(otherwise="Here you are.") as server, telegram() as stage:
        nanoloop = Limited(tmp_path, server.url)
        nanoloop.set(
            NANOLOOP_CHANNELS__WEB__ENABLED="true",
            NANOLOOP_CHANNELS__WEB__PORT=str(port),
            NANOLOOP_CHANNELS__WEB__TOKENS=json.dumps({"tester": {"token": TOKEN}}),
            NANOLOOP_CHANNELS__WEB__REQUESTS_PER_MINUTE="100000",
            NANOLOOP_CHANNELS__TELEGRAM__ENABLED="true",
            NANOLOOP_CHANNELS__TELEGRAM__TOKEN=BOT_TOKEN,
            NANOLOOP_CHANNELS__TELEGRAM__API=stage.server.url,
            NANOLOOP_CHANNELS__TELEGRAM__WEBHOOK_URL=f"http://127.0.0.1:{webhook}/telegram",
            NANOLOOP_CHANNELS__TELEGRAM__WEBHOOK_PORT=str(webhook),
        )
        files = {"stdin": subprocess.DEVNULL}
        async with (
            nanoloop.started("run", **files) as process,
            anyio.create_task_group() as group,
        ):
            group.start_soon(read_out, process.stderr)
            await reachable(port)
            await comes_to(lambda: _value(stage.server), lambda known: known.webhook)
            yield Daemon(process.pid, port, stage.server)
            group.cancel_scope.cancel()


async def _value(value):
    return value


async def reachable(port):
    with anyio.fail_after(60):
        while True:
            with suppress(OSError):
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                return
            await anyio.sleep(0.05)


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
            await daemon.ask(client)
            taken.append(time.perf_counter() - began)
            await anyio.sleep(0.02)
    return taken, found[0]


async def flood(daemon, kind, seconds, counts):
    """Flood these targets at once, by so many connections each; what came of it."""
    found = {}

    async def one(target, count):
        port, *more = daemon.targets[target]
        words = [sys.executable, "-m", "tests.attack.flood", kind, port, str(seconds), *more]
        done = await anyio.run_process([*words, f"--count={count}"], cwd=ROOT)
        found[target] = json.loads(done.stdout)

    async with anyio.create_task_group() as group:
        for target, count in counts.items():
            group.start_soon(one, target, count)
    return [found[target] for target in counts]


async def calm(daemon):
    return (await seconds_of_requests(daemon, lambda: anyio.sleep(1)))[0]


async def check(daemon, kind, seconds, counts, before):
    """Flood it, and see what that costs the process, and its neighbours."""
    resident = daemon.resident_bytes
    taken, floods = await seconds_of_requests(daemon, lambda: flood(daemon, kind, seconds, counts))
    assert daemon.resident_bytes - resident < 30 * MB, kind
    for found, count in zip(floods, counts.values(), strict=True):
        assert found["cut"] >= found["made"] - count, kind  # the last ones end with the flood
        assert found["cut"] >= count, kind
        assert found["most_bytes"] < 20 * BOUND_BYTES, kind
    return max(1.0, median(taken) / max(median(before), 0.025))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_no_request_needs_is_cut_and_costs_no_memory_and_no_neighbour(daemon):
    before = await calm(daemon)
    some = {"page": 4, "page, with a token": 3, "webhook": 3}
    slower = [await check(daemon, kind, SECONDS, some, before) for kind in KINDS]
    assert median(slower) < 2  # one may meet with whatever else the machine does


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["page", "page, with a token", "webhook"])
async def test_ten_seconds_of_each_kind_change_no_more(daemon, target):
    before = await calm(daemon)
    assert median([await check(daemon, kind, 10, {target: 10}, before) for kind in KINDS]) < 2


@pytest.mark.slow
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
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.long)],
)
async def test_more_half_requests_than_it_may_open_files_shut_nobody_out(daemon, rounds):
    halves = []

    async def half_requests():
        for _ in range(rounds):
            for number in range(FILES + 100):
                port = daemon.port if number % 2 else daemon.webhook_port
                connection = await anyio.connect_tcp("127.0.0.1", port)
                await connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
                halves.append(connection)
            await anyio.sleep(1 if rounds == 1 else 10)  # as long as one may stay

    await seconds_of_requests(daemon, half_requests)  # each of which is served
    for _ in range(5):  # a client that comes only now
        async with daemon.client() as client:
            assert (await client.get("/healthz")).status_code == 200
            await daemon.ask(client)
    for connection in halves:
        await connection.aclose()


@pytest.mark.slow
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
        with anyio.fail_after(50):
            while len(codes) < 100 or codes[-1] == 200:  # noqa: ASYNC110 - seen on the wire
                await anyio.sleep(0.05)
        async with daemon.client() as other:
            assert (await other.get("/healthz")).status_code == 200
        assert codes.count(200) > 100
        assert 503 in codes
        group.cancel_scope.cancel()
