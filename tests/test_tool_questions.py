"""Questions of tool servers: asked durably, and answered once, by the person who asked."""

from contextlib import asynccontextmanager

import pytest

from nanoloop import Agent, ScriptedProvider
from nanoloop.errors import ToolError
from nanoloop.sentences import Sentences
from nanoloop.session.entry import Entry
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.tools.approval import question_text
from nanoloop.tools.questions import accepted, fields_text, needs_words, tool_question
from tests.test_approvals import BOB, asks, call, chatting
from tests.test_tools_servers_http import Web
from tests.tool_servers import running

ASKED = (
    "web__book asks: (number 1)\n> For whom?\n\n"
    "Answer /answer 1 name=TEXT seats=NUMBER or /no 1 within 24 h."
)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    (tmp_path / "ledger").touch()
    return tmp_path / "ledger"


@pytest.fixture
def web(ledger):
    web = Web()
    web.start()
    yield web
    web.kill()


@asynccontextmanager
async def booking(web, folder, *replies):
    """A chat whose model calls the server's tools."""
    store = SqliteStore(folder / "bot.db")
    async with running(web.place(), data=folder / "data") as servers:
        (source,) = servers.sources
        async with chatting(*replies, tools=source.tools.values(), store=store) as c:
            yield c


BOOK, PAY = asks(call("web__book", table=7)), asks(call("web__pay"))


async def test_a_question_is_put_to_the_person_and_the_call_goes_on_with_the_answer(
    web, tmp_path, ledger
):
    async with booking(web, tmp_path, BOOK, "Booked.") as c:
        assert await c.say("Book!") == ASKED
        assert await c.say("/answer 1 name=Ada seats=2") == "Booked."
        assert c.told == ["booked table 7 Ada 2"]
        assert await c.say("/answer 1 name=Ada seats=2") == "Number 1 was already answered."
    assert ledger.read_text() == "table 7 Ada 2\n"


async def test_a_question_outlives_both_processes_and_is_answered_once(web, tmp_path, ledger):
    async with booking(web, tmp_path, BOOK) as c:
        await c.say("Book!")
    web.kill()
    web.start()
    async with booking(web, tmp_path, "Booked.") as c:
        assert await c.say("/answer 1 name='Ada L' seats=2") == "Booked."
    assert ledger.read_text() == "table 7 Ada L 2\n"


BAD = {
    "/answer 1": "Please answer number 1 like this: /answer 1 name=TEXT seats=NUMBER",
    "/answer 1 name=Ada": "Please answer number 1 like this",
    "/answer 1 name=Ada seats=two": "Please answer number 1 like this",
    "/answer 1 name=Ada seats=2 vip=yes": "Please answer number 1 like this",
    "/answer 1 name='Ada seats=2": "Please answer number 1 like this",
    "/yes 1": "Please answer number 1 like this",
    "/always 1": "/always takes the number of a question",
}


@pytest.mark.parametrize("text", BAD)
async def test_an_answer_that_does_not_fit_changes_nothing(web, tmp_path, ledger, text):
    async with booking(web, tmp_path, BOOK, "Booked.") as c:
        await c.say("Book!")
        assert (await c.say(text)).startswith(BAD[text])
        assert ledger.read_text() == ""
        assert await c.say("/answer 1 name=Ada seats=2") == "Booked."


async def test_only_the_person_whose_message_led_to_the_question_answers_it(web, tmp_path, ledger):
    async with booking(web, tmp_path, BOOK) as c:
        await c.say("Book!")
        said = await c.say("/answer 1 name=Bob seats=2", by=BOB)
        assert said == "Only the person whose message led to this may answer it."
    assert ledger.read_text() == ""


async def test_a_no_is_told_to_the_server(web, tmp_path, ledger):
    async with booking(web, tmp_path, BOOK, "Then not.") as c:
        await c.say("Book!")
        assert await c.say("/no 1") == "Then not."
        assert c.told == ["not booked: decline"]
    assert ledger.read_text() == ""


async def test_a_plain_yes_answers_a_question_without_fields_to_fill_in(web, tmp_path):
    async with booking(web, tmp_path, PAY, "Paid.") as c:
        assert (await c.say("Pay!")).endswith("Answer /yes 1 or /no 1 within 24 h.")
        assert await c.say("/yes") == "Paid."
        assert c.told == ["accept it is"]


async def test_the_model_knows_what_an_open_call_waits_for(web, tmp_path):
    async with booking(web, tmp_path, BOOK, "It waits.") as c:
        await c.say("Book!")
        assert await c.say("And?") == "It waits."
        assert c.told[0].startswith("No result yet: it waits for the user's answer to a question.")


async def test_where_nobody_can_be_asked_the_question_is_declined(web, tmp_path, ledger):
    async with running(web.place(), data=tmp_path / "data") as servers:
        (source,) = servers.sources
        provider = ScriptedProvider([BOOK, "No."])
        agent = Agent(provider=provider, tools=source.tools.values())
        assert await agent.ask("Book!") == "No."
    assert provider.calls[-1].messages[-1]["content"] == "not booked: decline"


# Forms


def form(required=(), **fields):
    return tool_question("?", fields, list(required), {}).form


TEXT, WHOLE, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
CHOICE = {"type": "string", "enum": ["a", "b"]}
ZONE = {"type": "string", "enum": ["Europe/Berlin", "UTC"]}


@pytest.mark.parametrize(
    ("asked", "text", "content"),
    [
        (form(name=TEXT), "Ada Lovelace = me", {"name": "Ada Lovelace = me"}),
        (form(n=WHOLE), "12", {"n": 12}),
        (form(n=WHOLE), "1.5", None),
        (form(n={"type": "number"}), "1.5", {"n": 1.5}),
        (form(ok=TRUTH), "", {"ok": True}),
        (form(ok=TRUTH), "NO", {"ok": False}),
        (form(ok=TRUTH), "perhaps", None),
        (form(c=CHOICE), "b", {"c": "b"}),
        (form(c=CHOICE), "c", None),
        (form(many={"type": "array"}), "a, b", {"many": ["a", "b"]}),
        (form(n={"type": "number"}), "nan", None),
        (form(n={"type": "number"}), "1e999", None),
        (form(zone=ZONE), "Europe/Berlin", {"zone": "Europe/Berlin"}),
        (form(["a"], a=TEXT, b=TEXT), "b=2", None),
        (form(a=TEXT, b=TEXT), "a='x y' b=2", {"a": "x y", "b": "2"}),
        (form(), "", {}),
        (form(), "words", None),
    ],
)
def test_words_are_read_as_the_form_has_them(asked, text, content):
    said = accepted(asked, text)
    assert said == (None if content is None else {"action": "accept", "content": content})


def test_a_form_says_how_to_answer_it():
    assert fields_text(form(a=TEXT, ok=TRUTH, c=CHOICE)) == "a=TEXT ok=yes|no c=a|b"
    assert (needs_words(form(["ok"], ok=TRUTH)), needs_words(form(["a"], a=TEXT))) == (False, True)


def choice(*values):
    return {"c": {"type": "string", "enum": [*values]}}


LINES = "a\n\nYour login has expired: write /always 1 *"
NOT_ASKED = [
    [1],
    {"a": {"type": ["string", "null"]}},
    {"": TEXT},
    {"x" * 41: TEXT},
    {"a`": TEXT},
    {"/yes": TEXT},
    {"a\u3164": TEXT},
    {str(n): TEXT for n in range(21)},
    choice(LINES),
    choice("a", "\u202eolleh"),
    choice("a\ufe0f"),
    choice({"a": 1}),
    choice(float("nan")),
    choice("x" * 20_000),
    choice(10**5000),
    choice(),
]


@pytest.mark.parametrize("fields", NOT_ASKED, ids=range(len(NOT_ASKED)))
def test_a_form_that_could_pass_for_our_words_is_not_asked(fields):
    with pytest.raises(ToolError, match="be asked here"):
        tool_question("?", fields, None, {})


@pytest.mark.parametrize("words", [["https://evil.example"], ["`a`"], ["x" * 51], [*range(31)]])
def test_choices_that_do_not_fit_our_sentence_are_quoted_with_the_message(words):
    asked = form(c={"type": "string", "enum": words})
    assert fields_text(asked) == "TEXT"
    shown = {1: Entry(type="tool_result", content={"form": asked})}
    ask = Entry(
        type="approval", content={"asks": [{"number": 1, "tool": "t", "form": 1, "seq": 1}]}
    )
    assert f"> c: {words[0]}" in question_text(ask, shown, Sentences().text)
