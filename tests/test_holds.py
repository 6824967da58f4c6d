"""What comes while an answer is under way: kept before its turn, in order, and never twice."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import AgentLoop, Inbound, tool
from nanoloop.agents import Agent
from nanoloop.bus import InProcessBus
from nanoloop.errors import SendLater
from nanoloop.events import hearing
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore


class Chat:
    """A channel that knows what has arrived, and can be kept from sending."""

    name, streams, confirms = "test", False, True

    def __init__(self):
        self.sent = []
        self.refusals = []
        self.refused = anyio.Event()
        self._news = anyio.Event()

    async def run(self, bus):
        pass

    async def send(self, item):
        if self.refusals:
            self.refused.set()
            raise self.refusals.pop(0)
        self.sent.append(item)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, count):
        with anyio.fail_after(5):
            while len(self.sent) < count:
                await self._news.wait()
        return [item.text for item in self.sent]


@asynccontextmanager
async def running(provider, store, *, chat=None, recover=False, sleep=anyio.sleep, **options):
    heard = []
    bus = InProcessBus(sleep=sleep)
    loop = AgentLoop(provider=provider, store=store, bus=bus, **options)
    loop.chat, loop.heard = chat or Chat(), heard
    bus.attach(loop.chat)
    with hearing(heard.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            if recover:
                await loop.recover()
            try:
                yield loop
            finally:
                group.cancel_scope.cancel()


def said(text, message_id=None, **options):
    name = message_id or text
    return Inbound(channel="test", chat="a", text=text, message_id=name, **options)


@pytest.fixture(params=["memory", "files"])
def store(request, tmp_path):
    return InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path)


async def log_of(store, session_id="test:a"):
    return [m["content"] for m in (await store.get(session_id)).messages]


async def test_what_waits_behind_a_turn_is_durable_when_it_is_handed_in(store):
    provider = ScriptedProvider(held=True)
    async with running(provider, store) as loop:
        await loop.bus.hand_in(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        await loop.bus.hand_in(said("three"))
        kept = await store.get("test:a")
        assert [entry.content["text"] for entry in kept.waiting] == ["two", "three"]
    # It is killed here; what was handed in is answered by the next one, in order.
    async with running(ScriptedProvider(["1", "2", "3"]), store, recover=True) as loop:
        assert await loop.chat.until(3) == ["1", "2", "3"]
    assert await log_of(store) == ["one", "1", "two", "2", "three", "3"]


async def test_a_repeated_message_is_not_acknowledged_before_the_first_is_durable():
    gate, store = anyio.Event(), InMemoryStore()
    save = store.save

    async def slow(session):
        await gate.wait()
        await save(session)

    async with running(ScriptedProvider(["1"]), store) as loop:
        store.save = slow
        loop.bus.put_nowait(said("one"))
        async with anyio.create_task_group() as group:
            done = []

            async def repeat():
                await loop.bus.hand_in(said("one"))
                done.append(True)

            group.start_soon(repeat)
            await anyio.wait_all_tasks_blocked()
            assert not done
            gate.set()


async def test_after_new_a_repeated_message_is_still_known(store):
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        loop.bus.put_nowait(said("/new"))
        await loop.chat.until(2)
        await loop.bus.hand_in(said("one"))
        loop.bus.put_nowait(said("two"))
        assert (await loop.chat.until(3))[2] == "2"


async def test_after_switch_a_repeated_message_is_still_known(store):
    async with running(ScriptedProvider(["1", "2", "3"]), store) as loop:
        for text in ("one", "/new", "two", "/switch 1"):
            loop.bus.put_nowait(said(text))
            await loop.chat.until(len(loop.chat.sent) + 1)
    async with running(ScriptedProvider(["3"]), store) as loop:  # also after a restart
        assert await loop.bus.hand_in(said("two")) == "repeated"
        loop.bus.put_nowait(said("three"))
        assert await loop.chat.until(1) == ["3"]


async def test_a_message_that_comes_again_behind_many_others_is_still_known(store):
    provider = ScriptedProvider(held=True)
    async with running(provider, store) as loop:
        await loop.bus.hand_in(said("one"))
        await provider.asked()
        for number in range(140):
            await loop.bus.hand_in(said(f"m{number}"))
        assert await loop.bus.hand_in(said("one")) == "repeated"
        assert await loop.bus.hand_in(said("m0")) == "repeated"
    assert len((await store.get("test:a")).waiting) == 140


async def test_a_repeated_message_is_known_where_no_other_has_room():
    provider, store = ScriptedProvider(held=True), InMemoryStore()
    async with running(provider, store, lane_limit=2) as loop:
        await loop.bus.hand_in(said("one"))
        await provider.asked()
        for number, outcome in enumerate(["kept", "kept", "full"]):
            assert await loop.bus.hand_in(said(f"m{number}")) == outcome
        assert await loop.bus.hand_in(said("m0")) == "repeated"
        assert await loop.bus.hand_in(said("m2")) == "full"


async def test_of_two_processes_that_get_a_message_at_the_same_moment_one_keeps_it():
    store, outcomes = InMemoryStore(), {}
    first, second = ScriptedProvider(["1"]), ScriptedProvider(["1"])

    async def take(loop):
        outcomes[await loop.bus.hand_in(said("one"))] = loop

    async with running(first, store) as one, running(second, store) as other:
        async with anyio.create_task_group() as group:
            for loop in (one, other):
                group.start_soon(take, loop)
        assert sorted(outcomes) == ["kept", "repeated"]
        assert await outcomes["kept"].chat.until(1) == ["1"]
    assert await log_of(store) == ["one", "1"]


async def test_what_waits_before_a_new_beginning_belongs_to_the_old_conversation(store):
    provider = ScriptedProvider(["1", "2", "3"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        for name in ("two", "/new", "three"):
            await loop.bus.hand_in(said(name))
        provider.release(9)
        told = await loop.chat.until(4)
        new = await loop.sessions.current("test:a")
    assert (told[:2], told[3]) == (["1", "2"], "3")
    assert await log_of(store) == ["one", "1", "two", "2"]
    assert await log_of(store, new.id) == ["three", "3"]
    assert not (await store.get("test:a")).waiting


async def test_an_answer_that_was_not_sent_is_sent_after_a_restart_under_the_same_name(store):
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.chat.refusals = [SendLater("offline", seconds=999)]
        loop.bus.put_nowait(said("one"))
        await loop.chat.refused.wait()
    owed = await store.get("test:a")
    assert owed.unsent == (2,)
    async with running(ScriptedProvider([]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["1"]
        assert loop.chat.sent[0].id == owed.window[1].id
        assert loop.chat.sent[0].reply_to == "one"
        await anyio.wait_all_tasks_blocked()
    async with running(ScriptedProvider(["2"]), store, recover=True) as loop:
        loop.bus.put_nowait(said("two"))
        assert await loop.chat.until(1) == ["2"]


async def test_what_can_be_sent_later_is_tried_again_in_order_with_growing_rests():
    rests = []

    async def sleep(seconds):
        rests.append(seconds)
        await anyio.lowlevel.checkpoint()

    chat = Chat()
    chat.refusals = [SendLater("busy"), SendLater("busy", seconds=7), SendLater("busy")]
    async with running(
        ScriptedProvider(["1", "2"]), InMemoryStore(), chat=chat, sleep=sleep
    ) as loop:
        loop.bus.put_nowait(said("one"))
        loop.bus.put_nowait(said("two"))
        assert await chat.until(2) == ["1", "2"]
    assert 0.5 <= rests[0] <= 1
    assert rests[1] == 7
    assert 2 <= rests[2] <= 4


async def test_what_can_never_be_sent_is_owed_no_more():
    chat, store = Chat(), InMemoryStore()
    chat.refusals = [ValueError("no such chat")]
    async with running(ScriptedProvider(["1", "2"]), store, chat=chat) as loop:
        loop.bus.put_nowait(said("one"))
        loop.bus.put_nowait(said("two"))
        assert await chat.until(1) == ["2"]
        await anyio.wait_all_tasks_blocked()
    assert (await store.get("test:a")).unsent == ()


async def test_a_burst_is_one_turn_and_nothing_is_dropped(store):
    provider = ScriptedProvider(["all three", "later"])
    async with running(provider, store) as loop:
        for text in ("one", "two", "three"):
            loop.bus.put_nowait(said(text, burst_seconds=0.05))
        assert await loop.chat.until(1) == ["all three"]
        assert loop.chat.sent[0].reply_to == "three"
    assert await log_of(store) == ["one", "two", "three", "all three"]


async def test_a_message_that_waits_may_be_changed_or_taken_back():
    provider, store = ScriptedProvider(["1", "2"], held=True), InMemoryStore()
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        await loop.bus.hand_in(said("three"))
        await loop.bus.hand_in(said("two, really", "e1", edits="two"))
        await loop.bus.hand_in(said("", "d1", deletes="three"))
        provider.release()
        await loop.chat.until(2)
    assert await log_of(store) == ["one", "1", "two, really", "2"]


async def test_a_question_that_changes_while_it_is_answered_is_asked_anew():
    provider, store = ScriptedProvider(["never", "to the new one"], held=True), InMemoryStore()
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        await provider.asked()
        provider.release()
        await loop.chat.until(1)
    assert (await log_of(store))[0] == "one, really"
    assert len(loop.chat.sent) == 1


async def test_a_question_that_is_taken_back_while_it_is_answered_has_no_answer():
    provider, store = ScriptedProvider(["never", "2"], held=True), InMemoryStore()
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("", "d1", deletes="one"))
        loop.bus.put_nowait(said("two"))
        await provider.asked()
        provider.release()
        await loop.chat.until(1)
    assert "one" not in await log_of(store)


async def test_the_model_is_told_of_what_changed_after_its_answer():
    provider, store = ScriptedProvider(["1", "2"]), InMemoryStore()
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        await loop.bus.hand_in(said("eleven", "e1", edits="one"))
        await loop.bus.hand_in(said("x", "e2", edits="never heard of"))
        loop.bus.put_nowait(said("two"))
        await loop.chat.until(2)
    told = "[edit by the user of an earlier message] eleven"
    assert told in str(provider.calls[1].messages)
    assert "never heard of" not in str(provider.calls[1].messages)


async def test_what_steers_is_told_to_the_turn_that_is_going_on():
    gate = anyio.Event()

    @tool
    async def look() -> str:
        """Look."""
        await gate.wait()
        return "seen"

    call = Reply(tool_calls=(ToolCall(id="c", name="look", arguments="{}"),))
    provider, store = ScriptedProvider([call, "both"]), InMemoryStore()
    async with running(provider, store, agent=Agent(tools=[look])) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("and two", steers=True))
        await anyio.wait_all_tasks_blocked()
        gate.set()
        assert await loop.chat.until(1) == ["both"]
    assert provider.calls[1].messages[-1]["content"] == "and two"
    assert not (await store.get("test:a")).waiting


def test_a_message_whose_turn_comes_is_in_one_place_or_the_other_at_every_instant():
    session = Session(id="s")
    session.hold(Entry.message("user", "later"))
    held = session.waiting[0]
    # A commit of another thread may be made just here.
    assert session.changes().sections["waiting"] == [held.to_dict()]
    session.add_entry(held)
    changes = session.changes()
    assert (changes.sections["waiting"], len(changes.entries)) == ([], 1)
