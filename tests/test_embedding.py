"""A loop inside a program: asked by its code, and closed by it."""

import re
import threading

import anyio
import anyio.to_thread
import pytest

from nanoloop import (
    Agent,
    AgentLoop,
    AnthropicProvider,
    InMemoryStore,
    NotRunning,
    OpenAIProvider,
    Recall,
    ScriptedProvider,
    Session,
    TurnFailed,
    tool,
)
from nanoloop.errors import SettingsError, WrongKey
from nanoloop.messages import Inbound
from nanoloop.protocols import Reply, ToolCall
from tests.packages import make_package

PARROT = """
from nanoloop.plugins import Plugin
from nanoloop.providers.scripted import ScriptedProvider

class Parrot(ScriptedProvider):
    closed = 0

    async def close(self):
        Parrot.closed += 1

PLUGIN = Plugin(name="parrot", settings=None, make=lambda own, model: Parrot([f"I am {model}"]))
"""


class FirstHeld(ScriptedProvider):
    """Never answers what it is asked first, and all else at once."""

    def __init__(self):
        super().__init__()
        self.is_asked = anyio.Event()

    async def chat(self, **asked):
        if not self.is_asked.is_set():
            self.is_asked.set()
            await anyio.sleep_forever()
        return await super().chat(**asked)


async def said_in(loop, chat):
    """All that the log of a chat has."""
    session_id = await loop.sessions.current_id(f"direct:{chat}")
    return [entry.content.get("text") for entry in await loop.sessions.store.entries(session_id)]


async def test_a_question_is_answered_by_a_text_and_in_pieces():
    async with AgentLoop(ScriptedProvider()) as loop:
        assert await loop.ask("Hello", chat="42") == "You said: Hello"
        pieces = [piece async for piece in loop.stream("And now?", chat="42")]
        assert len(pieces) > 1
        assert "".join(pieces) == "You said: And now?"
        assert await loop.ask("/help", "42")


async def test_an_answer_that_came_in_no_pieces_is_streamed_whole():
    class Whole(ScriptedProvider):
        async def chat(self, *, on_text=None, **asked):
            return await super().chat(**asked)

    async with AgentLoop(Whole()) as loop:
        assert [piece async for piece in loop.stream("Hi")] == ["You said: Hi"]


async def test_pieces_before_a_tools_call_are_followed_by_the_answer():
    @tool(effect="reads")
    def look() -> str:
        """Look."""
        return "rain"

    call = ToolCall(id="1", name="look", arguments="{}")
    steps = [Reply(text="Let me see.", tool_calls=(call,), finish_reason="tool_calls"), "It rains."]
    async with AgentLoop(ScriptedProvider(steps), tools=[look]) as loop:
        pieces = [piece async for piece in loop.stream("Weather?")]
        assert "".join(pieces) == "Let me see.\n\nIt rains."


async def test_an_answer_that_does_not_go_on_as_it_began_follows_its_pieces():
    class Wavering(ScriptedProvider):
        async def chat(self, *, on_text=None, **asked):
            on_text("Perhaps")
            return Reply(text="No.")

    async with AgentLoop(Wavering()) as loop:
        assert [piece async for piece in loop.stream("Well?")] == ["Perhaps", "\n\nNo."]


async def test_a_failed_turn_is_raised_with_its_cause_and_what_a_person_may_be_told():
    async with AgentLoop(ScriptedProvider([WrongKey("wrong: set OPENAI_API_KEY")])) as loop:
        with pytest.raises(TurnFailed, match="WrongKey: wrong: set") as failed:
            await loop.ask("Hello")
        assert failed.value.error == "WrongKey"
        assert failed.value.incident in failed.value.told
        assert "OPENAI" not in failed.value.told
        assert await loop.ask("Again") == "You said: Again"


async def test_a_turn_that_somebody_stopped_has_failed():
    provider = FirstHeld()
    async with AgentLoop(provider) as loop, anyio.create_task_group() as group:

        async def ask():
            with pytest.raises(TurnFailed, match=r"Stopped\."):
                await loop.ask("Hello")

        group.start_soon(ask)
        await provider.is_asked.wait()
        await loop.ask("/stop")


async def test_before_its_start_and_after_its_end_a_loop_says_so():
    loop = AgentLoop(ScriptedProvider())
    with pytest.raises(NotRunning, match="async with"):
        await loop.ask("Hello")
    await loop.start()
    with pytest.raises(NotRunning, match="already"):
        await loop.start()
    await loop.close()
    await loop.close()
    with pytest.raises(NotRunning, match="closed"):
        await loop.ask("Hello")
    with pytest.raises(NotRunning, match="closed"):
        await loop.start()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"text": b"Hello"}, "a message's text is bytes: pass a str"),
        ({"text": None}, "is NoneType: pass a str"),
        ({"text": "Hello", "chat": None}, "chat is None: pass a str, such as a user's id"),
        ({"text": "Hello", "agent": "pot"}, "there is no agent 'pot': did you mean 'poet'?"),
        ({"text": "Hello", "agent": "x"}, "'x': the agents are: assistant, poet"),
    ],
)
async def test_who_asks_wrongly_is_told_and_all_others_are_answered(asked, error):
    async with AgentLoop(ScriptedProvider(), agents={"poet": Agent("poet")}) as loop:
        with pytest.raises((TypeError, ValueError), match=re.escape(error)):
            await loop.ask(**asked)
        assert await loop.ask("Hello", 42) == "You said: Hello"
        assert await loop.ask("/history", "42") == await loop.ask("/history", 42)


def test_from_another_event_loop_it_says_so_and_nobody_waits_for_ever():
    with AgentLoop(ScriptedProvider()) as loop:
        for work in (loop.ask, lambda _: loop.close()):
            with pytest.raises(RuntimeError, match="another event loop"):
                anyio.run(work, "Hello")
        assert loop.ask_sync("Hello") == "You said: Hello"
    anyio.run(loop.close)


async def test_what_comes_first_in_mind_may_be_given_by_position():
    provider = OpenAIProvider("a-model", api_key="none")
    assert AnthropicProvider("claude", api_key="none").vendor_of(None) == "anthropic"
    assert (Agent("cook", "You cook.").prompt, Session("work").id) == ("You cook.", "work")
    assert Reply("Hello").text == "Hello"
    await provider.close()


async def test_what_was_said_is_searched_without_an_index_of_ones_own():
    store = InMemoryStore()
    loop = AgentLoop(ScriptedProvider(), store=store, recall=Recall(store), message_buffer_limit=4)
    async with loop:
        for text in ("a walrus sang", "two", "three", "four"):
            await loop.ask(text)
        assert "a walrus sang" in await loop.ask("/recall walrus")


async def test_whoever_waits_when_the_loop_ends_is_told():
    provider = FirstHeld()
    loop = AgentLoop(provider, shutdown_turns_seconds=0)
    async with anyio.create_task_group() as group:

        async def ask():
            with pytest.raises(NotRunning, match="ended before"):
                await loop.ask("Hello")

        await loop.start()
        group.start_soon(ask)
        await provider.is_asked.wait()
        await loop.close()


async def test_a_loop_that_a_task_group_runs_can_be_asked_and_closed():
    loop = AgentLoop(ScriptedProvider())
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        assert await loop.ask("Hello") == "You said: Hello"
        await loop.close()


async def test_a_client_that_leaves_holds_up_nobody_and_its_question_stays():
    provider = FirstHeld()
    async with AgentLoop(provider) as loop:
        async with anyio.create_task_group() as group:
            group.start_soon(loop.ask, "What is the answer?")
            await provider.is_asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            assert await loop.ask("And now?") == "You said: And now?"
        said = await said_in(loop, "default")
        assert said == ["What is the answer?", "And now?", "You said: And now?"]


async def test_what_waits_is_not_asked_once_its_client_has_left():
    provider = FirstHeld()
    async with AgentLoop(provider) as loop, anyio.create_task_group() as group:
        first, second = anyio.CancelScope(), anyio.CancelScope()

        async def ask(text, scope):
            with scope:
                await loop.ask(text)

        group.start_soon(ask, "one", first)
        await provider.is_asked.wait()
        group.start_soon(ask, "two", second)
        while loop.waiting("direct:default") == 0:
            await anyio.lowlevel.checkpoint()
        second.cancel()
        first.cancel()
        with anyio.fail_after(5):
            await loop.ask("three")
        assert "two" not in await said_in(loop, "default")
        assert "two" not in str(provider.calls)


async def test_a_stream_that_is_left_early_stops_its_turn():
    provider = FirstHeld()
    async with AgentLoop(provider) as loop:
        async with loop.stream("Hello") as pieces, anyio.create_task_group() as group:
            group.start_soon(anext, pieces)
            await provider.is_asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            assert await loop.ask("And now?") == "You said: And now?"


async def test_a_turn_that_has_changed_something_comes_to_its_end():
    called, may_end = anyio.Event(), anyio.Event()

    @tool
    async def order() -> str:
        """Order one."""
        called.set()
        await may_end.wait()
        return "ordered"

    call = ToolCall(id="1", name="order", arguments="{}")
    steps = [Reply(tool_calls=(call,), finish_reason="tool_calls"), "It is ordered."]
    async with AgentLoop(ScriptedProvider(steps), tools=[order]) as loop:
        async with anyio.create_task_group() as group:
            group.start_soon(loop.ask, "One, please")
            await called.wait()
            group.cancel_scope.cancel()
        behind = Inbound(channel="direct", chat="default", text="Thanks")
        await loop.bus.hand_in(behind)  # by now its being left is known
        may_end.set()
        await loop.ask("Bye")
        said = await said_in(loop, "default")
        assert said.index("It is ordered.") < said.index("Thanks")


async def test_a_question_that_is_given_up_too_late_is_answered_and_nobody_is_misquoted():
    async with AgentLoop(ScriptedProvider()) as loop:
        await loop.ask("Hello")
        session = await loop.sessions.current("direct:default")
        name = session.window[0].metadata["message_id"]
        late = Inbound(channel="direct", chat="default", text="", deletes=name, origin="system")
        assert await loop.bus.hand_in(late) == "kept"
        assert await said_in(loop, "default") == ["Hello", "You said: Hello"]


def test_code_that_cannot_await_asks_too():
    with AgentLoop(ScriptedProvider()) as loop:
        assert loop.ask_sync("Hello", "42") == "You said: Hello"
        pieces = loop.stream_sync("And now?", "42")
        assert next(pieces)
        assert "".join(pieces).endswith("now?")
    with pytest.raises(NotRunning):
        loop.ask_sync("Hello")


async def test_it_does_so_also_where_an_event_loop_runs_already():
    with AgentLoop(ScriptedProvider()) as loop:  # as in a notebook
        assert loop.ask_sync("Hello") == "You said: Hello"


async def test_threads_ask_the_loop_of_another_thread():
    async with AgentLoop(ScriptedProvider()) as loop:
        asked = anyio.to_thread.run_sync(loop.ask_sync, "Hello")
        assert await asked == "You said: Hello"
        with pytest.raises(RuntimeError, match=r"await ask\(\)"):
            loop.ask_sync("Hello")
        with pytest.raises(RuntimeError, match=r"await ask\(\)"):
            next(loop.stream_sync("Hello"))


def test_an_iterator_that_is_left_early_stops_its_turn():
    provider = ScriptedProvider(["one two three", "next"], word_delay_seconds=0.001)
    with AgentLoop(provider) as loop:
        for _ in loop.stream_sync("Hello"):
            break
        assert loop.ask_sync("And now?") == "next"


async def test_it_is_started_by_one_task_and_closed_by_another():
    loop = AgentLoop(ScriptedProvider())
    async with anyio.create_task_group() as group:
        group.start_soon(loop.start)
    assert await loop.ask("Hello") == "You said: Hello"
    async with anyio.create_task_group() as group:
        group.start_soon(loop.close)


async def test_what_is_cut_off_inside_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with AgentLoop(ScriptedProvider()):
            raise ZeroDivisionError
    with anyio.move_on_after(5) as scope:
        async with AgentLoop(FirstHeld()) as loop, anyio.create_task_group() as group:
            group.start_soon(loop.ask, "Hello")
            scope.cancel()
    assert not loop.is_serving


async def test_a_provider_and_a_store_are_had_by_name_and_closed_with_the_loop(
    tmp_path, monkeypatch
):
    make_package(tmp_path / "site", PARROT, kind="providers", name="parrot")
    monkeypatch.syspath_prepend(tmp_path / "site")
    url = f"sqlite:{tmp_path}/bot.db"
    async with AgentLoop("parrot:coco", store=url) as loop:
        assert await loop.ask("Who are you?") == "I am coco"
    from parrots import Parrot  # noqa: PLC0415 - it was installed above

    assert Parrot.closed == 1
    async with AgentLoop(ScriptedProvider(), store=url) as later:
        assert await said_in(later, "default") == ["Who are you?", "I am coco"]


async def test_a_name_means_what_it_means_in_the_settings(monkeypatch):
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="set GROQ_API_KEY"):
        AgentLoop("groq:llama")
    monkeypatch.setenv("GROQ_API_KEY", "key")
    AgentLoop("groq:llama")
    with pytest.raises(SettingsError, match="not a store"):
        AgentLoop(ScriptedProvider(), store="nowhere")


async def test_what_it_was_given_it_does_not_close():
    class Counting(InMemoryStore):
        closed = 0

        async def close(self):
            self.closed += 1

    store = Counting()
    async with AgentLoop(ScriptedProvider(), store=store):
        pass
    assert store.closed == 0


async def test_what_an_earlier_process_left_is_answered_at_the_start():
    store = InMemoryStore()
    held = FirstHeld()
    first = AgentLoop(held, store=store, shutdown_turns_seconds=0)
    await first.start()
    async with anyio.create_task_group() as group:

        async def ask():
            with pytest.raises(NotRunning):
                await first.ask("Hello")

        group.start_soon(ask)
        await held.is_asked.wait()
        await first.close()
    model = ScriptedProvider()
    async with AgentLoop(model, store=store) as second:
        with anyio.fail_after(5):
            await model.asked()
    assert await said_in(second, "default") == ["Hello", "You said: Hello"]


def test_many_threads_ask_at_once():
    with AgentLoop(ScriptedProvider()) as loop:
        answers = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(loop.ask_sync(f"{n}", f"{n}")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [f"You said: {n}" for n in range(8)]
