"""Who gets in over the web, and what they see: tokens, cookies, other sites, other names."""

import pytest

from nanoloop.app import App
from nanoloop.channels.web.access import COOKIE_SECONDS, Caller, Callers, Token
from nanoloop.errors import SettingsError
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from tests.web_server import ASKED, OTHER, TOKEN, TOKENS, bearer, serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path, headers={}, tokens=TOKENS) as web:
        yield web


async def begun(web, token=TOKEN):
    session = await web.call("POST", "/api/sessions", status=201, json={}, headers=bearer(token))
    return session["id"]


OPERATIONS = [
    ("GET", "/api/sessions"),
    ("POST", "/api/sessions"),
    ("GET", "/api/sessions/one"),
    ("PATCH", "/api/sessions/one"),
    ("DELETE", "/api/sessions/one"),
    ("GET", "/api/sessions/one/export"),
    ("GET", "/api/sessions/one/messages"),
    ("POST", "/api/sessions/one/messages"),
    ("POST", "/api/sessions/one/stop"),
    ("POST", "/api/sessions/one/retry"),
    ("GET", "/api/sessions/one/memory"),
    ("PUT", "/api/sessions/one/memory/summary"),
    ("POST", "/api/sessions/one/memory/summarise"),
    ("GET", "/api/sessions/one/events"),
    ("GET", "/api/events"),
    ("POST", "/api/attachments"),
    ("GET", "/api/attachments/one"),
    ("GET", "/metrics"),
]
"""All that tell or change anything; fewer than the wrong tokens that are answered at once."""


@pytest.mark.slow
async def test_without_a_token_nothing_is_told(web):
    wrong = bearer("a-wrong-token-that-is-long")
    for method, path in OPERATIONS:
        for headers in (ASKED, wrong):
            refused = await web.call(method, path, status=401, headers=headers)
            assert refused["error"]["type"] == "not_logged_in"


async def test_a_token_sees_its_own_sessions_and_no_others(web):
    mine, theirs = await begun(web), await begun(web, OTHER)
    listed = await web.call("GET", "/api/sessions", headers=bearer())
    assert [s["id"] for s in listed["sessions"]] == [mine]
    missing = await web.call("GET", "/api/sessions/web:alice.none", status=404, headers=bearer())
    refused = await web.call("GET", f"/api/sessions/{theirs}", status=404, headers=bearer())
    # Alike but for the name that was asked for.
    assert str(refused) == str(missing).replace("web:alice.none", theirs)


async def test_someone_elses_session_is_none_for_every_operation(web):
    theirs = await begun(web, OTHER)
    for method, path in OPERATIONS:
        if "/sessions/one" in path:
            json = {"text": "hello"} if method in {"POST", "PUT"} else None
            mine = path.replace("one", theirs)
            await web.call(method, mine, status=404, headers=bearer(), json=json)


async def test_a_pattern_lets_a_token_see_more(tmp_path):
    tokens = {**TOKENS, "boss": {"token": "a-token-for-all-of-it", "sessions": ("*",)}}
    async with serving(tmp_path, headers={}, tokens=tokens) as web:
        ids = {await begun(web), await begun(web, OTHER), await begun(web, "a-token-for-all-of-it")}
        listed = await web.call("GET", "/api/sessions", headers=bearer("a-token-for-all-of-it"))
        assert {s["id"] for s in listed["sessions"]} == ids
        assert sum(i.startswith("web:boss.") for i in ids) == 1


async def test_a_page_logs_in_once_and_out_again(web):
    assert await web.call("GET", "/api/me", status=200) == {"login": True}
    await web.call("POST", "/login", status=401, headers=ASKED, json={"token": "not-that-one"})
    response = await web.call("POST", "/login", status=204, headers=ASKED, json={"token": TOKEN})
    cookie = response.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert (await web.call("GET", "/api/me"))["name"] == "alice"
    await web.call("POST", "/api/sessions", status=201, headers=ASKED, json={})
    await web.call("POST", "/logout", status=204, headers=ASKED)
    await web.call("GET", "/api/sessions", status=401)


async def test_a_cookie_alone_changes_nothing(web):
    await web.call("POST", "/login", status=204, headers=ASKED, json={"token": TOKEN})
    refused = await web.call("POST", "/api/sessions", status=403, json={})
    assert "X-Nanoloop" in refused["error"]["message"]


async def test_a_login_over_https_gives_a_cookie_for_https_only(tmp_path):
    headers = {**ASKED, "Host": "bot.example.org", "Origin": "https://bot.example.org"}
    async with serving(tmp_path, headers={}, tokens=TOKENS, hosts=("bot.example.org",)) as web:
        response = await web.client.post("/login", json={"token": TOKEN}, headers=headers)
        assert "Secure" in response.headers["set-cookie"]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_pages_of_other_sites_are_refused(tmp_path, method):
    async with serving(tmp_path) as web:
        headers = {"Origin": "https://evil.example"}
        response = await web.client.request(method, "/api/sessions", headers=headers, json={})
        assert response.status_code in {403, 405}
        assert "access-control-allow-origin" not in response.headers


async def test_a_site_that_is_allowed_may_call(tmp_path):
    site = "https://app.example.org"
    async with serving(tmp_path, origins=(site,)) as web:
        response = await web.client.get("/api/sessions", headers={"Origin": site})
        assert response.headers["access-control-allow-origin"] == site
        other = await web.client.get("/api/sessions", headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        asked = {"Origin": site, "Access-Control-Request-Method": "POST"}
        assert (await web.client.options("/api/sessions", headers=asked)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80"]
)
async def test_on_loopback_another_name_is_refused(tmp_path, host):
    async with serving(tmp_path) as web:
        response = await web.client.get("/api/sessions", headers={"Host": host})
        assert response.status_code in {400, 421}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]", "[::1]:80"])
async def test_on_loopback_its_own_names_are_fine(tmp_path, host):
    async with serving(tmp_path) as web:
        assert (await web.client.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.slow
async def test_wrong_tokens_are_answered_more_and_more_slowly(web):
    headers = bearer("a-wrong-token-that-is-long")
    await web.call("GET", "/api/sessions", status=200, headers=bearer())
    for _ in range(20):
        await web.call("GET", "/api/sessions", status=401, headers=headers)
    refused = await web.client.get("/api/sessions", headers=headers)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    await web.call(
        "GET", "/api/sessions", status=200, headers=bearer()
    )  # which came from here before


async def test_no_secret_is_told_anywhere(web):
    wrong = "a-wrong-token-that-is-long"
    await web.call("GET", "/api/sessions", headers=bearer(wrong))
    told = web.log.getvalue()
    for path in ("/api/me", "/docs", "/openapi.json", "/metrics", "/readyz"):
        response = await web.client.get(path, headers=bearer())
        told += response.text + str(response.headers)
    assert not [secret for secret in (TOKEN, OTHER, wrong) if secret in told]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "bot.example.org"])
async def test_others_are_not_served_without_a_token(tmp_path, host):
    settings = Settings(data=tmp_path, channels={"web": {"host": host}})
    app = App.of(settings, provider=ScriptedProvider())
    with pytest.raises(SettingsError, match="no token: add"):
        make_with_program(settings, "web", app)


@pytest.mark.parametrize(
    "tokens", [{"a.b": {"token": TOKEN}}, {"": {"token": TOKEN}}, {"alice": {"sessions": ("*",)}}]
)
async def test_a_token_without_a_name_or_a_secret_is_no_token(tmp_path, tokens):
    settings = Settings(data=tmp_path, channels={"web": {"tokens": tokens}})
    app = App.of(settings, provider=ScriptedProvider())
    with pytest.raises(SettingsError, match=r"channels\.web\.tokens"):
        make_with_program(settings, "web", app)


async def test_an_address_that_is_taken_is_said_in_a_sentence(web, tmp_path):
    await web.call("GET", "/healthz", status=200)
    port = web.client.base_url.port
    settings = Settings(data=tmp_path / "other", channels={"web": {"port": port}})
    other = make_with_program(settings, "web", App.of(settings, provider=ScriptedProvider()))
    with pytest.raises(SettingsError, match=r"can't listen on .*--port"):
        other.bind()


# Cookies

ALICE = Token(caller=Caller(name="alice", patterns=("web:alice.*",)), secret=TOKEN)


def test_a_cookie_dies_after_its_time():
    now = [1000.0]
    callers = Callers([ALICE], now=lambda: now[0])
    cookie = callers.cookie_for(TOKEN)
    assert callers.of_cookie(cookie) is ALICE.caller
    now[0] += COOKIE_SECONDS + 1
    assert callers.of_cookie(cookie) is None


def test_a_cookie_dies_with_its_token():
    cookie = Callers([ALICE]).cookie_for(TOKEN)
    assert Callers([Token(caller=ALICE.caller, secret=OTHER)]).of_cookie(cookie) is None


@pytest.mark.parametrize(
    "cookie", ["", "alice", "alice.9999999999.", "alice.9999999999.é", "a.٣.x", "alice.-1.x", "..."]
)
def test_a_made_up_cookie_is_nobodys(cookie):
    assert Callers([ALICE]).of_cookie(cookie) is None


def test_a_cookie_can_not_be_made_to_last():
    callers = Callers([ALICE])
    name, until, signature = callers.cookie_for(TOKEN).split(".")
    assert callers.of_cookie(f"{name}.{int(until) + 1}.{signature}") is None
