"""What stands between the model's server and us: proxies, certificates and redirects, all real."""

import json
import os
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nanoloop.errors import NanoloopError, ProviderError
from nanoloop.providers.openai import OpenAIProvider
from tests.certificates import certified
from tests.openai_server import Answer, OpenAIServer
from tests.raw_server import RawServer
from tests.servers.forwarding import HttpProxy, SocksProxy, running

ROOT = Path(__file__).parent.parent
HI = [{"role": "user", "content": "hi"}]
FAR = "model.example"
"""A name that only a proxy knows."""
COMPLETIONS = "/v1/chat/completions"
HELLO = json.dumps({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]})
ANSWER = (
    f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(HELLO)}\r\n\r\n"
)

# The SDK's aiohttp client hands a proxy's password on in a way that aiohttp is to lose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'proxy_auth' parameter:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for kind in ("http", "https", "all", "no"):
        for name in (f"{kind}_proxy", f"{kind}_proxy".upper()):
            monkeypatch.delenv(name, raising=False)


def far(server):
    return server.url.replace("127.0.0.1", FAR).removesuffix("/")


async def said_by(url, **options):
    """What the model behind this URL answers."""
    provider = OpenAIProvider(
        model="m", base_url=url, api_key="k-1", **{"max_retries": 0} | options
    )
    try:
        return (await provider.chat(messages=HI)).text
    finally:
        await provider.close()


async def failure_at(url):
    with pytest.raises(ProviderError) as raised:
        await said_by(url)
    return str(raised.value)


@asynccontextmanager
async def encrypted(folder):
    """A server that speaks TLS under a name and a certificate of its own."""
    certified(folder, FAR)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    async with RawServer((ANSWER + HELLO).encode(), trust=trust) as server:
        yield server


# Through a proxy


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_a_model_is_asked_through_the_proxy_with_its_password(monkeypatch, name):
    async with OpenAIServer() as server, running(HttpProxy(user="me", password="p@ss")) as proxy:
        monkeypatch.setenv(name, proxy.url)
        assert await said_by(far(server)) == "Hello."
    assert proxy.asked == [f"POST {far(server)}/chat/completions"]
    assert server.requests[0].headers["authorization"] == "Bearer k-1"
    assert not [name for name in server.requests[0].headers if name.startswith("proxy")]


@pytest.mark.parametrize("kind", [HttpProxy, SocksProxy])
async def test_what_is_encrypted_passes_a_proxy_unread(tmp_path, monkeypatch, kind):
    async with encrypted(tmp_path) as server, running(kind(user="me", password="p@ss")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert await said_by(far(server)) == "Hello."
        [asked] = proxy.asked
        assert asked.removeprefix("CONNECT ") == far(server).removeprefix("https://")
        assert proxy.from_server > len(HELLO)


async def test_a_certificate_that_is_not_trusted_is_refused_behind_a_proxy_too(
    tmp_path, monkeypatch
):
    async with encrypted(tmp_path) as server, running(HttpProxy()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert "set SSL_CERT_FILE" in await failure_at(far(server))
    assert server.count == 0


async def test_a_proxy_is_used_over_and_over_on_one_connection(monkeypatch):
    async with OpenAIServer() as server, running(HttpProxy()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        provider = OpenAIProvider(model="m", base_url=far(server))
        for _ in range(3):
            assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "Hello."
        await provider.close()
    assert (len(proxy.asked), server.connections_made) == (3, 1)


# Past a proxy


@pytest.mark.parametrize("kind", [HttpProxy, SocksProxy])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_no_proxy_hears_what_is_asked_on_this_machine(monkeypatch, kind, host):
    async with OpenAIServer() as server, running(kind()) as proxy:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert await said_by(server.url.replace("127.0.0.1", host)) == "Hello."
    assert proxy.asked == []


@pytest.mark.parametrize("unproxied", [FAR, ".example", "other.example, model.example", "*"])
async def test_hosts_that_need_no_proxy_are_asked_directly(monkeypatch, unproxied):
    async with OpenAIServer() as server, running(HttpProxy()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", unproxied)
        assert f"nothing answers at {far(server)}:" in await failure_at(far(server))
    assert proxy.asked == []


# A proxy that is of no use


@pytest.mark.parametrize("kind", [HttpProxy, SocksProxy])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_turns_away_is_named_without_its_password(monkeypatch, kind, scheme):
    async with running(kind(user="me", password="right")) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url.replace("right", "secret"))
        failure = await failure_at(f"{scheme}://{FAR}:80/v1")
    assert f"the proxy {kind.scheme}://{proxy.address}" in failure
    assert "password" in failure
    assert "secret" not in failure
    assert (proxy.turned_away, proxy.asked) == (1, [])


@pytest.mark.parametrize("kind", ["http", "socks5"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_is_not_there_is_named(monkeypatch, kind, scheme):
    monkeypatch.setenv("ALL_PROXY", f"{kind}://me:secret@127.0.0.1:9")
    failure = await failure_at(f"{scheme}://{FAR}/v1")
    assert f"the proxy {kind}://127.0.0.1:9:" in failure
    assert "secret" not in failure


@pytest.mark.parametrize("words", [b"220 ready for mail\r\n", b"HTTP/1.1 502 X\r\n\r\n", b""])
@pytest.mark.parametrize("kind", ["http", "socks5"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_talks_nonsense_is_named(monkeypatch, words, kind, scheme):
    async with RawServer(words, hangs_up=True) as server:
        address = server.url.removeprefix("http://").removesuffix("/")
        monkeypatch.setenv("ALL_PROXY", f"{kind}://me:secret@{address}")
        failure = await failure_at(f"{scheme}://{FAR}/v1")
    assert f"the proxy {kind}://{address}" in failure
    assert "secret" not in failure


async def test_a_socks_proxy_that_is_of_no_use_is_left_at_once(monkeypatch):
    async with RawServer(b"220 ready for mail\r\n") as server:
        monkeypatch.setenv("ALL_PROXY", server.url.replace("http", "socks5"))
        provider = OpenAIProvider(model="m", base_url=f"http://{FAR}/v1", max_retries=0)
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI)
        await server.deserted()
        await provider.close()


@pytest.mark.parametrize(
    "proxy", ["http://127.0.0.1:99999", "ftp://me:secret@127.0.0.1", "http://"]
)
async def test_what_names_no_proxy_is_told(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    failure = await failure_at(f"https://{FAR}/v1")
    assert "HTTPS_PROXY" in failure
    assert "secret" not in failure


@pytest.mark.slow
def test_without_its_package_a_socks_proxy_is_told_with_how_to_install_it():
    code = (
        "import sys, anyio; sys.modules['socksio'] = None\n"
        "from tests.test_openai_proxies import failure_at\n"
        f"print(anyio.run(failure_at, 'http://{FAR}/v1'))"
    )
    env = os.environ | {"ALL_PROXY": "socks5://me:secret@127.0.0.1:9", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=True
    )
    assert "socks5://127.0.0.1:9" in done.stdout
    assert "pip install 'nanoloop-agent[socks]'" in done.stdout
    assert "secret" not in done.stdout


# Redirects


def moved(status, location):
    return Answer(status=status, headers=(("Location", location),), body=b"")


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_question_is_followed(status):
    async with OpenAIServer(moved(status, f"{COMPLETIONS}?moved=1")) as server:
        assert await said_by(server.url) == "Hello."
    first, second = server.requests
    assert second.path == f"{COMPLETIONS}?moved=1"
    assert second.body == first.body
    assert second.headers["authorization"] == "Bearer k-1"


async def test_the_key_is_not_shown_to_another_server():
    async with OpenAIServer() as other, OpenAIServer() as server:
        server.otherwise = moved(307, f"{other.url}/chat/completions")
        assert await said_by(server.url) == "Hello."
    [request] = other.requests
    assert "k-1" not in request.head.decode()


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_lose_the_question_is_told(status):
    async with OpenAIServer(otherwise=moved(status, "/v2/chat/completions?k=secret")) as server:
        failure = await failure_at(server.url)
    assert f"redirects to {server.root}/v2/chat/completions:" in failure
    assert "base_url" in failure
    assert "secret" not in failure
    assert server.count == 1


async def test_redirects_without_an_end_are_given_up():
    async with OpenAIServer(otherwise=moved(307, COMPLETIONS)) as server:
        with pytest.raises(NanoloopError, match="redirects endlessly: check the address"):
            await said_by(server.url, max_retries=2)
    assert server.count < 10


@pytest.mark.parametrize("location", ["ftp://elsewhere/", "http://[", "//", "http://x:99999/"])
async def test_a_redirect_to_nowhere_is_told(location):
    async with OpenAIServer(otherwise=moved(307, location)) as server:
        failure = await failure_at(server.url)
    assert server.root in failure
