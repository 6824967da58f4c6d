"""Every failure has two texts: a sentence for the chat, and the error's own for the operator."""

import io
import json
import re
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

import nanoloop.channels.kit.platform
import nanoloop.settings.problems  # noqa: F401 - whatever error there is has to be known
from nanoloop.errors import (
    BadAnswer,
    BadArguments,
    IndexUnusable,
    NanoloopError,
    NoConnection,
    StoreError,
)
from nanoloop.events import hearing
from nanoloop.loop import AgentLoop
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH, FAILURES, SAID_CHARS, Sentences, incident_of, name_of
from nanoloop.settings import SentenceSettings
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.telemetry import Telemetry
from tests.test_amending import Failing
from tests.test_loop import Chats, put

CANARY = "VISIT http://canary.example"
_LIST = "|".join(map(re.escape, FAILURES.values()))
TOLD = re.compile(rf"(?:(?:{_LIST}) )+\(incident ([0-9a-f]{{6}})\)")


def every_error(kind=NanoloopError):
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def made(kind, *, text=CANARY):
    """An error of this class, whatever facts its own constructor wants."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    error.__dict__ |= dict.fromkeys(("session_id", "reason", "what"), text)
    return error


@asynccontextmanager
async def running(provider, **options):
    log = io.StringIO()
    loop = AgentLoop(provider=provider, **options)
    loop.chats, loop.log = Chats(loop.bus), log
    with hearing(Telemetry(format="json", stream=log)):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


def failures(loop):
    lines = map(json.loads, loop.log.getvalue().splitlines())
    return [line for line in lines if line["event"] == "turn_failed"]


@pytest.mark.parametrize("kind", [*every_error(), RuntimeError])
@pytest.mark.parametrize("is_kept", [True, False])
def test_whatever_fails_the_chat_is_told_a_sentence_of_the_list(kind, is_kept):
    error = made(kind)
    told = Sentences().apology(error, "7f3a9c", is_kept=is_kept)
    kept = f" {ENGLISH['kept']}" if is_kept else ""
    assert told.text == f"{ENGLISH[name_of(error)]}{kept} (incident 7f3a9c)"
    assert CANARY not in told.text


@pytest.mark.parametrize("error", [NoConnection(CANARY), BadAnswer(CANARY)])
async def test_a_models_words_reach_the_operator_and_no_chat(error):
    async with running(ScriptedProvider([error])) as loop:
        put(loop, "hi")
        (said,) = await loop.chats.until("a", 1)
    (line,) = failures(loop)
    assert TOLD.fullmatch(said)[1] == line["incident"] == loop.chats.sent["a"][0].incident
    assert line["said"] == CANARY


async def test_a_stores_words_reach_the_operator_and_no_chat(monkeypatch):
    monkeypatch.setattr("nanoloop.testing.faults.StoreError", lambda _: StoreError(CANARY))
    failing = Failing(InMemoryStore())
    monkeypatch.setattr("nanoloop.writing.AWAY_SECONDS", 0.01)
    failing.plan = ["before"]
    async with running(ScriptedProvider(), store=failing, store_timeout_seconds=0) as loop:
        put(loop, "hi")
        said = (await loop.chats.until("a", 1))[0]
    (line,) = failures(loop)
    assert said == f"{ENGLISH['store_down']} (incident {line['incident']})"
    assert line["said"] == CANARY


async def test_a_bugs_words_reach_nobody():
    async with running(ScriptedProvider([RuntimeError(CANARY)])) as loop:
        put(loop, "hi")
        (said,) = await loop.chats.until("a", 1)
    (line,) = failures(loop)
    assert TOLD.fullmatch(said)[1] == line["incident"]
    assert line["said"].startswith("RuntimeError at ")
    assert CANARY not in loop.log.getvalue()


async def test_a_command_that_fails_tells_nothing_of_how(monkeypatch):
    async with running(ScriptedProvider()) as loop:
        error = IndexUnusable(CANARY)
        monkeypatch.setattr(loop.sessions, "current", partial(failing_with, error))
        put(loop, "/undo")
        (said,) = await loop.chats.until("a", 1)
    assert said.startswith(ENGLISH["recall_down"])
    assert [line["said"] for line in failures(loop)] == [CANARY]


async def failing_with(error, *_, **__):
    raise error


def test_what_a_tool_was_asked_for_is_no_text_for_the_operator():
    assert CANARY not in incident_of(BadArguments(CANARY)).said


def test_what_the_operator_is_told_is_one_line_of_bounded_length():
    said = incident_of(StoreError("a\nb\r" * SAID_CHARS)).said
    assert len(said) == SAID_CHARS
    assert len(said.splitlines()) == 1


def test_every_sentence_of_a_failure_is_a_setting_and_in_english_by_default():
    assert SentenceSettings().model_dump() == dict(FAILURES)


def test_every_sentence_of_an_error_is_in_the_list():
    assert {name_of(made(kind)) for kind in every_error()} <= FAILURES.keys()


async def test_a_chat_that_has_too_much_waiting_is_told_in_that_language_too():
    loop_is = {"lane_limit": 1, "sentences": Sentences({"busy": "Moment."})}
    provider = ScriptedProvider(held=True)
    async with running(provider, **loop_is) as loop:
        for text in ("one", "two", "three"):
            put(loop, text)
            await anyio.wait_all_tasks_blocked()
        assert await loop.chats.until("a", 1) == ["Moment."]
        provider.release()
