"""However much a server says, an answer stays small, and the others go on meanwhile."""

import gzip
import json
import time
import zlib

import anyio
import pytest

from nanoloop.errors import BadAnswer, ProviderError, ServerFailed
from nanoloop.protocols import Usage
from nanoloop.providers import failures
from nanoloop.providers.answer import AnswerLimits
from tests.openai_client import HI, choice, connected, failing, sse
from tests.openai_server import Answer

SMALL = AnswerLimits(
    text_bytes=100,
    thinking_bytes=100,
    argument_bytes=100,
    calls=3,
    event_bytes=1000,
    body_bytes=2000,
    stream_bytes=20_000,
)
GZIP = ("Content-Encoding", "gzip")
DEFLATE = ("Content-Encoding", "deflate")


async def said(answer, *, limits=SMALL, streamed=True):
    pieces = []
    async with connected(answer, limits=limits) as (provider, server):
        on_text = pieces.append if streamed else None
        reply = await provider.chat(messages=HI, on_text=on_text)
        if streamed:
            assert "".join(pieces) == reply.text
        if answer.hold_after is not None:
            await server.deserted()
    return reply


def call(index, arguments="{}", **more):
    return {"index": index, "function": {"name": "f", "arguments": arguments}} | more


@pytest.mark.parametrize("piece", ["word ", "word " * 50])
async def test_a_text_without_end_is_cut_off_and_its_connection_closed(piece):
    chunks = (*sse(*[choice(content=piece)] * 300),)
    reply = await said(Answer(chunks=chunks, hold_after=300))
    assert reply.text == ("word " * 50)[:100]
    assert reply.finish_reason == "length"


async def test_a_whole_answer_that_is_too_long_is_its_beginning():
    reply = await said(Answer(text="é" * 5000), streamed=False)
    assert (reply.text, reply.finish_reason) == ("é" * 50, "length")


async def test_thinking_without_end_is_cut_off():
    reply = await said(Answer(chunks=sse(*[choice(reasoning="hm " * 9)] * 300), hold_after=300))
    assert (len(reply.thinking), reply.finish_reason) == (100, "length")


@pytest.mark.parametrize("endless", [b": wait\n", b"\n", b"event: x\n\n", b"data: {}\n\n", b"x"])
async def test_what_says_nothing_without_end_is_ended(endless):
    begin = sse(choice(content="Hello."))
    reply = await said(Answer(chunks=(*begin, *[endless * 1000] * 40), hold_after=41))
    assert (reply.text, reply.finish_reason) == ("Hello.", "length")


async def test_calls_without_end_are_cut_off_and_the_whole_ones_stay():
    calls = [choice(tool_calls=[call(number, id=f"c{number}")]) for number in range(50)]
    reply = await said(Answer(chunks=sse(*calls), hold_after=50))
    assert len(reply.tool_calls) == 3


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
async def test_a_call_that_is_not_whole_is_dropped_where_it_was_cut_off(finish):
    parts = [call(0, "{}", id="a"), call(1, '{"a": "', id="b"), call(1, "x" * 200)]
    limits = SMALL if finish == "tool_calls" else AnswerLimits()
    chunks = sse(*[choice(tool_calls=[part]) for part in parts], choice(finish))
    reply = await said(Answer(chunks=chunks), limits=limits)
    assert [call.id for call in reply.tool_calls] == ["a"]
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(("header", "pack"), [(GZIP, gzip.compress), (DEFLATE, zlib.compress)])
async def test_what_was_packed_is_counted_unpacked(header, pack):
    bomb = pack(b"".join(sse(choice(content="Hello."))) + b": " + b"0" * 30_000_000)
    assert len(bomb) < 100_000
    reply = await said(Answer(chunks=(bomb,), headers=(header,)))
    assert (reply.text, reply.finish_reason) == ("Hello.", "length")


async def test_a_packed_answer_is_read_all_the_same():
    body = gzip.compress(json.dumps({"choices": [{"message": {"content": "Hi."}}]}).encode())
    assert (await said(Answer(body=body, headers=(GZIP,)), streamed=False)).text == "Hi."


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "nonsense"])
async def test_a_packing_nobody_asked_for_is_no_answer(encoding):
    headers = (("Content-Encoding", encoding),)
    assert isinstance(await failing(Answer(headers=headers)), BadAnswer)


@pytest.mark.parametrize("headers", [(), (GZIP,)])
async def test_of_a_refusal_only_the_beginning_is_read(headers):
    body = json.dumps({"error": {"message": "no such model"}}).encode() + b" " * 30_000_000
    body = gzip.compress(body) if headers else body
    refusal = await failing(Answer(status=404, body=body, headers=headers))
    assert "no model 'test-model'" in str(refusal)


async def test_an_answer_that_comes_at_once_leaves_room_for_others():
    chunks = (b"".join(sse(*[choice(content="a")] * 5000)),) * 4
    pieces, longest = [], 0

    async def others():
        nonlocal longest
        while True:
            seen = len(pieces)
            await anyio.lowlevel.checkpoint()
            longest = max(longest, len(pieces) - seen)

    async with connected(Answer(chunks=(*chunks, b"data: [DONE]\n\n"))) as (provider, _):
        await provider.load()
        async with anyio.create_task_group() as group:
            group.start_soon(others)
            reply = await provider.chat(messages=HI, on_text=pieces.append)
            group.cancel_scope.cancel()
    assert len(reply.text) == 20_000
    assert 0 < longest < 10_000, "half of it was read in one go"


# What an answer says of itself


@pytest.mark.parametrize("counted", [-(10**9), 10**25, True, "7", 1e9, None, [1]])
async def test_a_count_that_makes_no_sense_is_none(counted):
    counts = {"prompt_tokens": counted, "completion_tokens": 3}
    counts["prompt_tokens_details"] = {"cached_tokens": counted}
    body = json.dumps({"choices": [{"message": {"content": "a"}}], "usage": counts}).encode()
    reply = await said(Answer(body=body), streamed=False)
    assert reply.usage == Usage(tokens_out=3)


@pytest.mark.parametrize("reason", ["error", "abort", "cancelled", "ERROR"])
@pytest.mark.parametrize("text", ["", "Error calling upstream: key sk-1"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_that_ended_in_an_error_is_none(reason, text, streamed):
    with pytest.raises(ServerFailed) as caught:
        await said(Answer(text=text, finish_reason=reason), streamed=streamed)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_what_comes_with_an_error_is_not_heard_as_a_piece_of_the_answer(is_whole):
    choice = {"delta": {"content": "key sk-1"}, "finish_reason": "error"}
    event = json.dumps({"choices": [choice]}).encode()
    failed = {"body": event} if is_whole else {"chunks": (b"data: " + event + b"\n\n",)}
    heard = []
    async with connected(Answer(**failed), max_retries=0) as (provider, _):
        with pytest.raises(ServerFailed):
            await provider.chat(messages=HI, on_text=heard.append)
    assert heard == []


def test_what_has_too_many_parts_is_not_read():
    assert failures.decoded(b"[%b[]]" % (b"[]," * 49_998)) is not None
    assert failures.decoded(b"[%b[]]" % (b"[]," * 50_000)) is None


async def test_a_mark_before_the_first_event_is_no_part_of_it():
    event = b'\xef\xbb\xbfdata: {"choices": [{"delta": {"content": "So."}}]}\n\n'
    assert (await said(Answer(chunks=(event, b"data: [DONE]\n\n")))).text == "So."


async def test_a_long_answer_that_ended_in_an_error_is_none_either():
    with pytest.raises(ServerFailed):
        await said(Answer(text="Error! " * 50, finish_reason="error"), streamed=False)


async def test_of_a_long_refusal_little_is_looked_at():
    body = json.dumps({"error": {"message": "a model not " * 5000}}).encode()
    began = time.process_time()
    await failing(Answer(status=500, body=body))
    assert time.process_time() - began < 0.5


async def test_an_unknown_reason_is_a_failure_without_text_and_an_end_with_it():
    assert (await said(Answer(text="So.", finish_reason="whim"))).finish_reason == "stop"
    with pytest.raises(BadAnswer):
        await said(Answer(text="", finish_reason="whim"))


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a\ud83d", "\ude00b"], "a\N{GRINNING FACE}b"),
        (["a\ud83d\ude00b"], "a\N{GRINNING FACE}b"),
        (["a\ud800", "b"], "a\N{REPLACEMENT CHARACTER}b"),
        (["a\udc00b\0c\x1b[2J"], "a\ufffdb\ufffdc\ufffd[2J"),
        (["one\n\ttwo\r\n"], "one\n\ttwo\r\n"),
    ],
)
async def test_text_is_clean_from_where_it_enters(pieces, text):
    chunks = sse(*[choice(content=piece) for piece in pieces], choice("stop"))
    assert (await said(Answer(chunks=chunks))).text == text


async def test_odd_names_and_arguments_are_clean_too():
    odd = call(0, '{"a": "\ud800"}', id="i\0" * 400)
    odd["function"]["name"] = "n\ud800" * 400
    answer = Answer(chunks=sse(choice(tool_calls=[odd]), choice("tool_calls")))
    reply = await said(answer, limits=AnswerLimits())
    (made,) = reply.tool_calls
    assert (len(made.id), len(made.name)) == (256, 256)
    json.dumps([made.id, made.name, made.arguments], ensure_ascii=False).encode()


async def test_a_refusal_without_end_is_heard_after_a_while(monkeypatch):
    monkeypatch.setattr("nanoloop.providers.http.REFUSAL_SECONDS", 0.05)
    endless = Answer(status=500, body=b'{"error": "x"}', headers=(("Content-Length", "99999"),))
    async with connected(endless) as (provider, _):
        with pytest.raises(ProviderError):
            await provider.chat(messages=HI)
