"""A conversation that comes near the model's limit is told of once."""

import anyio
import pytest

from nanoloop.channels.direct import DirectChannel
from nanoloop.context import Bounds, Views
from nanoloop.events import ContextNearLimit, hearing
from nanoloop.loop import AgentLoop
from nanoloop.protocols import Reply, Usage
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.session import Session


def measured(*tokens, limit=100):
    """What is told of one session that takes so many tokens, turn by turn."""
    heard, session = [], Session(id="s")
    views = Views(Bounds(context_limit=limit))
    with hearing(heard.append):
        for count in tokens:
            views.of(session, prompt="P").learn(count)
    return [event.tokens for event in heard]


@pytest.mark.parametrize(
    ("tokens", "told"), [((79,), []), ((80,), [80]), ((10, 85, 99, 120), [85])]
)
def test_b3_8_a_context_near_its_limit_is_told_once(tokens, told):
    assert measured(*tokens) == told


def test_b3_8_each_crossing_is_told():
    assert measured(90, 95, 20, 81) == [90, 81]


def test_b3_8_without_a_limit_nothing_is_told():
    assert measured(10**9, limit=None) == []


def test_b3_8_where_nobody_counts_the_window_is_estimated():
    heard, session = [], Session(id="s")
    session.add_message("user", "x" * 400)
    with hearing(heard.append):
        Views(Bounds(context_limit=100)).of(session, prompt="P").learn(0)
    assert heard == [ContextNearLimit(tokens=100, limit=100)]


def test_b3_8_sessions_are_told_apart():
    heard = []
    views = Views(Bounds(context_limit=100))
    with hearing(heard.append):
        for session in (Session(), Session()):
            views.of(session, prompt="P").learn(90)
    assert len(heard) == 2


async def test_b3_8_the_loop_measures_each_answer(heard):
    replies = [Reply(text="ok", usage=Usage(tokens_in=count)) for count in (500, 900, 950)]
    loop = AgentLoop(provider=ScriptedProvider(replies), context_limit=1000)
    chat = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        for _ in replies:
            await chat.ask("hi")
        loop.bus.close()
    near = [event for event in heard if isinstance(event, ContextNearLimit)]
    assert [(event.tokens, event.limit) for event in near] == [(900, 1000)]
