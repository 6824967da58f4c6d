import asyncio
import gc
import json
import threading
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nanoloop import Agent, Session, tool
from nanoloop.agents import AgentLimits
from nanoloop.errors import ContextTooLong, EmptyAnswer, NoConnection
from nanoloop.events import ResizeFailed, WindowTrimmed
from nanoloop.hooks import Hooks
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.recording import Recording
from tests.openai_server import OpenAIServer
from tests.test_chat import Counted

DOWN = NoConnection("nothing answers")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def agent_of(*replies, **options):
    return Agent(provider=ScriptedProvider(replies), **options)


def asked(agent, call=-1):
    """What the model was sent, without the system prompt."""
    return agent.provider.calls[call].messages[1:]


def system(agent):
    return agent.provider.calls[-1].messages[0]["content"]


async def pieces_of(stream):
    return [piece async for piece in stream]


# Attaching


def test_r0_2_an_agent_has_no_session_at_first():
    agent = agent_of()
    assert agent.session is None
    assert agent.get_session() is None
    assert agent.chat_history == []


def test_r0_2_without_a_session_the_history_is_the_agents_own():
    agent = agent_of().set_chat_history([user("a")]).add_chat_history(assistant("b"))
    assert agent.chat_history == [user("a"), assistant("b")]
    assert agent.reset_chat_history().chat_history == []
    assert agent.session is None


async def test_r0_2_without_a_session_the_agent_remembers():
    agent = agent_of("one", "two")
    await agent.ask("a")
    await agent.ask("b")
    assert asked(agent) == [user("a"), assistant("one"), user("b")]


def test_r0_3_once_attached_every_write_goes_to_the_session():
    session = Session()
    agent = agent_of().attach_session(session).add_chat_history([user("a"), assistant("b")])
    assert session.full_chat_history == [user("a"), assistant("b")]
    assert agent.chat_history == session.current_chat_history
    assert agent.detach_session().chat_history == []


def test_r0_4_none_attaches_a_new_session_with_the_agents_settings():
    agent = agent_of(settings={"session.limit": {"messages": 3}})
    assert agent.attach_session() is agent
    assert agent.session.settings.messages == 3
    assert agent.session.provider is agent.provider


def test_r0_4_a_session_is_attached_as_it_is():
    session = Session()
    assert agent_of().attach_session(session).session is session
    assert agent_of().attach_session(session).session is session


def test_r0_4_a_session_keeps_its_own_provider_and_settings():
    own = ScriptedProvider()
    session = Session(provider=own, settings={"session.mode": "memo"})
    agent_of(settings={"session.mode": "lite"}).attach_session(session)
    assert session.provider is own
    assert session.settings.memo_enabled


@pytest.mark.parametrize(("mode", "memo"), [("memo", True), ("lite", False)])
def test_r0_4_a_mode_is_configured(mode, memo):
    agent = agent_of().attach_session(mode=mode)
    assert agent.session.settings.memo_enabled is memo
    session = Session()
    agent.attach_session(session, mode=mode)
    assert session.settings["session.mode"] == mode


def test_r0_4_an_unknown_mode_is_refused_and_nothing_attached():
    agent = agent_of()
    with pytest.raises(ValueError, match="'turbo' is not a session mode"):
        agent.attach_session(mode="turbo")
    assert agent.session is None


async def test_r0_5_a_detached_session_keeps_what_it_has():
    session = Session()
    agent = agent_of("hello").set_chat_history([user("own")]).attach_session(session)
    await agent.ask("hi")
    assert agent.detach_session() is agent
    assert agent.session is None
    assert agent.chat_history == [user("own")]
    assert session.full_chat_history == [user("hi"), assistant("hello")]


def test_r0_6_the_session_is_read_only():
    agent = agent_of().attach_session()
    assert agent.get_session() is agent.session
    with pytest.raises(AttributeError):
        agent.session = Session()


def test_r0_7_set_begins_anew_and_keeps_the_memo():
    agent = agent_of().attach_session()
    agent.session.memo = {"name": "Ada"}
    agent.add_chat_history([user("a"), assistant("b")]).set_chat_history([user("c")])
    assert agent.session.full_chat_history == [user("c")]
    assert agent.session.current_chat_history == [user("c")]
    assert agent.session.memo == {"name": "Ada"}


def test_r0_7_reset_empties_both_and_keeps_the_memo():
    agent = agent_of().attach_session().add_chat_history(user("a"))
    agent.session.memo = {"name": "Ada"}
    agent.reset_chat_history()
    assert agent.session.full_chat_history == agent.session.current_chat_history == []
    assert agent.session.memo == {"name": "Ada"}


def test_attaching_imports_no_earlier_history():
    agent = agent_of().add_chat_history(user("earlier")).attach_session()
    assert agent.session.full_chat_history == []


def counting(session):
    """How often the session was asked whether to resize."""
    judged = []
    session.set_policy_handler(lambda *_: judged.append(1))
    return judged


def test_add_resizes_once_a_call_and_set_does_not():
    agent = agent_of().attach_session()
    judged = counting(agent.session)
    agent.add_chat_history([user("a"), assistant("b"), user("c")])
    assert len(judged) == 1
    agent.set_chat_history([user("a"), assistant("b")]).reset_chat_history()
    assert len(judged) == 1


async def test_add_does_the_same_inside_a_running_loop():
    agent = agent_of().attach_session()
    judged = counting(agent.session)
    agent.add_chat_history([user("a"), assistant("b")])
    assert len(judged) == 1


# Asking


async def test_r0_8_the_history_sent_is_the_sessions_view_and_nothing_else():
    agent = agent_of().add_chat_history(user("stale")).attach_session()
    agent.session.add_message("user", "old")
    agent.session.add_message("assistant", "news")
    agent.session.current_chat_history = [assistant("news")]
    await agent.ask("and now?")
    assert asked(agent) == [assistant("news"), user("and now?")]


async def test_r0_9_question_and_answer_are_kept_in_order_and_once():
    agent = agent_of("hello").attach_session()
    assert await agent.ask("hi") == "hello"
    assert agent.session.full_chat_history == [user("hi"), assistant("hello")]
    assert agent.session.turns == 1


async def test_r0_9_after_a_stream_ends_too():
    agent = agent_of("hello there").attach_session()
    stream = agent.stream("hi")
    assert await pieces_of(stream) == ["hello", " there"]
    assert stream.text == "hello there"
    assert agent.session.full_chat_history == [user("hi"), assistant("hello there")]


async def test_c34_the_question_is_kept_before_the_model_is_asked():
    seen = []
    agent = agent_of(lambda *_: seen.extend(agent.session.full_chat_history) or "ok")
    agent.attach_session()
    await agent.ask("hi")
    assert seen == [user("hi")]


async def test_c34_when_the_model_fails_the_question_stays():
    agent = agent_of(DOWN, "back").attach_session()
    with pytest.raises(NoConnection):
        await agent.ask("hi")
    assert agent.session.full_chat_history == [user("hi")]
    await agent.ask("again")
    assert asked(agent) == [user("hi"), user("again")]


@pytest.mark.parametrize("empty", ["", " \n"])
async def test_an_empty_answer_records_nothing(empty):
    agent = agent_of("first", empty).attach_session()
    await agent.ask("a")
    with pytest.raises(EmptyAnswer):
        await agent.ask("b")
    assert agent.session.full_chat_history == [user("a"), assistant("first")]
    assert agent.session.turns == 1


async def test_what_tools_did_stays_though_the_answer_is_empty():
    call = Reply(tool_calls=(ToolCall(id="1", name="ring", arguments="{}"),))
    agent = agent_of(call, "", tools=[tool(ring)]).attach_session()
    with pytest.raises(EmptyAnswer):
        await agent.ask("ring it")
    roles = [message["role"] for message in agent.session.full_chat_history]
    assert roles == ["user", "assistant", "tool"]


def ring() -> str:
    """Ring the bell."""
    return "rang"


async def test_tools_run_and_their_steps_are_in_the_history():
    call = Reply(tool_calls=(ToolCall(id="1", name="ring", arguments="{}"),))
    agent = agent_of(call, "It rang.", tools=[tool(ring)]).attach_session()
    assert await agent.ask("ring it") == "It rang."
    assert [m["role"] for m in agent.chat_history] == ["user", "assistant", "tool", "assistant"]


async def test_memo_and_summary_reach_the_model():
    agent = agent_of(prompt="Be kind.").attach_session()
    agent.session.memo = {"name": "Ada", "last_resize": {"type": "lite"}}
    agent.session.update_summary("They met.")
    await agent.ask("hi")
    assert system(agent).startswith("Be kind.")
    assert '"name": "Ada"' in system(agent)
    assert "last_resize" not in system(agent)
    assert system(agent).endswith("They met.")


async def test_the_history_is_resized_after_each_exchange():
    agent = agent_of(settings={"session.limit": {"messages": 2}}).attach_session()
    for number in range(3):
        await agent.ask(f"m{number}")
    assert [m["content"] for m in agent.chat_history] == ["m2", "You said: m2"]
    assert len(agent.session.full_chat_history) == 6


async def test_a_full_window_is_cut_where_a_user_speaks_before_the_model_is_asked(heard):
    agent = agent_of(limits=AgentLimits(messages=6, kept=2))
    agent.attach_session()
    for number in range(4):
        await agent.ask(f"m{number}")
    assert [m["content"] for m in asked(agent)] == ["m2", "You said: m2", "m3"]
    assert [(e.evicted, e.kept) for e in heard if isinstance(e, WindowTrimmed)] == [(4, 3)]
    assert len(agent.session.full_chat_history) == 8


async def test_where_nobody_says_otherwise_it_is_full_with_51_as_in_the_daemon():
    agent = agent_of().attach_session()
    for number in range(24):
        agent.session.add_chat_history([user(f"m{number}"), assistant("ok")])
    await agent.ask("49 now")
    assert len(asked(agent)) == 49
    await agent.ask("51 now")
    assert len(asked(agent)) == 11


async def test_a_limit_of_messages_that_the_user_set_is_the_one_that_counts():
    agent = agent_of(settings={"session.limit": {"messages": 100}}).attach_session()
    agent.session.add_chat_history([user("m")] * 60)
    await agent.ask("and now?")
    assert len(asked(agent)) == 61


async def test_what_is_too_long_for_the_model_is_asked_once_more_with_less():
    agent = agent_of(ContextTooLong("too long"), "short").attach_session()
    agent.session.add_chat_history([user("m"), assistant("a")] * 10)
    assert await agent.ask("and now?") == "short"
    assert len(asked(agent)) < len(asked(agent, 0))


async def test_in_memo_mode_the_agents_model_updates_the_memo():
    options = {"session.limit": {"messages": 2}}
    agent = agent_of("nice name", "yes", '{"memo": {"name": "Ada"}}', settings=options)
    agent.attach_session(mode="memo")
    await agent.ask("I am Ada")
    await agent.ask("Is it me?")
    assert agent.session.memo["name"] == "Ada"
    await agent.ask("who am I?")
    assert any('"name": "Ada"' in c.messages[0]["content"] for c in agent.provider.calls)


async def test_a_memo_that_fails_costs_neither_an_answer_nor_its_cut(heard):
    options = {"session.limit": {"messages": 1}, "session.mode": "memo"}
    memo = '{"memo": {"name": "Ada"}}'
    agent = agent_of("one", DOWN, "two", memo, settings=options).attach_session()
    assert await agent.ask("a") == "one"
    failed = [event for event in heard if isinstance(event, ResizeFailed)]
    assert [event.error for event in failed] == ["NoConnection"]
    assert agent.chat_history == [assistant("one")]
    assert (agent.session.memo_cursor, await agent.ask("b")) == (0, "two")
    assert (agent.session.memo["name"], agent.session.memo_cursor) == ("Ada", 4)


async def test_the_answers_commit_has_the_cut_and_a_memo_is_one_more():
    store = Counted()
    options = {"session.limit": {"messages": 2}}
    agent = agent_of(settings=options, store=store)
    counts = []
    for mode in ("lite", "lite", "memo"):
        options["session.mode"] = mode
        store.calls.clear()
        await agent.ask("m", session_id="s")
        counts.append(store.calls["commit"])
    assert counts == [2, 2, 3]
    assert len((await store.load("s")).messages) == 2


async def test_without_a_provider_it_says_what_to_do():
    with pytest.raises(ValueError, match="agent 'cook' has no provider"):
        await Agent("cook").ask("hi")


def test_r3_11_the_first_prompt_names_the_agent():
    session = Session()
    agent_of("a", name="cook").attach_session(session).ask_sync("hi")
    agent_of("b", name="smith").attach_session(session).ask_sync("hi")
    assert session.agent == "cook"


# Sync and async


def test_r0_13_sync_gives_what_async_gives():
    agents = [agent_of("one", "two").attach_session() for _ in range(2)]

    async def asking():
        return [await agents[0].ask("a"), await agents[0].ask("b")]

    assert anyio.run(asking) == [agents[1].ask_sync("a"), agents[1].ask_sync("b")]
    assert agents[0].chat_history == agents[1].chat_history


async def test_r0_13_sync_works_inside_a_running_loop():
    agent = agent_of("one").attach_session()
    heard = []
    assert agent.ask_sync("a", on_text=heard.append) == "one"
    assert heard == ["one"]
    assert agent.session.full_chat_history == [user("a"), assistant("one")]


async def test_r0_13_sync_works_within_a_sync_question():
    inner = agent_of("inner")

    async def ask() -> str:
        """Ask another one."""
        return inner.ask_sync("a")

    call = Reply(tool_calls=(ToolCall(id="1", name="ask", arguments="{}"),))
    outer = agent_of(call, "outer", tools=[tool(ask)])
    assert outer.ask_sync("go") == "outer"
    assert outer.chat_history[2]["content"] == "inner"


async def test_sync_and_async_share_one_provider():
    async with OpenAIServer("Hello.") as server:
        agent = Agent(provider=OpenAIProvider(model="m", base_url=server.url))
        ask = partial(anyio.to_thread.run_sync, agent.ask_sync)
        assert [await agent.ask("a"), await ask("b"), await agent.ask("c"), await ask("d")] == [
            "Hello."
        ] * 4
        await agent.provider.close()
        assert len(agent.chat_history) == 8


async def test_asking_for_ever_is_refused():
    agent = agent_of("one").attach_session()
    agent.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ask, "a")
        await agent.provider.asked()
        with pytest.raises(
            RuntimeError, match=r"is already answering in that session: use `await ask\(\)`"
        ):
            agent.ask_sync("b")
        agent.provider.release()
    assert len(agent.chat_history) == 2


@pytest.mark.parametrize("is_sync", [False, True])
async def test_an_agent_that_asks_itself_is_told(is_sync):
    agent = agent_of(Reply(tool_calls=(ToolCall(id="1", name="again", arguments="{}"),)), "done")

    async def again() -> str:
        """Ask once more."""
        return await agent.ask("again")

    def again_sync() -> str:
        """Ask once more."""
        return agent.ask_sync("again")

    again = tool(again_sync, name="again") if is_sync else tool(again)
    agent.toolbox = Agent(tools=[again]).toolbox
    assert await agent.ask("go") == "done"
    assert "can't use its own session" in agent.chat_history[2]["content"]


async def test_ten_tasks_ask_one_after_the_other():
    agent = agent_of().attach_session()
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(agent.ask, f"m{number}")
    said = agent.session.full_chat_history
    assert sorted(m["content"] for m in said[::2]) == [f"m{n}" for n in range(10)]
    assert said == [m for u in said[::2] for m in (u, assistant(f"You said: {u['content']}"))]


def test_ten_threads_ask_one_after_the_other():
    agent = agent_of().attach_session()
    threads = [threading.Thread(target=agent.ask_sync, args=(f"m{n}",)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = agent.session.full_chat_history
    assert sorted(m["content"] for m in said[::2]) == sorted(f"m{n}" for n in range(10))
    assert said == [m for u in said[::2] for m in (u, assistant(f"You said: {u['content']}"))]


# Streams


async def test_nothing_is_asked_before_the_first_piece_is_wanted():
    agent = agent_of("hello")
    agent.stream("hi")
    await anyio.wait_all_tasks_blocked()
    assert agent.provider.count == 0


async def until_ended(agent):
    """Wait until no turn is going on."""
    await anyio.wait_all_tasks_blocked()
    gc.collect()
    await anyio.wait_all_tasks_blocked()


async def test_a_stream_left_early_keeps_what_was_said_and_harms_nobody():
    agent = agent_of("one two three", "fine").attach_session()
    agent.provider._word_delay_seconds = 0.01
    async for piece in agent.stream("count"):
        assert piece == "one"
        break
    await until_ended(agent)
    assert agent.chat_history[0] == user("count")
    assert agent.chat_history[1]["content"].startswith("one")
    assert "three" not in agent.chat_history[1]["content"]
    assert await agent.ask("and?") == "fine"


async def test_leaving_its_context_waits_until_it_has_stopped():
    agent = agent_of("one two").attach_session()
    agent.provider._word_delay_seconds = 60
    async with agent.stream("count") as pieces:
        assert await anext(pieces) == "one"
    assert [m["content"] for m in agent.chat_history] == ["count", "one"]
    assert agent.session.window[-1].metadata == {"stopped": True}


async def test_a_stream_raises_what_the_model_raised():
    agent = agent_of(DOWN).attach_session()
    with pytest.raises(NoConnection):
        await pieces_of(agent.stream("hi"))
    assert agent.session.full_chat_history == [user("hi")]


async def test_who_reads_may_give_up_waiting():
    agent = agent_of("late").attach_session()
    agent.provider.hold()
    stream = agent.stream("hi")
    with anyio.move_on_after(0.01):
        await anext(stream)
    await stream.aclose()
    assert agent.chat_history == [user("hi")]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "answer in pieces"]


async def test_a_cancelled_question_stays_and_hooks_hear_of_it():
    heard = []

    async def hear(outcome):
        await anyio.lowlevel.checkpoint()
        heard.append(outcome.text)

    agent = agent_of("late", hooks=Hooks(afterwards=[hear])).attach_session()
    agent.provider.hold()
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ask, "hi")
        await agent.provider.asked()
        group.cancel_scope.cancel()
    assert agent.chat_history == [user("hi")]
    assert heard == [""]


# Hooks


async def test_prefixes_may_replace_the_request():
    def louder(messages):
        return [{**m, "content": m["content"].upper()} for m in messages]

    async def signed(messages, agent):
        return [*messages, user(f"from {agent.name}")]

    agent = agent_of(
        name="cook", hooks=Hooks(request_prefixes=[louder, signed, lambda messages: None])
    )
    await agent.ask("hi")
    assert asked(agent) == [user("HI"), user("from cook")]
    assert agent.chat_history[0] == user("hi")


async def test_hooks_hear_of_every_outcome():
    heard = []

    async def hear(outcome, agent):
        heard.append((agent.name, outcome.given, outcome.text, type(outcome.error)))

    agent = agent_of("hello", DOWN, hooks=Hooks(afterwards=[hear]))
    await agent.ask("a")
    with pytest.raises(NoConnection):
        await agent.ask("b")
    assert heard == [("assistant", "a", "hello", type(None)), ("assistant", "b", "", NoConnection)]


async def test_hooks_come_after_the_answer_is_kept():
    kept = []
    agent = agent_of(
        "hello", hooks=Hooks(afterwards=[lambda _, agent: kept.extend(agent.chat_history)])
    )
    await agent.ask("a")
    assert kept == [user("a"), assistant("hello")]


# What is recorded


async def test_a_record_handler_replaces_both_messages():
    agent = agent_of("hello").attach_session()
    agent.set_record_handler(lambda given, text: [user(given.upper()), assistant(text[::-1])])
    await agent.ask("hi")
    assert agent.session.full_chat_history == [user("HI"), assistant("olleh")]
    assert asked(agent) == [user("hi")]


@pytest.mark.parametrize("nothing", [None, []])
async def test_a_record_handler_that_returns_nothing_records_nothing(nothing):
    async def handler(given, text):
        return nothing

    agent = agent_of("hello", recording=Recording(handler=handler)).attach_session()
    await agent.ask("hi")
    assert agent.session.full_chat_history == []


async def test_with_a_record_handler_a_failed_question_stays():
    agent = agent_of(DOWN, recording=Recording(handler=lambda *_: None)).attach_session()
    with pytest.raises(NoConnection):
        await agent.ask("hi")
    assert agent.session.full_chat_history == [user("hi")]


async def test_with_a_record_handler_that_fails_the_question_stays():
    agent = agent_of(
        "hello", recording=Recording(handler=lambda given: given["text"])
    ).attach_session()
    with pytest.raises(TypeError):
        await agent.ask("hi")
    assert agent.session.full_chat_history == [user("hi")]


async def test_with_a_record_handler_the_model_sees_its_own_steps():
    call = Reply(tool_calls=(ToolCall(id="1", name="ring", arguments="{}"),))
    agent = agent_of(call, "ok", tools=[tool(ring)], recording=Recording(handler=user))
    agent.attach_session()
    await agent.ask("ring")
    assert [m["role"] for m in asked(agent)] == ["user", "assistant", "tool"]
    assert agent.session.full_chat_history == [user("ring")]


async def test_b0_4_what_is_kept_of_question_and_answer_is_chosen_by_paths():
    answer = 'Here: {"answer": {"text": "Paris"}, "why": "long"}'
    agent = agent_of(
        answer, recording=Recording(input_paths="question.text", output_paths="answer.text")
    )
    agent.attach_session()
    given = {"question": {"text": "Capital?", "lang": "en"}, "hints": [1, 2]}
    assert await agent.ask(given) == answer
    assert agent.session.full_chat_history == [user("Capital?"), assistant("Paris")]
    assert json.loads(asked(agent)[0]["content"]) == given


async def test_b0_4_several_paths_are_kept_by_their_names():
    agent = agent_of(recording=Recording(input_paths=["a", "b.0.c"])).attach_session()
    await agent.ask({"a": 1, "b": [{"c": "x"}], "d": 3})
    assert json.loads(agent.chat_history[0]["content"]) == {"a": 1, "b.0.c": "x"}


@pytest.mark.parametrize("answer", ["plain text", '{"other": 1}', "{broken"])
async def test_b0_4_where_nothing_stands_at_the_path_all_is_kept(answer):
    agent = agent_of(
        answer, recording=Recording(input_paths="a.b", output_paths="answer.text")
    ).attach_session()
    await agent.ask("hi")
    assert agent.chat_history == [user("hi"), assistant(answer)]


async def test_parts_go_to_the_model_as_they_are():
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": "x"}]
    agent = agent_of("a cat").attach_session()
    await agent.ask(parts)
    assert asked(agent) == [user(parts)]
    assert agent.session.full_chat_history[0] == user(parts)
