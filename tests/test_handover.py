"""The loop with handover and with a limit of tokens: no gap, no waiting, and all of it bounded."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import Agent, AgentLoop, tool
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import ContextTooLong
from nanoloop.events import ContextShrunk, WindowTrimmed, hearing
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore

SUMMARY_CALL = "You keep the memory"


class Split:
    """A model for the chat, and one for summaries that may be held."""

    def __init__(self, *replies):
        self.chats = ScriptedProvider(replies)
        self.summaries = ScriptedProvider(otherwise="They counted.", held=True)

    async def chat(self, *, messages, **asked):
        is_summary = messages[0]["content"].startswith(SUMMARY_CALL)
        return await (self.summaries if is_summary else self.chats).chat(messages=messages, **asked)

    async def close(self):
        pass

    @property
    def shown(self):
        """What the model was asked with last."""
        return self.chats.calls[-1].messages


@asynccontextmanager
async def running(provider, **options):
    loop = AgentLoop(provider=provider, shutdown_summaries_seconds=0, **options)
    loop.events, loop.direct = [], DirectChannel(loop.bus)
    with hearing(loop.events.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


async def talk(loop, first, last):
    with anyio.fail_after(10):
        for number in range(first, last):
            await loop.direct.ask(f"say {number}")


async def session_of(loop):
    return await loop.sessions.current("direct:default")


def said(messages):
    return [m["content"] for m in messages if m["content"].startswith("say ")]


SMALL = {"message_buffer_limit": 6, "message_buffer_min": 2}


async def test_nothing_said_is_out_of_the_prompt_while_the_summary_is_made():
    model = Split()
    async with running(model, handover=True, **SMALL) as loop:
        await talk(loop, 0, 20)
        assert said(model.shown) == [f"say {number}" for number in range(20)]
        model.summaries.release()
        await loop.summarizer.drain(5)
        await talk(loop, 20, 21)
        assert "They counted." in model.shown[0]["content"]
        assert len(said(model.shown)) <= 4


async def test_without_handover_the_old_summary_and_the_cut_window_are_what_there_is():
    model = Split()
    async with running(model, **SMALL) as loop:
        await talk(loop, 0, 20)
        assert len(said(model.shown)) <= 4
        assert (await session_of(loop)).pending == ()


@pytest.mark.parametrize("kind", ["memory", "jsonl"])
async def test_what_is_pending_is_shown_again_after_a_restart(tmp_path, kind):
    store = InMemoryStore() if kind == "memory" else JsonlStore(tmp_path)
    async with running(Split(), store=store, handover=True, **SMALL) as loop:
        await talk(loop, 0, 10)
    if kind == "jsonl":
        await store.close()
        store = JsonlStore(tmp_path)
    model = Split()
    async with running(model, store=store, handover=True, **SMALL) as loop:
        await talk(loop, 10, 11)
        assert said(model.shown) == [f"say {number}" for number in range(11)]
    await store.close()


async def test_a_summary_that_never_comes_costs_bounded_memory_and_a_bounded_prompt():
    model = Split()
    async with running(model, handover=True, handover_limit=20, **SMALL) as loop:
        await talk(loop, 0, 80)
        session = await session_of(loop)
        assert len(session.pending) <= 2 * 20 + 8
        assert len(model.shown) <= 1 + 20 + 8
        assert "- user: say 60" in model.shown[0]["content"]


async def test_a_request_over_the_tokens_is_cut_at_once_and_summarised_behind():
    model = Split()
    async with running(model, context_tokens=1000) as loop:
        for number in range(12):
            await loop.direct.ask(f"say {number} " + "word " * 100)
        assert any(isinstance(event, WindowTrimmed) for event in loop.events)
        assert model.summaries.waiting == 1
        assert said(model.shown)[-1].startswith("say 11")


@tool
def find() -> str:
    """Find it."""
    return "found " * 2000


async def test_one_exchange_that_is_too_long_is_shortened_and_asked_once_more():
    call = Reply(tool_calls=(ToolCall(id="c", name="find", arguments="{}"),))
    model = Split(call, ContextTooLong("too long"), "short enough")
    async with running(model, agent=Agent(tools=[find])) as loop:
        assert (await loop.direct.ask("find it")).text == "short enough"
        assert "characters left out" in model.shown[-1]["content"]
        assert any(isinstance(event, ContextShrunk) for event in loop.events)
        log = (await session_of(loop)).window
        assert len(log[2].content["result"]) == len("found ") * 2000


async def test_one_exchange_that_stays_too_long_is_a_clear_error_and_no_loop():
    call = Reply(tool_calls=(ToolCall(id="c", name="find", arguments="{}"),))
    model = Split(call, *[ContextTooLong("longer than it can read")] * 2, "never")
    async with running(model, agent=Agent(tools=[find])) as loop:
        answer = await loop.direct.ask("find it")
        assert answer.kind == "error"
        assert ENGLISH["too_long"] in answer.text
        assert model.chats.count == 3
