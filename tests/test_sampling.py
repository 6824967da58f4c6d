"""Sampling: a tool server asks the model only if it may, and only within its budget."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import ScriptedProvider
from nanoloop.errors import NoConnection, ToolError
from nanoloop.protocols import Reply, Usage
from nanoloop.sampling import LONGEST_PROMPT, Sampling
from tests.test_tools_servers_http import Web
from tests.tool_servers import call, running


@pytest.fixture(scope="module")
def web():
    web = Web()
    web.start()
    yield web
    web.kill()


def asked(*replies, folder, tokens=100):
    provider = ScriptedProvider(replies)
    return provider, Sampling(provider, folder=folder, daily_tokens=lambda _: tokens)


@asynccontextmanager
async def rhyming(web, folder, sampling, tokens=100):
    place = web.place(sampling_tokens=tokens)
    async with running(place, data=folder, sampling=sampling) as servers:
        yield servers


async def test_the_model_gets_the_servers_words_and_nothing_else(web, tmp_path):
    provider, sampling = asked("cat", folder=tmp_path)
    async with rhyming(web, tmp_path, sampling) as servers:
        assert await call(servers, "web__rhyme", word="hat") == "cat"
    (request,) = provider.calls
    assert list(request.messages) == [
        {"role": "system", "content": "Rhyme!"},
        {"role": "user", "content": "hat"},
    ]
    assert not request.tools


async def test_a_server_that_may_not_ask_the_model_is_told_so(web, tmp_path):
    provider, sampling = asked("cat", folder=tmp_path)
    async with rhyming(web, tmp_path, sampling, tokens=0) as servers:
        assert "set sampling_tokens" in await call(servers, "web__rhyme", word="hat")
    assert not provider.calls


async def test_the_budget_of_a_day_holds_over_a_restart(tmp_path):
    dear = Reply(text="cat", usage=Usage(tokens_in=60, tokens_out=50))
    _, sampling = asked(dear, folder=tmp_path)
    message = [{"role": "user", "content": "hat"}]
    assert (await sampling("web", message)).text == "cat"
    for again in (sampling, asked("mat", folder=tmp_path)[1]):
        with pytest.raises(ToolError, match="used up its tokens"):
            await again("web", message)
    _, other = asked("mat", folder=tmp_path)
    assert (await other("other", message)).text == "mat"


async def test_tokens_that_nobody_counts_are_estimated(tmp_path):
    _, sampling = asked("word " * 100, "more", folder=tmp_path)
    message = [{"role": "user", "content": "hat"}]
    await sampling("web", message)
    with pytest.raises(ToolError, match="used up its tokens"):
        await sampling("web", message)


async def test_a_long_question_and_a_model_that_is_away_are_told(tmp_path):
    _, sampling = asked(NoConnection("secret"), folder=tmp_path)
    with pytest.raises(ToolError, match="more than 50000 characters"):
        await sampling("web", [{"role": "user", "content": "x" * LONGEST_PROMPT}])
    with pytest.raises(ToolError, match="the model could not answer it"):
        await sampling("web", [{"role": "user", "content": "hat"}])


class Slow:
    """A model that is still at work when its server cancels."""

    def __init__(self):
        self.asked = 0
        self.is_asked = anyio.Event()

    async def chat(self, **_):
        self.asked += 1
        self.is_asked.set()
        await anyio.sleep_forever()


async def test_a_request_that_its_server_cancels_counts(tmp_path):
    sampling = Sampling(slow := Slow(), folder=tmp_path, daily_tokens=lambda _: 100)
    message = [{"role": "user", "content": "hat"}]
    async with anyio.create_task_group() as group:
        group.start_soon(sampling, "web", message)
        await slow.is_asked.wait()
        group.cancel_scope.cancel()
    with anyio.fail_after(5), pytest.raises(ToolError, match="used up its tokens"):
        await sampling("web", message)
    assert slow.asked == 1


async def test_processes_that_ask_at_once_share_one_budget(tmp_path):
    slow = Slow()
    here, there = (Sampling(slow, folder=tmp_path, daily_tokens=lambda _: 100) for _ in range(2))
    message = [{"role": "user", "content": "hat"}]
    async with anyio.create_task_group() as group:
        group.start_soon(here, "web", message)
        await slow.is_asked.wait()
        with anyio.fail_after(5), pytest.raises(ToolError, match="used up its tokens"):
            await there("web", message)
        group.cancel_scope.cancel()


async def test_a_model_that_was_not_reached_costs_nothing(tmp_path):
    _, sampling = asked(NoConnection("away"), "cat", folder=tmp_path)
    message = [{"role": "user", "content": "hat"}]
    with pytest.raises(ToolError, match="the model could not answer it"):
        await sampling("web", message)
    assert (await sampling("web", message)).text == "cat"
