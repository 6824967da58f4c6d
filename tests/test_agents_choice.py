from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import Agent, AgentLoop, Session
from nanoloop.agents import AgentLimits, Agents
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import NoConnection
from nanoloop.events import AgentUnknown, HookFailed, hearing
from nanoloop.hooks import Hooks
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.session.head import Identity
from nanoloop.stores.in_memory import InMemoryStore


def agents(**options):
    named = {name: Agent(name, prompt=f"You are a {name}.") for name in ("cook", "smith")}
    return Agents(Agent(), named, **options)


@asynccontextmanager
async def running(**options):
    """A loop with one chat, and what it was told and asked."""
    events = []
    provider = ScriptedProvider()
    loop = AgentLoop(provider=provider, **options)
    loop.provider, loop.direct, loop.events = provider, DirectChannel(loop.bus), events
    with hearing(events.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


async def said(loop, text):
    return (await loop.direct.ask(text)).text


async def session_of(loop):
    return await loop.sessions.current("direct:default")


def who(loop):
    return loop.provider.calls[-1].messages[0]["content"]


# Choosing


@pytest.mark.parametrize(
    ("wanted", "has", "channel", "name"),
    [
        ("cook", "smith", "web", "cook"),
        (None, "cook", "web", "cook"),
        (None, None, "web", "smith"),
        (None, None, "mail", "assistant"),
        ("nobody", None, "web", "smith"),
    ],
)
def test_r3_11_the_first_prompt_chooses(wanted, has, channel, name):
    session = Session(about=Identity(agent=has))
    chosen = agents(by_channel={"web": "smith"}).choose(session, wanted=wanted, channel=channel)
    assert chosen.name == session.agent == name


def test_r3_11_the_choice_is_kept_and_can_be_changed():
    session = Session(about=Identity(agent="cook"))
    session.add_message("user", "hi")
    assert agents().choose(session, wanted="smith").name == "cook"
    session.agent = "smith"
    assert agents().choose(session).name == "smith"


def test_c30_an_agent_that_there_is_not_counts_as_none_and_is_told():
    heard = []
    session = Session(about=Identity(agent="gone"))
    session.add_message("user", "hi")
    with hearing(heard.append):
        chosen = agents().choose(session)
    assert chosen.name == "assistant"
    assert session.agent is None
    assert heard == [AgentUnknown(agent="gone")]


def test_an_agent_named_like_the_default_takes_its_place():
    mine = Agent("assistant", prompt="Mine.")
    assert Agents(Agent(), {"assistant": mine}).default is mine


# In the loop


async def test_the_sessions_agent_answers_and_its_name_is_stored():
    async with running(agents=agents(by_channel={"direct": "cook"})) as loop:
        await said(loop, "hi")
        assert who(loop) == "You are a cook."
        assert (await loop.sessions.store.get("direct:default")).agent == "cook"


async def test_c30_a_stored_session_with_an_unknown_agent_is_answered_by_the_default():
    store = InMemoryStore()
    session = await store.create(id="direct:default", key="direct:default", agent="gone")
    session.add_message("user", "before")
    await store.save(session)
    async with running(agents=agents(), store=store) as loop:
        assert await said(loop, "hi") == "You said: hi"
        assert (await session_of(loop)).agent is None
        assert [event.agent for event in loop.events if isinstance(event, AgentUnknown)] == ["gone"]


async def test_agent_lists_who_there_is():
    async with running(agents=agents()) as loop:
        assert await said(loop, "/agent") == "assistant (here)\ncook\nsmith"


async def test_agent_changes_who_answers_and_is_durable():
    async with running(agents=agents()) as loop:
        await said(loop, "hi")
        assert await said(loop, "/agent smith") == "From now on smith answers here."
        assert (await loop.sessions.store.get("direct:default")).agent == "smith"
        await said(loop, "and you?")
        assert who(loop) == "You are a smith."


async def test_agent_with_an_unknown_name_suggests_the_nearest():
    async with running(agents=agents()) as loop:
        assert await said(loop, "/agent smit") == "There is no agent 'smit': did you mean smith?"
        assert await said(loop, "/agent xyz") == (
            "There is no agent 'xyz': /agent lists the agents."
        )
        assert (await session_of(loop)).agent is None


async def test_an_agent_may_have_a_window_of_its_own():
    short = Agent("cook", limits=AgentLimits(messages=3, kept=2))
    async with running(agents={"cook": short}) as loop:
        for command in ("/agent cook", "a", "b", "c", "d"):
            await said(loop, command)
        assert len((await session_of(loop)).messages) <= 4


async def test_the_memo_reaches_the_model_in_the_loop():
    async with running() as loop:
        (await session_of(loop)).memo = {"name": "Ada"}
        await said(loop, "hi")
        assert '"name": "Ada"' in who(loop)


async def test_hooks_work_in_the_loop_and_cost_no_answer():
    heard = []

    def hear(outcome):
        heard.append((outcome.text, type(outcome.error)))
        raise KeyError

    prefix = [lambda messages: [*messages[:-1], {"role": "user", "content": "other"}]]
    async with running(agent=Agent(hooks=Hooks(prefix, [hear]))) as loop:
        assert await said(loop, "hi") == "You said: other"
        loop.provider._otherwise = NoConnection("nothing answers")
        assert ENGLISH["model_down"] in await said(loop, "hi")
        assert heard == [("You said: other", type(None)), ("", NoConnection)]
        assert sum(isinstance(event, HookFailed) for event in loop.events) == 2
