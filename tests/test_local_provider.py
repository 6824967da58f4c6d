from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import AgentLoop, tool
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import ContextTooLong, UnknownModel
from nanoloop.events import ContextShrunk, ModelAnswered, SummaryCommitted, SummaryFailed, hearing
from nanoloop.memory.summarizer import Summarizer
from nanoloop.parts import make_provider
from nanoloop.providers.local import provider as process_module
from nanoloop.settings import LocalSettings, Settings
from tests.openai_server import OpenAIServer
from tests.stages.local_model import (
    FETCHING_SECONDS,
    LONG,
    busy_slots,
    model_file,
    opened,
    posted,
    said,
    until,
    until_busy,
)

pytestmark = pytest.mark.timeout(FETCHING_SECONDS)


@pytest.fixture(autouse=True, scope="module")
def _model_is_here():
    model_file()


@asynccontextmanager
async def talking(provider, **options):
    events = []
    loop = AgentLoop(provider=provider, **options)
    loop.direct, loop.events = DirectChannel(loop.bus), events
    with hearing(events.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


def seen(events, kind):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.slow
async def test_a_conversation_is_streamed_and_reads_again_only_what_is_new():
    pieces = []
    async with opened() as provider, talking(provider) as loop:
        first = await loop.direct.ask("Hello there, how are you?", on_text=pieces.append)
        await loop.direct.ask("And what can you do?")
    assert "".join(pieces) == first.text != ""
    one, two = seen(loop.events, ModelAnswered)
    assert (one.model, one.tokens_cached) == ("tiny", 0)
    assert two.tokens_cached >= one.tokens_in - 1


async def test_an_answer_is_as_long_as_the_settings_let_it_become():
    local = LocalSettings(answer_tokens=5, context_tokens=2048, threads=1)
    provider = make_provider(Settings(model=str(model_file()), local=local))
    try:
        reply = await provider.chat(messages=said("Tell me a long story."))
    finally:
        await provider.close()
    assert (reply.finish_reason, reply.usage.tokens_out) == ("length", 5)


async def test_a_model_here_summarises_beside_one_elsewhere_that_answers():
    local = LocalSettings(answer_tokens=5, context_tokens=2048, threads=1)
    async with OpenAIServer(otherwise="From afar.") as server:
        settings = Settings(base_url=server.url, summary_model=str(model_file()), local=local)
        provider = make_provider(settings)
        assert (await provider.chat(messages=said("Hello."))).text == "From afar."
        late = provider.in_background()
        reply = await late.chat(messages=said("Hello."), model=settings.summary_model)
        await provider.close()
    assert reply.usage.tokens_out > 0
    assert server.count == 1


@pytest.mark.slow
async def test_chats_side_by_side_keep_what_was_read_of_each():
    async with opened() as provider, talking(provider) as loop:
        for round_number in range(2):
            async with anyio.create_task_group() as group:
                for chat in ("a", "b"):
                    text = f"This is {chat}, round {round_number}."
                    group.start_soon(lambda c=chat, t=text: loop.direct.ask(t, chat=c))
    cached = [event.tokens_cached for event in seen(loop.events, ModelAnswered)]
    assert len(cached) == 4
    assert min(cached[2:]) > max(cached[:2])


async def test_an_answer_that_is_stopped_leaves_its_place_in_the_server():
    begun = anyio.Event()
    async with (
        opened(options=LONG) as provider,
        talking(provider) as loop,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: loop.direct.ask("Count.", on_text=lambda _: begun.set()))
        with anyio.fail_after(20):
            await begun.wait()
        assert await busy_slots(provider) == 1
        await loop.direct.ask("/stop")
        await until_busy(provider, 0)


@pytest.mark.slow
async def test_a_conversation_too_long_for_the_model_is_cut_harder_and_answered():
    async with opened(context_tokens=256) as provider, talking(provider) as loop:
        for _ in range(3):
            answer = await loop.direct.ask("word " * 90)
    assert answer.kind == "answer"
    assert seen(loop.events, ContextShrunk)


async def test_a_message_too_long_by_itself_is_refused_as_such():
    async with opened() as provider:
        with pytest.raises(ContextTooLong):
            await provider.chat(messages=said("word " * 3000))


@pytest.mark.slow
async def test_work_in_the_background_steps_aside_for_a_turn_and_is_done_after_it():
    done = []

    async def ask(name, provider):
        await provider.chat(messages=said("Tell me a tale."))
        done.append(name)

    options = LONG | {"max_tokens": 100}
    async with opened(options=options) as provider, anyio.create_task_group() as group:
        group.start_soon(ask, "work", provider.in_background())
        await until_busy(provider, 1)
        group.start_soon(ask, "turn", provider)
    assert done == ["turn", "work"]


@pytest.mark.slow
async def test_a_summary_is_made_beside_the_conversation(heard):
    async with opened(options={"max_tokens": 40, "temperature": 0}) as provider:
        summarizer = Summarizer(provider.in_background())
        many = {"message_buffer_limit": 4, "message_buffer_min": 2}
        async with talking(provider, summarizer=summarizer, **many) as loop:
            for number in range(4):
                answer = await loop.direct.ask(f"I have {number} cats and a dog named Rex.")
                assert answer.kind == "answer"
            await until(lambda: seen(heard, SummaryCommitted | SummaryFailed))


@pytest.mark.slow
async def test_a_model_that_can_call_no_tools_is_offered_none():
    @tool
    def double(number: int) -> int:
        """Twice the number."""
        return number * 2

    async with opened() as provider:
        without = await provider.chat(messages=said("Hi."))
        offered = await provider.chat(messages=said("Hi."), tools=[double.spec])
    assert offered.usage.tokens_in == without.usage.tokens_in


WITH_OUR_TEMPLATE = """
from nanoloop.providers.local import child
child.FAMILIES = {"smollm2": child.Family(template="bare_json.jinja")}
child.main()
"""
CALL = {"id": "1", "type": "function", "function": {"name": "double", "arguments": '{"n": 2}'}}
SHOWN = """<|im_start|>assistant
{"name": "double", "arguments": {"n": 2}}<|im_end|>
<|im_start|>user
The tool's result:
4<|im_end|>
"""


async def test_our_own_template_shows_calls_and_results_and_lets_a_model_call(monkeypatch):
    command = (*process_module.COMMAND[:2], "-c", WITH_OUR_TEMPLATE)
    monkeypatch.setattr(process_module, "COMMAND", command)
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    async with opened() as provider:
        report = await provider.ready()
        assert report.calls_tools
        messages = [*said("Twice two?"), called, result]
        answer = await posted(provider, "/apply-template", {"messages": messages})
    assert SHOWN in answer["prompt"]


async def test_another_model_than_its_own_is_refused():
    async with opened() as provider:
        with pytest.raises(UnknownModel, match="only 'tiny'"):
            await provider.chat(messages=said("Hi."), model="gpt-5.4")


async def test_nothing_that_is_said_reaches_standard_error(capfd):
    async with opened() as provider:
        await provider.chat(messages=said("a secret"))
    assert capfd.readouterr() == ("", "")
