"""Requests that are no good, and what a stream is made of, without the client in between."""

import json
from base64 import b64encode
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.web import feed
from nanoloop.channels.web.openai import answer
from nanoloop.channels.web.openai.answer import Completion, CompletionForm
from nanoloop.channels.web.openai.request import ClientRefusal, checked_messages, new_parts
from nanoloop.protocols import Usage
from nanoloop.providers.scripted import ScriptedProvider
from tests.images import png
from tests.web_openai import asking, raw, user
from tests.web_server import TOKENS

ONE = {"model": "assistant", "messages": [user("one")]}
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


BROKEN = [b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 10_000, b'{"model": "assistant"}']


async def test_what_is_no_request_is_refused(web):
    for body in BROKEN:
        refused = await raw(web, content=body)
        assert refused.status_code == 400
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert refused.json()["error"]["type"] == "invalid_request_error"


REFUSED = [
    ("messages", {"messages": []}),
    ("messages", {"messages": "hello"}),
    ("messages.0", {"messages": ["hello"]}),
    ("messages[0].role", {"messages": [{"content": "hello"}]}),
    ("messages[0].role", {"messages": [{"role": ["user"], "content": "hello"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    ("messages[0].content[0]", {"messages": [user([{"type": "input_audio"}])]}),
    ("messages[0].content[0]", {"messages": [user(["hello"])]}),
    ("messages[0].content", {"messages": [{"role": "system", "content": None}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": [1]}]}),
    ("n", {"n": 2}),
    ("logprobs", {"logprobs": True}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "calculator"}}]}),
    ("tools", {"tools": [WEATHER, WEATHER]}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": "required"}),
    ("tools", {"tools": [WEATHER], "user": "ann"}),
    ("response_format", {"response_format": {"type": "json_object"}, "user": "ann"}),
    ("messages", {"messages": [{"role": "assistant", "content": "x"}], "user": "ann"}),
    ("messages", {"messages": [user("x" * 100_001)], "user": "ann"}),
    ("messages", {"messages": [user("  ")], "user": "ann"}),
]
"""What of a request is refused, and why it is."""


@pytest.mark.slow
async def test_what_can_not_be_done_is_refused_by_its_name(web):
    answers = [await raw(web, json={**ONE, **more}) for _, more in REFUSED]
    told = [(answer.status_code, answer.json()["error"]["param"]) for answer in answers]
    assert told == [(400, param) for param, _ in REFUSED]
    assert (await web.call("GET", "/api/sessions"))["sessions"] == []


async def test_what_changes_nothing_is_ignored(web):
    more = {"n": 1, "store": True, "logprobs": False, "seed": 4, "metadata": {"a": "b"}, "zzz": 1}
    assert (await raw(web, json={**ONE, **more})).status_code == 200


@pytest.mark.parametrize(
    "url", ["data:image/png;base64,***", "data:image/png,abc", "data:image/png;base64,aGVsbG8="]
)
async def test_what_is_no_image_is_not_kept(web, url):
    part = {"type": "image_url", "image_url": {"url": url}}
    refused = await raw(web, json={"model": "assistant", "messages": [user([part])], "user": "a"})
    assert refused.status_code == 400


async def test_a_broken_picture_in_a_session_is_refused_with_a_reason(web):
    url = f"data:image/png;base64,{b64encode(png()[:50]).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    refused = await raw(web, json={"model": "assistant", "messages": [user([part])], "user": "a"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_image"
    assert "it is damaged" in refused.json()["error"]["message"]


async def test_too_much_is_refused(tmp_path):
    async with asking(tmp_path, upload_bytes=300_000) as web:
        for body in (b"x" * 300_001, b"[{" * 100_001):
            refused = await raw(web, content=body)
            assert refused.status_code == 413
            assert refused.json()["error"]["type"] == "invalid_request_error"


async def test_a_wrong_token_is_refused_in_the_form_that_clients_know(tmp_path):
    async with asking(tmp_path, tokens=TOKENS) as web:
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
            refused = await raw(web, json=ONE, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"


async def test_who_asks_too_often_is_told_when_to_come_again(tmp_path):
    async with asking(tmp_path, requests_per_minute=2) as web:
        answers = [await raw(web, json=ONE) for _ in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert answers[-1].json()["error"]["type"] == "rate_limit_error"


async def test_too_many_open_answers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "STREAMS", 1)
    held = ScriptedProvider(held=True)
    async with (
        asking(tmp_path, provider=held) as web,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: raw(web, json=ONE))
        await held.asked()
        refused = await raw(web, json=ONE)
        held.release()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


async def test_a_long_wait_is_full_of_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(answer, "HEAD_SECONDS", 0.01)
    monkeypatch.setattr(answer, "KEEP_ALIVE_SECONDS", 0.01)
    async with asking(tmp_path, provider=ScriptedProvider(held=True)) as web:
        body = {**ONE, "stream": True}
        async with web.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            while await anext(lines) != ": waiting":
                pass
            web.provider.release()
            rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_document_names_the_operation(web):
    described = await web.call("GET", "/openapi.json")
    assert set(described["paths"]["/v1/chat/completions"]) == {"post"}
    assert "messages" in described["components"]["schemas"]["ChatRequest"]["properties"]


# The form


def events(data):
    lines = data.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def test_a_stream_ends_with_its_reason_then_what_it_took():
    form = CompletionForm(model="m", with_usage=True)
    done = Completion(text="x", finish_reason="max_steps", usage=Usage(tokens_in=2, tokens_out=1))
    *chunks, end = events(form.first() + form.piece("x") + form.last(done))
    chunks = [json.loads(chunk) for chunk in chunks]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, "stop"]
    assert [c["usage"] for c in chunks[:-1]] == [None] * 3
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 3)
    assert end == "[DONE]"


@given(st.text())
def test_a_piece_is_one_event_whatever_stands_in_it(text):
    (chunk,) = events(CompletionForm(model="m").piece(text))
    sendable = text.encode("utf-8", "replace").decode()
    assert json.loads(chunk)["choices"][0]["delta"] == {"content": sendable}


# What is new

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["assistant", "developer", "system", "tool", "user"]) | JSON
KEYS = ("content", "tool_calls", "tool_call_id", "name", "refusal")
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES}, optional=dict.fromkeys(KEYS, JSON)))


@given(MESSAGES)
def test_messages_of_any_form_are_taken_or_refused(messages):
    with suppress(ClientRefusal):
        taken = checked_messages(messages)
        assert checked_messages(taken) == taken


@given(st.lists(st.sampled_from(["assistant", "system", "tool", "user"]), min_size=1))
def test_new_is_what_users_said_after_the_last_answer(roles):
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
    last = max((i for i, role in enumerate(roles) if role in {"assistant", "tool"}), default=-1)
    wanted = [str(i) for i, role in enumerate(roles) if i > last and role == "user"]
    if wanted:
        assert [part["text"] for part in new_parts(messages)] == wanted
    else:
        with pytest.raises(ClientRefusal):
            new_parts(messages)
