"""Tool servers over HTTP and of the newest protocol: the same promises, and headers that stay."""

import gzip
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio.to_thread
import pytest

from nanoloop.tools.servers import ToolServerFailed, ToolServerPlace
from tests.tool_servers import LONG, call, running, until

NEWEST = Path(__file__).parent / "servers" / "mcp_http.py"
HEADERS = {"X-Key": "very-secret"}


class Web:
    """The newest server in a process of its own, which may be killed and started again."""

    def __init__(self):
        self.port = 0
        self.process = None

    def start(self):
        if self.process is not None:
            self.process.stdout.close()
        words = [sys.executable, str(NEWEST), "http", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def place(self, **more):
        url = f"http://127.0.0.1:{self.port}/mcp"
        return ToolServerPlace(name="web", url=url, headers=HEADERS, timeout_seconds=LONG, **more)


@pytest.fixture(scope="module")
def shared_web():
    web = Web()
    web.start()
    yield web
    web.kill()


@pytest.fixture
def own_web():
    web = Web()
    web.start()
    yield web
    web.kill()


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


async def test_a_server_at_a_url_is_called_with_its_headers(shared_web, data):
    async with running(shared_web.place(), data=data) as servers:
        assert await call(servers, "web__echo", text="hi") == "hi"
        assert await call(servers, "web__header", name="x-key") == "very-secret"
        assert "characters are left out" in await call(servers, "web__large")


async def test_a_picture_becomes_a_file_and_resources_are_read(shared_web, data):
    async with running(shared_web.place(), data=data) as servers:
        (source,) = servers.sources
        text, picture = await source.tools["web__look"].call({})
        assert text == "[resource (one): note://one]\nand words"
        assert (picture.content, picture.shown_name) == (b"1234", "image.png")
        assert (picture.shown_type, picture.send) == ("image/png", False)
        assert await call(servers, "web__read_resource", uri="note://one") == "the first note"
        assert await call(servers, "web__read_resource", uri="note://no") == (
            "Unknown resource: note://no"
        )
        assert json.loads(await call(servers, "web__count")) == {"sheep": 3}


async def test_data_that_is_read_becomes_a_file(shared_web, data):
    async with running(shared_web.place(), data=data) as servers:
        (source,) = servers.sources
        text, file = await source.tools["web__read_resource"].call(
            {"uri": "note://shop/apple%20pie"}
        )
    assert (text, file.content, file.send) == ("", b"%PDF", False)
    assert (file.shown_name, file.shown_type) == ("apple pie.pdf", "application/pdf")


async def test_a_question_where_nobody_can_be_asked_is_told_as_one(shared_web, data):
    async with running(shared_web.place(), data=data) as servers:
        said = await call(servers, "web__pay")
    assert said == "it asks the user something, and nobody can be asked here"


@pytest.mark.slow
async def test_a_tool_that_comes_later_is_withheld(own_web, data):
    async with running(own_web.place(), data=data) as servers:
        (server,) = servers
        await call(servers, "web__grow")
        await until(lambda: server.withheld == ("grown",))


@pytest.mark.slow
async def test_a_server_at_a_url_that_dies_is_met_again(own_web, data):
    async with running(own_web.place(), data=data) as servers:
        (server,) = servers
        said = await call(servers, "web__die")
        assert said.startswith("web went away during the call: ")
        own_web.process.wait()
        await until(lambda: server.state == "unreachable")
        said = await call(servers, "web__echo", text="hi")
        assert said.startswith("web is not reachable since ")
        assert said.endswith(": nothing answers at its url")
        await anyio.to_thread.run_sync(own_web.start)
        await until(lambda: server.state == "connected")
        assert await call(servers, "web__echo", text="hi") == "hi"


@contextmanager
def answering(answer):
    """A web server that gives `answer(handler)`; yields its port and the headers of requests."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append(dict(self.headers))
            answer(self, json.loads(body))

        def do_GET(self):
            self.send_error(405)

        do_DELETE = do_GET  # noqa: N815 - as http.server has it

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()


def send(handler, status, body=b"", **headers):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


async def reason_for(answer, data):
    with answering(answer) as (port, _):
        place = ToolServerPlace(name="web", url=f"http://127.0.0.1:{port}/mcp", headers=HEADERS)
        async with running(place, data=data) as servers:
            (server,) = servers
            return server.reason


async def test_a_redirect_elsewhere_is_not_followed_and_gets_no_header(data, heard):
    with answering(lambda handler, _: send(handler, 200)) as (other, asked):

        def redirect(handler, _):
            send(handler, 307, location=f"http://127.0.0.1:{other}/mcp")

        assert await reason_for(redirect, data) == (
            "it answers with a redirect, which is not followed: set url to its new address"
        )
        assert asked == []
    assert "very-secret" not in repr(heard)


async def test_a_server_that_refuses_the_key_is_named_without_it(data, heard):
    reason = await reason_for(lambda handler, _: send(handler, 401, b"very-secret"), data)
    assert reason == "it answers with HTTP status 401: check its url and its headers"
    assert [event.reason for event in heard if isinstance(event, ToolServerFailed)] == [reason]


async def test_an_answer_that_was_compressed_is_not_read(data):
    def packed(handler, _):
        body = gzip.compress(b"x" * 100_000)
        send(handler, 200, body, content_encoding="gzip", content_type="application/json")

    assert await reason_for(packed, data) == "it compressed its response, which was not requested"


async def test_an_answer_without_end_is_cut(data, monkeypatch):
    from nanoloop.tools import transports  # noqa: PLC0415 - as the servers do

    monkeypatch.setattr(transports, "MOST_BYTES", 10_000)
    much = lambda handler, _: send(handler, 200, b"x" * 10_001, content_type="application/json")  # noqa: E731 - short
    assert await reason_for(much, data) == "it sends a message of more than 10,000 bytes"


async def test_a_page_that_is_no_server_is_named(data):
    page = lambda handler, _: send(handler, 200, b"<html>", content_type="text/html")  # noqa: E731 - short
    assert (await reason_for(page, data)).startswith("it answers with an error (")


def test_a_place_shows_no_header():
    assert "very-secret" not in repr(Web().place())
