from dataclasses import replace

import anyio
import pytest

from nanoloop import Agent, Session, tool
from nanoloop.agents import AgentLimits
from nanoloop.context import Views, build_messages
from nanoloop.errors import BadAnswer, ContextTooLong
from nanoloop.events import AnswerCut, ContextShrunk, ToolFinished
from nanoloop.protocols import Reasoning, Reply, ToolCall, ToolSpec, Usage
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.recording import Recording
from nanoloop.session.entry import Entry
from nanoloop.turn import Cutting, Keeping, Turn


@tool
async def double(number: int) -> int:
    """Twice the number."""
    return number * 2


def calls(*numbers, ids=None):
    ids = ids or [f"c{number}" for number in numbers]
    return Reply(
        finish_reason="tool_calls",
        tool_calls=tuple(
            ToolCall(id=call_id, name="double", arguments=f'{{"number": {number}}}')
            for call_id, number in zip(ids, numbers, strict=True)
        ),
    )


CUTTING = Cutting(limit=50, keep=10)


def turn(
    *replies,
    tools=(double,),
    theirs=(),
    keeping=None,
    cutting=CUTTING,
    **options,
):
    """A turn that hears "hi", its session and its provider."""
    agent = Agent(provider=ScriptedProvider(replies), tools=tools, prompt="P", **options)
    session, keeping = Session(), keeping or Keeping()
    view = Views().of(session, prompt="P")
    one = Turn(
        session,
        agent=agent,
        provider=agent.provider,
        view=view,
        keeping=keeping,
        cutting=cutting,
        theirs=theirs,
    )
    question = Entry.message("user", "hi")
    (view.beside.append if keeping.is_held else session.add_entry)(question)
    return one, agent.provider


@pytest.mark.parametrize(("reason", "cuts"), [("stop", 0), ("length", 1)])
async def test_an_answer_that_was_cut_off_is_told(reason, cuts, heard):
    one, _ = turn(Reply(text="and so", finish_reason=reason))
    assert (await one.run()).text == "and so"
    told = [event for event in heard if isinstance(event, AnswerCut)]
    assert [event.level for event in told] == ["warning"] * cuts


async def test_an_answer_without_tools_takes_one_step():
    one, provider = turn("hello")
    answer = await one.run()
    assert (answer.text, answer.steps) == ("hello", 1)
    assert provider.calls[0].messages[-1] == {"role": "user", "content": "hi"}


def asked_for(*names, tool="wait"):
    """A reply that calls this tool with each of the names."""
    return Reply(
        tool_calls=tuple(
            ToolCall(id=f"c{number}", name=tool, arguments=f'{{"name": "{name}"}}')
            for number, name in enumerate(names)
        )
    )


def results(session):
    return [e.content["result"] for e in session.window if e.type == "tool_result"]


async def test_tools_run_side_by_side_and_the_model_reads_their_results_in_call_order():
    first_may_end = anyio.Event()

    @tool
    async def wait(name: str) -> str:
        """Wait for the other."""
        if name == "first":
            await first_may_end.wait()
        else:
            first_may_end.set()
        return name

    one, provider = turn(asked_for("first", "second"), "done", tools=(wait,))
    await one.run()
    assert results(one.session) == ["second", "first"]
    assert [m["content"] for m in provider.calls[1].messages[-2:]] == ["first", "second"]


async def test_a_failing_tool_is_text_for_the_model_and_the_turn_goes_on(heard):
    bad = Reply(tool_calls=(ToolCall(id="1", name="triple", arguments="{}"),))
    one, provider = turn(bad, "sorry")
    assert (await one.run()).text == "sorry"
    assert "there is no tool 'triple'" in provider.calls[1].messages[-1]["content"]
    assert [e.success for e in heard if isinstance(e, ToolFinished)] == [False]


async def test_calls_without_ids_or_with_the_same_id_twice_are_told_apart():
    one, provider = turn(calls(1, 2, 3, ids=["", "x", "x"]), "done")
    await one.run()
    asked = provider.calls[1].messages
    ids = [call["id"] for call in asked[2]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [m["content"] for m in asked[3:]] == ["2", "4", "6"]


async def test_a_turn_that_never_ends_is_ended_at_its_limit():
    one, provider = turn(*[calls(n) for n in range(9)], limits=AgentLimits(steps=3))
    answer = await one.run()
    assert provider.count == 3
    assert "3 steps" in answer.text


async def test_a_model_that_asks_for_the_same_calls_again_and_again_is_stopped():
    one, provider = turn(*[calls(7, ids=[f"id{n}"]) for n in range(9)])
    answer = await one.run()
    assert (provider.count, answer.steps, answer.finish_reason) == (4, 4, "same_calls")
    assert "the same thing 4 times in a row (double)" in answer.text
    kept = [e.type for e in one.session.window]
    assert kept == ["message", *["tool_call", "tool_result"] * 3]


async def test_a_tool_that_the_model_made_up_is_not_named_to_the_chat():
    made_up = Reply(tool_calls=(ToolCall(id="", name="http://evil.example", arguments="{}"),))
    one, _ = turn(*[made_up] * 9)
    text = (await one.run()).text
    assert text.endswith("the same thing 4 times in a row.")


async def test_a_call_that_comes_again_after_another_one_is_no_circle():
    one, _ = turn(*[calls(number) for number in (1, 1, 1, 2, 1, 1, 1)], "done")
    assert (await one.run()).text == "done"


async def test_a_context_that_is_too_long_is_cut_harder_once(heard):
    one, provider = turn(ContextTooLong("too long"), "short")
    for number in range(8):
        one.session.add_message("assistant", f"a{number}")
        one.session.add_message("user", f"q{number}")
    assert (await one.run()).text == "short"
    first, second = (len(call.messages) for call in provider.calls)
    assert second < first
    assert sum(isinstance(e, ContextShrunk) for e in heard) == 1


async def test_a_context_that_stays_too_long_is_an_error_and_no_loop():
    one, provider = turn(ContextTooLong("too long"), ContextTooLong("still"), "never")
    for number in range(8):
        one.session.add_message("user", f"q{number}")
    with pytest.raises(ContextTooLong, match="still"):
        await one.run()
    assert provider.count == 2


async def test_an_empty_answer_is_no_answer():
    for reply, words in ((Reply(), "empty"), (Reply(finish_reason="length"), "tokens")):
        one, _ = turn(reply)
        with pytest.raises(BadAnswer, match=words):
            await one.run()


async def test_thoughts_and_words_before_a_call_are_kept_and_tokens_added_up():
    usage = Usage(tokens_in=10, tokens_out=5, tokens_cached=3)
    first = Reply(text="I look.", thinking="hm", tool_calls=calls(4).tool_calls, usage=usage)
    one, provider = turn(first, Reply(text="8", usage=usage))
    answer = await one.run()
    kept = [e.type for e in one.session.window]
    assert kept == ["message", "thinking", "message", "tool_call", "tool_result"]
    assert provider.calls[1].messages[2]["content"] == "I look."
    assert answer.usage == usage + usage


SIGNED = {"type": "thinking", "thinking": "Double it.", "signature": "s1"}


def thought(reply):
    return replace(reply, thinking="Hm.", reasoning=Reasoning(vendor="acme", blocks=(SIGNED,)))


async def test_what_was_thought_before_a_call_goes_back_to_its_vendor_alone():
    one, _ = turn(thought(calls(1)), "Two.")
    await one.run()
    window = one.session.window
    theirs, others = (build_messages("P", window, vendor=name)[2] for name in ("acme", "other"))
    assert theirs == others | {"reasoning": {"vendor": "acme", "blocks": [SIGNED]}}
    assert build_messages("P", window) == build_messages("P", window, vendor="other")


async def test_what_was_thought_before_the_last_words_goes_back_to_nobody():
    one, _ = turn(thought(Reply(text="Two.")))
    thoughts = [e for e in (await one.run()).entries if e.type == "thinking"]
    assert [(e.content["text"], e.metadata) for e in thoughts] == [("Hm.", {})]


async def test_a_thought_outlasts_the_process():
    one, _ = turn(thought(calls(1)), "Two.")
    await one.run()
    again = Session().load_json(one.session.dump_json())
    request = build_messages("P", one.session.window, vendor="acme")
    assert build_messages("P", again.window, vendor="acme") == request


async def test_a_call_for_a_tool_that_the_client_has_ends_the_turn():
    spec = ToolSpec(name="double", description="", parameters={})
    one, provider = turn(replace(calls(4), text="I look."), tools=(), theirs=[spec])
    answer = await one.run()
    assert [call.content["tool"] for call in answer.calls] == ["double"]
    assert (answer.text, answer.finish_reason, provider.count) == ("I look.", "tool_calls", 1)
    assert [spec.name for spec in provider.calls[0].tools] == ["double"]


async def test_a_held_turn_adds_nothing_to_its_session_and_the_model_sees_it_all():
    keeping = Keeping(recording=Recording(handler=lambda *_: None))
    one, provider = turn(calls(4), "8", keeping=keeping)
    await one.run()
    assert [m["role"] for m in provider.calls[1].messages[1:]] == ["user", "assistant", "tool"]
    assert one.session.window == ()


async def test_without_cutting_nothing_is_ever_left_out():
    one, provider = turn(ContextTooLong("too long"), "never", cutting=None)
    for number in range(99):
        one.session.add_message("user", f"q{number}")
    await one.begin()
    with pytest.raises(ContextTooLong):
        await one.run()
    assert [len(call.messages) for call in provider.calls] == [101]
