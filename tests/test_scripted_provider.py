import anyio
import pytest

from nanoloop.errors import OverQuota
from nanoloop.protocols import Provider, Reply, ToolSpec
from nanoloop.providers.scripted import ScriptedProvider

HI = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]
CLOCK = ToolSpec(name="clock", description="The time.", parameters={"type": "object"})


def test_it_is_a_provider():
    assert isinstance(ScriptedProvider(), Provider)


async def test_replies_come_in_order_then_the_echo():
    provider = ScriptedProvider(["one", Reply(text="two", finish_reason="length")])
    said = [await provider.chat(messages=HI) for _ in range(3)]
    assert [reply.text for reply in said] == ["one", "two", "You said: Hi there"]
    assert said[1].finish_reason == "length"


async def test_an_error_in_the_script_is_raised():
    provider = ScriptedProvider([OverQuota("later")], otherwise="fine")
    with pytest.raises(OverQuota, match="later"):
        await provider.chat(messages=HI)
    assert (await provider.chat(messages=HI)).text == "fine"


async def test_a_function_may_answer_sync_or_async():
    async def later(messages, tools, model):
        await anyio.lowlevel.checkpoint()
        return Reply(text=f"{len(messages)} {tools} {model}")

    provider = ScriptedProvider([lambda *_: "at once", later, lambda *_: later])
    said = [(await provider.chat(messages=HI, model="m")).text for _ in range(3)]
    assert said == ["at once", "2 None m", "2 None m"]


async def test_calls_are_kept_as_they_were():
    provider = ScriptedProvider()
    messages = [{"role": "user", "content": "before"}]
    await provider.chat(messages=messages, tools=[CLOCK], model="m")
    messages[0]["content"] = "after"
    (call,) = provider.calls
    assert call.messages == [{"role": "user", "content": "before"}]
    assert (call.tools, call.model, call.streamed) == ([CLOCK], "m", False)


async def test_only_the_last_calls_are_kept_and_all_are_counted():
    provider = ScriptedProvider(keep_calls=2)
    for model in "abc":
        await provider.chat(messages=HI, model=model)
    assert [call.model for call in provider.calls] == ["b", "c"]
    assert provider.count == 3


async def test_text_streams_by_words_and_whole_in_the_reply():
    pieces = []
    reply = await ScriptedProvider(["one  two\nthree "]).chat(messages=HI, on_text=pieces.append)
    assert pieces == ["one", "  two", "\nthree", " "]
    assert reply.text == "".join(pieces)


async def test_a_held_call_waits_for_its_release():
    provider = ScriptedProvider(["one", "two"], held=True)
    said = []

    async def ask():
        said.append((await provider.chat(messages=HI)).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await provider.asked(2)
        await anyio.wait_all_tasks_blocked()
        assert (said, provider.waiting) == ([], 2)
        provider.release(1)
        await anyio.wait_all_tasks_blocked()
        assert said == ["one"]
        provider.release()
    assert said == ["one", "two"]


async def test_a_release_ahead_of_time_counts_once():
    provider = ScriptedProvider(held=True)
    provider.release(1)
    await provider.chat(messages=HI)
    with anyio.move_on_after(0.01) as held:
        await provider.chat(messages=HI)
    assert held.cancelled_caught


async def test_a_cancelled_call_uses_up_no_release():
    provider = ScriptedProvider(["one", "two"], held=True)
    with anyio.move_on_after(0.01):
        await provider.chat(messages=HI)
    assert provider.waiting == 0
    provider.release(1)
    assert (await provider.chat(messages=HI)).text == "two"


async def test_what_was_released_for_good_can_be_held_again():
    provider = ScriptedProvider(held=True)
    provider.release()
    await provider.chat(messages=HI)
    provider.hold()
    with anyio.move_on_after(0.01) as held:
        await provider.chat(messages=HI)
    assert held.cancelled_caught


async def test_closing_twice_is_fine():
    provider = ScriptedProvider()
    await provider.close()
    await provider.close()
    assert provider.closed
