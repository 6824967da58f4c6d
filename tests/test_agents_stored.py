from pathlib import Path

import anyio
import pytest

from nanoloop import Agent, Session
from nanoloop.errors import EmptyAnswer, NoConnection
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore

DOWN = NoConnection("nothing answers")


def agent_of(*replies, **options):
    return Agent(provider=ScriptedProvider(replies), **options)


async def stored(store, session_id):
    session = await store.get(session_id)
    return [message["content"] for message in session.full_chat_history]


async def test_b2_4_the_agent_makes_the_session_and_saves_it():
    store = InMemoryStore()
    agent = agent_of("hello", name="cook", store=store)
    assert await agent.ask("hi", session_id="x") == "hello"
    assert await stored(store, "x") == ["hi", "hello"]
    assert (await store.get("x")).agent == "cook"
    assert agent.session is None
    assert agent.chat_history == []


async def test_b2_4_the_question_is_durable_before_the_model_is_asked():
    store, seen = InMemoryStore(), []

    async def look(*_):
        seen.extend(await stored(store, "x"))
        return "ok"

    await agent_of(look, store=store).ask("hi", session_id="x")
    assert seen == ["hi"]


async def test_b2_4_another_process_goes_on_with_the_session(tmp_path: Path):
    for number in range(2):
        store = JsonlStore(tmp_path)
        agent = agent_of(store=store)
        await agent.ask(f"m{number}", session_id="x")
        await store.close()
    sent = [message["content"] for message in agent.provider.calls[-1].messages[1:]]
    assert sent == ["m0", "You said: m0", "m1"]


async def test_b2_4_the_sessions_go_by_the_agents_settings():
    store = InMemoryStore()
    agent = agent_of(store=store, settings={"session.limit": {"messages": 2}})
    for number in range(3):
        await agent.ask(f"m{number}", session_id="x")
    session = await store.load("x")
    assert len(session.messages) == 2
    assert len(await stored(store, "x")) == 6
    held = await agent._sessions.open("x")
    assert len(held.entries_between(0, held.last_seq)) == 2


async def test_b2_4_a_memo_may_need_what_is_only_in_the_store(tmp_path: Path):
    store = JsonlStore(tmp_path)
    options = {"session.mode": "memo", "session.limit": {"messages": 2}}
    await agent_of(store=store, settings={"session.limit": {"messages": 1}}).ask(
        "a", session_id="x"
    )
    agent = agent_of("b", '{"memo": {"n": 1}}', store=store, settings=options)
    await agent.ask("c", session_id="x")
    assert (await store.get("x")).memo["n"] == 1
    await store.close()


async def test_b2_4_a_failed_question_is_stored_and_an_empty_answer_is_not():
    store = InMemoryStore()
    agent = agent_of(DOWN, "", store=store)
    with pytest.raises(NoConnection):
        await agent.ask("a", session_id="x")
    with pytest.raises(EmptyAnswer):
        await agent.ask("b", session_id="x")
    assert await stored(store, "x") == ["a"]


async def test_b2_4_several_sessions_are_asked_side_by_side():
    store = InMemoryStore()
    agent = agent_of(store=store)
    agent.provider.hold()
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(lambda name=name: agent.ask(f"to {name}", session_id=name))
        with anyio.fail_after(5):
            await agent.provider.asked(3)
        agent.provider.release()
    for name in "abc":
        assert await stored(store, name) == [f"to {name}", f"You said: to {name}"]


async def test_b2_4_an_attached_session_is_stored_too():
    store, session = InMemoryStore(), Session()
    await agent_of("hello", store=store).attach_session(session).ask("hi")
    assert await stored(store, session.id) == ["hi", "hello"]


async def test_b2_4_an_attached_session_is_stored_once_though_two_ask_at_once():
    store, session = InMemoryStore(), Session()
    session.add_message("user", "before")
    agent = agent_of(store=store).attach_session(session)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ask, "a")
        group.start_soon(agent.ask, "b")
    assert len(await stored(store, session.id)) == 5


async def test_b2_4_nothing_deleted_is_revived():
    store = InMemoryStore()

    async def delete(*_):
        await store.delete("x")
        return DOWN

    with pytest.raises(NoConnection):
        await agent_of(delete, store=store).ask("hi", session_id="x")
    assert [info.id async for info in store.list()] == []


async def test_without_a_store_a_session_id_is_refused():
    with pytest.raises(ValueError, match=r"has no store: pass Agent\(store=...\)"):
        await agent_of().ask("hi", session_id="x")


def test_b2_4_sync_does_the_same():
    store = InMemoryStore()
    agent = agent_of("one", "two", store=store)
    assert agent.ask_sync("a", session_id="x") == "one"
    assert agent.ask_sync("b", session_id="x") == "two"
    assert anyio.run(stored, store, "x") == ["a", "one", "b", "two"]


async def test_b2_4_what_was_said_before_a_stop_is_stored(tmp_path: Path):
    store = JsonlStore(tmp_path)
    agent = agent_of("one two", store=store)
    agent.provider._word_delay_seconds = 60
    async with anyio.create_task_group() as group:
        heard = anyio.Event()
        group.start_soon(lambda: agent.ask("hi", session_id="x", on_text=lambda _: heard.set()))
        await heard.wait()
        group.cancel_scope.cancel()
    assert await stored(store, "x") == ["hi", "one"]
    await store.close()
