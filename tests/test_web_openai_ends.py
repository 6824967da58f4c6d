"""How questions in a session end: answered in turn, left, stopped, failed."""

from functools import partial

import anyio
import openai
import pytest

from nanoloop import tool
from nanoloop.channels.web.openai import answer
from nanoloop.errors import ContextTooLong, OverQuota
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.tools.toolbox import Toolbox
from tests.web_openai import (
    PLAIN,
    ask,
    asking,
    calling,
    shown,
    stream,
    text_of,
    until,
    user,
)

ANN = "web:local.ann"
"""The session that the user named ann has."""


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


async def test_two_clients_at_once_are_answered_in_order(web):
    web.provider.hold()
    answers = []

    async def asked(text):
        answers.append(await ask(web.openai, text, user="ann"))

    async with anyio.create_task_group() as group:
        group.start_soon(asked, "one")
        await web.provider.asked(1)
        group.start_soon(asked, "two")
        await until(lambda: web.app.loop.waiting(ANN))
        web.provider.release()
    assert answers == ["You said: one", "You said: two"]
    assert shown(web)[-2:] == [("assistant", "You said: one"), ("user", "two")]


async def leave(chunks):
    """Read one chunk, then close the connection."""
    async for _ in chunks:
        break
    await chunks.close()


async def test_who_leaves_in_the_middle_stops_the_model(tmp_path):
    async with asking(tmp_path, provider=ScriptedProvider(word_delay_seconds=30)) as web:
        chunks = await web.openai.chat.completions.create(
            model="assistant", messages=[user("a long story")], user="ann", stream=True, **PLAIN
        )
        await leave(chunks)
        await until(lambda: not web.app.loop.is_busy(ANN))
        kept = await web.messages(ANN)
    assert [(m["text"], m.get("stopped")) for m in kept] == [("a long story", None), ("You", True)]


@pytest.mark.parametrize(("effect", "comes"), [("writes", True), ("reads", False)])
async def test_who_leaves_stops_no_turn_that_has_called_a_tool_that_writes(tmp_path, effect, comes):
    @tool(effect=effect)
    def order(item: str) -> str:
        """Order it."""
        return item

    provider = ScriptedProvider([calling("order", '{"item": "tea"}'), "Ordered."], held=True)
    async with asking(tmp_path, provider=provider) as web:
        web.app.loop.agents.default.toolbox = Toolbox([order])
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as group:
                group.start_soon(leave_in_the_second_step, provider, leaving)
                await ask(web.openai, "tea", user="ann", **PLAIN)
        with anyio.move_on_after(0.3):
            await until(lambda: not web.app.loop.is_busy(ANN))
        provider.release(9)
        await until(lambda: not web.app.loop.is_busy(ANN))
        kept = await web.messages(ANN)
    assert ("Ordered." in [m.get("text") for m in kept]) is comes


async def leave_in_the_second_step(provider, leaving):
    await provider.asked()
    provider.release(1)
    await provider.asked(2)
    leaving.cancel()


async def test_who_leaves_before_it_is_his_turn_is_not_answered(web):
    web.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(ask, web.openai, "one", user="ann", **PLAIN))
        await web.provider.asked()
        with anyio.CancelScope() as leaving:
            group.start_soon(cancel_when_it_waits, web, leaving)
            await ask(web.openai, "two", user="ann", **PLAIN)
        await until(lambda: not held_by(web))
        web.provider.release()
    assert [m["text"] for m in await web.messages(ANN)] == ["one", "You said: one"]


async def test_what_could_not_be_kept_in_time_is_taken_back_and_may_be_asked_again(
    web, monkeypatch
):
    await ask(web.openai, "one", user="ann")
    store = web.app.loop.sessions.store
    back, save = anyio.Event(), store.save

    async def slow(kept):
        await back.wait()
        await save(kept)

    monkeypatch.setattr(store, "save", slow)
    with monkeypatch.context() as hurried:
        hurried.setattr("nanoloop.channels.web.dialogue.KEPT_SECONDS", 0.05)
        with pytest.raises(openai.InternalServerError) as away:
            await ask(web.openai, "two", user="ann")
    assert away.value.response.headers["retry-after"] == "5"
    back.set()
    assert await ask(web.openai, "two", user="ann") == "You said: two"
    said = [m["text"] for m in await web.messages(ANN)]
    assert said == ["one", "You said: one", "two", "You said: two"]


async def test_who_leaves_stops_no_answer_but_his_own(web):
    web.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(ask, web.openai, "one", user="ann", **PLAIN))
        await web.provider.asked()
        group.start_soon(partial(ask, web.openai, "two", user="ann", **PLAIN))
        await until(lambda: held_by(web))
        with anyio.CancelScope() as leaving:
            group.start_soon(leave_in_the_turn_of_another, web, leaving)
            await ask(web.openai, "three", user="ann", **PLAIN)
        await until(lambda: not held_by(web))
        web.provider.release()
    assert [m["text"] for m in await web.messages(ANN)][2:] == ["two", "You said: two"]


async def leave_in_the_turn_of_another(web, scope):
    await until(lambda: len(held_by(web)) == 2)
    web.provider.release(1)
    await web.provider.asked(2)
    scope.cancel()


async def cancel_when_it_waits(web, scope):
    await until(lambda: held_by(web))
    scope.cancel()


def held_by(web):
    return web.app.loop.sessions._alive[ANN].waiting


async def test_what_another_one_stops_ends_with_what_was_said(tmp_path):
    async with asking(tmp_path, provider=ScriptedProvider(word_delay_seconds=30)) as web:
        chunks = await web.openai.chat.completions.create(
            model="assistant", messages=[user("a story")], user="ann", stream=True
        )
        await anext(chunks)
        await web.call("POST", f"/api/sessions/{ANN}/stop", status=200)
        rest = [chunk async for chunk in chunks]
    assert text_of(rest) == "You"
    assert rest[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (ContextTooLong("too long"), openai.BadRequestError, "context_length_exceeded"),
        (OverQuota("no more"), openai.RateLimitError, "rate_limit_exceeded"),
        (RuntimeError("a secret"), openai.InternalServerError, "failed"),
    ],
)
async def test_a_failed_turn_has_its_status(tmp_path, failure, kind, code):
    async with asking(tmp_path, provider=ScriptedProvider(otherwise=failure)) as web:
        with pytest.raises(kind) as failed:
            await ask(web.openai, "one", user="ann")
    assert failed.value.code == code
    assert "secret" not in str(failed.value)


async def test_a_client_does_not_say_again_by_itself_what_is_kept(tmp_path):
    failing = ScriptedProvider(otherwise=OverQuota("no more"))
    async with asking(tmp_path, provider=failing) as web:
        with pytest.raises(openai.RateLimitError):
            await ask(web.openai.with_options(max_retries=2), "one", user="ann")
        assert [m["text"] for m in await web.messages(ANN)] == ["one"]


LANE_LIMIT = 20
"""Messages of one chat that may wait."""


async def test_a_full_lane_asks_the_client_to_wait(tmp_path, monkeypatch):
    held = ScriptedProvider(held=True)
    async with asking(tmp_path, provider=held) as web:
        monkeypatch.setattr(web.app.loop._arrivals, "_waiting_limit", LANE_LIMIT)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ask, web.openai, "one", user="ann"))
            await held.asked()
            for n in range(LANE_LIMIT):
                group.start_soon(partial(ask, web.openai, f"another {n}", user="ann"))
            await until(lambda: web.app.loop.waiting(ANN) == LANE_LIMIT)
            with pytest.raises(openai.RateLimitError) as busy:
                await ask(web.openai, "too many", user="ann")
            held.release()
        assert busy.value.response.headers["retry-after"] == "5"
        assert len(held.calls) == 1 + LANE_LIMIT


async def test_a_bus_that_takes_nothing_more_asks_to_come_again(web):
    web.app.loop.bus.close()
    with pytest.raises(openai.InternalServerError) as full:
        await ask(web.openai, "one", user="ann")
    assert full.value.status_code == 503


async def test_a_message_that_got_lost_is_an_error_and_no_endless_wait(web, monkeypatch):
    monkeypatch.setattr(answer, "LOOK_SECONDS", 0.01)

    async def lost(delivery):
        """As if it had never come."""
        await delivery.ack()

    monkeypatch.setattr(web.app.loop._arrivals, "take", lost)
    with pytest.raises(openai.InternalServerError, match="Something went wrong on my side"):
        await ask(web.openai, "one", user="ann")


@pytest.mark.parametrize("more", [{}, {"user": "ann"}])
async def test_an_open_stream_comes_to_its_end_when_the_server_stops(web, more):
    web.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(stop_when_asked, web)
        assert text_of(await stream(web.openai, "one", **more)) == "You said: one"


async def stop_when_asked(web):
    await web.provider.asked()
    web.app.stop()
    web.provider.release()


async def test_a_session_that_is_deleted_meanwhile_is_an_error(web):
    web.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(delete_when_asked, web)
        with pytest.raises(openai.NotFoundError):
            await ask(web.openai, "one", user="ann")


async def delete_when_asked(web):
    await web.provider.asked()
    await web.call("DELETE", f"/api/sessions/{ANN}")
