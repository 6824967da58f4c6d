"""The toolbox: every failure is text for the model, and nobody waits for a neighbour."""

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import BadArguments, ToolError
from nanoloop.protocols import ToolCall, ToolSpec
from nanoloop.tools.function import tool
from nanoloop.tools.results import clipped
from nanoloop.tools.toolbox import Toolbox, as_text, decoded


def call(name="echo", arguments="{}", call_id="c1"):
    return ToolCall(id=call_id, name=name, arguments=arguments)


@tool
async def echo(text: str = "") -> str:
    return text


async def together(box, calls):
    """Run calls side by side, as a turn does; the outcomes stand in the order of the calls."""
    outcomes = {}

    async def keep(place):
        outcomes[place] = await box.run(calls[place])

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(keep, place)
    return [outcomes[place] for place in range(len(calls))]


async def outcome_of(function, arguments="{}", **options):
    box = Toolbox([tool(name="it")(function)], **options)
    with anyio.fail_after(5):
        return await box.run(call("it", arguments))


async def test_a_result_comes_back_with_its_call_and_arguments():
    asked = call(arguments='{"text": "你好"}')
    outcome = await Toolbox([echo]).run(asked)
    assert (outcome.success, outcome.text, outcome.error) == (True, "你好", "")
    assert outcome.call is asked
    assert outcome.parameters == {"text": "你好"}
    assert 0 < outcome.seconds < 5


async def test_no_arguments_at_all_are_an_empty_object():
    assert (await Toolbox([echo]).run(call(arguments=""))).success


async def test_an_unknown_tool_is_answered_with_the_nearest_and_all_names():
    outcome = await Toolbox([echo]).run(call("ecko"))
    assert not outcome.success
    assert outcome.text == "there is no tool 'ecko': did you mean 'echo'? The tools are: echo."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('{"text": "a', "at line 1, column 10, between '{\"text\": ' and '\"a'"),
        ("[1]", "must be a JSON object, not list"),
        ('{"text": NaN}', "NaN is not a finite number"),
        ('{"text": 1e999}', "1e999 is not a finite number"),
        ("[" * 10_000, "not readable JSON"),
        (f"[{'[],' * 10_000}[]]", "too many parts"),
        ('{"text": 5}', "argument 'text': input should be a valid string"),
    ],
)
async def test_broken_arguments_are_told_with_the_place(arguments, sentence):
    outcome = await Toolbox([echo]).run(call(arguments=arguments))
    assert not outcome.success
    assert sentence in outcome.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such city"), "ValueError: no such city"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (ToolError("a sentence"), "a sentence"),
        (SystemExit(3), "SystemExit: 3"),
        (ExceptionGroup("many", [OSError("disk")]), "OSError: disk"),
        (TimeoutError("its own"), "TimeoutError: its own"),
    ],
)
async def test_what_a_tool_raises_is_text_for_the_model(error, text):
    def sync():
        raise error

    async def not_sync():
        raise error

    assert (await outcome_of(sync)).text == text
    assert (await outcome_of(not_sync)).error == text


async def test_a_tool_that_takes_too_long_is_stopped_and_told():
    outcome = await outcome_of(anyio.sleep_forever, timeout_seconds=0.01)
    assert outcome.error == "it took longer than 0.01 s and was stopped"


async def test_a_tool_may_have_its_own_time_limit():
    slow = tool(name="slow", timeout_seconds=0.01)(anyio.sleep_forever)
    outcome = await Toolbox([slow], timeout_seconds=60).run(call("slow"))
    assert "longer than 0.01 s" in outcome.error


async def test_a_tool_that_cancels_itself_cancels_no_neighbour():
    @tool
    async def quits():
        raise asyncio.CancelledError

    outcomes = await together(Toolbox([quits, echo]), [call("quits"), call(arguments="")])
    assert [outcome.success for outcome in outcomes] == [False, True]
    assert "was interrupted" in outcomes[0].text


async def test_calls_run_side_by_side_and_answer_in_order():
    met = anyio.Event()

    @tool
    async def waits():
        await met.wait()
        return "first"

    @tool
    async def opens():
        met.set()
        return "second"

    with anyio.fail_after(5):
        outcomes = await together(Toolbox([waits, opens]), [call("waits"), call("opens")])
    assert [outcome.text for outcome in outcomes] == ["first", "second"]


async def test_cancelling_the_turn_cancels_the_tools():
    started, stopped = anyio.Event(), anyio.Event()

    @tool
    async def endless():
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(Toolbox([endless]).run, call("endless"))
            await started.wait()
            group.cancel_scope.cancel()
    assert stopped.is_set()


async def test_a_hung_sync_tool_holds_up_neither_its_turn_nor_another_tool():
    gate = threading.Event()
    hung = tool(name="hung", timeout_seconds=0.01, threads=2)(gate.wait)
    quick = tool(name="quick", threads=1)(lambda: "here")
    box = Toolbox([hung, quick])
    try:
        with anyio.fail_after(5):
            outcomes = await together(box, [call("hung"), call("hung"), call("quick")])
            refused = await box.run(call("hung"))
    finally:
        gate.set()
    assert [outcome.success for outcome in outcomes] == [False, False, True]
    assert refused.text == "2 earlier calls of this tool are still hanging: continue without it"


async def test_a_hung_tool_is_asked_again_once_it_came_back():
    gate, came_back = threading.Event(), anyio.Event()
    hung = tool(name="hung", timeout_seconds=0.01, threads=1)(lambda: gate.wait() and "back")
    box = Toolbox([hung])
    assert not (await box.run(call("hung"))).success
    gate.set()
    with anyio.fail_after(5):
        while not came_back.is_set():
            if (await box.run(call("hung"))).text == "back":
                came_back.set()


def test_a_hung_sync_tool_does_not_keep_the_process_from_ending():
    code = (
        "import threading, anyio\nfrom nanoloop import tool\n"
        "from nanoloop.protocols import ToolCall\nfrom nanoloop.tools.toolbox import Toolbox\n"
        "hung = tool(name='h', timeout_seconds=0.01)(threading.Event().wait)\n"
        "print(anyio.run(Toolbox([hung]).run, ToolCall(id='1', name='h', arguments='')).success)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
    assert ran.stdout == b"False\n"


async def test_a_result_that_is_too_long_keeps_its_head_and_tail():
    async def long():
        return "a" * 100 + "b" * 100

    outcome = await outcome_of(long, result_chars=40)
    expected = f"{'a' * 30}\n[160 of 200 characters are left out here]\n{'b' * 10}"
    assert outcome.text == expected


async def test_an_error_that_is_too_long_is_cut_too():
    async def long():
        raise ValueError("x" * 1000)

    assert len((await outcome_of(long, result_chars=40)).text) < 100


@given(st.text(), st.integers(1, 50))
def test_a_cut_text_has_at_most_the_limit_and_one_sentence(text, chars):
    cut = clipped(text, chars)
    assert cut == text if len(text) <= chars else len(cut) < chars + 60


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"é": [1, True]}, '{"é": [1, true]}'),
        ({"when": anyio.Path("/x")}, '{"when": "/x"}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
    ],
)
def test_results_are_text_or_json(result, text):
    assert as_text(result) == text


async def test_half_a_surrogate_pair_never_leaves_the_toolbox():
    outcome = await Toolbox([echo]).run(call(arguments='{"text": "\\ud800"}'))
    outcome.text.encode()
    str(outcome.parameters).encode()

    async def names():
        return "\udcff"

    (await outcome_of(names)).text.encode()


@given(st.text())
def test_any_text_as_arguments_is_a_dict_or_bad_arguments(text):
    with suppress(BadArguments):
        assert isinstance(decoded(text), dict)


def test_the_specs_stand_in_the_order_given():
    @tool
    def first(): ...

    assert [spec.name for spec in Toolbox([first, echo]).specs] == ["first", "echo"]
    assert Toolbox([first, echo]).specs[1] is echo.spec


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools are named 'echo'"):
        Toolbox([echo, echo])


async def test_any_object_with_a_spec_and_a_call_will_do():
    class Parrot:
        spec = ToolSpec(name="parrot", description="", parameters={"type": "object"})

        async def call(self, arguments):
            return arguments

    outcome = await Toolbox([Parrot()]).run(call("parrot", '{"a": 1}'))
    assert outcome.text == '{"a": 1}'


async def test_a_plain_function_is_made_a_tool():
    def double(n: int) -> int:
        return n * 2

    assert (await Toolbox([double]).run(call("double", '{"n": 4}'))).text == "8"
