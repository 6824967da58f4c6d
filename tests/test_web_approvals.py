"""Questions about tool calls in the API: what programs are told, and which of them may answer."""

from contextlib import asynccontextmanager
from functools import partial

import pytest

from nanoloop import ScriptedProvider
from nanoloop.channels.kit import is_choice
from nanoloop.sentences import ENGLISH
from nanoloop.testing.channels.stage import comes_to
from nanoloop.tools.toolbox import Toolbox
from tests.test_approvals import Till, asks, call
from tests.web_server import ASKED, OTHER, TOKEN, bearer, serving

OPERATOR = "a-token-of-the-operator-too"
SHARED = {
    "alice": {"token": TOKEN, "sessions": ["shared.*"], "may_use": ["commands"]},
    "bob": {"token": OTHER, "sessions": ["shared.*"], "may_use": ["commands"]},
    "op": {"token": OPERATOR, "sessions": ["*"], "may_use": ["commands"]},
}


@asynccontextmanager
async def asking(folder, *replies, **more):
    """A server whose model asks for a call, and the tool that it calls."""
    till = Till()
    provider = ScriptedProvider(replies or [asks(), "It is paid."], otherwise="Well.")
    async with serving(folder, provider=provider, **more) as web:
        agent = web.app.loop.agents.default
        agent.toolbox = Toolbox([till.tool], approval=agent.toolbox.approval)
        yield web, till


async def told(web, session, text, *, by=None):
    """Say this, and return the answer's event."""
    async with web.reading(session) as reader:
        await reader.until("hello")
        headers = None if by is None else bearer(by)
        path = f"/api/sessions/{session}/messages"
        await web.call("POST", path, status=202, json={"text": text}, headers=headers)
        return (await reader.until("answer"))[-1].data


async def question(web, session):
    """The newest question, as the history shows it."""
    return [m for m in await web.messages(session) if m["role"] == "approval"][-1]


async def test_the_event_of_a_question_has_its_text_and_choices(tmp_path):
    async with asking(tmp_path) as (web, _):
        event = await told(web, await web.begin(), "Pay!")
    assert event["text"].startswith("May I call pay? (number 1)")
    assert [choice["label"] for choice in event["choices"]] == ["Yes", "No"]
    assert all(is_choice(choice["text"]) for choice in event["choices"])


async def test_the_history_shows_what_was_asked_and_how_to_answer(tmp_path):
    async with asking(tmp_path) as (web, _):
        session = await web.begin()
        event = await told(web, session, "Pay!")
        shown = await question(web, session)
    assert (shown["text"], shown["choices"]) == (event["text"], event["choices"])
    (ask,) = shown["asks"]
    assert ask.pop("expires_at").endswith("Z")
    assert ask == {
        "number": 1,
        "tool": "pay",
        "arguments": {"to": "Ada"},
        "who": "asker",
        "state": "asked",
    }


async def test_a_choice_is_sent_as_a_message_and_closes_the_question(tmp_path):
    async with asking(tmp_path) as (web, till):
        session = await web.begin()
        yes = (await told(web, session, "Pay!"))["choices"][0]["text"]
        assert (await told(web, session, yes))["text"] == "It is paid."
        shown = await question(web, session)
        again = await told(web, session, yes)
    assert (shown["asks"][0]["state"], shown["choices"]) == ("answered", [])
    assert again["text"] == "Number 1 was already answered."
    assert till.paid == [("Ada", 5)]


async def test_a_yes_that_is_sent_again_after_a_lost_reply_is_accepted_again(tmp_path):
    async with asking(tmp_path) as (web, till):
        session = await web.begin()
        yes = (await told(web, session, "Pay!"))["choices"][0]["text"]
        said, path = (
            {"text": yes, "message_id": "the-same-yes"},
            f"/api/sessions/{session}/messages",
        )
        async with web.reading(session) as reader:
            await reader.until("hello")
            await web.call("POST", path, status=202, json=said)
            await reader.until("answer")
        await web.call("POST", path, status=202, json=said)
    assert till.paid == [("Ada", 5)]


async def test_of_two_calls_the_one_that_waits_keeps_its_choices(tmp_path):
    both = asks(call(to="Ada"), call(to="Bob", call_id="c2"))
    async with asking(tmp_path, both) as (web, _):
        session = await web.begin()
        no = (await told(web, session, "Pay both!"))["choices"][1]["text"]
        await told(web, session, no)
        shown = await question(web, session)
    assert [ask["state"] for ask in shown["asks"]] == ["answered", "asked"]
    assert [choice["label"] for choice in shown["choices"]] == ["Yes 2", "No 2"]


async def test_a_question_that_expired_has_no_choices(tmp_path):
    soon = {"tools": {"approvals": {"expires": "1s"}}}
    async with asking(tmp_path, settings=soon) as (web, _):
        session = await web.begin()
        await told(web, session, "Pay!")
        shown = await comes_to(partial(question, web, session), lambda told: not told["choices"])
    assert shown["asks"][0]["state"] == "expired"


async def test_an_erased_call_is_shown_no_more(tmp_path):
    async with asking(tmp_path) as (web, _):
        session = await web.begin()
        await told(web, session, "Pay!")
        await told(web, session, "/forget 2")
        assert "Ada" not in str(await web.messages(session))


async def test_readers_are_told_which_calls_wait(tmp_path):
    async with asking(tmp_path) as (web, _):
        session = await web.begin()
        async with web.reading(session) as reader:
            await reader.until("hello")
            await web.say(session, "Pay!")
            assert (await reader.until("approval"))[-1].data == {"waiting": [1]}
            await web.say(session, "/no 1")
            assert (await reader.until("approval"))[-1].data == {"waiting": []}


# Who may answer


async def test_a_token_without_the_right_to_commands_can_not_answer(tmp_path):
    tokens = {"alice": {"token": TOKEN}}
    async with asking(tmp_path, tokens=tokens, headers=ASKED | bearer()) as (web, till):
        session = await web.begin()
        yes = (await told(web, session, "Pay!"))["choices"][0]["text"]
        path = f"/api/sessions/{session}/messages"
        refusal = await web.call("POST", path, status=403, json={"text": yes})
    assert 'add "commands" to its may_use' in refusal["error"]["message"]
    assert till.paid == []


@pytest.mark.parametrize("token", [OTHER, OPERATOR])
async def test_another_tokens_owner_can_not_answer_and_neither_can_an_operator(tmp_path, token):
    async with asking(tmp_path, tokens=SHARED, headers=ASKED | bearer()) as (web, till):
        session = await web.begin()
        yes = (await told(web, session, "Pay!"))["choices"][0]["text"]
        assert (await told(web, session, yes, by=token))["text"] == ENGLISH["void_others"]
        assert (await told(web, session, "/yes", by=token))["text"] == ENGLISH["void_others"]
        assert till.paid == []
        assert (await told(web, session, yes))["text"] == "It is paid."


async def test_where_operators_answer_the_one_who_asked_can_not(tmp_path):
    rules = {"tools": {"approvals": {"who": "operators"}}}
    async with asking(tmp_path, tokens=SHARED, headers=ASKED | bearer(), settings=rules) as (
        web,
        till,
    ):
        session = await web.begin()
        yes = (await told(web, session, "Pay!"))["choices"][0]["text"]
        assert (await told(web, session, yes))["text"] == ENGLISH["void_operators"]
        assert till.paid == []
        assert (await told(web, session, yes, by=OPERATOR))["text"] == "It is paid."
