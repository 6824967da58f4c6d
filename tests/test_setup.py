"""`nanoloop setup`, with its answers typed or as flags; and `nanoloop` alone."""

import pytest

from nanoloop.cli import main
from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import CommandLine, Terminal, ended

REFUSED = Answer(status=401, body=b'{"error": {"message": "no such key"}}')
TOKEN = "12345678:AbC-dEf"


@pytest.fixture
def nanoloop(tmp_path):
    return CommandLine(tmp_path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".config/nanoloop/nanoloop.toml"


@pytest.mark.slow
async def test_what_flags_say_is_written_once_the_model_has_answered(nanoloop, file):
    async with OpenAIServer() as server:
        out, _ = await nanoloop.run("setup", "--base-url", server.url, "--model", "little")
        assert [request.json["model"] for request in server.requests] == ["little"]
    assert file.read_text() == f'base_url = "{server.url}"\nmodel = "little"\n'
    assert f"Wrote {file.with_name('AGENTS.md')}, " in out
    assert "Next: nanoloop" in out


@pytest.mark.slow
async def test_a_key_of_before_is_not_sent_to_a_new_address(nanoloop, file):
    file.parent.mkdir(parents=True)
    file.write_text('api_key = "sk-secret-key"\nbase_url = "http://127.0.0.1:9"\n')
    async with OpenAIServer() as server:
        await nanoloop.run("setup", "--base-url", server.url, "--model", "little")
        nanoloop.set(OPENAI_API_KEY="sk-of-all-programs")
        await nanoloop.run("chat", "-m", "hello")
        assert not any("authorization" in request.headers for request in server.requests)
    assert "sk-secret-key" not in file.read_text()


@pytest.mark.slow
async def test_a_key_that_is_refused_is_not_written(nanoloop, file):
    async with OpenAIServer(otherwise=REFUSED) as server:
        words = ("--base-url", server.url, "--model", "m", "--api-key", "-")
        _, err = await nanoloop.run("setup", *words, text="sk-secret-key\n", code=1)
    assert "OPENAI_API_KEY" in err
    assert "secret" not in err
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--api-key", "http://localhost:11434"), "That is an address, not a key"),
        (("--base-url", "localhost"), "is not an address"),
        (("--telegram-token", "what"), "is not a Telegram token"),
        ((), "not a terminal, so use flags"),
    ],
)
async def test_an_answer_that_can_not_be_right_is_refused(nanoloop, file, words, told):
    _, err = await nanoloop.run("setup", *words, code=2)
    assert told in err
    assert not file.exists()


@pytest.mark.slow
async def test_a_bots_token_is_written_for_its_owner_alone(nanoloop, tmp_path):
    own = tmp_path / "bot.toml"
    await nanoloop.run("setup", "--config", str(own), "--telegram-token", TOKEN)
    assert own.read_text() == f'channels.telegram.token = "{TOKEN}"\n'
    assert own.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_each_question_has_its_answer_typed_too(nanoloop, file):
    async with OpenAIServer() as server:
        server.models = [{"id": "qwen3:4b"}]
        nanoloop.set(OLLAMA_HOST=server.root)
        with Terminal() as terminal:
            async with nanoloop.started("setup", terminal=terminal) as process:
                await terminal.shows("1  Ollama, running on this machine: qwen3:4b")
                await terminal.shows("Enter for 1")
                terminal.type("\r")
                await terminal.shows("Your Telegram bot's token")
                terminal.type(f"{TOKEN}\r")
                seen = await terminal.shows("Run nanoloop as a service")
                terminal.type("n\r")
                await terminal.shows("Next: nanoloop")
                assert await ended(process) == 0
    assert TOKEN not in seen
    assert file.read_text() == (f'model = "ollama:qwen3:4b"\nchannels.telegram.token = "{TOKEN}"\n')


# Nothing but `nanoloop`


@pytest.mark.slow
async def test_alone_at_a_terminal_it_talks(nanoloop):
    async with OpenAIServer(otherwise="Here you are.") as server:
        nanoloop.set(OPENAI_BASE_URL=server.url)
        with Terminal() as terminal:
            async with nanoloop.started(terminal=terminal) as process:
                await terminal.shows("/help lists commands")
                terminal.type("hello\r")
                await terminal.shows("Here you are.")
                terminal.type("\x04")
                assert await ended(process) == 0


@pytest.mark.slow
async def test_alone_it_answers_what_it_is_fed(nanoloop):
    async with OpenAIServer(otherwise="Here you are.") as server:
        nanoloop.set(OPENAI_BASE_URL=server.url)
        out, _ = await nanoloop.run(text="hello\n")
    assert out == "Here you are.\n"


def test_alone_with_nobody_there_it_says_what_there_is(capsys, monkeypatch):
    monkeypatch.setattr("nanoloop.cli._is_chat", lambda: False)
    assert main([]) == 2
    assert "setup" in capsys.readouterr().out
