"""Whoever reaches the port and holds no token takes neither memory nor the page from others."""

import json
import math
import re
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from nanoloop.files import raise_open_files
from tests.attack.flood import BOUND_BYTES, KINDS
from tests.openai_server import OpenAIServer
from tests.servers.telegram import TOKEN as BOT_TOKEN
from tests.stages.command_line import ROOT, CommandLine
from tests.stages.telegram import free_port, telegram

FILES = 1024
ASKED = 10
ROUNDS = 10
"""More of them are asked for only where one did not tell enough."""
HALF_SECONDS = 3
"""How long half a request may stay, in the short form of a test."""
MB = 1_000_000
TOKEN = "a-token-of-some-length"
SECRET = "X-Telegram-Bot-Api-Secret-Token"
TARGETS = ("page", "page, with a token", "webhook", "webhook, with its secret")


class Limited(CommandLine):
    """A `nanoloop` that may open so many files, and tells how soon it cuts a flood."""

    def __init__(self, folder, url, *, header_seconds):
        super().__init__(folder, url)
        self.cuts = folder / "cuts"
        self._header_seconds = header_seconds

    def words(self, *words):
        limited = ["bash", "-c", f'ulimit -n {FILES} && exec "$@"', "limited"]
        watched = [sys.executable, "-m", "tests.attack.watched", str(self.cuts)]
        return [*limited, *watched, str(self._header_seconds), *words]


class Daemon:
    """One that serves the page, and hears of Telegram's messages by a webhook."""

    def __init__(self, pid, port, telegram, cuts):
        self.pid, self.port = pid, port
        self._telegram, self._cuts = telegram, cuts
        page = {"port": port, "path": "/api/attachments"}
        webhook = {"port": self.webhook_port, "path": "/telegram"}
        secret = f"{SECRET}: {telegram.webhook[1]}"
        self.targets = {
            "page": page,
            "page, with a token": {**page, "header": f"Authorization: Bearer {TOKEN}"},
            "webhook": webhook,
            "webhook, with its secret": {**webhook, "header": secret},
        }
        """What can be flooded, as `tests.attack.flood` is told."""

    @property
    def webhook_port(self):
        return int(urlsplit(self._telegram.webhook[0]).port)

    @property
    def resident_bytes(self):
        return self._status("VmRSS")

    @property
    def most_resident_bytes(self):
        """The most that it ever had."""
        return self._status("VmHWM")

    def _status(self, name):
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024

    def cuts(self):
        """Of each connection of a flood, since the last call: how long after its bound it ended."""
        found = [json.loads(line) for line in self._cuts.read_text().splitlines()]
        self._cuts.write_text("")
        return found

    def client(self):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url, limits = f"http://127.0.0.1:{self.port}", httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60)

    async def ask(self, client):
        """What a neighbour asks of the page, and of the webhook."""
        assert (await client.get("/api/sessions")).status_code == 200
        url, secret = self._telegram.webhook
        assert (await client.post(url, json=UPDATE, headers={SECRET: secret})).status_code == 200


UPDATE = {"update_id": 1, "message": {}}


@pytest.fixture
def many_files():
    assert raise_open_files() > 2 * FILES


@asynccontextmanager
async def running(folder, *, header_seconds=math.inf):
    port, webhook = free_port(), free_port()
    async with OpenAIServer(otherwise="Here you are.") as server, telegram() as stage:
        nanoloop = Limited(folder, server.url, header_seconds=header_seconds)
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
            connected = anyio.Event()
            group.start_soon(read_out, process.stderr, connected)
            await connected.wait()
            yield Daemon(process.pid, port, stage.server, nanoloop.cuts)
            group.cancel_scope.cancel()


@pytest.fixture
async def daemon(tmp_path):
    async with running(tmp_path) as daemon:
        yield daemon


async def read_out(lines, connected):
    """Let no full pipe hold up the process; say when it is connected to Telegram, the last."""
    read = BufferedByteReceiveStream(lines)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead):
        while True:
            if b'"channel_connected"' in await read.receive_until(b"\n", MB):
                connected.set()


class Attackers:
    """A process that floods what it is told to."""

    def __init__(self, process):
        self._process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def _tell(self, order):
        await self._process.stdin.send(f"{json.dumps(order)}\n".encode())
        return json.loads(await self._lines.receive_until(b"\n", 10_000))

    @asynccontextmanager
    async def flooding(self, kind, targets):
        """A flood of these; what came of it is there in the end, when each has been cut."""
        found = []
        await self._tell([(kind, target) for target in targets])
        yield found
        found += await self._tell([])


@pytest.fixture
async def attackers():
    words = [sys.executable, "-m", "tests.attack.flood"]
    async with await anyio.open_process(words, cwd=ROOT, stderr=None) as process:
        yield Attackers(process)
        process.kill()


async def asked(daemons, seconds):
    """What each of a neighbour's requests takes of each of these, by turns, for so long."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(daemon.client()) for daemon in daemons]
        taken, ends = [], time.perf_counter() + seconds
        while len(taken) < ASKED or time.perf_counter() < ends:
            taken.append([])
            for daemon, client in zip(daemons, clients, strict=True):
                began = time.perf_counter()
                await daemon.ask(client)
                taken[-1].append(time.perf_counter() - began)
    return taken[1:]  # it was not connected before the first


async def check(both, attackers, kind, counts, seconds):
    """Flood one of two, and see what that costs the process, and its neighbours.

    Whatever else the machine does, the attackers' work included, holds up both of them alike.
    """
    daemon, _ = both
    targets = [{**daemon.targets[name], "count": count} for name, count in counts.items()]
    resident, taken = daemon.resident_bytes, []
    for _ in range(ROUNDS):
        async with attackers.flooding(kind, targets) as floods:
            taken += await asked(both, seconds)
        assert daemon.most_resident_bytes - resident < 30 * MB, kind
        for found, count in zip(floods, counts.values(), strict=True):
            assert found["cut"] >= max(count, found["made"]), kind
            assert found["most_bytes"] < 20 * BOUND_BYTES, kind
        cuts = daemon.cuts()
        assert len(cuts) >= sum(found["cut"] for found in floods), kind
        assert max(chain.from_iterable(cuts)) < 1, kind
        flooded, otherwise = map(median, zip(*taken, strict=True))
        if flooded < 2 * otherwise:
            return
    raise AssertionError(f"{kind}: {flooded} s with a flood, {otherwise} s without")


@asynccontextmanager
async def two(folder, **how):
    """One to be flooded, and one that is not."""
    (folder / "calm").mkdir()
    async with running(folder, **how) as daemon, running(folder / "calm", **how) as calm:
        both = daemon, calm
        await asked(both, 0)  # what they load for it is loaded
        yield both


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_no_request_needs_is_cut_and_costs_no_memory_and_no_neighbour(
    tmp_path, attackers
):
    some = dict(zip(TARGETS, (3, 2, 3, 2), strict=True))
    async with two(tmp_path, header_seconds=HALF_SECONDS) as both:
        for kind in KINDS:
            await check(both, attackers, kind, some, 0.3)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
async def test_ten_seconds_of_each_kind_change_no_more(tmp_path, attackers, target):
    async with two(tmp_path) as both:
        for kind in KINDS:
            await check(both, attackers, kind, {target: 10}, 10)


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

    async with daemon.client() as client, anyio.create_task_group() as group:
        group.start_soon(half_requests)
        while len(halves) < rounds * (FILES + 100):
            await daemon.ask(client)  # each of which is served
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
        codes, refused = [], anyio.Event()

        async def read():
            with suppress(httpx2.TransportError):  # cut before it came to its turn
                async with reader.stream("GET", "/api/events", timeout=None) as stream:
                    codes.append(stream.status_code)
                    if len(codes) > 100 and codes[-1] != 200:
                        refused.set()
                    async for _ in stream.aiter_lines():
                        pass

        for _ in range(FILES):
            group.start_soon(read)
        await refused.wait()
        async with daemon.client() as other:
            assert (await other.get("/healthz")).status_code == 200
        assert codes.count(200) > 100
        assert 503 in codes
        group.cancel_scope.cancel()
