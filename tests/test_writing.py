"""The one way to write: what somebody else committed meanwhile costs nobody anything."""

import json
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count
from types import SimpleNamespace

import anyio
import pytest

from nanoloop import Identity, Session
from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.events import SummaryCommitted
from nanoloop.memory.summarizer import Summarizer
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.session import _STANDING
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_holds import running, said, store  # noqa: F401 - a fixture

KEY = "test:a"


async def rename(store, title, session_id=KEY):  # noqa: F811 - the fixture's store
    """As another process does."""
    await Sessions(store).rename(await store.load(session_id), title)


def texts(session):
    return [message["content"] for message in session.full_chat_history]


async def test_an_act_is_done_again_on_what_another_writer_committed(store):  # noqa: F811
    sessions = Sessions(store)
    session = await sessions.named("s")
    await rename(store, "Rome", "s")
    seen = []

    def act(now):
        seen.append(now.title)
        now.add_message("user", "hi")

    await sessions.change(session, act)
    kept = await store.get("s")
    assert (seen, kept.title, texts(kept)) == (["", "Rome"], "Rome", ["hi"])


async def test_whoever_holds_the_object_goes_on_with_it(store):  # noqa: F811
    sessions = Sessions(store)
    session = await sessions.named("s")
    session.set_policy_handler(lambda *_: "mine")
    await rename(store, "Rome", "s")
    await sessions.change(session, lambda now: now.set("x", 1))
    assert (await sessions.open("s")) is session
    assert (session.title, session.judge_resize()) == ("Rome", {"type": "mine"})


async def test_a_session_that_is_gone_takes_none_with_it_that_was_made_since(store):  # noqa: F811
    sessions = Sessions(store)
    old = await sessions.named("s")
    await store.delete("s")
    sessions.forget("s")
    new = await sessions.named("s")
    with pytest.raises(SessionNotFound):
        await sessions.change(old, lambda now: now.set("x", 1))
    assert (await sessions.open("s")) is new


async def test_what_was_not_durable_is_gone_where_another_writer_was_first(store):  # noqa: F811
    sessions = Sessions(store)
    session = await sessions.named("s")
    session.set("mine", 1)
    await rename(store, "Rome", "s")
    await sessions.change(session, lambda now: now.set("x", 1))
    assert (await store.get("s")).get("mine") == (None, False)


async def test_a_memo_is_made_from_nothing_that_another_writer_may_push_out(store):  # noqa: F811
    sessions, model = Sessions(store), ScriptedProvider(otherwise='{"memo": {"n": 1}}')
    session = await sessions.named("s")
    session.provider = model
    session.configure(mode="memo", limit={"messages": 1})

    def act(now):
        now.add_chat_history([{"role": "user", "content": text} for text in "ab"])
        now.cut_by_rules()

    await sessions.change(session, act)
    await Sessions(store).change(await store.load("s"), lambda now: now.add_message("user", "c"))
    session.add_message("user", "mine, and not durable yet")
    read = partial(store.entries, "s")
    assert await session.update_memo(change=partial(sessions.change, session), read=read)
    said = json.loads(model.calls[0].messages[-1]["content"])["messages"]
    assert (
        [message["content"] for message in said] == texts(await store.get("s")) == ["a", "b", "c"]
    )
    assert (await store.load("s")).memo_seq == 3


async def test_a_session_that_was_deleted_is_not_revived(store):  # noqa: F811
    sessions = Sessions(store)
    session = await sessions.named("s")
    await store.delete("s")
    with pytest.raises(SessionNotFound):
        await sessions.change(session, lambda now: now.add_message("user", "hi"))
    assert (await sessions.named("s")) is not session


async def test_one_made_anew_under_the_same_id_is_another_one(store):  # noqa: F811
    sessions = Sessions(store)
    session = await sessions.named("s")
    await store.delete("s")
    await store.create(id="s")
    with pytest.raises(SessionNotFound):
        await sessions.change(session, lambda now: now.add_message("user", "hi"))
    assert (await store.get("s")).entry_count == 0


async def test_writers_without_end_are_all_let_in(store):  # noqa: F811
    one, other = Sessions(store), Sessions(store)
    await one.named("s")
    mine, theirs = await one.open("s"), await other.open("s")

    async def write(sessions, session, who):
        for number in range(20):
            await sessions.change(
                session, lambda now, n=number: now.add_message("user", f"{who}{n}")
            )

    async with anyio.create_task_group() as group:
        group.start_soon(write, one, mine, "a")
        group.start_soon(write, other, theirs, "b")
    kept = texts(await store.get("s"))
    assert [text for text in kept if text[0] == "a"] == [f"a{n}" for n in range(20)]
    assert [text for text in kept if text[0] == "b"] == [f"b{n}" for n in range(20)]


async def test_nothing_changed_costs_neither_a_read_nor_a_commit():
    kept = InMemoryStore()
    sessions = Sessions(kept)
    session = await sessions.named("s")
    kept.database = None  # any call would raise
    await sessions.change(session, lambda _: None)


async def test_a_store_that_fails_is_told_of_and_its_changes_come_with_the_next():
    kept = InMemoryStore()
    sessions = Sessions(kept)
    session = await sessions.named("s")
    commit, kept.database.commit = kept.database.commit, None
    with pytest.raises(TypeError):
        await sessions.change(session, lambda now: now.add_message("user", "one"))
    kept.database.commit = commit
    await sessions.change(session, lambda now: now.add_message("user", "two"))
    assert texts(await kept.get("s")) == ["one", "two"]


class Suspended(InMemoryStore):
    """Its next call of each kind fails, as after a time in which the whole process stood still."""

    def __init__(self, *calls):
        super().__init__()
        self.calls = {*calls}

    async def _lapse(self, call):
        if call in self.calls:
            self.calls.remove(call)
            raise StoreError("it did not answer within 10 s")

    async def save(self, session):
        await self._lapse("save")
        return await super().save(session)

    async def get(self, session_id):
        await self._lapse("get")
        return await super().get(session_id)


async def test_a_process_that_was_suspended_does_not_take_the_time_for_the_stores(monkeypatch):
    kept = Suspended("save", "get")
    sessions = Sessions(kept, patience_seconds=1)
    session = await kept.create(id="s")
    other = await kept.load("s")
    other.add_message("user", "before")
    await InMemoryStore.save(kept, other)  # so that it is read anew, too
    hours = count()
    clock = SimpleNamespace(monotonic=lambda: next(hours) * 3600)
    monkeypatch.setattr("nanoloop.writing.time", clock)
    await sessions.change(session, lambda now: now.add_message("user", "one"))
    assert kept.calls == set()
    assert texts(await kept.get("s")) == ["before", "one"]


def test_all_of_a_session_that_is_kept_is_renewed():
    lent = {"lock", "settings", "summary_in_progress", "held_pending", "archiving"}
    lent |= {"_clock", "_handlers", "token_counter"}
    assert set(vars(Session())) == {*_STANDING, *lent}


# Beside a loop


async def test_a_title_changed_beside_the_loop_costs_no_message(store):  # noqa: F811
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        await rename(store, "Rome")
        loop.bus.put_nowait(said("two"))
        assert await loop.chat.until(2) == ["1", "2"]
    kept = await store.get(KEY)
    assert (kept.title, texts(kept)) == ("Rome", ["one", "1", "two", "2"])


async def test_a_title_changed_in_the_middle_of_a_turn_costs_no_answer(store):  # noqa: F811
    provider = ScriptedProvider(["1"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await rename(store, "Rome")
        provider.release()
        assert await loop.chat.until(1) == ["1"]
    kept = await store.get(KEY)
    assert (kept.title, texts(kept), kept.awaiting) == ("Rome", ["one", "1"], 0)


async def test_a_title_changed_while_messages_wait_costs_none_of_them(store):  # noqa: F811
    provider = ScriptedProvider(["1", "2", "3"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        await rename(store, "Rome")
        await loop.bus.hand_in(said("three"))
        provider.release(3)
        assert await loop.chat.until(3) == ["1", "2", "3"]
    assert texts(await store.get(KEY)) == ["one", "1", "two", "2", "three", "3"]


async def test_a_title_changed_during_a_summary_costs_neither_it_nor_a_message(store):  # noqa: F811
    writer = ScriptedProvider(otherwise="What was said.", held=True)
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    talker = ScriptedProvider(otherwise="fine")
    async with running(talker, store, summarizer=Summarizer(writer), **options) as loop:
        for number in range(4):
            loop.bus.put_nowait(said(f"m{number}"))
            await loop.chat.until(number + 1)
        await writer.asked()
        await rename(store, "Rome")
        writer.release(9)
        await loop.summarizer.drain(5)
        assert [event for event in loop.heard if isinstance(event, SummaryCommitted)]
        loop.bus.put_nowait(said("last"))
        await loop.chat.until(5)
    kept = await store.get(KEY)
    assert (kept.title, kept.summary) == ("Rome", "What was said.")
    assert texts(kept)[-2:] == ["last", "fine"]


async def test_a_chat_whose_session_is_deleted_beside_the_loop_begins_anew(store):  # noqa: F811
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        await store.delete(KEY)
        loop.bus.put_nowait(said("two"))
        assert await loop.chat.until(2) == ["1", "2"]
    assert texts(await store.get(KEY)) == ["two", "2"]


async def test_a_session_deleted_in_the_middle_of_a_turn_is_not_revived(store):  # noqa: F811
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await store.delete(KEY)
        provider.release()
        loop.bus.put_nowait(said("two"))
        await provider.asked()
        provider.release()
        assert await loop.chat.until(1) == ["2"]
    assert texts(await store.get(KEY)) == ["two", "2"]


async def test_a_conversation_whose_time_runs_out_in_a_turn_keeps_question_and_answer():
    moments = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
    kept = InMemoryStore(clock=lambda: moments[-1])
    about = Identity(id=KEY, key=KEY, ttl=60, created_at=moments[0])
    await kept.add(Session(about=about, clock=lambda: moments[0]))
    provider = ScriptedProvider(["1"], held=True)
    one = "one" * 5000  # longer than a window may be by the defaults, which cut none of a daemon's
    async with running(provider, kept) as loop:
        loop.bus.put_nowait(said(one, group=True))
        await provider.asked()
        moments.append(moments[0] + timedelta(seconds=61))
        provider.release()
        assert await loop.chat.until(1) == ["1"]
    begun_anew = await kept.get(KEY)
    assert texts(begun_anew) == [one, "1"]
    assert begun_anew.window[0].metadata["group"] is True


async def test_a_question_that_another_one_answered_is_not_answered_twice(store):  # noqa: F811
    provider = ScriptedProvider(["1"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await Sessions(store).change(await store.load(KEY), answered)
        provider.release()
        await anyio.wait_all_tasks_blocked()
        assert loop.chat.sent == []
    assert texts(await store.get(KEY)) == ["one", "by another"]


def answered(session):
    """As another process answers."""
    session.add_message("assistant", "by another")
    session.awaiting = 0


async def test_two_loops_on_one_store_lose_no_message_and_answer_none_twice(store, monkeypatch):  # noqa: F811
    monkeypatch.setattr("nanoloop.nodes.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("nanoloop.nodes.LOOK_SECONDS", 0.02)
    async with (
        running(ScriptedProvider(), store) as one,
        running(ScriptedProvider(), store) as other,
    ):
        for number in range(20):
            await (one, other)[number % 2].bus.hand_in(said(f"m{number}"))
        with anyio.fail_after(10):
            while len(kept := texts(await store.get(KEY))) < 40:  # noqa: ASYNC110 - of another loop
                await anyio.sleep(0.01)
    assert [kept.count(f"m{n}") for n in range(20)] == [1] * 20
    assert [kept.count(f"You said: m{n}") for n in range(20)] == [1] * 20
