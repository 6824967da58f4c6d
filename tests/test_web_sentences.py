"""What a client of the web is told of a failure: a sentence of the list, as a chat is."""

import re
from functools import partial

import openai
import pytest

from nanoloop.errors import (
    IndexUnusable,
    NoConnection,
    SessionExists,
    StoreConflict,
    StoreError,
)
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import in_language
from tests.test_sentences import CANARY, TOLD, failing_with
from tests.web_openai import ask, asking, stream

GERMAN = {"model_down": "Das Modell antwortet nicht.", "kept": "Behalten.", "incident": "Vorfall"}


@pytest.fixture
def failing(tmp_path):
    """A server whose model fails with this error."""

    def serve(error, **more):
        return asking(tmp_path, provider=ScriptedProvider(otherwise=error), **more)

    return serve


@pytest.mark.parametrize("how", [ask, stream])
@pytest.mark.parametrize("more", [{}, {"user": "ann"}])
@pytest.mark.parametrize("error", [NoConnection(CANARY), RuntimeError(CANARY)])
async def test_openais_clients_are_told_as_a_chat_is(failing, how, more, error):
    async with failing(error) as web:
        with pytest.raises(openai.APIStatusError) as failed:
            await how(web.openai, "one", **more)
        (line,) = web.logged("turn_failed") or web.logged("request_failed")
        assert TOLD.fullmatch(failed.value.body["message"])[1] == line["incident"]
    assert CANARY not in failed.value.response.text
    assert (CANARY in web.log.getvalue()) == isinstance(error, NoConnection)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreError(CANARY), 503),
        (IndexUnusable(CANARY), 503),
        (StoreConflict(CANARY, mine=1, theirs=2), 409),
        (SessionExists(CANARY), 409),
        (RuntimeError(CANARY), 500),
    ],
)
async def test_a_request_that_fails_is_told_as_a_chat_is(failing, monkeypatch, error, status):
    async with failing(error) as web:
        monkeypatch.setattr(web.app.loop.sessions, "open", partial(failing_with, error))
        told = await web.call("GET", "/api/sessions/web:local.x", status=status)
        (line,) = web.logged("request_failed")
        assert TOLD.fullmatch(told["error"]["message"])[1] == line["incident"]
    assert (CANARY in web.log.getvalue()) == (status != 500)


async def test_the_operator_may_say_it_in_another_language(failing):
    async with failing(NoConnection(CANARY), settings={"sentences": GERMAN}) as web:
        said = await web.answered(await web.begin(), "hallo")
        with pytest.raises(openai.APIStatusError) as failed:
            await ask(web.openai, "eins")
    assert re.fullmatch(r"Das Modell antwortet nicht\. Behalten\. \(Vorfall \w{6}\)", said)
    assert failed.value.body["message"].startswith("Das Modell antwortet nicht. (Vorfall ")


async def test_the_web_has_a_language_of_its_own_and_an_agents_is_stronger(failing):
    settings = {"language": "es", "agents": {"cook": {"language": "fr"}}}
    async with failing(NoConnection(CANARY), settings=settings, language="de") as web:
        session = await web.begin()
        assert (await web.answered(session, "hallo")).startswith(in_language("de")["model_down"])
        assert await web.answered(session, "/undo") == in_language("de")["undone"].format(
            said="hallo"
        )
        said = in_language("fr")["agent_chosen"].format(name="cook")
        assert await web.answered(session, "/agent cook") == said
        with pytest.raises(openai.APIStatusError) as failed:
            await ask(web.openai, "eins")
    assert failed.value.body["message"].startswith(in_language("de")["model_down"])
