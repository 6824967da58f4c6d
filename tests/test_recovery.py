"""What an earlier process left: messages that wait, and answers that are owed."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import anyio

from nanoloop.errors import SendLater, StoreError
from nanoloop.events import FailureTold, TurnFinished, current_session, hearing
from nanoloop.intake import user_entry
from nanoloop.memory.summarizer import Summarizer
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing import Gate
from tests.test_amending import Failing
from tests.test_holds import Chat, running, said, store  # noqa: F401 - a fixture


async def held(loop, session, text):
    """A message that waits in this session, as one that came during a turn."""
    entry = user_entry(said(text))
    session.hold(entry)
    await loop.sessions.store.save(session)
    return entry


async def test_an_answer_that_was_erased_before_it_arrived_is_not_sent(store):  # noqa: F811 - a fixture
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.chat.refusals = [SendLater("offline", seconds=999)]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
        await loop.sessions.erase("test:a", [2])
    async with running(ScriptedProvider(["2"]), store, recover=True) as loop:
        loop.bus.put_nowait(said("two"))
        assert await loop.chat.until(1) == ["2"]
    assert (await store.get("test:a")).unsent == ()


async def test_an_answer_behind_many_calls_is_still_owed_after_a_restart(store):  # noqa: F811 - a fixture
    session = await store.create(id="test:a", key="test:a")
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.chat.refusals = [SendLater("offline", seconds=999)]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
        session = await loop.sessions.current("test:a")
        for _ in range(300):
            session.add_message("assistant", "and another thing")
        session.owe(session.last_seq)
        session.arrived(2)
        await store.save(session)
    async with running(ScriptedProvider([]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["and another thing"]


async def test_where_nobody_tells_what_arrived_an_owed_answer_is_sent_once(store, monkeypatch):  # noqa: F811 - a fixture
    session = await store.create(id="test:a", key="test:a")
    session.add_entry(user_entry(said("one")))
    session.add_message("assistant", "1")
    session.owe(session.last_seq)
    await store.save(session)
    found, send = [], Chat.send

    async def seen(chat, message):
        found.append((await store.get("test:a")).unsent)
        await send(chat, message)

    monkeypatch.setattr(Chat, "confirms", False)
    monkeypatch.setattr(Chat, "send", seen)
    async with running(ScriptedProvider([]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["1"]
    assert found == [()]  # a kill right behind it would not bring it again


async def test_an_answer_that_arrives_after_an_undo_is_not_sent_again(store):  # noqa: F811 - a fixture
    gate = anyio.Event()

    async def sleep(_):
        await gate.wait()

    async with running(ScriptedProvider(["1", "2"]), store, sleep=sleep) as loop:
        loop.chat.refusals = [SendLater("offline")]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
        loop.bus.put_nowait(said("two"))
        with anyio.fail_after(5):
            while (await store.get("test:a")).unsent != (2, 4) or loop.lanes:
                await anyio.lowlevel.checkpoint()
        await loop.sessions.undo(await store.get("test:a"))
        gate.set()
        await loop.chat.until(2)
        await anyio.wait_all_tasks_blocked()
    assert (await store.get("test:a")).unsent == ()


async def test_after_a_restart_a_chats_older_conversation_is_heard_first(store):  # noqa: F811 - a fixture
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.chat.refusals = [SendLater("offline", seconds=999)]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
        new = await loop.sessions.start_new("test:a")
        await held(loop, new, "two")
    async with running(ScriptedProvider(["2"]), store, recover=True) as loop:
        assert await loop.chat.until(2) == ["1", "2"]


async def test_what_waited_for_a_channel_that_is_not_there_goes_on_waiting(store):  # noqa: F811 - a fixture
    async with running(ScriptedProvider(held=True), store) as loop:
        session = await loop.sessions.current("test:a")
        await held(loop, session, "two")
    other = Chat()
    other.name = "other"
    async with running(ScriptedProvider(["2"]), store, chat=other, recover=True) as loop:
        await anyio.wait_all_tasks_blocked()
    assert (await store.get("test:a")).waiting


async def test_one_session_that_can_not_be_read_keeps_no_other_from_its_answer():
    broken = InMemoryStore()
    async with running(ScriptedProvider(held=True), broken) as loop:
        for chat in "ab":
            session = await loop.sessions.current(f"test:{chat}")
            await held(loop, session, f"hello {chat}")
    load = broken.load

    async def torn(session_id):
        if session_id == "test:b":
            raise StoreError("what is stored makes no sense")
        return await load(session_id)

    broken.load = torn
    failed = []

    def hear(event):
        if isinstance(event, FailureTold):
            failed.append(current_session())

    with hearing(hear):
        async with running(ScriptedProvider(["1"]), broken, recover=True) as loop:
            assert await loop.chat.until(1) == ["1"]
    assert failed == ["test:b"]


async def test_an_answer_that_the_store_has_no_room_for_yet_comes_when_it_has(monkeypatch, heard):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    failing = Failing(InMemoryStore())
    provider = ScriptedProvider(["1"], held=True)
    async with running(provider, failing, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        failing.plan = ["before"] * 3
        provider.release()
        told = await loop.chat.until(2)
    assert (ENGLISH["store_down"] in told[0], told[1]) == (True, "1")
    assert provider.count == 1  # it was paid for, once, and is told of as any other
    assert [type(event) for event in heard].count(TurnFinished) == 1
    assert [m["content"] for m in (await failing.get("test:a")).messages] == ["one", "1"]


async def test_a_chat_is_told_once_that_the_store_is_away_whatever_waits_for_it(monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    failing, told_twice = Failing(InMemoryStore()), []
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, failing, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        failing.plan = ["before"] * 100
        provider.release(2)
        loop.bus.put_nowait(said("two"))
        while len(failing.plan) > 90:  # noqa: ASYNC110 - both have tried again and again
            await anyio.sleep(0.01)
        told_twice += loop.chat.sent[1:]
        failing.plan = []
        told = await loop.chat.until(3)
    assert not told_twice
    assert (ENGLISH["store_down"] in told[0], *told[1:]) == (True, "1", "2")


async def test_a_message_is_not_acknowledged_before_the_store_is_back(monkeypatch):
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    failing = Failing(InMemoryStore())
    async with running(ScriptedProvider(["1", "2"]), failing, store_timeout_seconds=0) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        await anyio.wait_all_tasks_blocked()
        failing.plan = ["before"] * 3 + ["after"]
        await loop.bus.hand_in(said("two"))
        assert failing.plan == []
        told = await loop.chat.until(3)
    assert (told[0], ENGLISH["store_down"] in told[1], told[2]) == ("1", True, "2")


async def test_a_store_that_is_away_for_a_moment_is_told_to_nobody():
    failing = Failing(InMemoryStore())
    failing.plan = ["before", "fine", "before"]
    async with running(ScriptedProvider(["1", "2"]), failing) as loop:
        loop.bus.put_nowait(said("one"))
        loop.bus.put_nowait(said("two"))
        assert await loop.chat.until(2) == ["1", "2"]


async def test_what_a_new_conversation_has_heard_is_not_heard_again_from_the_old_one(store):  # noqa: F811 - a fixture
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        old = await loop.sessions.current("test:a")
        new = await loop.sessions.start_new("test:a")
        two = await held(loop, old, "two")
        await loop.sessions._have_taken_over(new, [two], old=old)
        new.awaiting = new.add_entry(new.waiting[0]).seq
        await store.save(new)
    # It ended here, before the old one had let go of it.
    async with running(ScriptedProvider(["2", "twice"]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["2"]
        await anyio.wait_all_tasks_blocked()
        assert len(loop.chat.sent) == 1
    assert not (await store.get(old.id)).waiting


async def test_a_clock_that_was_set_back_keeps_no_message_from_its_answer():
    late = InMemoryStore(clock=lambda: datetime.now(timezone.utc) + timedelta(days=1))
    async with running(ScriptedProvider(held=True), late) as loop:
        loop.bus.put_nowait(said("one"))
        await anyio.wait_all_tasks_blocked()
    async with running(ScriptedProvider(["1"]), late, recover=True) as loop:
        assert await loop.chat.until(1) == ["1"]


async def test_what_is_worked_on_already_is_not_taken_up_once_more(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1", "2", "3"], otherwise="twice", held=True)
    short = {"message_buffer_limit": 2, "message_buffer_min": 1}
    summarizer = Summarizer(ScriptedProvider())
    async with running(provider, store, summarizer=summarizer, **short) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        for text in ("two", "three"):
            await loop.bus.hand_in(replace(said(text), message_id=None))
        await loop.recover()
        provider.release()
        assert await loop.chat.until(3) == ["1", "2", "3"]
        await anyio.wait_all_tasks_blocked()
        assert (provider.count, len(loop.chat.sent)) == (3, 3)


async def test_an_answer_on_its_way_is_not_sent_once_more(store):  # noqa: F811 - a fixture
    gate = anyio.Event()

    async def sleep(_):
        await gate.wait()

    async with running(ScriptedProvider(["1"]), store, sleep=sleep) as loop:
        loop.chat.refusals = [SendLater("offline")]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
        await loop.recover()
        await anyio.wait_all_tasks_blocked()
        gate.set()
        await loop.chat.until(1)
        await anyio.wait_all_tasks_blocked()
        assert len(loop.chat.sent) == 1


async def test_an_answer_that_arrives_while_the_session_is_being_written_is_not_sent_again():
    store, provider = InMemoryStore(), ScriptedProvider(["1"], held=True)  # noqa: F811
    answer, title = Gate(), Gate()
    gates, save = [None, answer, title], store.save

    async def slowly(session):
        if (gate := gates.pop(0) if gates else None) is not None:
            await gate.passes()
        await save(session)

    async with running(provider, store) as loop, anyio.create_task_group() as group:
        session = await loop.sessions.current("test:a")
        store.save = slowly
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        provider.release()
        await answer.reached(1)
        group.start_soon(loop.sessions.rename, session, "Rome")  # it is written next
        await anyio.wait_all_tasks_blocked()
        answer.open()
        await loop.chat.until(1)
        await anyio.wait_all_tasks_blocked()
        title.open()
        await anyio.wait_all_tasks_blocked()
    assert [item.text for item in loop.chat.sent] == ["1"]
    assert (await store.load("test:a")).unsent == ()
