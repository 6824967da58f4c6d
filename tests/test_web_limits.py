"""What is too much, too malformed or too slow: a clear refusal each, and the server goes on."""

from contextlib import suppress

import anyio
import pytest

from nanoloop.channels import server
from nanoloop.channels.web import api, feed
from nanoloop.channels.web.access import RateLimit
from tests.web_server import serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def raw(web, data, *, end=False):
    """What comes back for these bytes, up to the end of the connection."""
    port = web.client.base_url.port
    async with await anyio.connect_tcp("127.0.0.1", port) as connection:
        await connection.send(data)
        if end:
            await connection.send_eof()
        with anyio.fail_after(10):
            return b"".join([piece async for piece in connection])


def head(path, *lines, method="POST"):
    said = [f"{method} {path} HTTP/1.1", "Host: localhost", "X-Nanoloop: 1", *lines, "", ""]
    return "\r\n".join(said).encode()


async def test_a_request_with_too_much_beside_its_body_is_cut(web):
    head_ = head("/api/sessions", "Transfer-Encoding: chunked")
    with suppress(anyio.BrokenResourceError):  # cut while it was still sent
        await raw(web, head_ + 30 * (b"1;" + b"e" * 30_000 + b"\r\nx\r\n"))
    assert (await web.client.get("/healthz")).status_code == 200


async def test_a_message_that_is_too_long_is_refused(web):
    session = await web.begin()
    path = f"/api/sessions/{session}/messages"
    refused = await web.call("POST", path, status=413, json={"text": "x" * 300_000})
    assert refused["error"] == {
        "message": "the body has more than 256000 bytes: send less",
        "type": "too_large",
    }


async def test_a_body_of_no_known_length_is_cut_off_at_the_limit(tmp_path):
    async def long():
        for _ in range(1000):
            yield b"x" * 1000

    async with serving(tmp_path, upload_bytes=10_000) as web:
        response = await web.client.post("/api/attachments", content=long())
        assert response.status_code == 413


@pytest.mark.parametrize("length", ["99999999999", "9" * 40])
async def test_a_length_that_is_too_great_is_refused_before_anything_comes(web, length):
    closing = ("Connection: close", f"Content-Length: {length}")
    answer = await raw(web, head("/api/attachments", *closing))
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/x\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_the_next_one_served(web, data):
    assert (await raw(web, data)).startswith(b"HTTP/1.1 400")
    assert (await web.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": NaN}',
        b"1e999",
    ],
)
async def test_what_is_no_json_is_refused(web, body):
    session = await web.begin()
    refused = await web.call("POST", f"/api/sessions/{session}/messages", status=422, content=body)
    assert refused["error"]["type"] == "malformed"


async def test_a_form_is_refused(web):
    refused = await web.call("POST", "/api/sessions", status=415, data={"title": "x"})
    assert "application/json" in refused["error"]["message"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1e9", "before=-1", "before=" + "9" * 99]
)
async def test_a_query_that_makes_no_sense_is_refused(web, query):
    session = await web.begin()
    await web.call("GET", f"/api/sessions/{session}/messages?{query}", status=422)


async def test_who_calls_too_often_is_told_to_wait(tmp_path):
    async with serving(tmp_path, requests_per_minute=5) as web:
        codes = [(await web.client.get("/api/sessions")).status_code for _ in range(6)]
        assert codes == [200] * 5 + [429]
        refused = await web.client.get("/api/sessions")
        assert 1 <= int(refused.headers["retry-after"]) <= 12


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(feed, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(api.WebLimits, "__init__", _short(api.WebLimits.__init__))


def _short(init):
    return lambda self, **given: init(self, **given, header_seconds=0.2, body_seconds=0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"POST /login HTTP/1.1\r\n"])
async def test_a_connection_that_never_asks_is_cut(tmp_path, sent):
    async with serving(tmp_path) as web:
        with suppress(anyio.BrokenResourceError):
            assert await raw(web, sent) == b""


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_drips_is_refused(tmp_path):
    async with serving(tmp_path) as web:
        answer = await raw(web, head("/api/attachments", "Content-Length: 100") + b"x")
    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_reader_that_takes_nothing_in_is_let_go(web, monkeypatch):
    monkeypatch.setattr(feed, "PATIENCE_SECONDS", 0.1)
    session = await web.begin()
    port = web.client.base_url.port
    async with await anyio.connect_tcp("127.0.0.1", port) as connection:
        await connection.send(head(f"/api/sessions/{session}/events", method="GET"))
        await connection.receive()
        with anyio.fail_after(10):
            while len(web.channel.backend.streams):  # more than what lies between holds
                web.channel.backend.feeds.of(session).add("answer", {"text": "x" * 1_000_000})
                await anyio.wait_all_tasks_blocked()
    await web.call("GET", "/healthz", status=200)


@pytest.mark.usefixtures("impatient")
async def test_an_open_stream_is_not_taken_for_a_slow_request(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            with anyio.fail_after(10):
                for _ in range(10):  # ten signs of life, longer than a request may take
                    while await anext(reader.lines) != ":":
                        pass
            await web.say(session, "hello")
            await reader.until("answer")


@pytest.mark.slow
async def test_a_request_that_does_not_end_holds_up_the_end_for_a_while_only(tmp_path):
    settings = {"loop": {"shutdown_turns_seconds": 1}}
    with anyio.fail_after(5):
        async with serving(tmp_path, settings=settings) as web:
            port = web.client.base_url.port
            async with await anyio.connect_tcp("127.0.0.1", port) as connection:
                await connection.send(head("/api/attachments", "Content-Length: 100") + b"x")
                await web.call("GET", "/healthz", status=200)
                web.app.stop()
                with suppress(anyio.BrokenResourceError):
                    assert b"".join([piece async for piece in connection]) == b""


async def test_headers_without_an_end_are_refused(web):
    with anyio.fail_after(10):
        try:
            answer = await raw(web, b"GET / HTTP/1.1\r\n" + b"X-A: " + b"a" * 200_000)
        except anyio.BrokenResourceError:
            answer = b"HTTP/1.1 431"
    assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))


# Rates


def test_a_bucket_fills_up_again():
    now = [0.0]
    rates = RateLimit(2, clock=lambda: now[0])
    assert [rates.take("a") for _ in range(3)] == [0, 0, 30]
    assert rates.take("b") == 0
    now[0] = 30
    assert [rates.take("a") > 0 for _ in range(2)] == [False, True]
