"""The openai client sends everything: the agent's tools run here, and nothing is kept."""

import base64
from functools import partial

import anyio
import openai
import pytest
from anyio.to_thread import run_sync

from nanoloop.errors import ContextTooLong, NoConnection, OverQuota, ProviderTimeout
from nanoloop.protocols import Reply, Usage
from nanoloop.providers.scripted import ScriptedProvider
from tests.images import png
from tests.web_openai import (
    NOBODY,
    PLAIN,
    ask,
    asking,
    calling,
    client_of,
    said,
    stream,
    text_of,
    until,
    user,
)

PNG = png()
PICTURE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather there.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
SUM = calling("calculator", '{"expression": "6*7"}', text="Let me see.")


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


async def test_the_model_sees_all_that_was_sent_and_nothing_is_kept(web):
    history = [said("assistant" if n % 2 else "user", f"message {n}") for n in range(200)]
    assert await ask(web.openai, said("system", "Be short."), *history, "last") == "You said: last"
    seen = web.provider.calls[-1].messages
    assert seen[0]["content"].endswith("\n\nBe short.")
    assert seen[1:] == [*history, user("last")]
    assert (await web.call("GET", "/api/sessions"))["sessions"] == []


async def test_it_needs_no_session_though_the_user_is_named(web):
    await ask(web.openai, "one", user="ann", extra_headers={"X-Nanoloop-Session": ""})
    assert (await web.call("GET", "/api/sessions"))["sessions"] == []


async def test_a_system_message_in_the_middle_stays_there(web):
    await ask(web.openai, "one", said("developer", "Now in French."), "two")
    roles = [m["role"] for m in web.provider.calls[-1].messages]
    assert roles == ["system", "user", "system", "user"]


@pytest.mark.parametrize("name", ["assistant", "gpt-4o-mini"])
async def test_the_name_of_the_model_behind_means_the_default_agent(tmp_path, name):
    async with asking(tmp_path, settings={"model": "gpt-4o-mini"}) as web:
        assert await ask(web.openai, "one", model=name) == "You said: one"
        assert web.provider.calls[-1].model is None


async def test_an_unknown_model_is_not_found(web):
    with pytest.raises(openai.NotFoundError) as unknown:
        await ask(web.openai, "one", model="assistent")
    assert unknown.value.code == "model_not_found"
    assert "did you mean assistant?" in str(unknown.value)
    with pytest.raises(openai.NotFoundError):
        await web.openai.models.retrieve("gpt-5")
    assert (await web.openai.models.retrieve("assistant")).object == "model"


async def test_tools_of_the_agent_run_on_the_server(tmp_path):
    steps = [SUM, Reply(text="It is 42.", usage=Usage(tokens_in=9, tokens_out=4))]
    async with asking(tmp_path, provider=ScriptedProvider(steps)) as web:
        assert await ask(web.openai, "6*7?") == "It is 42."
        assert "42" in web.provider.calls[-1].messages[-1]["content"]


async def test_a_stream_has_the_words_before_a_tool_too(tmp_path):
    async with asking(tmp_path, provider=ScriptedProvider([SUM, "It is 42."])) as web:
        chunks = await stream(web.openai, "6*7?", stream_options={"include_usage": True})
    assert text_of(chunks) == "Let me see.\n\nIt is 42."
    assert chunks[-1].usage.total_tokens == 0


@pytest.mark.parametrize("more", [{}, {"user": "ann"}])
async def test_a_stream_has_an_answer_that_no_model_spoke(tmp_path, more):
    settings = {"turn": {"max_steps": 1}}
    async with asking(tmp_path, provider=ScriptedProvider([SUM]), settings=settings) as web:
        chunks = await stream(web.openai, "6*7?", **more)
    assert text_of(chunks).startswith("Let me see.\n\nI stopped after 1 steps")
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_tools_of_the_client_are_called_by_the_client(tmp_path):
    ours = calling("weather", '{"place": "Oslo"}', usage=Usage(tokens_in=7, tokens_out=2))
    async with asking(tmp_path, provider=ScriptedProvider([ours, "It rains."])) as web:
        first = await web.openai.chat.completions.create(
            model="assistant", messages=[user("Oslo?")], tools=[WEATHER]
        )
        choice = first.choices[0]
        assert (choice.finish_reason, first.usage.total_tokens) == ("tool_calls", 9)
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", '{"place": "Oslo"}')
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        history = [user("Oslo?"), choice.message.model_dump(exclude_none=True), result]
        assert await ask(web.openai, *history, tools=[WEATHER]) == "It rains."
        assert web.provider.calls[-1].messages[-1] == result


async def test_calls_for_the_client_are_streamed(tmp_path):
    theirs = calling("weather", '{"place": "Oslo"}', text="One moment.")
    async with asking(tmp_path, provider=ScriptedProvider([SUM, theirs])) as web:
        chunks = await stream(web.openai, "Oslo?", tools=[WEATHER])
    assert text_of(chunks) == "Let me see.\n\nOne moment."
    (call,) = chunks[-2].choices[0].delta.tool_calls
    assert (call.index, call.function.name) == (0, "weather")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_tools_that_are_not_to_be_used_are_not_told(web):
    await ask(web.openai, "one", tools=[WEATHER], tool_choice="none")
    assert "weather" not in [tool.name for tool in web.provider.calls[-1].tools]


async def test_images_go_to_the_model_as_they_came(web):
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
    ]
    await ask(web.openai, {"role": "user", "content": parts})
    assert web.provider.calls[-1].messages[-1]["content"] == parts


async def test_images_in_a_session_are_kept_and_shown_to_the_model(web):
    parts = [{"type": "image_url", "image_url": {"url": PICTURE}}]
    await ask(web.openai, {"role": "user", "content": parts}, user="ann")
    assert web.provider.calls[-1].messages[-1]["content"] == parts
    (file,) = (await web.messages("web:local.ann"))[0]["attachments"]
    assert (await web.client.get(file["url"])).content == PNG


async def test_an_image_of_ours_can_not_be_asked_for(web):
    part = {"type": "image_url", "image_url": {"url": f"attachment:{'0' * 40}"}}
    for more in ({}, {"user": "ann"}):
        with pytest.raises(openai.BadRequestError):
            await ask(web.openai, {"role": "user", "content": [part]}, **more)


async def test_who_leaves_stops_the_model(web):
    web.provider.hold()
    with anyio.CancelScope() as leaving:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(stream, web.openai, "a story", **PLAIN))
            await web.provider.asked()
            leaving.cancel()
    await until(lambda: not web.provider.waiting and not len(web.channel.backend.streams))


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        (ContextTooLong("too long"), openai.BadRequestError, "context_length_exceeded"),
        (OverQuota("not enough"), openai.RateLimitError, "rate_limit_exceeded"),
        (NoConnection("nobody there"), openai.InternalServerError, "model_failed"),
        (ProviderTimeout("too slow"), openai.InternalServerError, "timeout"),
        (RuntimeError("a secret"), openai.InternalServerError, "failed"),
    ],
)
@pytest.mark.parametrize("how", [ask, stream])
async def test_a_failure_has_its_status_streamed_or_not(tmp_path, failure, kind, code, how):
    async with asking(tmp_path, provider=ScriptedProvider(otherwise=failure)) as web:
        with pytest.raises(kind) as failed:
            await how(web.openai, "one")
        assert failed.value.code == code
        (line,) = web.logged("request_failed")
        assert f"(incident {line['incident']})" in str(failed.value)
        assert str(failure) not in str(failed.value)


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(tmp_path):
    steps = [SUM, NoConnection("nobody there")]
    async with asking(tmp_path, provider=ScriptedProvider(steps)) as web:
        with pytest.raises(openai.APIError, match="can't answer"):
            await stream(web.openai, "6*7?")


async def test_the_sync_client_streams_and_asks(web):
    def both():
        with client_of(web, key=NOBODY, kind=openai.OpenAI) as client:
            chunks = client.chat.completions.create(
                model="assistant", messages=[user("one")], stream=True
            )
            whole = client.chat.completions.create(model="assistant", messages=[user("two")])
            return text_of(chunks), whole.choices[0].message.content

    assert await run_sync(both) == ("You said: one", "You said: two")


class Optional(ScriptedProvider):
    """A provider that takes options with a request."""

    options = None

    def with_options(self, options):
        self.options = options
        return self


async def test_options_are_passed_on_where_they_are_taken(tmp_path):
    async with asking(tmp_path, provider=Optional()) as web:
        wanted = {"temperature": 0.5, "response_format": {"type": "json_object"}}
        await ask(web.openai, "one", **wanted, store=True)
        assert web.provider.options == wanted


@pytest.mark.parametrize(
    ("provider", "named"), [(Optional(), None), (ScriptedProvider(), "temperature")]
)
async def test_options_that_no_model_hears_of_are_named(tmp_path, provider, named):
    async with asking(tmp_path, provider=provider) as web:
        raw = await web.openai.chat.completions.with_raw_response.create(
            model="assistant", messages=[user("one")], temperature=0.2
        )
    assert raw.headers.get("x-nanoloop-ignored") == named


async def test_a_form_that_the_model_can_not_keep_to_is_refused(web):
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(web.openai, "one", response_format={"type": "json_object"})
    assert refused.value.param == "response_format"
