"""`nanoloop model list` and `nanoloop doctor` with vendors: each server is asked, each is told."""

import json
from contextlib import asynccontextmanager

import pytest

from nanoloop.cli.doctor import QUESTION
from tests.openai_server import Answer, OpenAIServer
from tests.servers.file_server import FileServer
from tests.stages.command_line import CommandLine

MODELS = ["chatty-2", "chatty-1", "text-embed-3", "whisper-1", "tts-1", "x-rerank", "a\x1bb", ""]


@pytest.fixture
def nanoloop(tmp_path):
    return CommandLine(tmp_path)


def listing(*names):
    return [{"id": name, "object": "model"} for name in names]


@asynccontextmanager
async def serving(nanoloop, *answers, otherwise="Ok", **more):
    """A stand-in for Groq's server that nanoloop knows of."""
    async with OpenAIServer(*answers, otherwise=otherwise) as server:
        server.models = listing(*MODELS)
        nanoloop.set(NANOLOOP_PROVIDERS__GROQ__BASE_URL=server.url, GROQ_API_KEY="gsk", **more)
        yield server


async def test_each_servers_models_are_listed_as_the_settings_name_them(nanoloop):
    async with serving(nanoloop) as groq, OpenAIServer() as plain:
        plain.models = listing("qwen3:4b")
        nanoloop.set(OPENAI_BASE_URL=plain.url)
        out, err = await nanoloop.run("model", "list")
    assert out.endswith(
        '\n\ngroq offers these models, for model = "…":\ngroq:chatty-1\ngroq:chatty-2\n'
    )
    assert f'{plain.url} offers these models, for model = "…":\nqwen3:4b\n' in out
    assert groq.requests[-1].headers["authorization"] == "Bearer gsk"
    assert "does not list its models" not in err


async def test_as_json_they_stand_beside_the_local_ones(nanoloop):
    async with serving(nanoloop):
        rows = json.loads((await nanoloop.run("model", "list", "--json"))[0])
    [row] = [row for row in rows if row["name"] == "chatty-1"]
    assert row == {"name": "chatty-1", "vendor": "groq", "setting": "groq:chatty-1"}
    assert {"local", "groq"} == {row["vendor"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("models", [[], 5, [5, {"id": 5}], [{"id": "x" * 11_000_000}]])
async def test_a_server_that_lists_nothing_fit_is_told_and_stops_no_other(nanoloop, models):
    async with serving(nanoloop) as groq, OpenAIServer() as plain:
        groq.models, plain.models = models, listing("fine")
        nanoloop.set(OPENAI_BASE_URL=plain.url)
        out, err = await nanoloop.run("model", "list")
    assert f"groq: {groq.url} does not list its models: check the address and the key" in err
    assert "\nfine\n" in out


async def test_without_a_server_nobody_is_asked(nanoloop):
    out, err = await nanoloop.run("model", "list")
    assert "serves" not in out
    assert "does not list its models" not in err


@pytest.mark.slow
async def test_the_doctor_asks_each_model_for_an_answer_and_says_what_came_back(nanoloop):
    more = {"NANOLOOP_MODEL": "groq:a", "NANOLOOP_AGENTS__COOK__MODEL": "mistral:c"}
    async with serving(nanoloop, **more) as groq, OpenAIServer(otherwise="Qui") as mistral:
        nanoloop.set(NANOLOOP_PROVIDERS__MISTRAL__BASE_URL=mistral.url)
        out, _ = await nanoloop.run("doctor", text="a chat")
    assert 'ok     model: groq:a answers "Ok" in ' in out
    assert 'ok     agents.cook.model: mistral:c answers "Qui" in ' in out
    assert [each.json["messages"][-1]["content"] for each in groq.requests] == [QUESTION]
    assert mistral.count == 1


@pytest.mark.slow
async def test_a_model_under_two_settings_is_asked_once(nanoloop):
    more = {"NANOLOOP_MODEL": "groq:a", "NANOLOOP_SUMMARY_MODEL": "groq:a"}
    async with serving(nanoloop, **more) as groq:
        out, _ = await nanoloop.run("doctor", text="a chat")
    assert "ok     model, summary_model: groq:a answers" in out
    assert groq.count == 1


@pytest.mark.slow
async def test_one_that_fails_or_lacks_its_key_is_told_and_makes_the_exit_code(nanoloop):
    more = {"NANOLOOP_MODEL": "groq:a", "NANOLOOP_SUMMARY_MODEL": "xai:b"}
    gone = Answer(status=404, body=b'{"error": {"message": "model not found"}}')
    async with serving(nanoloop, gone, **more):
        out, _ = await nanoloop.run("doctor", code=1)
    assert "WRONG  model: groq:a: " in out
    assert "WRONG  summary_model: xai:b: no key is set: set XAI_API_KEY" in out


@pytest.mark.parametrize("command", ["check", "chat", "run"])
async def test_a_model_whose_key_is_missing_is_not_configured(nanoloop, command):
    nanoloop.set(NANOLOOP_MODEL="groq:a")
    out, err = await nanoloop.run(command, text="Hello\n", code=3)
    told = 'env NANOLOOP_MODEL: model is "groq:a", but no key is set: set GROQ_API_KEY'
    assert told in out + err


async def test_a_key_that_is_set_is_named_where_no_model_is(nanoloop):
    nanoloop.set(GROQ_API_KEY="gsk")
    _, err = await nanoloop.run("chat", "-m", "Hello", code=3)
    assert "a key for groq: export NANOLOOP_MODEL=groq:..." in err


async def test_a_key_is_sent_to_no_server_that_no_model_is_asked_at(nanoloop):
    async with OpenAIServer() as plain, OpenAIServer() as openai:
        plain.models, openai.models = listing("a"), listing("b")
        nanoloop.set(OPENAI_API_KEY="sk", NANOLOOP_BASE_URL=plain.url, NANOLOOP_MODEL="openai:b")
        nanoloop.set(NANOLOOP_PROVIDERS__OPENAI__BASE_URL=openai.url)
        out, _ = await nanoloop.run("model", "list")
    assert out.endswith("openai:b\n")
    assert plain.count == 0


async def test_no_key_follows_a_redirect(nanoloop):
    async with OpenAIServer() as elsewhere:
        elsewhere.models = listing("a")
        with FileServer(b"{}") as server:
            server.moved_to = elsewhere.root
            nanoloop.set(NANOLOOP_PROVIDERS__ANTHROPIC__BASE_URL=f"{server.root}/moved")
            _, err = await nanoloop.run("model", "list")
    assert "does not list its models" in err
    assert elsewhere.count == 0


@pytest.mark.parametrize(
    ("word", "more", "path"),
    [
        ("anthropic", "", "/v1/models?limit=1000"),
        ("anthropic", "?a=b", "/v1/models?a=b&limit=1000"),
        ("groq", "?a=b", "/v1/models?a=b"),
    ],
)
async def test_a_list_is_asked_for_where_the_vendors_models_are(nanoloop, word, more, path):
    async with OpenAIServer() as server:
        server.models = listing("a")
        nanoloop.set(**{f"NANOLOOP_PROVIDERS__{word.upper()}__BASE_URL": f"{server.url}{more}"})
        out, _ = await nanoloop.run("model", "list")
    assert f"{word}:a" in out
    assert [each.path for each in server.requests] == [path]


@pytest.mark.slow
async def test_the_doctor_asks_as_the_daemon_does_with_prompt_tools_and_options(nanoloop):
    options = {"max_tokens": 900, "top_p": 1}
    more = {"NANOLOOP_PROVIDERS__GROQ__OPTIONS": json.dumps(options), "NANOLOOP_MODEL": "groq:a"}
    async with serving(nanoloop, NANOLOOP_PROMPT="Be brief.", **more) as groq:
        await nanoloop.run("doctor", text="a chat")
        await nanoloop.run("chat", "-m", "Hello")
    checked, asked = [request.json for request in groq.requests]
    assert (
        checked["messages"][0] == asked["messages"][0] == {"role": "system", "content": "Be brief."}
    )
    assert checked["tools"] == asked["tools"]
    assert {*checked} - {"stream", "stream_options"} == {*asked}  # a pipe gets whole answers


@pytest.mark.slow
async def test_a_model_that_takes_no_tools_is_told_before_a_chat_hears_of_it(nanoloop):
    said = "a does not support tools"
    few = Answer(status=400, body=json.dumps({"error": {"message": said}}).encode())
    async with serving(nanoloop, few, NANOLOOP_MODEL="groq:a"):
        out, _ = await nanoloop.run("doctor", code=1)
    assert "WRONG  model: groq:a: " in out
    assert said in out
