import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nanoloop import Agent, AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import make_recall
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.settings import RecallSettings, Settings, StoreSettings
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tools.ready import make_recall_tool


class Broken(Index):
    def _connect(self):
        raise sqlite3.OperationalError("unable to open database file")


@asynccontextmanager
async def chat(*, index=None, with_recall=True):
    store = InMemoryStore()
    recall = Recall(store, index or Index(None)) if with_recall else None
    agent = Agent(tools=[make_recall_tool(recall)] if recall else [])
    loop = AgentLoop(
        provider=ScriptedProvider(otherwise=model),
        agent=agent,
        store=store,
        recall=recall,
        message_buffer_limit=4,
        message_buffer_min=2,
    )
    direct = DirectChannel(loop.bus)

    async def ask(text):
        return (await direct.ask(text)).text

    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield ask
        loop.bus.close()


def looking_up(words):
    call = ToolCall(id="1", name="recall", arguments=f'{{"words": "{words}"}}')
    return Reply(tool_calls=(call,), finish_reason="tool_calls")


def model(messages, _tools, _model):
    """Looks up what it is asked to, and says what it was given."""
    last = messages[-1]
    if last["role"] == "tool":
        return str(last["content"])
    asked = str(last["content"]).partition("look up ")[2]
    return looking_up(asked) if asked else "noted"


async def test_the_model_finds_what_left_its_window():
    async with chat() as ask:
        await ask("My walrus is called Bruno")
        for number in range(5):
            await ask(f"line {number}")
        answer = await ask("look up walrus")
    assert "My walrus is called Bruno" in answer
    assert "look up walrus" not in answer


async def test_people_find_it_with_a_command():
    async with chat() as ask:
        await ask("My walrus is called Bruno")
        assert "#1 " in await ask("/recall walrus")
        assert "/recall birthday" in await ask("/recall")


async def test_without_recall_the_command_says_so():
    async with chat(with_recall=False) as ask:
        assert "turned off" in await ask("/recall walrus")


async def test_an_index_that_can_not_be_used_fails_no_turn():
    async with chat(index=Broken(None)) as ask:
        assert await ask("hello") == "noted"
        assert "can't be used" in await ask("look up x")
        assert ENGLISH["recall_down"] in await ask("/recall x")


@pytest.mark.parametrize(
    ("settings", "file"),
    [
        ({}, "recall.sqlite"),
        ({"store": StoreSettings(url="memory:")}, None),
        ({"store": StoreSettings(encryption_key="k")}, None),
    ],
)
async def test_words_are_only_kept_where_the_talk_is_kept_and_unsealed(tmp_path, settings, file):
    store = InMemoryStore()
    (await store.create(id="s")).add_message("user", "walrus")
    recall = make_recall(Settings(data=tmp_path, **settings), store)
    await recall.search("s", "walrus")
    async with recall:
        assert [Path(path).name for path in tmp_path.glob("*.sqlite")] == ([file] if file else [])


def test_recall_can_be_switched_off(tmp_path):
    settings = Settings(data=tmp_path, recall=RecallSettings(enabled=False))
    assert make_recall(settings, InMemoryStore()) is None
