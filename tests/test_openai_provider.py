import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from nanoloop import Session
from nanoloop.errors import (
    AnswerRefused,
    BadAnswer,
    ContextTooLong,
    NoConnection,
    OverQuota,
    ProviderError,
    ProviderTimeout,
    ServerFailed,
)
from nanoloop.protocols import Provider, ToolCall, Usage
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.providers.vendors import Quirks
from nanoloop.tools.toolbox import here
from tests.openai_client import (
    CLOCK,
    HI,
    KEY,
    choice,
    connected,
    error,
    failing,
    failing_stream,
    sse,
)
from tests.openai_server import Answer, OpenAIServer

SERVER = str(Path(__file__).with_name("openai_server.py"))
CALLS = (("call_a", "clock", "{}"), ("call_b", "add", '{"a": 1, "b": [2, 3, 4, 5]}'))


# What is sent


async def test_a_whole_answer():
    answer = Answer(text="Good day.", thinking="Hm.", usage=(7, 3, 5))
    async with connected(answer) as (provider, _):
        reply = await provider.chat(messages=HI)
    assert (reply.text, reply.thinking, reply.model) == ("Good day.", "Hm.", "test-model")
    assert reply.usage == Usage(tokens_in=7, tokens_out=3, tokens_cached=5)
    assert reply.finish_reason == "stop"
    assert isinstance(provider, Provider)


async def test_what_is_sent():
    async with connected(options={"temperature": 0.5, "top_p": None}) as (provider, server):
        await provider.chat(messages=HI, tools=[CLOCK])
    (request,) = server.requests
    function = {"name": "clock", "description": "The time.", "parameters": CLOCK.parameters}
    tools = [{"type": "function", "function": function}]
    sent = {"model": "test-model", "temperature": 0.5, "tools": tools, "messages": HI}
    assert request.json == sent
    assert list(request.json)[-1] == "messages"
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_a_call_may_name_another_model():
    async with connected() as (provider, server):
        await provider.chat(messages=HI, model="other")
        await provider.chat(messages=HI)
    assert [r.json["model"] for r in server.requests] == ["other", "test-model"]


async def test_options_of_one_request_come_beside_those_of_all():
    async with connected(options={"temperature": 0.5, "top_p": 1}) as (provider, server):
        await provider.with_options({"temperature": 0, "seed": 4}).chat(messages=HI)
        await provider.chat(messages=HI)
    first, second = (request.json for request in server.requests)
    assert (first["temperature"], first["top_p"], first["seed"]) == (0, 1, 4)
    assert (second["temperature"], "seed" in second) == (0.5, False)


async def test_a_limit_of_tokens_is_called_what_the_server_calls_it():
    quirks = Quirks(max_tokens_field="max_completion_tokens")
    async with connected(options={"max_tokens": 100}, quirks=quirks) as (provider, server):
        await provider.with_options({"max_tokens": 7}).chat(messages=HI)
    (request,) = server.requests
    assert request.json["max_completion_tokens"] == 7
    assert "max_tokens" not in request.json


async def test_the_cache_key_is_the_sessions_and_tells_nobody_which_it_is():
    session = Session(id="telegram:ann")
    session.add_message("user", "Hi")
    async with connected(quirks=Quirks(takes_cache_key=True)) as (provider, server):
        await provider.chat(messages=HI)
        token = here.set(session)
        for _ in range(2):
            await provider.chat(messages=HI)
        here.reset(token)
    none, *keys = [request.json.get("prompt_cache_key") for request in server.requests]
    assert none is None
    assert len(set(keys)) == 1
    assert "ann" not in keys[0]


async def test_a_stream_asks_for_usage_and_no_tools_are_sent_as_none():
    async with connected() as (provider, server):
        await provider.chat(messages=HI, tools=[], on_text=lambda _: None)
    (request,) = server.requests
    assert request.json["stream_options"] == {"include_usage": True}
    assert "tools" not in request.json


async def test_what_a_message_more_costs_is_its_json():
    async with connected() as (provider, _):
        few, many = [await steps(provider, count) for count in (2, 202)]
    assert many - few < 100


async def steps(provider, count):
    """Python functions entered for one answer over so many messages."""
    messages = [{"role": "user", "content": "word"}] * count
    await provider.chat(messages=messages)
    entered = 0

    def enter(_frame, what, _arg):
        nonlocal entered
        entered += what == "call"

    sys.setprofile(enter)
    try:
        await provider.chat(messages=messages)
    finally:
        sys.setprofile(None)
    return entered


async def test_environment_variables_change_nothing(monkeypatch):
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "from-the-environment")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Extra: from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/")
    async with connected(api_key=None) as (provider, server):
        await provider.chat(messages=HI)
    assert "from-the-environment" not in str(server.requests[0].headers)


async def test_a_query_in_the_url_goes_with_each_request():
    async with OpenAIServer() as server:
        provider = OpenAIProvider(model="m", base_url=server.url + "?api-version=1")
        await provider.chat(messages=HI)
        await provider.close()
    assert server.requests[0].path == "/v1/chat/completions?api-version=1"


# Streams and what is in an answer


async def test_a_streamed_answer_is_the_whole_one_in_pieces():
    answer = Answer(text="One two  three.", thinking="Let me see.", usage=(7, 3, 5))
    pieces = []
    async with connected(otherwise=answer) as (provider, server):
        streamed = await provider.chat(messages=HI, on_text=pieces.append)
        await provider.chat(messages=HI, on_text=pieces.append)
        assert streamed == await provider.chat(messages=HI)
    assert pieces[:3] == ["One", " two", "  three."]
    assert server.connections_made == 1


@pytest.mark.parametrize("on_text", [None, lambda _: None])
async def test_tool_calls_come_whole_and_in_order(on_text):
    async with connected(Answer(text="", tool_calls=CALLS)) as (provider, _):
        reply = await provider.chat(messages=HI, tools=[CLOCK], on_text=on_text)
    assert reply.tool_calls == tuple(
        ToolCall(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in CALLS
    )
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("said", "meant"),
    [("length", "length"), ("max_tokens", "length"), (None, "stop"), ("whim", "stop")],
)
async def test_finish_reasons(said, meant):
    async with connected(Answer(finish_reason=said)) as (provider, _):
        assert (await provider.chat(messages=HI)).finish_reason == meant


async def test_a_filter_that_leaves_nothing_is_a_refusal_and_half_a_text_is_none():
    filtered = await failing(Answer(text="", finish_reason="content_filter"))
    assert isinstance(filtered, AnswerRefused)
    async with connected(Answer(text="Half", finish_reason="content_filter")) as (provider, _):
        assert (await provider.chat(messages=HI)).finish_reason == "content_filter"


async def test_a_server_that_does_not_stream_is_heard_all_the_same():
    whole = json.dumps({"choices": [{"message": {"content": "All at once."}}]}).encode()
    pieces = []
    async with connected(Answer(body=whole)) as (provider, _):
        await provider.chat(messages=HI, on_text=pieces.append)
    assert pieces == ["All at once."]


async def test_lines_of_any_ending_and_comments_are_understood():
    chunks = (b": wait\r\n\r\ndata:", *sse(choice(content="O"))[0].split(b"data:")[1:])
    chunks += (
        b'event: x\r\ndata: {"choices":[{"delta":{"content":"K"},',
        b'"finish_reason":"stop"}]}',
    )
    async with connected(Answer(chunks=chunks)) as (provider, _):
        assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "OK"


async def test_a_server_that_says_done_and_stays_is_not_waited_for():
    async with connected(Answer(text="a b", usage=None, hold_after=5)) as (provider, server):
        assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "a b"
        await server.deserted()


async def test_a_stream_may_end_with_done_alone():
    chunks = (*sse(choice(content="one")), b"data: [DONE]\n\n", *sse(choice(content="two")))
    async with connected(Answer(chunks=chunks)) as (provider, _):
        assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "one"


async def test_a_connection_lost_after_the_finish_loses_nothing():
    async with connected(Answer(text="a b", cut_after=4)) as (provider, _):
        assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "a b"


# Streams that go wrong


async def test_a_stream_cut_off_in_the_middle_says_so():
    failure, pieces, server = await failing_stream(
        Answer(text="one two three", cut_after=3), max_retries=2
    )
    assert isinstance(failure, NoConnection)
    assert "closed the connection" in str(failure)
    assert pieces == ["one", " two"]
    assert server.count == 1


async def test_a_stream_that_ends_too_soon_says_so():
    failure, pieces, _ = await failing_stream(Answer(chunks=sse(choice(content="one"))))
    assert isinstance(failure, BadAnswer)
    assert "broke off in the middle" in str(failure)
    assert pieces == ["one"]


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        (b"data: {oops\n\n", BadAnswer),
        (b"data: 7\n\n", BadAnswer),
        (b'data: {"error": {"message": "Slow down", "code": 429}}\n\n', OverQuota),
        (b'data: {"error": {"message": "out of context size", "code": 500}}\n\n', ContextTooLong),
        (b'data: {"error": "overloaded"}\n\n', ServerFailed),
    ],
)
async def test_an_error_in_a_stream_ends_it(chunk, kind):
    chunks = (*sse(choice(content="one")), chunk, *sse(choice(content="two")))
    failure, pieces, _ = await failing_stream(Answer(chunks=chunks))
    assert type(failure) is kind
    assert pieces == ["one"]


async def test_an_empty_stream_is_no_answer():
    failure, _, _ = await failing_stream(Answer(chunks=(b"data: [DONE]\n\n",)))
    assert isinstance(failure, BadAnswer)


# Retries and time limits

AT_ONCE = (("Retry-After-Ms", "1"),)


@pytest.mark.parametrize("on_text", [None, lambda _: None])
async def test_a_busy_server_is_asked_again(on_text):
    answers = (error(429, headers=AT_ONCE), error(503, headers=AT_ONCE))
    async with connected(*answers, max_retries=2) as (provider, server):
        assert (await provider.chat(messages=HI, on_text=on_text)).text == "Hello."
    assert len({request.body for request in server.requests}) == 1
    assert server.count == 3


@pytest.mark.parametrize("on_text", [None, lambda _: None])
async def test_without_credit_asking_again_is_no_use(on_text):
    broke = error(429, code="insufficient_quota", headers=AT_ONCE)
    async with connected(broke, max_retries=2) as (provider, server):
        with pytest.raises(OverQuota, match="no credit"):
            await provider.chat(messages=HI, on_text=on_text)
    assert server.count == 1


@pytest.mark.parametrize("on_text", [None, lambda _: None])
async def test_a_call_that_takes_too_long_is_ended(on_text):
    held = Answer(held=True)
    async with connected(held, call_timeout_seconds=0.05) as (provider, server):
        with pytest.raises(ProviderTimeout, match=r"did not finish within 0.05 seconds"):
            await provider.chat(messages=HI, on_text=on_text)
        await server.deserted()


@pytest.mark.parametrize("held", [Answer(held=True), Answer(hold_after=0)])
async def test_a_first_piece_that_is_late_ends_the_call(held):
    async with connected(held, first_token_timeout_seconds=0.05) as (provider, server):
        with pytest.raises(ProviderTimeout, match=r"sent nothing for 0.05 seconds"):
            await provider.chat(messages=HI, on_text=lambda _: None)
        await server.deserted()


async def test_after_the_first_piece_only_the_whole_call_counts():
    late = Answer(text="one two", hold_after=2)
    async with (
        connected(late, first_token_timeout_seconds=0.05) as (provider, server),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(release_after, server, 0.1)
        reply = await provider.chat(messages=HI, on_text=lambda _: None)
    assert reply.text == "one two"


async def release_after(server, seconds):
    await server.arrived(1)
    await anyio.sleep(seconds)  # the limit under test has to pass
    server.release()


async def test_the_wait_a_server_asks_for_is_not_held_against_it():
    busy = error(429, headers=(("Retry-After-Ms", "120"),))
    async with connected(busy, max_retries=1, first_token_timeout_seconds=0.05) as (provider, _):
        reply = await provider.chat(messages=HI, on_text=lambda _: None)
    assert reply.text == "Hello."


async def test_cancelling_passes_through_and_closes_the_stream():
    pieces = []
    async with connected(Answer(text="one two", hold_after=2)) as (provider, server):
        with anyio.CancelScope() as scope:

            def stop(piece):
                pieces.append(piece)
                scope.cancel()

            await provider.chat(messages=HI, on_text=stop)
        assert scope.cancelled_caught
        await server.deserted()
    assert pieces == ["one"]


async def test_what_on_text_raises_ends_the_stream():
    def broken(_):
        raise KeyError("mine")

    async with connected(Answer(text="one two", hold_after=2)) as (provider, server):
        with pytest.raises(KeyError, match="mine"):
            await provider.chat(messages=HI, on_text=broken)
        await server.deserted()


async def test_many_calls_run_side_by_side():
    async with (
        connected(otherwise=Answer(held=True)) as (provider, server),
        anyio.create_task_group() as tasks,
    ):
        for _ in range(150):
            tasks.start_soon(lambda: provider.chat(messages=HI))
        await server.arrived(150)
        server.release()
    assert server.count == 150


async def test_a_closed_provider_says_so_and_closing_twice_is_fine():
    async with connected() as (provider, _):
        await provider.close()
        await provider.close()
        with pytest.raises(ProviderError, match="closed"):
            await provider.chat(messages=HI)


# Around it


def test_an_sdk_and_its_http_client_are_loaded_with_the_first_call():
    code = (
        "import sys, nanoloop, nanoloop.providers.scripted, nanoloop.providers.openai\n"
        "assert not {'aiohttp', 'httpx2', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_server_runs_on_its_own():
    command = [sys.executable, SERVER, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.kill()
