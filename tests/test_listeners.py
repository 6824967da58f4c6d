"""What listens for HTTP in one process: one limit for all of it, whoever's port is flooded."""

import socket
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from starlette.responses import PlainTextResponse

from nanoloop.channels import server
from nanoloop.channels.server import OpenConnections, WebServer

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def connections(monkeypatch):
    made = OpenConnections(8)
    monkeypatch.setattr(server, "connections_of_process", lambda: made)
    return made


@asynccontextmanager
async def listening():
    """The port of a server that says hello."""
    made = WebServer(
        PlainTextResponse("hello"), header_seconds=60, grace_seconds=1, at_end=lambda: None
    )
    listener = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as group:
        group.start_soon(made.serve, listener)
        yield listener.getsockname()[1]
        group.cancel_scope.cancel()


async def half_request(port, stack):
    """A connection that is counted, and has not sent a whole request."""
    connection = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
    await connection.send(HALF)
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


def test_a_process_has_one_limit():
    assert server.connections_of_process() is server.connections_of_process()
