import os
import signal
import sys
import threading
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from anyio import to_thread

from nanoloop import AgentLoop, tool
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import ContextTooLong, ProviderError, SettingsError, UnknownModel
from nanoloop.events import ContextShrunk, ModelAnswered, SummaryCommitted, SummaryFailed
from nanoloop.memory.summarizer import Summarizer
from nanoloop.providers.local import process as process_module
from nanoloop.providers.local import server as server_module
from nanoloop.providers.local.provider import LocalProvider
from tests.local_model import model_file

pytestmark = pytest.mark.timeout(300)  # the first one may have to fetch the model

SHORT = {"max_tokens": 8, "temperature": 0}
LONG = {"max_tokens": 1500, "temperature": 0, "logit_bias": [[0, False], [2, False]]}
"""An answer that does not end by itself: the tokens that end one are barred."""


@pytest.fixture(autouse=True, scope="module")
def _model_is_here():
    model_file()


def local(**options):
    given = {"options": SHORT, "context_tokens": 2048, "threads": 1}
    return LocalProvider(model_file(), model="tiny", **given | options)


@asynccontextmanager
async def opened(**options):
    provider = local(**options)
    try:
        yield provider
    finally:
        await provider.close()


@asynccontextmanager
async def talking(provider, **options):
    events = []
    loop = AgentLoop(provider=provider, announce=events.append, **options)
    loop.direct, loop.events = DirectChannel(loop.bus), events
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield loop
        loop.bus.close()


def said(text):
    return [{"role": "user", "content": text}]


def seen(events, kind):
    return [event for event in events if isinstance(event, kind)]


async def until(condition):
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another process tells nobody
            await anyio.sleep(0.01)


async def until_busy(provider, count):
    with anyio.fail_after(20):
        while await busy_slots(provider) != count:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)


async def posted(provider, path, body=None):
    """What the server itself says; without a body it is only asked."""
    report, order = await provider.ready(), provider._server._order
    headers = {"Authorization": f"Bearer {order.key}"}
    method = "GET" if body is None else "POST"
    async with httpx2.AsyncClient(base_url=report.address, headers=headers) as client:
        return (await client.request(method, path, json=body)).json()


async def busy_slots(provider):
    return sum(slot["is_processing"] for slot in await posted(provider, "/slots"))


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - it may go away meanwhile
        return stat.read().rpartition(")")[2].split()[0] != "Z"


async def test_a_conversation_is_streamed_and_reads_again_only_what_is_new():
    pieces = []
    async with opened() as provider, talking(provider) as loop:
        first = await loop.direct.ask("Hello there, how are you?", on_text=pieces.append)
        await loop.direct.ask("And what can you do?")
    assert "".join(pieces) == first.text != ""
    one, two = seen(loop.events, ModelAnswered)
    assert (one.model, one.tokens_cached) == ("tiny", 0)
    assert two.tokens_cached >= one.tokens_in - 1


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


async def test_a_summary_is_made_beside_the_conversation():
    async with opened(options={"max_tokens": 40, "temperature": 0}) as provider:
        events = []
        summarizer = Summarizer(provider.in_background(), announce=events.append)
        many = {"message_buffer_limit": 4, "message_buffer_min": 2}
        async with talking(provider, summarizer=summarizer, **many) as loop:
            for number in range(4):
                answer = await loop.direct.ask(f"I have {number} cats and a dog named Rex.")
                assert answer.kind == "answer"
            await until(lambda: seen(events, SummaryCommitted | SummaryFailed))


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
from nanoloop.providers.local import child, families
families.FAMILIES = {"smollm2": families.Family(template="bare_json.jinja")}
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


async def test_after_its_process_was_killed_the_next_turn_is_answered():
    async with opened() as provider, talking(provider) as loop:
        await loop.direct.ask("Hi.")
        before = provider.pid
        os.kill(before, signal.SIGKILL)
        assert (await loop.direct.ask("Are you there?")).kind == "answer"
        assert provider.pid not in (None, before)


async def test_killed_in_the_middle_of_an_answer_it_says_so():
    async with opened(options=LONG) as provider:
        with pytest.raises(ProviderError, match=r"was killed \(SIGKILL\).*try again"):
            await provider.chat(
                messages=said("Count."), on_text=lambda _: os.kill(provider.pid, signal.SIGKILL)
            )


async def test_an_end_counts_once_however_many_were_being_answered():
    begun = {"a": anyio.Event(), "b": anyio.Event()}

    async def ask(name):
        with pytest.raises(ProviderError, match="SIGKILL"):
            await provider.chat(messages=said(name), on_text=lambda _: begun[name].set())

    async with opened(options=LONG) as provider, anyio.create_task_group() as group:
        for name, event in begun.items():
            group.start_soon(ask, name)
            await event.wait()
        os.kill(provider.pid, signal.SIGKILL)
    assert provider._ends == 1


async def test_a_process_that_ends_again_and_again_is_left_alone_for_a_while():
    async with opened() as provider:
        provider._ends, provider._rests_until = 3, float("inf")
        with pytest.raises(ProviderError, match="3 times in a row"):
            await provider.chat(messages=said("Hi."))


async def test_a_server_that_hangs_is_ended_and_started_anew(monkeypatch):
    monkeypatch.setattr(server_module, "HEALTH_SECONDS", 0.2)
    async with opened(call_timeout_seconds=3) as provider:
        await provider.ready()
        before = provider.pid
        os.kill(before, signal.SIGSTOP)
        with pytest.raises(ProviderError, match="had not finished"):
            await provider.chat(messages=said("Hi."))
        assert not is_alive(before)
        assert (await provider.chat(messages=said("Hi."))).text


async def test_closed_it_leaves_no_process_and_answers_no_more():
    async with opened() as provider:
        await provider.chat(messages=said("Hi."))
        pid = provider.pid
        await provider.close()
        assert not is_alive(pid)
        assert provider.pid is None
        with pytest.raises(ProviderError, match="closed"):
            await provider.chat(messages=said("Hi."))


async def test_started_in_one_thread_it_outlives_it_and_answers_in_another():
    async with opened() as provider:

        def elsewhere():
            thread = threading.Thread(target=anyio.run, args=(provider.ready,))
            thread.start()
            thread.join()

        await to_thread.run_sync(elsewhere)
        before = provider.pid
        assert (await provider.chat(messages=said("Hi."))).text
        assert provider.pid == before


PROGRAM = """
import anyio, sys
from nanoloop.providers.local.provider import LocalProvider
provider = LocalProvider(sys.argv[1])
ask = {"messages": [{"role": "user", "content": "Hi."}]}
hear = lambda piece: print(provider.pid, flush=True)
anyio.run(lambda: provider.chat(**ask, on_text=hear))
"""


async def test_with_the_program_killed_no_model_process_is_left():
    command = [sys.executable, "-c", PROGRAM, str(model_file())]
    async with await anyio.open_process(command, stderr=None) as program:
        pid = int((await program.stdout.receive()).split()[0])
        assert is_alive(pid)
        program.kill()
    await until(lambda: not is_alive(pid))


async def test_with_its_input_at_an_end_a_model_process_ends_without_being_killed():
    async with opened() as provider:
        await provider.chat(messages=said("Hi."))
        process = provider._server.process
        process._process.stdin.close()
        await until(lambda: process.has_ended)
        assert process.end == "ended with 0"


async def test_a_file_that_is_no_model_is_refused_with_a_next_step(tmp_path):
    whole = model_file().read_bytes()
    broken = {"short.gguf": whole[:20_000_000], "head.gguf": whole[:300], "other.gguf": b"hello"}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        provider = LocalProvider(tmp_path / name)
        with pytest.raises(ProviderError, match=rf"{name} .* (again|another)"):
            await provider.chat(messages=said("Hi."))


async def test_without_a_file_or_what_runs_it_there_is_no_provider(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match="nanoloop model list"):
        LocalProvider(tmp_path / "none.gguf")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(SettingsError, match=r"pip install 'nanoloop\[local\]'"):
        LocalProvider(tmp_path / "none.gguf")


async def test_another_model_than_its_own_is_refused():
    async with opened() as provider:
        with pytest.raises(UnknownModel, match="only 'tiny'"):
            await provider.chat(messages=said("Hi."), model="gpt-5.4")
        assert (await provider.chat(messages=said("Hi."), model="tiny")).model == "tiny"


async def test_nothing_that_is_said_reaches_standard_error(capfd):
    async with opened() as provider:
        await provider.chat(messages=said("a secret"))
    assert capfd.readouterr() == ("", "")
