"""Whoever reaches the port and holds no token gets no chat, no name and no quick guess."""

import os
import stat
from threading import Thread

import anyio
import httpx2
import pytest
from starlette.datastructures import Headers

from nanoloop.addresses import network_of
from nanoloop.channels.logins import token_in
from nanoloop.channels.web.access import FAILURES_A_MINUTE, TrustedProxies
from nanoloop.errors import SettingsError
from tests.test_web_access import OPERATIONS
from tests.web_openai import ask, client_of
from tests.web_server import ASKED, OTHER, TOKEN, TOKENS, bearer, serving

WRONG = "a-wrong-token-that-is-long"
CLOSED = {"open_on_loopback": False}


@pytest.fixture
async def closed(tmp_path):
    """A server for which nobody has set a token."""
    async with serving(tmp_path, headers={}, **CLOSED) as web:
        yield web


def made_token(web):
    return web.channel.link().rpartition("#token=")[2]


# Another user of this machine


async def test_on_loopback_too_nothing_is_told_or_changed_without_a_token(closed):
    for method, path in OPERATIONS:
        told = await closed.call(method, path, status=401, headers=ASKED, json={})
        assert "the file web-token in the data folder has one" in told["error"]["message"]
    for path in ("/v1/models", "/api/me"):
        assert "assistant" not in (await closed.client.get(path)).text


async def test_the_token_is_made_for_its_owner_alone_and_told_to_no_log(closed, tmp_path):
    token, file = made_token(closed), tmp_path / "web-token"
    await closed.call("GET", "/api/sessions", status=200, headers=bearer(token))
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (f"{token}\n", 0o600)
    [told] = closed.logged("web_token_made")
    assert told["file"] == str(file)
    assert "channels.web.open_on_loopback = true" in told["advice"]
    assert token not in closed.log.getvalue()


async def test_each_start_logs_where_the_page_and_its_token_are_and_not_the_token(tmp_path):
    for _ in range(2):
        async with serving(tmp_path, headers={}, **CLOSED) as web:
            await web.call("GET", "/healthz", status=200)
            [told] = web.logged("channel_started")
            address = str(web.client.base_url).rstrip("/")
            assert (told["address"], told["token_file"]) == (address, str(tmp_path / "web-token"))
            assert made_token(web) not in web.log.getvalue()
    async with serving(tmp_path, headers={}, tokens=TOKENS) as web:
        await web.call("GET", "/healthz", status=200)
        [told] = web.logged("channel_started")
        assert told["address"]
        assert told["token_file"] is None


async def test_a_start_with_a_token_makes_none_and_says_nothing(tmp_path):
    for count in (1, 0):
        async with serving(tmp_path, **CLOSED) as web:
            await web.call("GET", "/healthz", status=200)
            assert len(web.logged("web_token_made")) == count
    (tmp_path / "web-token").unlink()
    for more in ({"tokens": TOKENS}, {"open_on_loopback": True}):
        async with serving(tmp_path, **more) as web:
            await web.call("GET", "/healthz", status=200)
    assert not (tmp_path / "web-token").exists()


async def test_the_official_client_takes_the_made_token_as_its_key(closed):
    async with client_of(closed, key=made_token(closed)) as client:
        assert await ask(client, "hello", user="kitchen") == "You said: hello"
        assert [model.id async for model in client.models.list()] == ["assistant"]


async def test_what_everyone_began_before_is_still_there_with_the_made_token(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin(title="Before")
    async with serving(tmp_path, headers={}, **CLOSED) as web:
        listed = await web.call("GET", "/api/sessions", headers=bearer(made_token(web)))
        assert [each["id"] for each in listed["sessions"]] == [session]


async def test_everyone_on_this_machine_is_let_in_if_the_settings_say_so(tmp_path):
    async with serving(tmp_path, headers=ASKED, open_on_loopback=True) as web:
        assert await web.answered(await web.begin(), "hello") == "You said: hello"


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "somebody's", "short"])
def test_a_token_that_somebody_else_may_have_put_there_is_refused(tmp_path, what):
    path, there = tmp_path / "web-token", tmp_path / "there"
    there.write_text("a-token-that-somebody-knows")
    match what:
        case "link":
            path.symlink_to(there)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "somebody's":
            there.rename(path)
            if os.getuid():
                pytest.skip("only root can give files away")
            os.chown(path, 12345, 12345)
        case "short":
            path.write_text("sesame")
    with pytest.raises(SettingsError, match="remove it, and start again"):
        token_in(path)


def test_a_token_that_all_may_read_is_narrowed(tmp_path):
    token, is_new = token_in(tmp_path / "web-token")
    (tmp_path / "web-token").chmod(0o644)
    assert (is_new, token_in(tmp_path / "web-token")) == (True, (token, False))
    assert stat.S_IMODE((tmp_path / "web-token").stat().st_mode) == 0o600


def test_all_that_start_at_once_have_one_token(tmp_path):
    found = []
    starts = [Thread(target=lambda: found.append(token_in(tmp_path / "web-token"))) for _ in "1234"]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert len({token for token, _ in found}) == 1
    assert sum(is_new for _, is_new in found) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["web-token"]


# Names of the server


WRONG_HOSTS = (
    "localhost:",
    "localhost:evil.example",
    "localhost:80evil",
    "localhost:-1",
    "localhost:1e1",
    "localhost:80:80",
    "localhost@evil.example:80",
    "local host",
    "[::1]:evil",
    "[::1]evil",
)


@pytest.mark.parametrize("hosts", [(), ("bot.example",)])
async def test_a_host_whose_port_is_no_number_is_refused(tmp_path, hosts):
    async with serving(tmp_path, hosts=hosts) as web:
        for host in WRONG_HOSTS:
            response = await web.client.get("/api/sessions", headers={"Host": host})
            assert response.status_code in {400, 421}, host
        await web.call("GET", "/api/sessions", status=200, headers={"Host": "localhost:80"})


# Health


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_told_to_everyone_whatever_they_send(tmp_path, path):
    async with serving(tmp_path, headers={}, tokens=TOKENS) as web:
        await web.call("GET", "/healthz", status=200)
        guesses = await wrong(web, FAILURES_A_MINUTE + 1)
        assert guesses[-1] == 429
        for headers in (
            {"Host": "10.0.0.7:8765"},
            {"Host": "evil.example:x"},
            {"Authorization": "Basic c2VzYW1l"},
            {"Origin": "https://evil.example"},
            {"Cookie": "nanoloop_0=alice.9.x"},
            bearer(WRONG),
            bearer(TOKEN),
        ):
            told = await web.call("GET", path, status=200, headers=headers)
            assert told["status"] == "ok"
        port = web.client.base_url.port
        async with await anyio.connect_tcp("127.0.0.1", port) as connection:
            await connection.send(f"GET {path} HTTP/1.0\r\n\r\n".encode())  # without a host
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")
        elsewhere = await web.client.get("/api/me", headers={"Host": "evil.example"})
        assert elsewhere.status_code == 421


# Guessing


async def wrong(web, count, *, headers=None, **more):
    """Guess so often; the statuses."""
    headers = {**bearer(WRONG), **(headers or {})}
    calls = [await web.client.get("/api/sessions", headers=headers, **more) for _ in range(count)]
    return [call.status_code for call in calls]


async def test_behind_too_many_guesses_the_right_token_is_none_either(tmp_path):
    async with serving(tmp_path, headers={}, tokens=TOKENS) as web:
        await web.call("GET", "/api/sessions", status=200, headers=bearer(OTHER))
        assert await wrong(web, FAILURES_A_MINUTE) == [401] * FAILURES_A_MINUTE
        guessed = await web.client.get("/api/sessions", headers=bearer(TOKEN))
        assert guessed.status_code == 429
        assert 0 < int(guessed.headers["retry-after"]) <= 60
        # One that came from there before is no guess.
        await web.call("GET", "/api/sessions", status=200, headers=bearer(OTHER))


async def test_behind_too_many_guesses_at_the_login_the_right_token_is_none_either(tmp_path):
    async with serving(tmp_path, headers=ASKED, tokens=TOKENS) as web:
        for _ in range(FAILURES_A_MINUTE):
            await web.call("POST", "/login", status=401, json={"token": WRONG})
        await web.call("POST", "/login", status=429, json={"token": TOKEN})
        # Programs are counted for themselves.
        await web.call("GET", "/api/sessions", status=200, headers=bearer(TOKEN))


async def test_many_requests_from_an_address_do_not_shut_its_login(tmp_path):
    async with serving(tmp_path, headers=ASKED, tokens=TOKENS, requests_per_minute=5) as web:
        codes = [(await web.client.get("/openapi.json")).status_code for _ in range(7)]
        assert codes[-1] == 429
        assert await web.call("GET", "/api/me", status=200) == {"login": True}
        await web.call("POST", "/login", status=204, json={"token": TOKEN})
        assert (await web.call("GET", "/api/me", status=200))["name"] == "alice"


async def test_behind_a_trusted_proxy_a_guesser_shuts_nobody_else_out(tmp_path):
    proxies = ("127.0.0.0/8",)
    async with serving(tmp_path, headers={}, tokens=TOKENS, trusted_proxies=proxies) as web:
        guesser, other = {"X-Forwarded-For": "192.0.2.66"}, {"X-Forwarded-For": "192.0.2.7"}
        codes = await wrong(web, FAILURES_A_MINUTE + 1, headers=guesser)
        assert codes[-1] == 429
        headers = {**ASKED, **other}
        await web.call("POST", "/login", status=204, json={"token": TOKEN}, headers=headers)
        await web.call("GET", "/api/sessions", status=200, headers={**bearer(TOKEN), **other})


@pytest.mark.slow
async def test_nobody_takes_another_address_for_each_guess(tmp_path):
    for more in ({}, {"trusted_proxies": ("192.0.2.0/24",)}):
        async with serving(tmp_path, headers={}, tokens=TOKENS, **more) as web:
            codes = []
            for number in range(FAILURES_A_MINUTE + 1):
                codes += await wrong(web, 1, headers={"X-Forwarded-For": f"198.51.100.{number}"})
            assert codes[-1] == 429


@pytest.mark.slow
async def test_this_machine_has_one_address_for_guesses(tmp_path):
    async with serving(tmp_path, headers={}, tokens=TOKENS) as web:
        codes = []
        for number in range(FAILURES_A_MINUTE + 1):
            transport = httpx2.AsyncHTTPTransport(local_address=f"127.0.0.{number + 2}")
            url = web.client.base_url
            async with httpx2.AsyncClient(base_url=url, transport=transport) as client:
                response = await client.get("/api/sessions", headers=bearer(WRONG))
            codes.append(response.status_code)
        assert codes[-1] == 429


PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48"])
"""Those whose word is taken."""


@pytest.mark.parametrize(
    ("peer", "said", "client"),
    [
        ("192.0.2.1", {"x-forwarded-for": "198.51.100.1"}, "192.0.2.1"),
        ("192.0.2.1", {"forwarded": "for=198.51.100.1"}, "192.0.2.1"),
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {"x-forwarded-for": "198.51.100.1"}, "198.51.100.1"),
        ("10.0.0.1", {"x-forwarded-for": "127.0.0.1, 198.51.100.1"}, "198.51.100.1"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, 198.51.100.1, 10.9.9.9"}, "198.51.100.1"),
        ("10.0.0.1", {"x-forwarded-for": "10.2.2.2, 10.9.9.9"}, "10.2.2.2"),
        ("10.0.0.1", {"x-forwarded-for": "198.51.100.1:4711"}, "198.51.100.1"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, evil"}, "10.0.0.1"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, evil, 10.9.9.9"}, "10.9.9.9"),
        ("10.0.0.1", {"x-forwarded-for": ""}, "10.0.0.1"),
        ("10.0.0.1", {"forwarded": "for=1.1.1.1, for=198.51.100.1;proto=https"}, "198.51.100.1"),
        ("10.0.0.1", {"forwarded": 'For="[2001:db8:cafe::17]:4711"'}, "2001:db8:cafe::17"),
        ("10.0.0.1", {"forwarded": 'for="x, for=198.51.100.1'}, "198.51.100.1"),
        ("10.0.0.1", {"forwarded": "for=unknown"}, "10.0.0.1"),
        ("10.0.0.1", {"forwarded": "by=198.51.100.1"}, "10.0.0.1"),
        # Whichever of the two the proxy does not set is the client's own.
        (
            "10.0.0.1",
            {"forwarded": "for=1.1.1.1", "x-forwarded-for": "198.51.100.1"},
            "10.0.0.1",
        ),
        (
            "10.0.0.1",
            {"forwarded": "for=198.51.100.1", "x-forwarded-for": "198.51.100.1"},
            "198.51.100.1",
        ),
        ("::ffff:10.0.0.1", {"x-forwarded-for": "198.51.100.1"}, "198.51.100.1"),
        ("2001:db8:1::7", {"x-forwarded-for": "2001:db8:cafe::1"}, "2001:db8:cafe::1"),
        ("", {"x-forwarded-for": "198.51.100.1"}, ""),
    ],
)
def test_the_client_is_the_last_one_that_is_no_proxy_of_ours(peer, said, client):
    assert PROXIES.client_of(peer, Headers(said)) == client


def test_several_lines_of_a_header_are_one():
    raw = [(b"x-forwarded-for", b"1.1.1.1"), (b"x-forwarded-for", b"198.51.100.1")]
    assert PROXIES.client_of("10.0.0.1", Headers(raw=raw)) == "198.51.100.1"


def test_what_one_client_can_have_many_of_counts_as_one():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("127.0.0.1") == network_of("127.9.9.9") == network_of("::1")
    assert network_of("192.0.2.1") == "192.0.2.1"
