"""Bursts, failing buses, conflicts and deadlines: what must not end or forget anything."""

import anyio
import pytest

from nanoloop import Inbound, Summarizer
from nanoloop.bus import InProcessBus
from nanoloop.errors import BusFull, ContextTooLong
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_loop import put, running, session_of, split


async def test_a_burst_leaves_nothing_unacknowledged():
    async with running(ScriptedProvider()) as loop:
        for number in range(100):
            put(loop, f"m{number}")
        put(loop, "hello", chat="other")
        await loop.chats.until("other", 1)
        await loop.chats.until("a", 40)
        await anyio.wait_all_tasks_blocked()
        assert not loop.bus._unacknowledged


async def test_all_who_wait_for_room_on_the_bus_get_in():
    taken = []
    async with InProcessBus(inbound_limit=1) as bus, anyio.create_task_group() as group:
        for text in "012":
            group.start_soon(bus.put, Inbound(channel="t", chat="a", text=text))
        with anyio.fail_after(5):
            async for delivery in bus.deliveries():
                taken.append(delivery.message.text)
                await anyio.wait_all_tasks_blocked()
                await delivery.ack()
                if len(taken) == 3:
                    break
    assert sorted(taken) == ["0", "1", "2"]


async def test_a_closing_bus_wakes_all_who_wait():
    ended = []

    async def putting(text):
        with pytest.raises(BusFull):
            await bus.put(Inbound(channel="t", chat="a", text=text))
        ended.append(text)

    async with InProcessBus(inbound_limit=1) as bus, anyio.create_task_group() as group:
        bus.put_nowait(Inbound(channel="t", chat="a", text="0"))
        group.start_soon(putting, "1")
        group.start_soon(putting, "2")
        await anyio.wait_all_tasks_blocked()
        bus.close()
    assert sorted(ended) == ["1", "2"]


async def test_who_puts_after_the_end_hears_that_the_bus_is_full():
    async with running(ScriptedProvider()) as loop:
        pass
    with pytest.raises(BusFull):
        put(loop, "late")


async def test_a_bus_that_fails_once_ends_no_other_chat():
    class Flaky(InProcessBus):
        broken = 2

        async def publish(self, message, **then):
            if message.chat == "a" and self.broken:
                self.broken -= 1
                raise ConnectionError("the broker is away")
            await super().publish(message, **then)

    async with running(ScriptedProvider(), bus=Flaky()) as loop:
        put(loop, "hi")
        await anyio.wait_all_tasks_blocked()
        put(loop, "hi", chat="b")
        await loop.chats.until("b", 1)


async def test_a_chat_goes_on_after_someone_else_wrote_its_session():
    store = InMemoryStore()
    async with running(ScriptedProvider(), store=store) as loop:
        put(loop, "one")
        await loop.chats.until("a", 1)
        other = await store.get("test:a")
        other.title = "renamed"
        await store.save(other)
        put(loop, "two")
        put(loop, "three")
        assert (await loop.chats.until("a", 3))[-1] == "You said: three"


async def test_what_waits_at_the_deadline_is_kept_and_answered_after_the_next_start():
    provider = ScriptedProvider(held=True)
    store = InMemoryStore()
    async with running(provider, store=store, shutdown_turns_seconds=0.02) as loop:
        put(loop, "one")
        await provider.asked()
        put(loop, "two", message_id="2")
        await anyio.wait_all_tasks_blocked()
    stored = await store.get("test:a")
    assert [m["content"] for m in stored.messages] == ["one"]
    assert [entry.content["text"] for entry in stored.waiting] == ["two"]
    async with running(ScriptedProvider(["to one", "to two"]), store=store) as loop:
        await loop.recover()
        assert await loop.chats.until("a", 2) == ["to one", "to two"]
    stored = await store.get("test:a")
    assert [m["content"] for m in stored.messages] == ["one", "to one", "two", "to two"]
    assert not stored.waiting


async def test_stop_waits_for_no_other_command():
    gate = anyio.Event()

    class Slow(InMemoryStore):
        async def list(self):
            await gate.wait()
            async for info in super().list():
                yield info

    provider = ScriptedProvider(held=True)
    async with running(provider, store=Slow()) as loop:
        put(loop, "hi")
        await provider.asked()
        put(loop, "/sessions")
        await anyio.wait_all_tasks_blocked()
        put(loop, "/stop")
        assert "Stopped." in (await loop.chats.until("a", 2))
        gate.set()


async def test_a_session_deleted_meanwhile_does_not_stop_the_start():
    class Late(InMemoryStore):
        async def load(self, session_id):
            await self.delete(session_id)
            return await super().load(session_id)

    store = Late()
    session = await store.create(id="one", key="test:a")
    for number in range(8):
        session.add_message("user" if number % 2 == 0 else "assistant", f"m{number}")
    session.trim_if_needed(4, 2)
    await store.save(session)
    async with running(ScriptedProvider(), store=store) as loop:
        await loop.recover()
        assert (await loop.direct.ask("still there?")).kind == "answer"


async def test_a_summary_is_taken_up_also_where_a_message_has_no_answer():
    both, _, _ = split([], ["They met."])
    store = InMemoryStore()
    session = await store.create(id="test:a", key="test:a")
    for number in range(8):
        session.add_message("user" if number % 2 == 0 else "assistant", f"m{number}")
    session.trim_if_needed(4, 2)
    session.awaiting = session.last_seq
    await store.save(session)
    async with running(both, store=store, answer_unanswered=False) as loop:
        await loop.recover()
        await anyio.wait_all_tasks_blocked()
        await loop.summarizer.drain(5)
        assert (await session_of(loop)).summary == "They met."


async def test_two_asks_in_one_chat_hear_their_own_pieces():
    heard = {"1": [], "2": []}
    async with running(ScriptedProvider()) as loop, anyio.create_task_group() as group:

        async def ask(name):
            await loop.direct.ask(f"q{name}", chat="x", on_text=heard[name].append)

        group.start_soon(ask, "1")
        group.start_soon(ask, "2")
    assert {name: "".join(pieces) for name, pieces in heard.items()} == {
        "1": "You said: q1",
        "2": "You said: q2",
    }


async def test_one_text_too_long_for_the_model_makes_no_other_summary_dearer():
    def reply(messages, *_):
        if "poison" in str(messages):
            raise ContextTooLong("too long")
        return "sum"

    provider = ScriptedProvider(otherwise=reply)
    summarizer = Summarizer(provider)
    with pytest.raises(ContextTooLong):
        await summarizer.summarize_async([{"role": "user", "content": "poison"}])
    provider.count = 0
    await summarizer.summarize_async([{"role": "user", "content": "word " * 4000}])
    assert provider.count == 1


async def test_an_erase_during_a_summary_is_followed_by_a_new_one():
    store, provider = InMemoryStore(), ScriptedProvider(otherwise="sum", held=True)
    session = await store.create(id="one")
    for number in range(12):
        session.add_message("user" if number % 2 == 0 else "assistant", f"m{number}")
    session.trim_if_needed(2, 2)
    await store.save(session)
    async with Summarizer(provider, store=store) as summarizer:
        summarizer.fire_and_forget(session)
        await provider.asked()
        await store.erase(session, [1])
        summarizer.fire_and_forget(session, force=True)
        provider.release()
        await anyio.wait_all_tasks_blocked()
        await summarizer.drain(5)
    assert not session.has_pending


async def test_results_that_were_being_saved_when_the_turn_was_stopped_stand_once():
    saving, go_on = anyio.Event(), anyio.Event()

    class Slow(InMemoryStore):
        async def save(self, session):
            if any(entry.type == "tool_result" for entry in session.window):
                saving.set()
                await go_on.wait()
            await super().save(session)

    call = Reply(tool_calls=(ToolCall(id="1", name="nothing", arguments="{}"),))
    async with running(ScriptedProvider([call]), store=Slow()) as loop:
        put(loop, "go")
        await saving.wait()
        put(loop, "/stop")
        await anyio.wait_all_tasks_blocked()
        go_on.set()
        await loop.chats.until("a", 2)
        session = await session_of(loop)
    assert sum(entry.type == "tool_result" for entry in session.window) == 1
