from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import AgentLoop, Inbound, Summarizer, tool
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import NoConnection
from nanoloop.events import FailureTold, LoopStopped, MessageRepeated, WindowTrimmed, hearing
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.in_memory import InMemoryStore


class Chats:
    """A channel that keeps what each chat was sent."""

    name = "test"
    streams = True

    def __init__(self, bus):
        self.sent = {}
        self.pieces = {}
        self._news = anyio.Event()
        bus.attach(self)

    async def run(self, bus):
        pass

    async def send(self, item):
        (self.sent if hasattr(item, "kind") else self.pieces).setdefault(item.chat, []).append(item)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, chat, count):
        with anyio.fail_after(5):
            while len(self.sent.get(chat, ())) < count:
                await self._news.wait()
        return [item.text for item in self.sent[chat]]


@asynccontextmanager
async def running(provider, **options):
    events = []
    loop = AgentLoop(provider=provider, **options)
    loop.chats = Chats(loop.bus)
    loop.direct = DirectChannel(loop.bus)
    loop.events = events
    with hearing(events.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


def put(loop, text, chat="a", **more):
    loop.bus.put_nowait(Inbound(channel="test", chat=chat, text=text, **more))


def in_summary(messages):
    return messages[0]["content"].startswith("You keep the memory")


def split(chat_replies, summary_replies):
    """A provider with one script for the chat and one for summaries; each may be held."""
    chat = ScriptedProvider(chat_replies)
    summaries = ScriptedProvider(summary_replies)

    class Both:
        async def chat(self, *, messages, tools=None, model=None, on_text=None):
            one = summaries if in_summary(messages) else chat
            return await one.chat(messages=messages, tools=tools, model=model, on_text=on_text)

        async def close(self):
            pass

    return Both(), chat, summaries


async def session_of(loop, chat="a"):
    return await loop.sessions.current(f"test:{chat}")


async def test_a_message_is_answered():
    async with running(ScriptedProvider(["hello"])) as loop:
        assert (await loop.direct.ask("hi")).text == "hello"


async def test_r4_23_the_timeline_of_the_seed():
    both, chat, summaries = split([], ["They counted to twenty-seven."])
    summaries.hold()
    async with running(both) as loop:
        session = await session_of(loop)
        for number in range(27):
            session.add_message("user", f"q{number}")
            session.add_message("assistant", f"a{number}")
        # T1: the 55th message comes; the window is cut, a summary starts, the reply uses the old
        put(loop, "T1")
        await loop.chats.until("a", 1)
        await summaries.asked()
        assert 11 <= len(session.messages) <= 12  # ten or eleven were kept, and the answer
        assert session.summary_in_progress
        assert "Conversation Summary" not in chat.calls[-1].messages[0]["content"]
        # T2: below the limit: no trim, no second task, still the old summary
        put(loop, "T2")
        await loop.chats.until("a", 2)
        assert summaries.count == 1
        assert sum(isinstance(event, WindowTrimmed) for event in loop.events) == 1
        assert "Conversation Summary" not in chat.calls[-1].messages[0]["content"]
        # T3: the task ends
        summaries.release()
        await loop.summarizer.drain(5)
        assert session.summary == "They counted to twenty-seven."
        assert not session.summary_in_progress
        stored = await loop.sessions.store.get(session.id)
        assert stored.summary == session.summary
        # T4: the new summary is used
        put(loop, "T4")
        await loop.chats.until("a", 3)
        system = chat.calls[-1].messages[0]["content"]
        assert system.endswith("in the message history:\n\nThey counted to twenty-seven.")
        assert summaries.count == 1


async def test_r4_22_what_left_the_window_is_still_in_the_store():
    both, _, _ = split([], [])
    async with running(both, message_buffer_limit=6, message_buffer_min=2) as loop:
        for number in range(20):
            await loop.direct.ask(f"m{number}")
        session = await loop.sessions.current("direct:default")
        stored = await loop.sessions.store.get(session.id)
    assert len(stored.full_chat_history) == 40
    assert len(session.messages) <= 7


async def test_with_a_summariser_that_never_ends_a_thousand_turns_are_answered():
    both, _, summaries = split([], [])
    summaries.hold()
    with anyio.fail_after(30):
        async with running(
            both,
            message_buffer_limit=6,
            message_buffer_min=2,
            shutdown_summaries_seconds=0.05,
        ) as loop:
            for number in range(1000):
                assert (await loop.direct.ask(f"m{number}")).text == f"You said: m{number}"
            assert summaries.count == 1
    assert loop.events[-1] == LoopStopped(unfinished_turns=0, unfinished_summaries=1)


async def test_no_turn_notices_a_summariser_that_always_fails():
    both, _, summaries = split([], [NoConnection("x")] * 100)
    async with running(both, message_buffer_limit=6, message_buffer_min=2) as loop:
        for number in range(50):
            assert (await loop.direct.ask(f"m{number}")).kind == "answer"
        session = await loop.sessions.current("direct:default")
    assert session.summary == ""
    assert session.has_pending
    assert 1 <= summaries.count <= 3


async def test_one_lane_is_serial_and_lanes_run_side_by_side():
    provider = ScriptedProvider(held=True)
    async with running(provider) as loop:
        put(loop, "a1", "a")
        put(loop, "a2", "a")
        put(loop, "b1", "b")
        await provider.asked(2)
        await anyio.wait_all_tasks_blocked()
        asked = sorted(call.messages[-1]["content"] for call in provider.calls)
        assert asked == ["a1", "b1"]
        provider.release()
        assert await loop.chats.until("a", 2) == ["You said: a1", "You said: a2"]


async def test_a_hanging_tool_in_one_of_two_hundred_sessions_is_felt_by_no_other():
    @tool
    async def hang() -> str:
        """Never return."""
        await anyio.sleep_forever()

    def answer(messages, tools, model):
        if messages[-1]["content"] == "hang":
            return Reply(tool_calls=(ToolCall(id="1", name="hang", arguments="{}"),))
        return "fine"

    async with running(
        ScriptedProvider(otherwise=answer), tools=[hang], shutdown_turns_seconds=0.01
    ) as loop:
        put(loop, "hang", "stuck")
        for number in range(199):
            put(loop, "hi", f"chat{number}")
        for number in range(199):
            assert await loop.chats.until(f"chat{number}", 1) == ["fine"]
        assert "stuck" not in loop.chats.sent


async def test_one_turn_at_a_time_when_so_configured():
    provider = ScriptedProvider(held=True)
    async with running(provider, max_concurrent_turns=1) as loop:
        for chat in "abc":
            put(loop, "hi", chat)
        await provider.asked()
        await anyio.wait_all_tasks_blocked()
        assert provider.count == 1
        provider.release()
        for chat in "abc":
            await loop.chats.until(chat, 1)


async def test_who_has_many_chats_delays_another_by_one_turn_at_most():
    provider = ScriptedProvider(held=True)
    async with running(provider, max_concurrent_turns=1) as loop:
        for number in range(20):
            put(loop, "flood", f"chat{number}", account="one")
        await provider.asked()
        await anyio.wait_all_tasks_blocked()
        put(loop, "ann", "b")
        await anyio.wait_all_tasks_blocked()
        provider.release(1)
        await provider.asked(2)
        assert provider.calls[-1].messages[-1]["content"] == "ann"
        provider.release()
        await loop.chats.until("b", 1)


async def test_who_has_nothing_running_waits_for_nobody():
    provider = ScriptedProvider(held=True)
    async with running(provider, max_concurrent_turns=4) as loop:
        for number in range(20):
            put(loop, "flood", f"chat{number}", account="one")
        await provider.asked(3)
        await anyio.wait_all_tasks_blocked()
        assert provider.count == 3
        put(loop, "ann", "b")
        await provider.asked(4)
        assert provider.calls[-1].messages[-1]["content"] == "ann"
        provider.release()


async def test_whose_a_message_is_outlasts_the_process():
    store, provider = InMemoryStore(), ScriptedProvider(held=True)
    async with running(provider, store=store, shutdown_turns_seconds=0.01) as loop:
        for number in range(20):
            put(loop, "flood", f"chat{number}", account="one")
        put(loop, "ann", "b")
        await provider.asked(21)
    provider = ScriptedProvider(held=True)
    async with running(provider, store=store, max_concurrent_turns=4) as loop:
        await loop.recover()
        await provider.asked(4)
        await anyio.wait_all_tasks_blocked()
        said = [call.messages[-1]["content"] for call in provider.calls]
        assert sorted(said) == ["ann", "flood", "flood", "flood"]
        provider.release()


async def test_the_users_message_is_durable_before_the_model_is_called():
    async def look(messages, tools, model):
        stored = await store.get("test:a")
        return f"{len(stored.full_chat_history)} stored, {stored.awaiting} awaits"

    store = InMemoryStore()
    async with running(ScriptedProvider(otherwise=look), store=store) as loop:
        put(loop, "hi")
        assert await loop.chats.until("a", 1) == ["1 stored, 1 awaits"]


async def test_the_answer_is_durable_before_it_is_sent():
    store = InMemoryStore()
    async with running(ScriptedProvider(["yes"]), store=store) as loop:
        sent = loop.chats.send

        async def look(item):
            if hasattr(item, "kind"):
                stored = await store.get("test:a")
                assert stored.full_chat_history[-1] == {"role": "assistant", "content": "yes"}
            await sent(item)

        loop.chats.send = look
        put(loop, "hi")
        assert await loop.chats.until("a", 1) == ["yes"]


async def test_a_failed_turn_keeps_the_users_message_and_says_so():
    async with running(ScriptedProvider([NoConnection("nothing answers at x")])) as loop:
        put(loop, "hi")
        (said,) = await loop.chats.until("a", 1)
        session = await session_of(loop)
    assert said.startswith(f"{ENGLISH['model_down']} {ENGLISH['kept']} (incident ")
    assert loop.chats.sent["a"][0].kind == "error"
    assert session.messages == [{"role": "user", "content": "hi"}]
    assert session.awaiting == 0


async def test_a_crash_is_an_apology_to_that_chat_and_nothing_else():
    def crash(*_):
        raise RuntimeError("secret words")

    async with running(ScriptedProvider([crash])) as loop:
        put(loop, "boom", "a")
        (said,) = await loop.chats.until("a", 1)
        put(loop, "hi", "a")
        assert (await loop.chats.until("a", 2))[1] == "You said: hi"
    failed = next(event for event in loop.events if isinstance(event, FailureTold))
    assert failed.error == "RuntimeError"
    assert "secret" not in said + failed.where + failed.said
    assert said.endswith(f"(incident {failed.incident})")


async def test_whoever_hears_of_events_and_raises_costs_no_answer():
    def observer(_):
        raise ValueError("no")

    with hearing(observer):
        async with running(ScriptedProvider(["hello"])) as loop:
            put(loop, "hi")
            assert await loop.chats.until("a", 1) == ["hello"]
    names = [event.name() for event in loop.events]
    assert names[:2] == ["observer_failed", "loop_started"]
    assert "turn_finished" in names


async def test_the_same_message_twice_is_answered_once_and_equal_texts_are_two_messages():
    async with running(ScriptedProvider()) as loop:
        put(loop, "ok", message_id="1")
        put(loop, "ok", message_id="1")
        put(loop, "ok", message_id="2")
        await loop.chats.until("a", 2)
        session = await session_of(loop)
    assert len(session.messages) == 4
    assert [e.message_id for e in loop.events if isinstance(e, MessageRepeated)] == ["1"]


async def test_a_repeated_message_is_known_after_a_restart():
    store = InMemoryStore()
    for _ in range(2):
        async with running(ScriptedProvider(), store=store) as loop:
            put(loop, "ok", message_id="1")
    stored = await store.get("test:a")
    assert len(stored.full_chat_history) == 2


async def test_stop_cancels_at_once_and_leaves_no_dangling_call():
    started = anyio.Event()

    @tool
    async def quick() -> str:
        """Return at once."""
        return "done"

    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    both = Reply(
        text="I look.",
        tool_calls=(
            ToolCall(id="1", name="quick", arguments="{}"),
            ToolCall(id="2", name="hang", arguments="{}"),
        ),
    )
    async with running(ScriptedProvider([both]), tools=[quick, hang]) as loop:
        put(loop, "go", message_id="m1")
        await started.wait()
        put(loop, "later")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(0.1):
            put(loop, "/stop", message_id="m2")
            await loop.chats.until("a", 2)
        texts = await loop.chats.until("a", 3)
        session = await session_of(loop)
    assert "Stopped. 1 waiting message will be answered next." in texts
    assert texts[-1] == "You said: later"
    results = {
        entry.call_id: entry.content for entry in session.window if entry.type == "tool_result"
    }
    assert results["1"]["result"] == "done"
    assert "stopped by the user" in results["2"]["error"]


async def test_stop_keeps_what_had_been_said():
    async def tell(messages, tools, model):
        await anyio.sleep_forever()

    class Streams(ScriptedProvider):
        async def chat(self, *, on_text=None, **asked):
            on_text("Once upon ")
            on_text("a time")
            return await super().chat(on_text=on_text, **asked)

    provider = Streams([tell])
    async with running(provider) as loop:
        put(loop, "a story")
        await provider.asked()
        put(loop, "/stop")
        await loop.chats.until("a", 2)
        session = await session_of(loop)
    assert session.messages[-1] == {"role": "assistant", "content": "Once upon a time"}
    assert session.window[-1].metadata["stopped"] is True


async def test_a_full_lane_says_so_and_the_others_go_on():
    provider = ScriptedProvider(held=True)
    async with running(provider, lane_limit=2) as loop:
        for number in range(4):
            put(loop, f"m{number}", message_id=str(number))
            await anyio.wait_all_tasks_blocked()
        (busy,) = await loop.chats.until("a", 1)
        assert "still busy" in busy
        assert loop.chats.sent["a"][0].reply_to == "3"
        provider.release()
        await loop.chats.until("a", 4)


async def test_idle_lanes_leave_nothing_behind():
    async with running(ScriptedProvider(), open_sessions=10) as loop:
        for number in range(300):
            put(loop, "hi", f"chat{number}")
        for number in range(300):
            await loop.chats.until(f"chat{number}", 1)
        await anyio.wait_all_tasks_blocked()
        assert loop.lanes == 0
        assert len(loop.sessions._recent) == 10
        assert len(loop.sessions._alive) <= 11


async def test_pieces_of_an_answer_come_before_the_whole():
    async with running(ScriptedProvider(["one two three"])) as loop:
        put(loop, "hi")
        await loop.chats.until("a", 1)
    assert "".join(piece.text for piece in loop.chats.pieces["a"]) == "one two three"


async def test_a_background_jobs_report_is_a_user_turn_marked_with_its_sender():
    provider = ScriptedProvider(["noted"])
    async with running(provider) as loop:
        put(loop, "the backup is done", origin="system", sender="backup")
        await loop.chats.until("a", 1)
        session = await session_of(loop)
    assert session.window[0].metadata["sender"] == "backup"
    assert provider.calls[0].messages[-1]["content"] == "[report from backup] the backup is done"


async def test_shutdown_lets_running_turns_finish():
    provider = ScriptedProvider(held=True)
    async with running(provider) as loop:
        put(loop, "hi")
        await provider.asked()
        loop.bus.close()
        await anyio.wait_all_tasks_blocked()
        provider.release()
    assert [item.text for item in loop.chats.sent["a"]] == ["You said: hi"]


async def test_shutdown_ends_at_its_deadline_and_the_message_is_answered_after_a_restart():
    store = InMemoryStore()
    provider = ScriptedProvider(held=True)
    async with running(provider, store=store, shutdown_turns_seconds=0.05) as loop:
        put(loop, "hi", message_id="1")
        await provider.asked()
    assert loop.events[-1].unfinished_turns == 1
    async with running(ScriptedProvider(["hello"]), store=store) as loop:
        await loop.recover()
        assert await loop.chats.until("a", 1) == ["hello"]
    assert loop.chats.sent["a"][0].reply_to == "1"
    async with running(ScriptedProvider(["again?"]), store=store) as loop:
        await loop.recover()
    assert loop.chats.sent == {}


async def test_an_unanswered_message_is_reported_when_so_configured():
    store = InMemoryStore()
    provider = ScriptedProvider(held=True)
    async with running(provider, store=store, shutdown_turns_seconds=0.01) as loop:
        put(loop, "hi")
        await provider.asked()
    provider = ScriptedProvider()
    async with running(provider, store=store, answer_unanswered=False) as loop:
        await loop.recover()
        (said,) = await loop.chats.until("a", 1)
    assert "restarted" in said
    assert provider.count == 0


async def test_b4_2_a_pending_summary_is_taken_up_after_a_restart():
    store = InMemoryStore()
    both, _, summaries = split([], [])
    summaries.hold()
    small = {"message_buffer_limit": 6, "message_buffer_min": 2, "store": store}
    async with running(both, shutdown_summaries_seconds=0.01, **small) as loop:
        for number in range(5):
            await loop.direct.ask(f"m{number}")
    both, _, summaries = split([], ["They met."])
    async with running(both, **small) as loop:
        await loop.recover()
        await summaries.asked()
    stored = await store.get("direct:default")
    assert stored.summary == "They met."
    assert not stored.has_pending


@pytest.mark.parametrize("text", ["", " ", "\x00", "💥" * 1000, "/", "// no command"])
async def test_odd_texts_are_messages_like_any_other(text):
    async with running(ScriptedProvider(["fine"])) as loop:
        assert (await loop.direct.ask(text)).text == "fine"


async def test_a_summariser_without_a_store_is_given_the_loops():
    both, _, _ = split([], ["They met."])
    small = {"message_buffer_limit": 6, "message_buffer_min": 2}
    async with running(both, summarizer=Summarizer(both), **small) as loop:
        for number in range(6):
            await loop.direct.ask(f"m{number}")
        await loop.summarizer.drain(5)
        stored = await loop.sessions.store.get("direct:default")
    assert stored.summary
    assert stored.covered_seq > 0
