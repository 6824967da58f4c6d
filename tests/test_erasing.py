"""What is erased in a chat is gone: from log, view, summary, ledger, title and recall."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import IndexUnusable
from nanoloop.loop import AgentLoop
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore

SECRET = "my house is at https://xyzzy.example/a"


class Chat:
    """One chat of a loop that runs; `model` answers, `writer` summarises."""

    def __init__(self, loop, direct, model, writer):
        self.loop = loop
        self.model = model
        self.writer = writer
        self.direct = direct

    async def says(self, *texts):
        for text in texts:
            with anyio.fail_after(5):
                answer = (await self.direct.ask(text, chat="a")).text
                while self.loop.is_busy("direct:a") or self.loop.summarizer.running:
                    await anyio.lowlevel.checkpoint()
        return answer

    async def session(self):
        return await self.loop.sessions.current("direct:a")

    async def stored(self):
        return (await self.loop.sessions.store.get((await self.session()).id)).dump()

    def shown(self):
        return str(self.model.calls[-1].messages)


async def failing(error):
    raise error


@pytest.fixture(params=["memory", "jsonl"])
async def store(request, tmp_path):
    opened = InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path / "sessions")
    yield opened
    await opened.close()


@asynccontextmanager
async def chatting(store, *summaries, held=False, **options):
    model = ScriptedProvider([], otherwise="Noted.")
    writer = ScriptedProvider(summaries, held=held)
    summarizer, recall = Summarizer(writer, store=store), Recall(store, Index(None))
    loop = AgentLoop(provider=model, store=store, summarizer=summarizer, recall=recall, **options)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield Chat(loop, direct, model, writer)
        loop.bus.close()


async def test_history_shows_the_numbers_that_forget_takes(store):
    async with chatting(store) as chat:
        await chat.says("one", SECRET)
        assert f"#3 user: {SECRET}" in await chat.says("/history")
        assert "1 entry" in await chat.says("/forget 3")
        assert "#3" not in await chat.says("/history")


async def test_what_is_forgotten_is_in_no_store_no_view_and_no_title(store):
    async with chatting(store) as chat:
        await chat.says(SECRET)
        assert (await chat.session()).title == SECRET
        await chat.says("/forget 1-2", "what was it?")
        assert "xyzzy" not in await chat.stored()
        assert "xyzzy" not in chat.shown()
        assert (await chat.session()).title == "what was it?"


async def test_forget_last_erases_the_last_exchange(store):
    async with chatting(store) as chat:
        await chat.says("one", SECRET)
        assert "2 entries" in await chat.says("/forget last")
        assert "xyzzy" not in await chat.stored()
        assert "one" in await chat.stored()
        assert "2 entries" in await chat.says("/forget last")
        assert await chat.says("/forget last") == "Nothing has been said yet."


async def test_a_summary_that_told_of_it_is_made_anew_without_it(store):
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with chatting(store, "It is xyzzy-42.", "Nothing much.", **options) as chat:
        await chat.says(SECRET, "two", "three")
        assert (await chat.session()).summary == "It is xyzzy-42."
        assert any("xyzzy" in item["text"] for item in (await chat.session()).ledger)
        assert "what remains up to #2" in await chat.says("/forget 1")
        await chat.says("/summary")
        assert "xyzzy" not in str(chat.writer.calls[-1].messages)
        assert (await chat.session()).summary == "Nothing much."
        assert "xyzzy" not in await chat.stored()


async def test_a_summary_that_comes_late_does_not_bring_it_back(store):
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with chatting(store, "It is xyzzy-42.", "Fine.", held=True, **options) as chat:
        for text in (SECRET, "two", "three"):
            await chat.direct.ask(text, chat="a")
        await chat.writer.asked()
        await chat.direct.ask("/forget 1-2", chat="a")
        chat.writer.release()
        await chat.says("/summary", "four")
        assert (await chat.session()).summary == "Fine."
        assert "xyzzy" not in str(chat.writer.calls[-1].messages)
        assert "xyzzy" not in await chat.stored()


async def test_where_all_that_waits_is_erased_no_model_is_asked(store):
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with chatting(store, "It is xyzzy-42.", **options) as chat:
        await chat.says(SECRET, "two", "three", "/forget 1-4", "/summary")
        session = await chat.session()
        assert chat.writer.count == 1
        assert (session.summary, session.has_pending) == ("", False)


async def test_recall_does_not_find_it_any_more(store):
    async with chatting(store) as chat:
        await chat.says(SECRET, "two")
        assert "https" in await chat.says("/recall house")
        await chat.says("/forget 1-2")
        assert "https" not in await chat.says("/recall house")


async def test_an_index_that_fails_is_told_and_forgets_when_asked_again(store, monkeypatch):
    async with chatting(store) as chat:
        await chat.says(SECRET, "/recall house")
        with monkeypatch.context() as broken:
            error = IndexUnusable("the recall index can't be used")
            broken.setattr(Recall, "_on_index", lambda *_: failing(error))
            assert "/recall may still find it" in await chat.says("/forget 1-2")
        assert "xyzzy" not in await chat.stored()
        assert "/recall" not in await chat.says("/forget 1-2")
        assert "https" not in await chat.says("/recall house")


async def test_erasing_once_more_costs_no_summary(store):
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with chatting(store, "Old.", "New.", **options) as chat:
        await chat.says(SECRET, "two", "three", "/forget 1", "/summary", "/forget 1", "/summary")
        assert (chat.writer.count, (await chat.session()).summary) == (2, "New.")


async def test_a_call_that_was_erased_leaves_no_result_that_belongs_to_none(store):
    async with chatting(store) as chat:
        await chat.says("one")
        session = await chat.session()
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        session.append_message({"role": "assistant", "content": None, "tool_calls": [call]})
        session.add_tool_result("c", "xyzzy")
        await chat.loop.sessions.store.save(session)
        await chat.says("/forget 3", "two")
        sent = chat.model.calls[-1].messages
        assert "tool" not in [message["role"] for message in sent]


@pytest.mark.parametrize("wrong", ["", "x", "0", "-1", "3-2", "99", "1-", "1 2"])
async def test_a_wrong_number_erases_nothing(store, wrong):
    async with chatting(store) as chat:
        await chat.says("one")
        before = (await chat.stored()).count("one")
        answer = await chat.says(f"/forget {wrong}")
        assert "/forget takes" in answer or "no message" in answer
        assert (await chat.stored()).count("one") == before


async def test_what_is_said_to_be_erased_under_an_answer_is_erased_behind_it(store):
    async with chatting(store) as chat:
        await chat.says("one")
        chat.model.hold()
        async with anyio.create_task_group() as group:
            group.start_soon(chat.says, "two")
            await chat.model.asked(2)
            group.start_soon(chat.says, "/forget 1")
            await anyio.wait_all_tasks_blocked()
            assert "one" in await chat.stored()
            chat.model.release(9)
        assert "one" not in await chat.stored()


async def test_forget_last_erases_the_exchange_with_the_notes_on_it_and_no_other(store):
    async with chatting(store) as chat:
        await chat.says("one")
        first = (await chat.session()).window[0].metadata["message_id"]
        await chat.says("two")
        second = (await chat.session()).window[2].metadata["message_id"]
        for name in (first, second):
            change = Inbound(channel="direct", chat="a", text=SECRET + name, edits=name)
            await chat.loop.bus.hand_in(change)
        assert "Erased for good: 3 entries" in await chat.says("/forget last")
        assert SECRET + second not in await chat.stored()
        assert SECRET + first in await chat.stored()


async def test_a_start_opens_only_what_still_has_copies_to_remove(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "s.sqlite")
    sessions = Sessions(store)
    for name in "abc":
        session = await sessions.named(name)
        await sessions.change(session, lambda session: session.hold(Entry.message("user", "hi")))
    session.add_message("user", "a secret")
    await sessions.erase("c", [session.last_seq])
    opened, load = [], store.load

    async def loaded(name):
        opened.append(name)
        return await load(name)

    monkeypatch.setattr(store, "load", loaded)
    for _ in range(2):
        await Sessions(store).finish_all_erasing()
    assert opened == ["c"]
    await store.close()
