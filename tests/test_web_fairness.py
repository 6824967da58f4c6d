"""A token is one owner, whatever it opens: it waits for itself, and others hardly for it."""

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import pytest

from nanoloop.channels.web import feed
from nanoloop.channels.web.api import LARGE_BODIES, MESSAGE_BYTES, REQUESTS
from nanoloop.providers.scripted import ScriptedProvider
from tests.web_openai import ask, asking, client_of, in_session, until
from tests.web_server import OTHER, TOKEN, TOKENS, bearer


@asynccontextmanager
async def serving_two(folder, *, turns, **more):
    """A server for alice, with a client of hers and one of bob's as `web.bob`."""
    settings = {"loop": {"max_concurrent_turns": turns}}
    more = {"settings": settings, "tokens": TOKENS, "headers": bearer(), **more}
    provider = ScriptedProvider(held=True)
    async with (
        asking(folder, key=TOKEN, provider=provider, **more) as web,
        client_of(web, key=OTHER) as web.bob,
        anyio.create_task_group() as web.group,
    ):
        yield web
        provider.release()


def newest(web):
    return web.provider.calls[-1].messages[-1]["content"]


async def test_calls_without_a_session_wait_for_their_turn_too(tmp_path):
    async with serving_two(tmp_path, turns=1) as web:
        for number in range(3):
            web.group.start_soon(ask, web.openai, f"flood {number}")
        await web.provider.asked()
        web.group.start_soon(ask, web.bob, "bob")
        await until(lambda: web.app.loop.turns.waiting == 3)
        assert web.provider.count == 1
        web.provider.release(1)
        await web.provider.asked(2)
        assert newest(web) == "bob"


async def test_a_token_has_one_share_of_the_turns_however_it_asks(tmp_path):
    async with serving_two(tmp_path, turns=4) as web:
        session = await web.begin()
        await web.say(session, "flood")
        web.group.start_soon(lambda: ask(web.openai, "flood", **in_session("one")))
        for _ in range(3):
            web.group.start_soon(ask, web.openai, "flood")
        await until(lambda: web.app.loop.turns.waiting == 2)
        assert web.provider.count == 3
        web.group.start_soon(ask, web.bob, "bob")
        await web.provider.asked(4)
        assert newest(web) == "bob"


@asynccontextmanager
async def filled(limiter, owner, capacity):
    """This owner has all that it may have."""
    async with AsyncExitStack() as stack:
        for _ in range(capacity - capacity // 4):
            await stack.enter_async_context(limiter.turn(owner))
        yield


@pytest.mark.parametrize(
    ("of", "capacity", "content"),
    [("requests", REQUESTS, b"small"), ("bodies", LARGE_BODIES, b"large " * MESSAGE_BYTES)],
)
async def test_what_one_token_asks_for_holds_up_no_other(tmp_path, of, capacity, content):
    async with serving_two(tmp_path, turns=4) as web:
        limiter = getattr(web.channel.backend, of)
        sent = partial(web.client.post, "/api/attachments", content=content)
        async with filled(limiter, "token alice", capacity):
            web.group.start_soon(sent)
            await until(lambda: limiter.waiting == 1)
            assert (await sent(headers=bearer(OTHER))).status_code == 201
            assert (await web.client.get("/healthz")).status_code == 200
            assert limiter.waiting == 1
        assert (await sent()).status_code == 201


async def test_a_large_body_that_comes_slowly_holds_up_no_small_request(tmp_path):
    async with (
        serving_two(tmp_path, turns=4) as web,
        filled(web.channel.backend.bodies, "token alice", LARGE_BODIES),
    ):
        assert (await web.client.get("/api/sessions")).status_code == 200
        assert (await web.client.post("/api/sessions", json={})).status_code == 201


async def test_some_streams_are_kept_for_tokens_that_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "STREAMS", 4)
    async with serving_two(tmp_path, turns=4) as web, AsyncExitStack() as stack:
        for _ in range(3):
            opened = web.client.stream("GET", "/api/events")
            assert (await stack.enter_async_context(opened)).status_code == 200
        assert (await web.client.get("/api/events")).status_code == 503
        opened = web.client.stream("GET", "/api/events", headers=bearer(OTHER))
        assert (await stack.enter_async_context(opened)).status_code == 200
