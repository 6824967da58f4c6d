"""A chat's worker: everything that arrives is done once, in order, in its conversation."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import anyio

from nanoloop.agents import Agent
from nanoloop.errors import NotReadable, SessionDamaged, StoreError
from nanoloop.events import FailureTold, LoopStopped
from nanoloop.intake import user_entry
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_amending import CALL, Looking
from tests.test_holds import log_of, running, said, store  # noqa: F401 - a fixture

KEY = "test:a"


async def session_with(store, *waiting, session_id=KEY, moved=""):  # noqa: F811
    """A chat's session in which these wait."""
    session = await store.create(id=session_id, key=KEY)
    for message in waiting:
        session.hold(user_entry(message))
    session.move(moved)
    await store.save(session)
    return session


def elsewhere(text):
    """A message of a channel that is not there."""
    return user_entry(replace(said(text), channel="gone"))


async def test_a_command_that_steers_is_run_and_not_told_to_the_model():
    looking, store = Looking(), InMemoryStore()  # noqa: F811
    provider = ScriptedProvider([CALL, "1", "2"])
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        await loop.bus.hand_in(said("/new", steers=True))
        await loop.bus.hand_in(said("two", steers=True))
        looking.gate.open()
        await loop.chat.until(3)
    assert [m["content"] for m in provider.calls[2].messages if m["role"] == "user"] == ["two"]
    assert "/new" not in str(await log_of(store))


async def test_what_waited_behind_new_when_the_process_was_killed_goes_on_in_the_new_one(store):  # noqa: F811
    await session_with(store, said("two"), moved="test:a@new")
    await store.create(id="test:a@new", key=KEY)
    async with running(ScriptedProvider(["2"]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["2"]
    assert await log_of(store) == []
    assert await log_of(store, "test:a@new") == ["two", "2"]


async def test_a_conversation_whose_next_one_was_deleted_goes_on_in_a_new_one():
    store = InMemoryStore()  # noqa: F811
    await session_with(store, said("one"), moved="test:a@gone")
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("two"))
        await loop.chat.until(2)
    assert await log_of(store, "test:a@gone") == ["one", "1", "two", "2"]


async def test_conversations_that_point_at_each_other_end_in_one_of_them():
    store = InMemoryStore()  # noqa: F811
    await session_with(store, moved="test:a@2")
    await session_with(store, session_id="test:a@2", moved=KEY)
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        assert await loop.chat.until(1) == ["1"]


async def test_an_edit_that_is_taken_while_the_answer_is_being_kept_is_answered():
    store, provider = InMemoryStore(), ScriptedProvider(["1", "1, really"], held=True)  # noqa: F811
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        session = await loop.sessions.current(KEY)
        gate, reached = anyio.Event(), anyio.Event()

        async def writing():
            reached.set()
            await gate.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(loop.sessions.writer._order.write, session.id, writing)
            await reached.wait()
            loop.bus.put_nowait(said("one, really", "e1", edits="one"))
            await anyio.wait_all_tasks_blocked()
            provider.release()  # its answer waits behind the edit
            await anyio.wait_all_tasks_blocked()
            gate.set()
        await loop.chat.until(1)
        await anyio.wait_all_tasks_blocked()
    assert [item.text for item in loop.chat.sent] == ["1, really"]
    assert await log_of(store) == ["one, really", "1, really"]


async def test_a_new_conversation_has_the_agent_that_its_chat_is_for():
    store, agents = InMemoryStore(), {"cook": Agent(prompt="You cook.")}  # noqa: F811
    async with running(ScriptedProvider(["1", "2"]), store, agents=agents) as loop:
        for text in ("one", "/new", "two"):
            await loop.bus.hand_in(said(text, agent="cook"))
        await loop.chat.until(3)
        assert (await loop.sessions.current(KEY)).agent == "cook"


async def test_a_chat_whose_session_has_no_agent_yet_gets_the_one_that_its_message_names():
    store, agents = InMemoryStore(), {"cook": Agent(prompt="You cook.")}  # noqa: F811
    await store.create(id=KEY, key=KEY)
    async with running(ScriptedProvider(["1"]), store, agents=agents) as loop:
        await loop.bus.hand_in(said("one", agent="cook"))
        await loop.chat.until(1)
        assert (await loop.sessions.current(KEY)).agent == "cook"


async def test_a_question_is_answered_once_a_store_is_back_that_was_away_at_a_step(monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    looking, store = Looking(), InMemoryStore()  # noqa: F811
    provider = ScriptedProvider([CALL], otherwise="1")
    save = store.save

    async def away(_):
        raise StoreError("it is away")

    async with running(provider, store, agent=looking.agent, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        store.save = away
        looking.gate.open()
        await loop.chat.until(1)
        assert [item.kind for item in loop.chat.sent] == ["error"]
        store.save = save
        await loop.chat.until(2)
    assert loop.chat.sent[1].text == "1"


async def test_new_is_the_way_out_of_a_session_that_is_sealed_with_another_key():
    store, load = InMemoryStore(), InMemoryStore.load  # noqa: F811
    await store.create(id=KEY, key=KEY)

    async def sealed(session_id):
        if session_id == KEY:
            raise NotReadable(session_id)
        return await load(store, session_id)

    store.load = sealed
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.bus.put_nowait(said("/new"))
        loop.bus.put_nowait(said("one"))
        assert (await loop.chat.until(2))[1] == "1"


async def test_what_is_owed_to_a_channel_that_is_not_there_holds_up_no_other():
    store = InMemoryStore()  # noqa: F811
    session = await store.create(id=KEY, key=KEY)
    session.awaiting = session.add_entry(elsewhere("zero")).seq
    await store.save(session)
    async with running(ScriptedProvider(["1"]), store, recover=True) as loop:
        await loop.bus.hand_in(said("one"))
        assert await loop.chat.until(1) == ["1"]


async def test_an_answer_that_is_owed_to_a_channel_that_is_not_there_holds_up_no_other():
    store = InMemoryStore()  # noqa: F811
    session = await store.create(id=KEY, key=KEY)
    session.add_entry(elsewhere("zero"))
    session.add_message("assistant", "0")
    session.owe(2)
    await store.save(session)
    async with running(ScriptedProvider(["1"]), store, recover=True) as loop:
        await loop.bus.hand_in(said("one"))
        assert await loop.chat.until(1) == ["1"]
    assert (await store.get(KEY)).unsent == (2,)


async def test_a_message_that_waits_for_a_channel_that_is_not_there_holds_up_no_other():
    store = InMemoryStore()  # noqa: F811
    session = await store.create(id=KEY, key=KEY)
    session.hold(elsewhere("zero"))
    await store.save(session)
    async with running(ScriptedProvider(["1"]), store, recover=True) as loop:
        await loop.bus.hand_in(said("one"))
        assert await loop.chat.until(1) == ["1"]
    assert [e.content["text"] for e in (await store.get(KEY)).waiting] == ["zero"]


async def test_a_command_that_comes_again_after_a_restart_is_not_run_again(store):  # noqa: F811
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        for text in ("one", "two", "/undo"):
            await loop.bus.hand_in(said(text))
        await loop.chat.until(3)
    async with running(ScriptedProvider([]), store) as loop:
        assert await loop.bus.hand_in(said("/undo")) == "repeated"
    assert await log_of(store) == ["one", "1"]


async def test_a_message_of_any_size_is_answered_where_nothing_waits():
    async with running(ScriptedProvider(["1"]), InMemoryStore()) as loop:
        loop.bus.put_nowait(said("x" * 1_100_000, "one"))
        assert await loop.chat.until(1) == ["1"]


async def test_what_waits_in_a_conversation_whose_time_ran_out_is_answered_in_the_next():
    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
    store = InMemoryStore(clock=lambda: now[0])  # noqa: F811
    await store.create(id=KEY, key=KEY, ttl=10)
    provider = ScriptedProvider(["1", "2", "3"], held=True)
    async with running(provider, store) as loop:
        await loop.bus.hand_in(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        now[0] += timedelta(seconds=20)
        await loop.bus.hand_in(said("three"))
        provider.release()
        await loop.chat.until(3)
    log = await log_of(store)
    assert all(text in log for text in ("one", "two", "three"))


async def test_a_command_that_is_changed_to_words_while_it_waits_is_asked():
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, InMemoryStore()) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("/new"))
        await loop.bus.hand_in(said("two", "e1", edits="/new"))
        provider.release()
        assert await loop.chat.until(2) == ["1", "2"]


async def test_the_end_waits_for_a_store_that_is_away_once_and_not_for_each_message():
    store, provider, tries = InMemoryStore(), ScriptedProvider(held=True), []  # noqa: F811

    async def away(session):
        tries.append(session)
        raise StoreError("it is away")

    options = {"store_timeout_seconds": 0, "shutdown_turns_seconds": 0.01}
    async with running(provider, store, **options) as loop:
        await loop.bus.hand_in(said("one"))
        await provider.asked()
        store.save = away
        for number in range(15):
            loop.bus.put_nowait(said(f"{number}"))
        await anyio.wait_all_tasks_blocked()
        loop.bus.close()
        while not any(isinstance(event, LoopStopped) for event in loop.heard):
            await anyio.wait_all_tasks_blocked()
    assert len(tries) < 5


async def test_nothing_is_remembered_of_questions_that_were_taken_back():
    async with running(ScriptedProvider(held=True), InMemoryStore()) as loop:
        for number in range(5):
            loop.bus.put_nowait(said(f"{number}"))
            loop.bus.put_nowait(said("", f"d{number}", deletes=f"{number}"))
            await anyio.wait_all_tasks_blocked()
        assert not loop._chats._begun


async def test_an_edit_is_answered_though_the_store_was_away_when_it_came(monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    store, provider = InMemoryStore(), ScriptedProvider(["1", "1, really"], held=True)  # noqa: F811
    save = store.save

    async def away(_):
        raise StoreError("it is away")

    async with running(provider, store, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        store.save = away
        loop.bus.put_nowait(said("one, really", "e1", edits="one"))
        await loop.chat.until(1)
        provider.release()
        await anyio.sleep(0.03)
        store.save = save
        await loop.chat.until(2)
        await anyio.wait_all_tasks_blocked()
    assert [item.text for item in loop.chat.sent if item.kind == "answer"] == ["1, really"]
    assert await log_of(store) == ["one, really", "1, really"]


async def test_where_a_chat_goes_on_is_found_at_once_the_next_time():
    store = InMemoryStore()  # noqa: F811
    await session_with(store, moved="test:a@new")
    await store.create(id="test:a@new", key=KEY)
    assert (await Sessions(store).current(KEY)).id == "test:a@new"
    assert await store.bound(KEY) == "test:a@new"


async def test_a_session_that_breaks_while_its_answer_waits_for_the_store_is_told_of(monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    store, provider = InMemoryStore(), ScriptedProvider(["1"], held=True)  # noqa: F811
    failures = [StoreError("it is away"), SessionDamaged(KEY, "its head is not an object")]

    async def failing(_):
        raise failures.pop(0) if len(failures) > 1 else failures[0]

    async with running(provider, store, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        store.save = failing
        provider.release()
        await loop.chat.until(2)
    failed = [event.error for event in loop.heard if isinstance(event, FailureTold)]
    assert failed[:2] == ["StoreError", "SessionDamaged"]
