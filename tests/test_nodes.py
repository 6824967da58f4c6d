"""Several processes on one store: each chat is answered by one at a time, whoever hears what."""

import asyncio
import os
import sys
from functools import partial
from itertools import count
from threading import Event

import anyio
import pytest

from nanoloop.errors import SendLater, StoreError
from nanoloop.nodes import PLACE, Nodes
from nanoloop.protocols import Node
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.testing import Gate
from tests.test_amending import CALL, Looking
from tests.test_holds import running, said

KEY = "test:a"


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """They look at each other more often than they do it elsewhere."""
    monkeypatch.setattr("nanoloop.nodes.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("nanoloop.nodes.LOOK_SECONDS", 0.02)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    kinds = {"memory": InMemoryStore, "sqlite": lambda: SqliteStore(tmp_path / "s.sqlite")}
    store = kinds[request.param]()
    yield store
    await store.close()


async def texts(store):
    return [message["content"] for message in (await store.get(KEY)).messages]


def answers(loop):
    return [item.text for item in loop.chat.sent if item.kind == "answer"]


async def test_whoever_hears_a_message_answers_it(store):
    async with (
        running(ScriptedProvider(), store) as one,
        running(ScriptedProvider(), store) as other,
    ):
        for number in range(6):
            loop = (one, other)[number % 2]
            loop.bus.put_nowait(said(f"m{number}"))
            await loop.chat.until(number // 2 + 1)
    assert answers(one) == ["You said: m0", "You said: m2", "You said: m4"]
    assert answers(other) == ["You said: m1", "You said: m3", "You said: m5"]


async def test_what_one_hears_while_another_answers_waits_for_that_answer(store):
    slow, quick = ScriptedProvider(["1"], held=True), ScriptedProvider(["2"])
    async with running(slow, store) as one, running(quick, store) as other:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        await other.bus.hand_in(said("two"))
        await anyio.sleep(0.1)
        assert quick.count == 0
        slow.release()
        await other.chat.until(1)
    assert (answers(one), answers(other)) == (["1"], ["2"])
    assert await texts(store) == ["one", "1", "two", "2"]


async def test_stop_reaches_a_turn_wherever_it_runs(store):
    slow = ScriptedProvider(held=True)
    async with running(slow, store) as one, running(ScriptedProvider(), store) as other:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        other.bus.put_nowait(said("/stop"))
        assert await other.chat.until(1) == ["Stopped."]
        assert await one.chat.until(1) == ["Stopped."]
        assert (await store.load(KEY)).awaiting == 0


async def test_an_edit_reaches_a_question_wherever_it_is_being_asked(store):
    slow, quick = ScriptedProvider(["1"], held=True), ScriptedProvider(["1, really"])
    async with running(slow, store) as one, running(quick, store) as other:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        other.bus.put_nowait(said("one, really", "e1", edits="one"))
        assert await other.chat.until(1) == ["1, really"]
        slow.release()
        await anyio.sleep(0.1)
    assert answers(one) == []
    assert await texts(store) == ["one, really", "1, really"]


async def test_an_edit_of_a_question_whose_tool_has_run_elsewhere_is_answered_once(store):
    looking, quick = Looking(), ScriptedProvider(["after the tool"])
    slow = ScriptedProvider([CALL], otherwise="too late")
    async with (
        running(slow, store, agent=looking.agent) as one,
        running(quick, store) as other,
    ):
        one.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        other.bus.put_nowait(said("one, really", "e1", edits="one"))
        assert await other.chat.until(1) == ["after the tool"]
        looking.gate.open()
        await anyio.sleep(0.1)
    assert (answers(one), answers(other)) == ([], ["after the tool"])


async def test_what_one_has_heard_is_answered_where_another_has_brought_the_chat(store):
    slow, quick = ScriptedProvider(["1", "2"], held=True), ScriptedProvider()
    async with running(slow, store) as one, running(quick, store) as other:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        await other.bus.hand_in(said("/new"))
        await one.bus.hand_in(said("two"))
        slow.release()
        assert await one.chat.until(2) == ["1", "2"]
        new = (await store.load(KEY)).moved
    assert [message["content"] for message in (await store.get(new)).messages] == ["two", "2"]


async def test_new_conversations_that_two_processes_begin_follow_each_other(store):
    slow, quick = ScriptedProvider(["1"], held=True), ScriptedProvider(["2"])
    async with running(slow, store) as one, running(quick, store) as other:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        await other.bus.hand_in(said("/new"))
        await one.bus.hand_in(said("/new", "again"))
        await other.bus.hand_in(said("two"))
        slow.release()
        await other.chat.until(2)
        second = await store.load((await store.load(KEY)).moved)
    third = await store.get(second.moved)
    assert (second.messages, [message["content"] for message in third.messages]) == (
        [],
        ["two", "2"],
    )


async def test_what_a_process_leaves_is_taken_over_by_one_that_lives(store):
    slow, quick = ScriptedProvider(held=True), ScriptedProvider(["1", "2"])
    async with running(quick, store, recover=True) as other:
        async with running(slow, store) as one:
            one.bus.put_nowait(said("one"))
            await slow.asked()
            await one.bus.hand_in(said("two"))
        assert await other.chat.until(2) == ["1", "2"]
    assert await texts(store) == ["one", "1", "two", "2"]


async def test_of_two_that_live_one_takes_over(store):
    slow = ScriptedProvider(held=True)
    providers = [ScriptedProvider(["1"]), ScriptedProvider(["1"])]
    async with (
        running(providers[0], store, recover=True) as first,
        running(providers[1], store, recover=True) as second,
    ):
        async with running(slow, store) as one:
            one.bus.put_nowait(said("one"))
            await slow.asked()
        await until(lambda: answers(first) + answers(second))
        await anyio.sleep(0.1)
    assert answers(first) + answers(second) == ["1"]
    assert sum(provider.count for provider in providers) == 1


async def test_nobody_who_was_not_asked_to_takes_anything_over(store):
    slow, quick = ScriptedProvider(held=True), ScriptedProvider(["1"])
    async with running(quick, store) as other:
        async with running(slow, store) as one:
            one.bus.put_nowait(said("one"))
            await slow.asked()
        await anyio.sleep(0.2)
        assert other.chat.sent == []
    assert (await store.load(KEY)).awaiting


async def test_a_turn_that_another_process_has_taken_over_keeps_and_sends_nothing(store):
    slow = ScriptedProvider(["late"], held=True)
    async with running(slow, store) as one:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        session = await store.load(KEY)
        session.claim("another")
        session.add_message("assistant", "by another")
        session.awaiting = 0
        await store.save(session)
        slow.release()
        await anyio.sleep(0.1)
        assert one.chat.sent == []
    assert await texts(store) == ["one", "by another"]


async def test_a_turn_that_another_process_goes_on_with_keeps_and_sends_nothing(store):
    slow = ScriptedProvider(["late"], held=True)
    async with running(slow, store) as one:
        one.bus.put_nowait(said("one"))
        await slow.asked()
        session = await store.load(KEY)
        session.claim("another")
        await store.save(session)
        slow.release()
        await anyio.sleep(0.1)
        assert one.chat.sent == []
    assert await texts(store) == ["one"]


async def test_nobody_takes_over_what_a_process_that_lives_is_at(store):
    slow, quick = ScriptedProvider(["1"], held=True), ScriptedProvider(["1"])
    async with running(slow, store) as one, running(quick, store, recover=True):
        one.bus.put_nowait(said("one"))
        await slow.asked()
        await anyio.sleep(0.2)
        assert quick.count == 0
        slow.release()
        assert await one.chat.until(1) == ["1"]


async def test_an_answer_whose_chat_was_lost_before_it_was_sent_is_not_sent(store):
    gate = Gate()

    async def sleep(_):
        await gate.passes()

    async with running(ScriptedProvider(["1"]), store, sleep=sleep) as one:
        one.chat.refusals = [SendLater("offline", seconds=1)]
        one.bus.put_nowait(said("one"))
        await gate.reached(1)
        session = await store.load(KEY)
        session.claim("another")
        session.owe(session.unsent[0])
        await store.save(session)
        one.nodes._looked_at -= 60  # as after it was stopped for a minute
        await until(lambda: one.nodes.lapses)
        gate.open()
        await anyio.sleep(0.1)
        assert one.chat.sent == []


async def test_an_answer_of_a_process_that_slept_is_sent_where_nobody_took_it_over(store):
    gate = Gate()

    async def sleep(_):
        await gate.passes()

    async with running(ScriptedProvider(["1"]), store, sleep=sleep) as one:
        one.chat.refusals = [SendLater("offline", seconds=1)]
        one.bus.put_nowait(said("one"))
        await gate.reached(1)
        one.nodes._looked_at -= 60
        gate.open()
        assert await one.chat.until(1) == ["1"]


async def test_a_process_that_ended_is_gone_at_once():
    store = InMemoryStore()
    ended = await anyio.open_process([sys.executable, "-c", ""])
    nodes = Nodes(store)
    await store.beat(Node(id="it", place=PLACE, pid=ended.pid, holds=frozenset({"an account"})))
    await ended.wait()
    assert nodes.is_other("it")  # until somebody looks
    await nodes.ask_after("it")
    assert not nodes.is_other("it")
    assert await nodes._has("an account")


async def test_one_that_is_known_to_live_is_no_more_after_three_beats_without_a_word():
    store = InMemoryStore()
    async with Nodes(store) as nodes:
        there = Node(id="it", place="elsewhere", pid=os.getpid())
        await store.beat(there)
        await nodes.ask_after("it")
        assert nodes.is_other("it")
        store.database._nodes["it"] = (store.database._nodes["it"][0] - 7, there)
        await nodes.beat()
        assert not nodes.is_other("it")


async def test_an_account_is_used_by_one_process_at_a_time():
    store, told, used = InMemoryStore(), [], []
    one, other = Nodes(store), Nodes(store)

    async def use(who):
        used.append(who)
        try:
            await anyio.sleep_forever()
        finally:
            used.remove(who)

    async def hold(nodes, who):
        await nodes.holding("bot", partial(use, who), waits=lambda is_so: told.append((who, is_so)))

    async with anyio.create_task_group() as group:
        group.start_soon(hold, one, "one")
        await until(lambda: used == ["one"])
        group.start_soon(hold, other, "other")
        await until(lambda: told)
        assert (used, told) == (["one"], [("other", True)])
        # It is taken for dead, as one is that was stopped for a while.
        seen, node = store.database._nodes[one.me]
        store.database._nodes[one.me] = (seen - 7, node)
        await until(lambda: "other" in used)
        await one.beat()
        await until(lambda: used == ["other"])
        group.cancel_scope.cancel()
    assert told == [("other", True), ("other", False), ("one", True)]


async def until(holds):
    with anyio.fail_after(5):
        while not holds():  # noqa: ASYNC110 - of several loops
            await anyio.sleep(0.01)


async def test_what_another_process_said_is_seen_by_commands(store):
    async with (
        running(ScriptedProvider(["1"]), store) as one,
        running(ScriptedProvider(["2", "3"]), store) as other,
    ):
        other.bus.put_nowait(said("zero"))
        await other.chat.until(1)
        one.bus.put_nowait(said("one"))
        await one.chat.until(1)
        other.bus.put_nowait(said("/history"))
        assert "#3 user: one" in (await other.chat.until(2))[1]
        other.bus.put_nowait(said("/forget last"))
        await other.chat.until(3)
    assert await texts(store) == ["zero", "2"]


async def test_a_process_for_one_chat_takes_over_nothing_in_others(store):
    slow, quick = ScriptedProvider(held=True), ScriptedProvider(["1"])
    async with running(quick, store) as other:
        await other.recover_chat("test:b")
        async with running(slow, store) as one:
            one.bus.put_nowait(said("one"))
            await slow.asked()
        await anyio.sleep(0.2)
        assert other.chat.sent == []
        await other.recover_chat(KEY)
        assert await other.chat.until(1) == ["1"]


async def test_no_beat_comes_behind_the_end_of_its_process():
    store, is_free, done = InMemoryStore(), Event(), []

    async def beat(node):
        def write():  # in a thread, which hears of no cancelling
            is_free.wait()
            done.append("beat")

        if done:
            await asyncio.get_running_loop().run_in_executor(None, write)
        done.append("beat")
        return [node]

    async def leave(_):
        done.append("leave")

    async with anyio.create_task_group() as group:
        nodes = Nodes(store)
        store.beat, store.leave = beat, leave
        async with anyio.create_task_group() as ending:
            group.start_soon(_freed_later, is_free)
            ending.start_soon(_in_and_out, nodes)
            await anyio.sleep(0.08)  # it is at its second beat
            ending.cancel_scope.cancel()
    assert done == ["beat", "beat", "beat", "leave"]


async def _in_and_out(nodes):
    async with nodes:
        await anyio.sleep_forever()


async def _freed_later(is_free):
    await anyio.sleep(0.2)
    is_free.set()


async def test_an_answer_that_one_is_sending_is_sent_by_nobody_else_while_that_one_lives(store):
    gate = Gate()

    async def sleep(_):
        await gate.passes()

    async with (
        running(ScriptedProvider(["1"]), store, sleep=sleep) as one,
        running(ScriptedProvider(["2"]), store) as other,
    ):
        one.chat.refusals = [SendLater("offline", seconds=1)]
        one.bus.put_nowait(said("one"))
        await gate.reached(1)
        other.bus.put_nowait(said("two"))
        assert await other.chat.until(1) == ["2"]
        gate.open()
        assert await one.chat.until(1) == ["1"]
        await anyio.sleep(0.1)
    assert (answers(one), answers(other)) == (["1"], ["2"])
    assert (await store.load(KEY)).unsent == ()


async def test_an_answer_that_a_process_could_not_send_is_sent_by_the_next_to_look(store):
    async def sleep(_):
        await anyio.sleep_forever()

    async with running(ScriptedProvider(["2"]), store, recover=True) as other:
        async with running(ScriptedProvider(["1"]), store, sleep=sleep) as one:
            one.chat.refusals = [SendLater("offline", seconds=1)]
            one.bus.put_nowait(said("one"))
            await one.chat.refused.wait()
            other.bus.put_nowait(said("two"))
            assert await other.chat.until(1) == ["2"]
        assert await other.chat.until(2) == ["2", "1"]


async def test_what_one_hears_during_its_look_is_answered_after_the_answer_of_another():
    gate = Gate()

    class SlowlyListed(InMemoryStore):
        async def owing(self, *, pending=False):
            listed = [owed async for owed in super().owing(pending=pending)]
            await gate.passes()
            for owed in listed:
                yield owed

    store, other_store = InMemoryStore(), SlowlyListed()
    other_store.database = store.database
    slow, quick = ScriptedProvider(["1"], held=True), ScriptedProvider(["2"])
    async with running(slow, store) as one, running(quick, other_store) as other:
        await gate.reached(1)
        one.bus.put_nowait(said("one"))
        await slow.asked()
        await other.bus.hand_in(said("two"))
        gate.open()
        await gate.reached(3)
        slow.release()
        await other.chat.until(1)
    assert (answers(one), answers(other)) == (["1"], ["2"])


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_store_that_answers_slowly_is_not_away_before_its_time(monkeypatch, is_back):
    monkeypatch.setattr("nanoloop.nodes.SURE_SECONDS", 0.01)
    store, beats = InMemoryStore(), count()

    async def beat(node):
        if next(beats) < 3 or not is_back:
            raise StoreError("away")
        return []

    monkeypatch.setattr(store, "beat", beat)
    nodes = Nodes(store, patience_seconds=10 if is_back else 0.2)
    if is_back:
        await nodes.ask_after("another")
        assert not nodes.is_other("another")
    else:
        with pytest.raises(StoreError):
            await nodes.ask_after("another")


async def test_time_in_which_the_process_was_stopped_counts_for_no_patience(monkeypatch):
    now, store = [100.0], InMemoryStore()
    monkeypatch.setattr("nanoloop.nodes._now", lambda: now[0])
    beats = count()

    async def beat(node):
        if next(beats) == 0:
            now[0] += 20  # it was stopped here, and whatever waited ran out of time
            raise StoreError("away")
        return []

    monkeypatch.setattr(store, "beat", beat)
    nodes = Nodes(store, patience_seconds=10)
    await nodes.ask_after("another")
    assert not nodes.is_other("another")
