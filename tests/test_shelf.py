"""What a chat does with its own conversations: list, switch, rename, undo, fork, export."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.channels.direct import DirectChannel
from nanoloop.commands import EXPORT_CHARS
from nanoloop.loop import AgentLoop
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore


class Chat:
    """One chat of a loop that runs; it says what a person would type."""

    def __init__(self, loop, direct, name):
        self.loop = loop
        self.key = f"direct:{name}"
        self._direct = direct
        self._name = name

    async def says(self, *texts):
        for text in texts:
            with anyio.fail_after(5):
                answer = (await self._direct.ask(text, chat=self._name)).text
                while self.loop.is_busy(self.key):  # the answer is sent a moment before the end
                    await anyio.lowlevel.checkpoint()
        return answer

    async def session(self):
        return await self.loop.sessions.current(self.key)

    async def stored(self):
        return await self.loop.sessions.store.get((await self.session()).id)

    async def texts(self):
        return [message["content"] for message in (await self.session()).messages]


@pytest.fixture(params=["memory", "jsonl"])
def store(request, tmp_path):
    return InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path)


@pytest.fixture
async def chats(store):
    """Make chats of one loop."""
    provider = ScriptedProvider([])
    async with running(store, provider) as made:
        yield made
    await store.close()


@asynccontextmanager
async def running(store, provider, **options):
    loop = AgentLoop(provider=provider, store=store, **options)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield lambda name="a": Chat(loop, direct, name)
        loop.bus.close()


async def test_b3_4_conversations_are_listed_by_number_from_the_first_on(chats):
    chat = chats()
    await chat.says("about\n tea", "/new", "about coffee", "more")
    first, second = (await chat.says("/sessions")).splitlines()
    assert first.startswith("1. about tea - 2 entries, ")
    assert second.startswith("2. about coffee (here) - 4 entries, ")
    assert (await chat.says("/sessions coffee")).startswith("2. about coffee (here)")


async def test_b3_4_words_find_what_was_said_where_no_title_has_them(chats):
    chat = chats()
    await chat.says("hello", "the Cat is GREY", "/new", "bye")
    assert (await chat.says("/sessions grey cat")).startswith("1. hello - 4 entries")
    assert await chat.says("/sessions dog") == "There is no such conversation here."


@pytest.mark.parametrize("by", ["number", "id"])
async def test_b3_4_a_chat_goes_on_with_an_earlier_one(chats, by):
    chat = chats()
    await chat.says("tea")
    first = await chat.session()
    await chat.says("/new", "coffee")
    wanted = "1" if by == "number" else first.id
    assert await chat.says(f"/switch {wanted}") == "Continuing: tea"
    await chat.says("milk?")
    assert (await chat.texts())[::2] == ["tea", "milk?"]
    assert await chat.loop.sessions.store.bound(chat.key) == first.id


async def test_b3_4_no_chat_reaches_another_chats_conversation(chats):
    mine, other = chats("mine"), chats("other")
    await mine.says("hello")
    await other.says("my secret")
    theirs = await other.session()
    assert "secret" not in await mine.says("/sessions")
    assert "secret" not in await mine.says("/sessions secret")
    for wanted in (theirs.id, "2", "0", "-1", other.key):
        assert "There is no conversation" in await mine.says(f"/switch {wanted}")
    assert (await mine.texts())[0] == "hello"


async def test_what_was_put_away_is_not_listed(chats):
    chat = chats()
    await chat.says("old")
    await chat.loop.sessions.archive((await chat.session()).id)
    await chat.says("/new", "young")
    assert (await chat.says("/sessions")).startswith("1. young")


async def test_a_conversation_gets_another_title(chats):
    chat = chats()
    await chat.says("hello", "/rename  Our  trip")
    assert (await chat.stored()).title == "Our trip"
    assert "/rename" in await chat.says("/rename")


async def test_the_last_exchange_is_taken_back_for_good(chats):
    chat = chats()
    await chat.says("one", "two")
    assert await chat.says("/undo") == "Taken back, with its answer: two"
    await chat.says("three")
    assert (await chat.texts())[::2] == ["one", "three"]
    assert [m["content"] for m in (await chat.stored()).full_chat_history][::2] == ["one", "three"]


async def test_all_of_a_new_conversation_can_be_taken_back(chats):
    chat = chats()
    await chat.says("one", "/undo")
    assert await chat.says("/undo") == "There is nothing to take back."
    assert (await chat.stored()).full_chat_history == []


async def test_what_the_summary_has_is_not_taken_back_silently(chats):
    chat = chats()
    await chat.says("one", "two", "three")
    session = await chat.session()
    session.trim_if_needed(limit=2, min_keep=2)
    session.update_summary("they counted", seq=session.pending_seq)
    await chat.loop.sessions.store.save(session)
    session.release()
    assert "three" in await chat.says("/undo")
    assert await chat.texts() == ["two", "You said: two"]  # shown again; the summary has it too
    assert "already part of the summary" in await chat.says("/undo")
    stored = await chat.stored()
    assert (stored.summary, stored.covered_seq, stored.has_pending) == ("they counted", 4, False)
    assert len(stored.full_chat_history) == 4


@pytest.mark.parametrize("command", ["/undo", "/forget last"])
async def test_what_is_taken_back_behind_a_question_is_that_question(store, command):
    provider = ScriptedProvider([])
    async with running(store, provider) as chats:
        chat = chats()
        await chat.says("one")
        provider.hold()
        async with anyio.create_task_group() as group:
            group.start_soon(chat.says, "two")
            await provider.asked(2)
            group.start_soon(chat.says, command)
            await anyio.wait_all_tasks_blocked()
            provider.release(9)
        assert (await chat.texts())[:1] == ["one"]
        assert "two" not in await chat.texts()
    await store.close()


async def test_a_fork_goes_on_and_the_original_stays(chats):
    chat = chats()
    await chat.says("one")
    original = await chat.session()
    await chat.says("/fork", "two")
    fork = await chat.stored()
    assert (fork.key, fork.metadata["forked_from"]) == (chat.key, original.id)
    assert (await chat.texts())[::2] == ["one", "two"]
    assert (await chat.loop.sessions.store.get(original.id)).entry_count == 2
    assert len((await chat.says("/sessions")).splitlines()) == 2


async def test_an_export_is_the_whole_as_text(chats):
    chat = chats()
    await chat.says("one")
    assert "**User** · " in await chat.says("/export")
    whole = json.loads(await chat.says("/export json"))
    assert whole["full_chat_history"][0]["content"] == "one"
    assert "md or json" in await chat.says("/export xml")


async def test_a_long_export_is_cut_and_says_where_the_whole_is(chats):
    chat = chats()
    await chat.says("x" * EXPORT_CHARS)
    cut = await chat.says("/export")
    assert len(cut) < EXPORT_CHARS + 200
    assert f"nanoloop sessions export {(await chat.session()).id} --format md" in cut
