import re

import pytest

from nanoloop.errors import (
    AnswerRefused,
    BadAnswer,
    ContextTooLong,
    NoConnection,
    OverQuota,
    ProviderError,
    ServerFailed,
    SettingsError,
    UnknownModel,
    WrongKey,
)
from nanoloop.providers.openai import OpenAIProvider
from tests.openai_client import HI, KEY, connected, error, failing, failing_stream
from tests.openai_server import Answer, OpenAIServer


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (error(401), WrongKey, "refused the key"),
        (error(403), WrongKey, "refused the key"),
        (error(404, code="model_not_found"), UnknownModel, "has no model 'test-model'"),
        (error(404, 'model "x" not found, try pulling it first'), UnknownModel, "--model"),
        (error(400, "x/y is not a valid model ID: no such model"), UnknownModel, "--model"),
        (error(404, "Not found"), NoConnection, "OPENAI_BASE_URL"),
        (error(301, "Moved"), NoConnection, "OPENAI_BASE_URL"),
        (error(429, "Slow down", headers=(("Retry-After", "200"),)), OverQuota, "in 200 seconds"),
        (error(429, code="insufficient_quota"), OverQuota, "no credit"),
        (error(402, "Pay"), OverQuota, "no credit"),
        (error(400, code="context_length_exceeded"), ContextTooLong, "message_buffer_limit"),
        (error(400, "This model's maximum context length is 9 tokens"), ContextTooLong, "longer"),
        (error(400, "request exceeds the available context size (9)"), ContextTooLong, "longer"),
        (error(400, kind="exceed_context_size_error"), ContextTooLong, "longer"),
        (error(500, "input length exceeds the context length"), ContextTooLong, "longer"),
        (error(400, code="content_filter"), AnswerRefused, "filter"),
        (error(403, "Your input was flagged"), AnswerRefused, "filter"),
        (error(429, "Visit your billing page to raise the limit"), OverQuota, "try again"),
        (error(400, "tools need --jinja"), ProviderError, r"\(400: tools need --jinja\)"),
        (error(503, "Loading"), ServerFailed, r"\(503: Loading\): try again"),
        (Answer(status=502, body=b"<html>Bad gateway</html>"), ServerFailed, r"\(502\)"),
        (Answer(body=b'{"error": {"message": "Busy", "code": 429}}'), OverQuota, "no more"),
        (Answer(body=b'{"error": "Broken"}'), ServerFailed, "failed on its side"),
        (Answer(body=b"<html>Welcome</html>"), BadAnswer, "web page"),
        (Answer(body=b"{oops"), BadAnswer, "not an answer"),
        (Answer(body=b"[" * 100_000), BadAnswer, "not an answer"),
        (Answer(body=b'{"choices": []}'), BadAnswer, "an empty answer"),
    ],
)
async def test_each_failure_has_its_error_and_its_sentence(answer, kind, words):
    whole = await failing(answer)
    assert type(whole) is kind
    assert re.search(words, str(whole))
    streamed, pieces, _ = await failing_stream(answer)
    assert type(streamed) is kind
    assert re.search(words, str(streamed))
    assert pieces == []


async def test_without_a_key_the_error_asks_for_one():
    refused = await failing(error(401), api_key=None)
    assert "requires a key" in str(refused)


async def test_a_local_server_needs_no_key():
    async with connected(api_key=None) as (provider, _):
        assert (await provider.chat(messages=HI)).text == "Hello."


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_no_error_holds_the_key_or_what_was_said(status):
    echoed = f"Key {KEY} said 'Hi there' here, and: it is {HI[0]['content']!r} to you"
    failure = await failing(error(status, echoed))
    assert KEY not in str(failure)
    assert "Hi there" not in str(failure)
    assert "Be kind" not in str(failure)
    assert failure.__context__ is failure.__cause__ is None


@pytest.mark.parametrize(
    ("said", "echoed"),
    [
        ("my secret is a long story of old", "my secret is a long story"),
        ("my\nsecret  is a\tlong story", "my secret is a long story"),
        ("secret!", "strange: secret!"),
        ("the word is 'secret', you know", "bad value `secret`"),
    ],
)
async def test_what_was_said_is_not_repeated(said, echoed):
    async with connected(error(400, echoed)) as (provider, _):
        with pytest.raises(ProviderError, match=r"\(400") as caught:
            await provider.chat(messages=[{"role": "user", "content": said}])
    assert "secret" not in str(caught.value)


async def test_a_server_that_is_not_there_is_named_without_its_secrets():
    url = "http://me:pass-word@127.0.0.1:1/v1?key=from-query"
    provider = OpenAIProvider(model="m", base_url=url, max_retries=0)
    with pytest.raises(NoConnection, match=r"nothing answers at http://127.0.0.1:1/v1:") as caught:
        await provider.chat(messages=HI)
    assert "pass-word" not in str(caught.value)
    assert "from-query" not in str(caught.value)
    await provider.close()


async def test_a_wrong_path_names_the_url():
    async with OpenAIServer() as server:
        provider = OpenAIProvider(model="m", base_url=server.root, max_retries=0)
        with pytest.raises(NoConnection, match=server.root):
            await provider.chat(messages=HI)
        await provider.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "localhost:8080"},
        {"base_url": "http://"},
        {"base_url": "http://[oops"},
        {"base_url": "http://localhost:99999/v1"},
        {"api_key": "sk-\nnew"},
        {"api_key": "schlüssel"},
        {"options": {"messages": []}},
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings):
    with pytest.raises(SettingsError):
        OpenAIProvider(**({"model": "m"} | settings))
