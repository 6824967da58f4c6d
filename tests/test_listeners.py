"""What listens for HTTP in one process: one limit for all of it, whoever's port is flooded."""

import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import SimpleNamespace

import anyio
import pytest
from starlette.responses import PlainTextResponse

from nanoloop.channels import server
from nanoloop.channels.server import PATIENCE_SECONDS, OpenConnections, WebServer

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HALF + b"\r\n"
MUCH = "x" * 10_000_000
"""More than what lies between two processes holds."""


@pytest.fixture
def connections(monkeypatch):
    made = OpenConnections(8)
    monkeypatch.setattr(server, "connections_of_process", lambda: made)
    return made


def web_server(text="hello"):
    return WebServer(
        PlainTextResponse(text), header_seconds=60, grace_seconds=1, at_end=lambda: None
    )


@asynccontextmanager
async def listening(text="hello"):
    """The port of a server that says this."""
    made = web_server(text)
    listener = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as group:
        group.start_soon(made.serve, listener)
        yield listener.getsockname()[1]
        group.cancel_scope.cancel()


async def half_request(port, stack, *, said=HALF, address="127.0.0.1"):
    """A connection that is counted, and has not sent a whole request."""
    connected = await anyio.connect_tcp("127.0.0.1", port, local_host=address)
    connection = await stack.enter_async_context(connected)
    await connection.send(said)
    return connection


async def goes_to(connections, count):
    with anyio.fail_after(10):
        while connections.count != count:  # noqa: ASYNC110 - seen on the wire
            await anyio.sleep(0.001)


async def is_cut(connection):
    with anyio.fail_after(10):
        try:
            return await connection.receive() == b""
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True


async def test_the_limit_is_for_all_listeners_together(connections):
    async with AsyncExitStack() as stack, listening() as page, listening() as webhook:
        halves = []
        for count in range(1, connections.limit_of_address + 1):
            port = page if count % 2 else webhook
            halves.append(await half_request(port, stack))
            await goes_to(connections, count)
        await half_request(webhook, stack)
        assert await is_cut(halves[0])  # the oldest, at the other's port
        await goes_to(connections, connections.limit_of_address)
        await halves[1].send(b"\r\n")
        assert (await halves[1].receive()).startswith(b"HTTP/1.1 200")


async def test_what_a_listener_had_is_free_once_it_has_stopped(connections):
    async with AsyncExitStack() as stack:
        async with listening() as page:
            await half_request(page, stack)
            await goes_to(connections, 1)
        await goes_to(connections, 0)


async def test_all_addresses_of_one_client_have_one_limit(connections):
    async with AsyncExitStack() as stack, listening() as page:
        most = connections.limit_of_address
        halves = []
        for count in range(1, most + 1):
            halves.append(await half_request(page, stack, address=f"127.0.0.{count}"))
            await goes_to(connections, count)
        await half_request(page, stack, address=f"127.0.0.{most + 1}")
        assert await is_cut(halves[0])


async def unread(port, stack):
    """A connection whose client asks twice, and receives neither answer."""
    return await half_request(port, stack, said=WHOLE + WHOLE)


async def test_clients_that_receive_nothing_make_room_for_others(connections):
    async with AsyncExitStack() as stack, listening(MUCH) as page:
        for count in range(1, connections.limit_of_address + 1):
            await unread(page, stack)
            await goes_to(connections, count)
        with anyio.fail_after(10):
            answer = b""
            while not answer:  # until the others' answers are on their way
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    new = await half_request(page, stack, said=WHOLE)
                    answer = await new.receive()
        assert answer.startswith(b"HTTP/1.1 200")


async def test_a_client_that_receives_nothing_is_cut(connections, monkeypatch):
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0)
    async with AsyncExitStack() as stack, listening(MUCH) as page:
        await unread(page, stack)
        await goes_to(connections, 1)
        await goes_to(connections, 0)


class SlowClient:
    """What a sweep sees of a connection whose client receives slowly."""

    def __init__(self):
        self.cycle = SimpleNamespace(response_complete=False)
        self.flow = SimpleNamespace(write_paused=True)
        self.transport, self.left, self.is_cut = self, 1_000_000, False

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return self.left

    def abort(self):
        self.is_cut = True


def test_a_client_that_receives_slowly_is_not_cut_until_it_stops(connections):
    swept, client = web_server(), SlowClient()
    swept._server.server_state.connections.add(client)
    for now in range(0, 10 * PATIENCE_SECONDS, PATIENCE_SECONDS - 1):
        client.left -= 1
        swept._cut_idle(now)
    assert not client.is_cut
    swept._cut_idle(now + PATIENCE_SECONDS - 1)
    assert not client.is_cut
    swept._cut_idle(now + PATIENCE_SECONDS)
    assert client.is_cut


def test_a_process_has_one_limit():
    assert server.connections_of_process() is server.connections_of_process()


async def test_a_request_byte_by_byte_takes_few_reads_and_is_answered(connections, monkeypatch):
    pieces, take = [], server._Protocol.data_received

    def taken(protocol, data):
        pieces.append(data)
        take(protocol, data)

    monkeypatch.setattr(server._Protocol, "data_received", taken)
    monkeypatch.setattr(server, "REST_SECONDS", 0.1)
    whole = HALF + b"x: " + b"y" * 2000 + b"\r\n\r\n"
    async with AsyncExitStack() as stack, listening() as page:
        connection = await half_request(page, stack, said=b"")
        for number in range(len(whole)):
            await connection.send(whole[number : number + 1])
        assert (await connection.receive()).startswith(b"HTTP/1.1 200")
    assert b"".join(pieces) == whole
    assert len(pieces) < len(whole) / 4
