"""What the proofs found, each made small."""

import anyio
import pytest

from nanoloop import AgentLoop, Entry, Session, Summarizer
from nanoloop.channels.direct import DirectChannel
from nanoloop.context import build_messages
from nanoloop.errors import SessionNotFound, StoreConflict
from nanoloop.events import WindowTrimmed
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path):
    store = InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path)
    yield store
    await store.close()


def talk(session, count, word):
    for number in range(count):
        session.add_message("user" if number % 2 == 0 else "assistant", f"{word}{number}")


async def test_a_late_summary_does_not_get_into_a_session_made_anew_under_the_same_id(store):
    old = await store.create(id="s")
    talk(old, 8, "old")
    old.trim_if_needed(6, 2)
    await store.save(old)
    provider = ScriptedProvider(["What the old one was about."], held=True)
    async with Summarizer(provider, store=store) as summarizer:
        summarizer.fire_and_forget(old)
        await provider.asked()
        await store.delete("s")
        new = await store.create(id="s")
        talk(new, 2, "new")
        await store.save(new)
        provider.release()
        await summarizer.drain(5)
    assert (await store.get("s")).summary == ""
    assert len(await store.entries("s")) == 2


async def test_an_object_of_a_deleted_session_saves_nothing_into_its_successor(store):
    old = await store.create(id="s")
    await store.delete("s")
    await store.create(id="s")
    old.add_message("user", "from before")
    with pytest.raises((StoreConflict, SessionNotFound)):
        await store.save(old)
    assert await store.entries("s") == []


def test_a_result_belongs_to_the_newest_call_with_its_id():
    session = Session()
    session.add_message("user", "first")
    session.add_entry(
        Entry.tool_call("look", {"n": 1}, call_id="call-0")
    )  # its result is not shown
    session.add_message("assistant", "one")
    session.add_message("user", "second")
    session.add_entry(Entry.tool_call("look", {"n": 2}, call_id="call-0"))
    session.add_entry(Entry.tool_result("look", "two", call_id="call-0"))
    *_, call, result = build_messages("", session.window)
    assert call["tool_calls"][0]["function"]["arguments"] == '{"n": 2}'
    assert result["content"] == "two"


async def test_compact_announces_that_it_cut_the_window(heard):
    loop = AgentLoop(provider=ScriptedProvider(), message_buffer_min=2)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        for number in range(4):
            await direct.ask(f"m{number}")
        await direct.ask("/compact")
        loop.bus.close()
    assert any(isinstance(event, WindowTrimmed) for event in heard)


async def after_a_tear(folder, session_id="s"):
    """The session as it is found when its process was killed in the last line of a commit."""
    (path,) = folder.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-9])
    for path in folder.glob("heard/*.jsonl"):  # whose last line has its end after that
        path.write_bytes(path.read_bytes()[:-1])
    store = JsonlStore(folder)
    session = await store.load(session_id)
    (info,) = [info async for info in store.list()]
    await store.close()
    return session, info


async def test_a_users_message_in_a_torn_commit_is_not_there_or_awaits_its_answer(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    session.awaiting = session.add_entry(
        Entry.message("user", "hi", metadata={"message_id": "1"})
    ).seq
    session.hear("s", "1")
    await store.save(session)
    await store.close()
    found, info = await after_a_tear(tmp_path)
    assert found.awaiting == info.awaiting
    again = JsonlStore(tmp_path)
    is_known = await again.has_heard("s", "1")
    await again.close()
    assert found.awaiting or not is_known  # else a second delivery is dropped


async def test_an_answer_in_a_torn_commit_is_not_there_or_its_question_is_answered(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    session.awaiting = session.add_entry(Entry.message("user", "hi")).seq
    await store.save(session)
    session.awaiting = 0
    session.add_entry(Entry.message("assistant", "hello"))
    await store.save(session)
    await store.close()
    found, info = await after_a_tear(tmp_path)
    assert found.awaiting == info.awaiting
    assert bool(found.awaiting) == (len(found.window) == 1)  # else it is answered twice
