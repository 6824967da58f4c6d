"""The first `nanoloop chat` asks which model to use, once, and writes it down."""

import builtins
import json
from collections import deque

import anyio
import pytest

from nanoloop.cli import first_run
from nanoloop.cli.first_run import ask_for_model
from nanoloop.cli.servers import RunningServer, models_at, running_servers
from nanoloop.settings import Settings
from tests.openai_server import OpenAIServer
from tests.servers.file_server import FileServer
from tests.stages.command_line import CommandLine, Terminal, ended
from tests.stages.local_model import FOLDER, TINY, model_file

QUESTION, LAST_CHOICE = "Which model should answer?", "1 to "
OLLAMA = RunningServer("Ollama", "http://localhost:11434/v1", ["qwen3:4b", "llama3"])


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

    def read(_):
        if not lines:
            raise EOFError
        return lines.popleft()

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(first_run, "getpass", read)
    return lines


@pytest.mark.slow
async def test_a_key_is_typed_unseen_and_kept_for_its_owner(nanoloop, file):
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows(QUESTION)
            await terminal.shows(LAST_CHOICE)
            terminal.type("3\r")
            await terminal.shows("not shown")
            terminal.type("sk-secret\r")
            seen = await terminal.shows("Model")
            terminal.type("\r")
            await terminal.shows("to choose again, take api_key and model out of it")
            await terminal.shows("window 0/50")
            terminal.type("\x04")
            assert await ended(process) == 0
    assert "secret" not in seen
    assert 'api_key = "sk-secret"\n' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_a_servers_address_leads_into_the_conversation(nanoloop, file):
    async with OpenAIServer(otherwise="Here you are.") as server:
        with Terminal() as terminal:
            async with nanoloop.started("run", terminal=terminal) as process:
                await terminal.shows(LAST_CHOICE)
                terminal.type("4\r")
                await terminal.shows("Address")
                terminal.type(f"{server.url}\r")
                await terminal.shows("not shown")
                terminal.type("\r")
                await terminal.shows("Model")
                terminal.type("little\r")
                await terminal.shows("/help")
                terminal.type("hello\r")
                await terminal.shows("Here you are.")
                terminal.type("\x04")
                assert await ended(process) == 0
        assert server.requests[-1].json["model"] == "little"
        await nanoloop.run("chat", "-m", "again")
    assert f'base_url = "{server.url}"' in file.read_text()


@pytest.mark.slow
async def test_a_model_on_this_machine_is_one_key_away(nanoloop, file):
    await anyio.to_thread.run_sync(model_file)
    nanoloop.set(NANOLOOP_MODELS=str(FOLDER))
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows("here already")
            await terminal.shows(LAST_CHOICE)
            terminal.type("\r")
            await terminal.shows("window 0/50")
            terminal.type("Say hello.\r")
            await terminal.shows("window 2/50")
            terminal.type("\x04")
            assert await ended(process) == 0
    assert file.read_text() == f'model = "local:{TINY}"\n'


async def test_who_leaves_the_question_is_told_the_choices(nanoloop, file):
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows(LAST_CHOICE)
            terminal.type("\x04")
            await terminal.shows("chat --local")
            assert await ended(process) == 3
    assert not file.exists()


async def test_a_stronger_setting_than_the_choice_is_named(nanoloop, file):
    nanoloop.set(NANOLOOP_MODEL="other")
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows(LAST_CHOICE)
            terminal.type("1\r")
            await terminal.shows("env NANOLOOP_MODEL is stronger")
            assert await ended(process) == 2


def test_a_server_that_runs_here_is_offered_with_its_models(typed, capsys):
    typed += ["5", "llama3"]
    assert ask_for_model(Settings(), [OLLAMA]) == {"base_url": OLLAMA.url, "model": "llama3"}
    assert "5  Ollama, which runs here: qwen3:4b, llama3" in capsys.readouterr().out


def test_nonsense_is_said_to_be_and_asked_again(typed, capsys):
    typed += ["0", "99", "-1", "x", "5", ""]
    assert ask_for_model(Settings(), [OLLAMA])["model"] == "qwen3:4b"
    assert capsys.readouterr().out.count(" is none of them.") == 4


def test_what_is_no_address_is_asked_again_at_its_place(typed, capsys):
    typed += ["4", "no address", "http://127.0.0.1:9/v1", "", "little"]
    said = ask_for_model(Settings(), [])
    assert said == {"base_url": "http://127.0.0.1:9/v1", "model": "little"}
    assert "'no address' is not an address: begin it with" in capsys.readouterr().out


async def test_a_model_that_was_named_is_told_what_it_lacks(nanoloop):
    _, err = await nanoloop.run("chat", "-m", "hi", "--model", "nothing-there", code=3)
    assert "neither a key nor a server is set for model 'nothing-there'" in err


def test_an_empty_key_is_no_choice(typed):
    typed += ["3", " "]
    assert ask_for_model(Settings(), []) is None


def test_without_the_extra_a_local_model_says_how_to_get_it(typed, capsys, monkeypatch):
    monkeypatch.setattr(first_run, "can_run", lambda: False)
    typed += ["1"]
    assert ask_for_model(Settings(), []) is None
    assert "pip install '.[local]'" in capsys.readouterr().out


def test_servers_are_found_by_what_they_list():
    models = [{"id": "qwen3:4b"}, {"id": "bad\x1b[2Jname"}, {"id": 7}, "odd"]
    with FileServer(json.dumps({"data": models}).encode()) as server:
        usual = {"Ollama": server.root, "LM Studio": "http://127.0.0.1:9/v1"}
        assert running_servers(usual) == [RunningServer("Ollama", server.root, ["qwen3:4b"])]
        assert server.asked == [("/models", None)]


@pytest.mark.parametrize("said", [b"<html>", b"[]", b'{"data": {}}', b'{"data": []}', b"null"])
def test_whatever_else_answers_there_is_no_model_server(said):
    with FileServer(said) as server:
        assert models_at(server.root) == []


async def test_a_vendor_whose_key_is_set_is_one_of_the_choices(typed, capsys):
    async with OpenAIServer() as server:
        server.models = [{"id": "chatty-1"}, {"id": "chatty-2"}, {"id": "embed-3"}]
        groq = {"api_key": "gsk", "base_url": server.url}
        settings = Settings(providers={"groq": groq})
        typed.extend(["5", "chatty-2"])
        said = await anyio.to_thread.run_sync(ask_for_model, settings, [])
    assert said == {"model": "groq:chatty-2"}
    assert "5  Groq, with the key that is set" in capsys.readouterr().out


def test_a_key_that_is_typed_is_the_vendors_whose_model_is_named(typed):
    typed += ["3", "gsk", "groq:llama"]
    said = ask_for_model(Settings(), [])
    assert said == {"providers.groq.api_key": "gsk", "model": "groq:llama"}


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("local:tiny", "A model on this machine takes no key."),
        ("azure:mine", "no address is set: set AZURE_OPENAI_ENDPOINT"),
        ("groq:", "no model is named: write groq:NAME"),
    ],
)
def test_a_model_that_a_key_is_not_all_for_is_no_choice(typed, capsys, model, told):
    typed += ["3", "gsk", model]
    assert ask_for_model(Settings(), []) is None
    assert told in capsys.readouterr().out


@pytest.mark.slow
async def test_a_vendors_key_is_kept_for_that_vendor(nanoloop, file):
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows(LAST_CHOICE)
            terminal.type("3\r")
            await terminal.shows("not shown")
            terminal.type("gsk-secret\r")
            await terminal.shows("Model")
            terminal.type("groq:llama\r")
            await terminal.shows("take providers.groq.api_key and model out of it")
            await terminal.shows("window 0/50")
            terminal.type("\x04")
            assert await ended(process) == 0
    assert 'providers.groq.api_key = "gsk-secret"\n' in file.read_text()
