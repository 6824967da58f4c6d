"""What a chat can do about its own memory: /summary, /compact, /status."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import ProviderError
from nanoloop.loop import AgentLoop
from nanoloop.memory.summarizer import Summarizer
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore


class Chat:
    """One chat of a loop that runs, and the summariser's model."""

    def __init__(self, loop, direct, model):
        self.loop = loop
        self.model = model
        self._direct = direct

    async def says(self, *texts):
        for text in texts:
            with anyio.fail_after(5):
                answer = (await self._direct.ask(text, chat="a")).text
                while self.loop.is_busy("direct:a"):
                    await anyio.lowlevel.checkpoint()
        return answer

    async def session(self):
        return await self.loop.sessions.current("direct:a")

    async def stored(self):
        return await self.loop.sessions.store.get((await self.session()).id)

    async def rest(self):
        with anyio.fail_after(5):
            while self.loop.summarizer.running:
                await anyio.lowlevel.checkpoint()


@pytest.fixture(params=["memory", "jsonl"])
async def store(request, tmp_path):
    opened = InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path)
    yield opened
    await opened.close()


@asynccontextmanager
async def chatting(store, model, **options):
    options = {"message_buffer_min": 2, **options}
    summarizer = Summarizer(model, store=store)
    loop = AgentLoop(provider=ScriptedProvider([]), store=store, summarizer=summarizer, **options)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield Chat(loop, direct, model)
        loop.bus.close()


def asked(model):
    """All that a model was asked, as one text."""
    return str([call.messages for call in model.calls])


async def test_compact_hands_on_what_to_keep_in_mind(store):
    async with chatting(store, ScriptedProvider(["They spoke."])) as chat:
        await chat.says("one", "two", "three", "/compact the names of the cats")
        await chat.rest()
        assert "the names of the cats" in asked(chat.model)
        assert (await chat.stored()).summary == "They spoke."


async def test_compact_waits_neither_for_more_to_be_said_nor_after_a_failure(store):
    model = ScriptedProvider([ProviderError("no"), "They spoke."])
    async with chatting(store, model) as chat:
        await chat.says("one", "two", "three", "/compact")
        await chat.rest()
        assert "wait for another attempt" in await chat.says("/status")
        await chat.says("/compact")
        await chat.rest()
        assert (await chat.session()).summary == "They spoke."


async def test_status_tells_how_the_summaries_stand(store):
    async with chatting(store, ScriptedProvider(["They spoke."])) as chat:
        await chat.says("one", "two", "three", "/compact")
        await chat.rest()
        status = await chat.says("/status")
        assert "summary: covers the first 4 entries" in status
        assert "summaries: 0 running; today 1 calls" in status


async def test_an_edited_summary_is_durable_and_the_next_one_builds_on_it(store):
    async with chatting(store, ScriptedProvider(["They spoke.", "And more."])) as chat:
        await chat.says("one", "two", "three", "/compact")
        await chat.rest()
        await chat.says("/summary edit The cat is\n called Mia.")
        assert await chat.says("/summary") == "The cat is\n called Mia."
        assert (await chat.stored()).summary == "The cat is\n called Mia."
        await chat.says("four", "/compact")
        await chat.rest()
        assert "called Mia" in asked(chat.model)


async def test_an_edit_wins_over_a_summary_that_comes_late(store):
    async with chatting(store, ScriptedProvider(["Late.", "On top."], held=True)) as chat:
        await chat.says("one", "two", "three", "/compact")
        await chat.model.asked()
        await chat.says("/summary edit Mine.")
        assert (await chat.session()).summary_in_progress
        chat.model.release()
        await chat.rest()
        session = await chat.stored()
        assert (session.summary, session.covered_seq) == ("On top.", 4)
        assert "Mine." in asked(chat.model)


async def test_an_edit_without_a_text_changes_nothing(store):
    async with chatting(store, ScriptedProvider([])) as chat:
        assert "/summary edit TEXT" in await chat.says("/summary edit")
        assert "/summary edit TEXT" in await chat.says("/summary delete all")
        assert "no summary yet" in await chat.says("/summary")
