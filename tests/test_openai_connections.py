"""Connections are used again where that is sound, and whatever a server does is heard or named."""

import ssl

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.providers.connection import HEAD_LIMIT, PIECE, Heard
from nanoloop.providers.connections import Connections, direct
from tests.certificates import certified
from tests.openai_server import Answer, OpenAIServer
from tests.raw_server import RawServer

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 5\r\n\r\nHello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nHe\r\n3\r\nllo\r\n0\r\n\r\n"
TO_THE_END = OK + b"Content-Type: text/plain\r\n\r\nHello"
TRAILED = CHUNKED[:-2] + b"Content-Encoding: gzip\r\n\r\n"
PADDED = CHUNKED.replace(b"2\r\n", b"2 \r\n")
TWICE_MEASURED = CHUNKED.replace(OK, OK + b"Content-Length: 5\r\n")
BARE_LINES = PLAIN.replace(b"\r\n", b"\n")
CLOSED = OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nHello"
IN_BETWEEN = b"HTTP/1.1 100 Continue\r\nX-Early: yes\r\n\r\n" + PLAIN


@pytest.fixture
async def client():
    async with httpx2.AsyncClient(transport=Connections(), timeout=10) as client:
        yield client


# Used again, or not


async def test_calls_in_a_row_share_a_connection_and_those_at_once_do_not(client):
    async with OpenAIServer() as server:
        for _ in range(3):
            await ask(client, server)
        assert server.connections_made == 1
        server.otherwise = Answer(held=True)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask, client, server)
            await server.arrived(8)
            server.release()
        assert server.connections_made == 5


@pytest.mark.parametrize(
    ("said", "connections"),
    [
        (PLAIN, 1),
        (CHUNKED, 1),
        (IN_BETWEEN, 1),
        (TRAILED, 1),
        (PADDED, 1),
        (BARE_LINES, 1),
        (TWICE_MEASURED, 1),
        (CLOSED, 2),
        (TO_THE_END, 2),
        (PLAIN + b"HTTP/1.1 408 Timeout\r\n\r\n", 2),
    ],
)
async def test_an_answer_of_any_form_is_whole_and_a_used_up_connection_is_left(
    client, said, connections
):
    hangs_up = said == TO_THE_END
    async with RawServer(said, hangs_up=hangs_up) as server:
        for _ in range(2):
            assert (await client.post(server.url, content=b"{}")).text == "Hello"
    assert server.connections_made == connections


async def test_what_a_server_let_go_of_while_nobody_asked_is_not_used_again(client):
    async with RawServer(PLAIN, hangs_up=True) as server:
        for _ in range(3):
            assert (await client.post(server.url)).text == "Hello"
        assert server.connections_made == 3


async def test_a_server_that_hangs_up_just_as_it_is_asked_is_asked_again_at_once(client):
    async with RawServer(PLAIN, b"", PLAIN) as server:
        assert (await client.post(server.url)).text == "Hello"
        assert (await client.post(server.url)).text == "Hello"
    assert server.connections_made == 2
    assert server.count == 3


async def test_where_many_are_let_go_of_only_one_more_is_tried(client):
    async with OpenAIServer(otherwise=Answer(held=True)) as server:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask, client, server)
            await server.arrived(5)
            server.release()
        server.otherwise = hangs_up
        with pytest.raises(httpx2.TransportError):
            await ask(client, server)
    assert server.count == 7


def hangs_up(_):
    raise ConnectionError


async def test_what_fills_a_piece_is_not_followed_by_another_answer(client):
    head = OK + b"Content-Length: 65494\r\n\r\n"
    said = head + b"H" * (PIECE - len(head))
    async with RawServer(said + PLAIN) as server:
        for _ in range(5):
            assert (await client.post(server.url)).text[0:2] == "HH"


async def test_a_new_connection_on_which_nothing_is_said_is_a_failure(client):
    async with RawServer(b"") as server:
        with pytest.raises(httpx2.RemoteProtocolError, match="not whole"):
            await client.post(server.url)
    assert server.count == 1


async def test_a_call_that_is_left_closes_its_connection(client):
    async with OpenAIServer(Answer(held=True)) as server:
        with anyio.move_on_after(0.05):
            await ask(client, server)
        await server.deserted()


async def test_a_connection_grows_old(client, monkeypatch):
    monkeypatch.setattr("nanoloop.providers.connections.IDLE_SECONDS", 0)
    async with OpenAIServer() as server:
        for _ in range(3):
            await ask(client, server)
        assert server.connections_made == 3


# What goes wrong


@pytest.mark.parametrize(
    "said",
    [
        b"220 ready for mail\r\n",
        OK + b"Content-Length: 9\r\n\r\nHello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nHello",
        OK + b"X-Endless: " + b"a" * HEAD_LIMIT,
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(client, said):
    async with RawServer(said, hangs_up=True) as server:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(server.url)


async def test_nothing_there_is_a_failure_to_connect(client):
    with pytest.raises(httpx2.ConnectError):
        await client.post("http://127.0.0.1:1/")


async def test_a_server_that_never_takes_the_call_is_given_up(client, monkeypatch):
    async def never(*_, **__):
        await anyio.sleep_forever()

    monkeypatch.setattr("anyio.connect_tcp", never)
    with pytest.raises(httpx2.ConnectTimeout):
        await client.post("http://127.0.0.1:1/", timeout=httpx2.Timeout(None, connect=0.01))


# Encrypted, and through a proxy


@pytest.fixture
def trust(tmp_path, monkeypatch):
    """What a server has that speaks TLS; its clients trust it."""
    certified(tmp_path)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    return trust


async def test_only_a_certificate_that_is_trusted_will_do(trust, client, monkeypatch):
    async with RawServer(PLAIN, trust=trust) as server:
        for _ in range(2):
            assert (await client.post(server.url)).text == "Hello"
        assert server.connections_made == 1
        monkeypatch.delenv("SSL_CERT_FILE")
        async with httpx2.AsyncClient(transport=Connections()) as stranger:
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.post(server.url)


async def test_certificates_are_looked_for_once(trust, client, monkeypatch):
    made, real = [], httpx2.create_ssl_context
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda: made.append(1) or real())
    async with RawServer(PLAIN, trust=trust) as server, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(client.post, server.url)
        await server.asked(5)
    assert len(made) == 1


class SaysTwo(RawServer):
    """To each request two answers at once, encrypted one by one."""

    async def _hear(self, stream):
        self.connections_made += 1
        async with stream:
            while await self._asked(stream):
                stream._ssl_object.write(PLAIN)
                stream._ssl_object.write(PLAIN.replace(b"Hello", b"OTHER"))
                await stream._flush_write_bio()


async def test_what_was_said_unasked_and_encrypted_is_nobodys_answer(trust, client):
    async with SaysTwo(b"", trust=trust) as server:
        for _ in range(2):
            assert (await client.post(server.url)).text == "Hello"
    assert server.connections_made == 2


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_where_a_proxy_stands_between_the_client_goes_its_own_way(name, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert direct("example.org") is None
    assert direct("127.0.0.1") is not None
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert direct("example.org") is not None


# Whatever pieces it comes in


@given(st.sampled_from([PLAIN, CHUNKED, IN_BETWEEN, CLOSED]), st.data())
def test_pieces_of_any_size_make_the_same_answer(said, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(said) - 1))))
    heard = Heard()
    for begin, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
        assert not heard.is_over
        heard.hear(said[begin:end])
    assert heard.is_over
    assert (heard.status, b"".join(heard.take())) == (200, b"Hello")
    assert b"X-Early" not in dict(heard.headers)
    assert heard.stays is (said != CLOSED)


async def ask(client, server):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    response = await client.post(f"{server.url}/chat/completions", json=body)
    assert response.status_code == 200
