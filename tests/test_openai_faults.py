"""Servers that behave badly, and calls that go on while the provider is closed: an error each."""

import json
import ssl

import anyio
import pytest

from nanoloop.errors import NoConnection, OverQuota, ProviderError, ProviderTimeout
from nanoloop.providers import hosted
from nanoloop.providers.openai import OpenAIProvider
from tests.certificates import certified
from tests.openai_client import HI, choice, connected, error, sse
from tests.openai_server import Answer, OpenAIServer
from tests.raw_server import RawServer

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SAID = json.dumps({"choices": [{"message": {"content": "Hello."}}]}).encode()
PLAIN = OK + b"Content-Length: %d\r\n\r\n" % len(SAID) + SAID
AT_ONCE = (("Retry-After-Ms", "1"),)


@pytest.fixture
def trust(tmp_path, monkeypatch):
    """What a server has that speaks TLS; its clients trust it."""
    certified(tmp_path)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    return trust


async def failing_at(url, *, on_text=None, **settings):
    provider = OpenAIProvider(**({"model": "m", "base_url": url, "max_retries": 0} | settings))
    with pytest.raises(ProviderError) as caught:
        await provider.chat(messages=HI, on_text=on_text)
    await provider.close()
    return caught.value


class Breaks(RawServer):
    """Says something encrypted, and then something that isn't."""

    async def _hear(self, stream):
        async with stream:
            await stream.receive()
            await stream.send(self._words[0])
            await stream.transport_stream.send(PLAIN)


@pytest.mark.parametrize("said", [b"H", OK + b"Content-Length: 50\r\n\r\nHel"])
async def test_what_is_not_encrypted_as_it_should_be_breaks_the_connection(trust, said):
    async with Breaks(said, trust=trust) as server:
        assert isinstance(await failing_at(server.url), NoConnection)


async def test_a_server_that_hangs_up_before_it_is_trusted_is_not_there():
    async with RawServer(b"") as server:
        failure = await failing_at(server.url.replace("http:", "https:"))
    assert isinstance(failure, NoConnection)


async def test_a_call_that_goes_on_is_finished_and_its_connection_closed_after_it():
    async with connected(Answer(held=True)) as (provider, server):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: provider.chat(messages=HI))
            await server.arrived(1)
            await provider.close()
            server.release()
        await server.deserted()


@pytest.mark.parametrize("where", ["http://a..b/", "ftp://x/y", "mailto:x", "http://[oops"])
async def test_a_place_that_is_none_is_a_failure_too(where):
    head = f"HTTP/1.1 307 X\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(head.encode()) as server:
        await failing_at(server.url)


async def test_a_refusal_that_breaks_off_is_tried_again():
    said = b"HTTP/1.1 503 X\r\nRetry-After-Ms: 1\r\nContent-Length: 9\r\n\r\nHe"
    async with RawServer(said, hangs_up=True) as server:
        failure = await failing_at(server.url, on_text=print, max_retries=1)
    assert isinstance(failure, NoConnection)
    assert server.count == 2


async def test_a_refusal_that_never_ends_is_not_waited_for():
    said = b"HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\nHe"
    async with RawServer(said) as server:
        failure = await failing_at(server.url, on_text=print, first_token_timeout_seconds=0.05)
    assert isinstance(failure, ProviderTimeout)
    assert "sent nothing for 0.05" in str(failure)


@pytest.mark.parametrize("on_text", [None, print])
async def test_a_wait_that_outlasts_the_call_is_not_begun(on_text):
    busy = error(429, headers=(("Retry-After", "100"),))
    async with connected(busy, max_retries=2, call_timeout_seconds=60) as (provider, server):
        with pytest.raises(OverQuota, match="in 100 seconds"):
            await provider.chat(messages=HI, on_text=on_text)
    assert server.count == 1


async def test_no_proxy_hears_what_is_asked_on_this_machine(monkeypatch):
    async with RawServer(PLAIN) as proxy, OpenAIServer() as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        provider = OpenAIProvider(model="m", base_url=server.url, max_retries=0)
        assert (await provider.chat(messages=HI)).text == "Hello."
        await provider.close()
    assert proxy.count == 0


# Connections


async def test_calls_in_a_row_share_a_connection_and_those_at_once_do_not():
    async with connected(max_retries=0) as (provider, server):
        for _ in range(3):
            await provider.chat(messages=HI)
        assert server.connections_made == 1
        server.otherwise = Answer(held=True)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lambda: provider.chat(messages=HI))
            await server.arrived(8)
            server.release()
        assert server.connections_made == 5


@pytest.mark.slow
async def test_what_a_server_let_go_of_while_nobody_asked_is_not_used_again():
    async with RawServer(PLAIN, hangs_up=True) as server:
        provider = OpenAIProvider(model="m", base_url=server.url, max_retries=1)
        for _ in range(3):
            assert (await provider.chat(messages=HI)).text == "Hello."
        await provider.close()
    assert server.connections_made == 3


async def test_what_comes_right_behind_an_answer_is_nobodys_answer():
    async with RawServer(PLAIN + PLAIN.replace(b"Hello", b"OTHER")) as server:
        provider = OpenAIProvider(model="m", base_url=server.url, max_retries=0)
        for _ in range(2):
            assert (await provider.chat(messages=HI)).text == "Hello."
        await provider.close()
    assert server.connections_made == 2


@pytest.mark.parametrize(
    "said",
    [
        b"220 ready for mail\r\n",
        OK + b"Content-Length: 9\r\n\r\nHello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nHello",
        OK + b"X-Endless: " + b"a" * 300_000,
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        OK.replace(b"200", b"999999") + b"Content-Length: 0\r\n\r\n",
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(said):
    async with RawServer(said, hangs_up=True) as server:
        await failing_at(server.url)


async def test_only_a_certificate_that_is_trusted_will_do(trust, monkeypatch):
    async with RawServer(PLAIN, trust=trust) as server:
        provider = OpenAIProvider(model="m", base_url=server.url, max_retries=0)
        for _ in range(2):
            assert (await provider.chat(messages=HI)).text == "Hello."
        await provider.close()
        assert server.connections_made == 1
        monkeypatch.delenv("SSL_CERT_FILE")
        assert "certificate" in str(await failing_at(server.url))


# What is tried again


async def test_an_answer_that_failed_unheard_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(hosted, "FIRST_PAUSE_SECONDS", 0.001)
    failed = Answer(text="Error: key sk-1", finish_reason="error")
    async with connected(failed, failed, max_retries=2) as (provider, server):
        assert (await provider.chat(messages=HI)).text == "Hello."
    assert server.count == 3


async def test_no_error_is_tried_again_by_the_sdk_and_by_us():
    busy = error(503, headers=AT_ONCE)
    async with connected(otherwise=busy, max_retries=2) as (provider, server):
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI)
    assert server.count == 3


async def test_all_tries_of_a_call_are_counted_together(monkeypatch):
    monkeypatch.setattr(hosted, "FIRST_PAUSE_SECONDS", 0.001)
    busy, failed = error(503, headers=AT_ONCE), Answer(finish_reason="error")
    answers = [busy, failed] * 5
    async with connected(*answers, max_retries=3) as (provider, server):
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI)
    assert server.count == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSL_CERT_FILE", "/nonexistent/ca.pem"), ("ALL_PROXY", "foo://x")],
)
async def test_what_keeps_a_client_from_being_made_is_an_error_with_a_sentence(
    monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    provider = OpenAIProvider(model="m", base_url="http://model.example/v1", max_retries=0)
    with pytest.raises(ProviderError):
        await provider.load()
    with pytest.raises(ProviderError):
        await provider.chat(messages=HI)


async def test_an_answer_that_has_ended_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hosted, "USAGE_SECONDS", 0.05)
    held = Answer(text="a b", usage=None, done=False, hold_after=4)
    async with connected(held) as (provider, _):
        assert (await provider.chat(messages=HI, on_text=len)).text == "a b"


async def test_what_was_heard_is_not_asked_for_again():
    said = (*sse(choice(content="one")), *sse({"error": "overloaded"}))
    heard = []
    async with connected(otherwise=Answer(chunks=said), max_retries=2) as (provider, server):
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI, on_text=heard.append)
    assert (heard, server.count) == (["one"], 1)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_server_that_is_busy_or_in_trouble_is_asked_again(status):
    async with connected(error(status, headers=AT_ONCE), max_retries=1) as (provider, _):
        assert (await provider.chat(messages=HI)).text == "Hello."


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refusal_stays_one(status):
    async with connected(error(status, headers=AT_ONCE), max_retries=1) as (provider, server):
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI)
    assert server.count == 1


@pytest.mark.parametrize("said", ["121", "1e999", "100000000000"])
async def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(said):
    busy = error(429, headers=(("Retry-After", said),))
    async with connected(busy, max_retries=1) as (provider, server):
        with pytest.raises(OverQuota):
            await provider.chat(messages=HI)
    assert server.count == 1
