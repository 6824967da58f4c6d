"""A token is one owner, whatever it opens: it waits for itself, and others hardly for it."""

from contextlib import asynccontextmanager

import anyio

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
