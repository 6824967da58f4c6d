"""Whoever holds a token, or had a cookie, has what it is for and no more."""

from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import openai
import pytest

from nanoloop.agents import Agent, Agents
from nanoloop.channels.logins import OF_ONE, Logins
from nanoloop.channels.web import feed
from nanoloop.channels.web.access import COOKIE_SECONDS
from nanoloop.cli import Exit, main
from nanoloop.errors import SettingsError
from nanoloop.protocols import LOGINS
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.sqlite import SqliteStore
from tests.web_openai import ask, client_of
from tests.web_server import ASKED, OTHER, TOKEN, TOKENS, bearer, serving

COOK, BOSS, WATCH = "a-token-of-the-cook-1", "a-token-of-the-boss-1", "a-token-that-only-counts"
SETTINGS = {"agents": {name: {"prompt": f"You are the {name}."} for name in ("cook", "root")}}
TOKENS_OF_ALL = {
    **TOKENS,
    "cook": {"token": COOK, "agents": ("cook",)},
    "boss": {"token": BOSS, "sessions": ("*",)},
    "watch": {"token": WATCH, "agents": (), "may_use": ("metrics",)},
}


@pytest.fixture
async def web(tmp_path):
    """A server with three agents, and a client that shows no token."""
    async with serving(tmp_path, headers={}, tokens=TOKENS_OF_ALL, settings=SETTINGS) as web:
        yield web


async def begun(web, token, status=201, **given):
    path = "/api/sessions"
    return await web.call("POST", path, status=status, json=given, headers=bearer(token))


async def say(web, session, text, token=TOKEN, status=202):
    path = f"/api/sessions/{session}/messages"
    return await web.call("POST", path, status=status, json={"text": text}, headers=bearer(token))


# Agents


async def test_a_token_has_the_default_agent_and_hears_of_no_other(web):
    me = await web.call("GET", "/api/me", headers=bearer())
    assert ([agent["name"] for agent in me["agents"]], me["agent"]) == (["assistant"], "assistant")
    async with client_of(web, key=TOKEN) as client:
        assert [model.id async for model in client.models.list()] == ["assistant"]
        for name in ("root", "roor"):
            with pytest.raises(openai.NotFoundError) as refused:
                await ask(client, "hello", model=name)
            assert str(refused.value).count("root") == name.count("root")
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(name)


async def test_a_token_begins_and_changes_no_session_to_another_agent(web):
    refused = await begun(web, TOKEN, status=422, agent="root")
    assert "/api/me lists them" in refused["error"]["message"]
    session = (await begun(web, TOKEN))["id"]
    path = f"/api/sessions/{session}"
    await web.call("PATCH", path, status=422, json={"agent": "root"}, headers=bearer())
    assert (await web.call("GET", path, headers=bearer()))["agent"] is None


async def test_a_token_asks_no_other_agent_in_a_session_that_has_one(web):
    session = (await begun(web, TOKEN))["id"]
    path = f"/api/sessions/{session}"
    await web.call("PATCH", path, status=200, json={"agent": "root"}, headers=bearer(BOSS))
    told = await say(web, session, "hello", status=403)
    assert "may not use the agent 'root'" in told["error"]["message"]
    await web.call("POST", f"{path}/retry", status=403, json={}, headers=bearer())
    await say(web, session, "hello", BOSS)


async def test_a_token_has_the_agents_that_are_set_for_it(web):
    session = await begun(web, COOK)
    assert session["agent"] == "cook"
    await begun(web, COOK, status=422, agent="assistant")
    async with client_of(web, key=COOK) as client:
        assert await ask(client, "hello", model="cook", user="kitchen") == "You said: hello"
        with pytest.raises(openai.NotFoundError):
            await ask(client, "hello", model="assistant", user="kitchen")
    assert web.provider.calls[-1].messages[0]["content"] == "You are the cook."


async def test_an_operator_has_all_agents_and_a_token_without_any_asks_nobody(web):
    me = await web.call("GET", "/api/me", headers=bearer(BOSS))
    assert [agent["name"] for agent in me["agents"]] == ["assistant", "cook", "root"]
    assert (await begun(web, BOSS, agent="root"))["agent"] == "root"
    told = await begun(web, WATCH, status=403)
    assert "may not use any agent" in told["error"]["message"]


async def logged_in(web, token):
    """Log the page in; returns the header that another browser with its cookie would send."""
    web.client.cookies.clear()
    await web.call("POST", "/login", status=204, headers=ASKED, json={"token": token})
    [(name, value)] = web.client.cookies.items()
    return {"Cookie": f"{name}={value}"}


async def typed(web, session, text):
    """Type it on the page, and see the answer."""
    async with web.reading(session) as reader:
        await reader.until("hello")
        path = f"/api/sessions/{session}/messages"
        await web.call("POST", path, status=202, json={"text": text}, headers=ASKED)
        return (await reader.until("answer"))[-1].data["text"]


async def test_a_command_on_the_page_chooses_no_other_agent_either(web):
    session = (await begun(web, TOKEN))["id"]
    await logged_in(web, TOKEN)
    for name in ("root", "roor"):
        assert "root" not in (await typed(web, session, f"/agent {name}")).replace(name, "")
    assert (await typed(web, session, "/agent")).split() == ["assistant", "(here)"]
    await logged_in(web, BOSS)
    assert "root" in await typed(web, session, "/agent root")


async def test_a_new_session_by_a_command_has_an_agent_of_its_token(web):
    session = (await begun(web, COOK))["id"]
    await logged_in(web, COOK)
    await typed(web, session, "hello")
    await typed(web, session, "/new")
    listed = await web.call("GET", "/api/sessions")
    assert [each["agent"] for each in listed["sessions"]] == ["cook", "cook"]


async def test_an_agent_that_is_gone_gives_its_token_no_other(web):
    web.app.loop.agents.renew(Agents(Agent(), {"root": Agent("root")}))
    await begun(web, COOK, status=403)
    await begun(web, TOKEN)


async def test_an_agent_that_there_is_none_of_is_refused_with_a_sentence(tmp_path):
    tokens = {"alice": {"token": TOKEN, "agents": ("assistant", "coook")}}
    with pytest.raises(SettingsError, match=r'"coook" is in .*alice.agents, but there is no'):
        async with serving(tmp_path, tokens=tokens, settings=SETTINGS):
            await anyio.lowlevel.checkpoint()


# Commands


async def test_a_program_sends_no_commands(web):
    session = (await begun(web, TOKEN))["id"]
    async with client_of(web, key=TOKEN) as client:
        for text in ("/new", "/agent root", "/forget 1-9", "/nothing", "/ "):
            told = await say(web, session, text, status=403)
            assert 'add "commands" to its may_use' in told["error"]["message"]
            for named in ({"user": "kitchen"}, {"extra_headers": {"X-Nanoloop-Session": session}}):
                with pytest.raises(openai.PermissionDeniedError):
                    await ask(client, text, **named)
        assert await ask(client, " /new", user="kitchen") == "You said:  /new"


async def test_a_program_whose_token_may_sends_commands(tmp_path):
    tokens = {"alice": {"token": TOKEN, "may_use": ("commands",)}}
    async with serving(tmp_path, headers=bearer(), tokens=tokens, settings=SETTINGS) as web:
        session = await web.begin()
        assert "/help" in await web.answered(session, "/help")
        async with client_of(web, key=TOKEN) as client:
            assert "root" not in (await ask(client, "/agent", user="kitchen"))


# Metrics


async def test_metrics_are_for_operators_and_for_tokens_that_may_read_them(web):
    await web.call("GET", "/metrics", status=403, headers=bearer())
    for token in (BOSS, WATCH):
        await web.call("GET", "/metrics", status=200, headers=bearer(token))
    listed = await web.call("GET", "/api/sessions", status=200, headers=bearer(WATCH))
    assert listed["sessions"] == []


# Logins


async def test_a_cookie_is_worth_nothing_after_its_logout(web):
    stolen, kept = await logged_in(web, TOKEN), await logged_in(web, TOKEN)
    assert stolen != kept
    web.client.cookies.clear()
    await web.call("GET", "/api/sessions", status=200, headers=stolen)
    await web.call("POST", "/logout", status=204, headers={**ASKED, **stolen})
    await web.call("GET", "/api/sessions", status=401, headers=stolen)
    await web.call("GET", "/api/sessions", status=200, headers=kept)


async def test_a_cookie_that_was_never_given_out_is_worth_nothing(web):
    # With the token one can sign it, but no login is behind it.
    access = web.channel.backend.access
    cookie = f"{access.cookie}={access.callers.cookie_for(TOKEN)}"
    await web.call("GET", "/api/sessions", status=401, headers={"Cookie": cookie})


@asynccontextmanager
async def lines_for(web, login):
    """The lines of an open stream of this login."""
    async with web.client.stream("GET", "/api/events", headers=login) as events:
        lines = events.aiter_lines()
        assert (await anext(lines)).startswith("retry")
        yield lines


async def told_in(lines, word):
    """Whether this is in a line before the stream ends."""
    with anyio.fail_after(10):
        async for line in lines:
            if word in line:
                return True
    return False


def change(web, word):
    """Let something happen that all streams tell."""
    web.channel.backend.feeds.changes.add("sessions", {"id": word}, about=f"web:alice.{word}")


async def test_a_stream_ends_at_once_when_its_login_does(web):
    gone, kept = await logged_in(web, TOKEN), await logged_in(web, TOKEN)
    web.client.cookies.clear()
    async with lines_for(web, gone) as ended, lines_for(web, kept) as going_on:
        await web.call("POST", "/logout", status=204, headers={**ASKED, **gone})
        change(web, "afterwards")
        assert not await told_in(ended, "afterwards")
        assert await told_in(going_on, "afterwards")


async def ends(lines):
    """Read to the end of a stream."""
    with anyio.fail_after(30):
        async for _ in lines:
            pass


async def test_a_stream_ends_soon_after_its_login_ended_elsewhere(web, monkeypatch):
    monkeypatch.setattr(feed, "LOGIN_SECONDS", 0.01)
    gone, kept = await logged_in(web, TOKEN), await logged_in(web, TOKEN)
    web.client.cookies.clear()
    # The server looks again after it has slept for as long as it did before.
    async with lines_for(web, gone) as ended, lines_for(web, kept) as going_on:
        await web.channel.backend.access.logins.end(gone["Cookie"].partition("=")[2])
        await ends(ended)
        change(web, "afterwards")
        assert await told_in(going_on, "afterwards")


async def test_the_store_is_asked_once_for_the_logins_of_all_streams(web, monkeypatch):
    logins, asked = web.channel.backend.access.logins, []
    cookies = [await logged_in(web, TOKEN) for _ in range(3)]
    web.client.cookies.clear()
    async with AsyncExitStack() as stack:
        for cookie in (*cookies, *cookies):
            lines = await stack.enter_async_context(lines_for(web, cookie))
        read, looked = logins.open, anyio.Event()

        async def counted():
            asked.append(len(asked))
            looked.set()
            return await read()

        monkeypatch.setattr(logins, "open", counted)
        monkeypatch.setattr(feed, "LOGIN_SECONDS", 60)
        await looked.wait()
        change(web, "afterwards")
        assert await told_in(lines, "afterwards")
    assert asked == [0]


async def test_a_login_outlives_a_restart_and_is_ended_on_the_command_line(tmp_path, capsys):
    async with serving(tmp_path, headers=ASKED, tokens=TOKENS) as web:
        cookie = await logged_in(web, TOKEN)
    command = ("--data", str(tmp_path))
    async with serving(tmp_path, headers=ASKED, tokens=TOKENS) as web:
        await web.call("GET", "/api/sessions", status=200, headers=cookie)
        assert await anyio.to_thread.run_sync(main, ["pair", "logins", *command]) == Exit.DONE
        [login] = capsys.readouterr().out.splitlines()
        login_id, name, *_ = login.split()
        assert name == "alice"
        words = ["pair", "logout", login_id, *command]
        assert await anyio.to_thread.run_sync(main, words) == Exit.DONE
        await web.call("GET", "/api/sessions", status=401, headers=cookie)
        assert await anyio.to_thread.run_sync(main, words) == Exit.NOT_FOUND


async def test_what_is_kept_of_a_login_is_no_cookie(tmp_path):
    async with serving(tmp_path, headers=ASKED, tokens=TOKENS) as web:
        cookie = (await logged_in(web, TOKEN))["Cookie"]
        found = await anyio.to_thread.run_sync(contents, tmp_path)
        assert not [part for part in cookie.split(".")[2:] if part.encode() in found]
        assert TOKEN.encode() not in found
        assert cookie not in web.log.getvalue()


def contents(folder: Path):
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_the_logins_are_no_conversation_for_anyone(web):
    await logged_in(web, BOSS)
    for query in ("", "?archived=true", "?search=logins"):
        listed = await web.call("GET", f"/api/sessions{query}", status=200)
        assert listed["sessions"] == []
    for method in ("GET", "DELETE"):
        await web.call(method, f"/api/sessions/{LOGINS}", status=404, headers=ASKED)
    await web.call("GET", f"/api/sessions/{LOGINS}/export", status=404)
    await web.call("GET", "/api/sessions", status=200)


@asynccontextmanager
async def processes(folder):
    """The logins as two processes on one store have them."""
    stores = [SqliteStore(folder / "sessions.sqlite") for _ in "ab"]
    try:
        yield [Logins(Sessions(store)) for store in stores]
    finally:
        for store in stores:
            await store.close()


async def test_all_processes_on_a_store_know_the_same_logins(tmp_path):
    async with processes(tmp_path) as (one, other):
        assert not await other.is_open("cookie")
        await one.begin("cookie", name="alice", seconds=60)
        await other.begin("another", name="alice", seconds=60)
        assert await other.is_open("cookie")
        assert await one.is_open("another")
        await other.end("cookie")
        assert [await each.is_open("cookie") for each in (one, other)] == [False, False]
        assert await one.is_open("another")


async def test_a_login_runs_out_and_each_token_has_so_many():
    now = [1000.0]
    logins = Logins(Sessions(InMemoryStore()), now=lambda: now[0])
    await logins.begin("bobs", name="bob", seconds=COOKIE_SECONDS)
    for number in range(OF_ONE + 1):
        await logins.begin(f"cookie {number}", name="alice", seconds=COOKIE_SECONDS)
    assert [await logins.is_open(f"cookie {n}") for n in (0, 1, OF_ONE)] == [False, True, True]
    assert await logins.is_open("bobs")
    now[0] += COOKIE_SECONDS
    assert await logins.open() == []


async def test_nobody_elses_login_is_ended_by_a_made_up_cookie(web):
    mine = await logged_in(web, TOKEN)
    web.client.cookies.clear()
    name, _, whole = mine["Cookie"].partition("=")
    for cookie in ("", "alice", OTHER, "alice.9999999999.x", whole[:-1], f"{whole}0"):
        headers = {**ASKED, "Cookie": f"{name}={cookie}"}
        await web.call("POST", "/logout", status=204, headers=headers)
    await web.call("GET", "/api/sessions", status=200, headers=mine)
