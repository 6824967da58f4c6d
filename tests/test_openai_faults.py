"""Servers that behave badly, and calls that go on while the provider is closed: an error each."""

import anyio
import pytest

from nanoloop.errors import NoConnection, OverQuota, ProviderError, ProviderTimeout
from nanoloop.providers import attempts
from nanoloop.providers.openai import OpenAIProvider
from tests.openai_client import HI, KEY, connected, error
from tests.openai_server import Answer, OpenAIServer
from tests.raw_server import RawServer
from tests.test_openai_connections import OK, PLAIN, trust  # noqa: F401 - a fixture


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
async def test_what_is_not_encrypted_as_it_should_be_breaks_the_connection(trust, said):  # noqa: F811
    async with Breaks(said, trust=trust) as server:
        assert isinstance(await failing_at(server.url), NoConnection)


async def test_a_server_that_hangs_up_before_it_is_trusted_is_not_there():
    async with RawServer(b"") as server:
        failure = await failing_at(server.url.replace("http:", "https:"))
    assert isinstance(failure, NoConnection)


async def test_a_provider_that_is_closed_before_the_next_try_says_so(monkeypatch):
    waits = anyio.Event()
    monkeypatch.setattr(attempts, "pause_after", lambda *_, **__: waits.set() or 0.01)
    async with (
        connected(error(503), max_retries=1) as (provider, _),
        anyio.create_task_group() as group,
    ):
        group.start_soon(close_after, waits, provider)
        with pytest.raises(ProviderError, match="closed"):
            await provider.chat(messages=HI)


async def close_after(event, provider):
    await event.wait()
    await provider.close()


async def test_the_connection_of_a_call_that_goes_on_is_closed_after_it():
    async with connected(Answer(held=True)) as (provider, server):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: provider.chat(messages=HI))
            await server.arrived(1)
            await provider.close()
            server.release()
        await server.deserted()


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_conversation_goes_nowhere_but_to_the_server_that_was_named(status):
    async with OpenAIServer() as other:
        head = f"HTTP/1.1 {status} X\r\nLocation: {other.url}/chat/completions\r\n"
        async with RawServer(head.encode() + b"Content-Length: 0\r\n\r\n") as server:
            failure = await failing_at(server.url, api_key=KEY)
    assert isinstance(failure, NoConnection)
    assert f"no chat completions ({status})" in str(failure)
    assert other.count == 0


@pytest.mark.parametrize("where", ["ftp://x/y", "mailto:x", "http://[oops"])
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
    assert "said nothing for 0.05" in str(failure)


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
