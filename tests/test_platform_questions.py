"""Questions about tool calls on platforms: their choices, and the replies that answer them."""

from typing import get_args

import pytest

from nanoloop.agents import Agent
from nanoloop.channels.kit import Choice, File, Heard, Place, is_choice
from nanoloop.channels.kit import questions as kit_questions
from nanoloop.channels.kit.questions import DAYS, Questions
from nanoloop.messages import Language
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH, Sentences, in_english, in_language
from nanoloop.session.entry import APPROVAL, Entry
from nanoloop.testing.channels.fake import BOT, FakeChats
from nanoloop.testing.channels.stage import Bot, comes_to, open_to_all
from nanoloop.tools.approval import choices_in
from tests.test_approvals import Till, asks, call

CHAT = "with-ann"


@pytest.fixture
def chats():
    return FakeChats()


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def bot(chats, till, tmp_path):
    """Starts a bot that asks about a call, and then says that it is done."""

    def start(*replies, **more):
        provider = ScriptedProvider(replies or [asks()], otherwise="done")
        return Bot(
            chats.platform(), tmp_path, provider=provider, agent=Agent(tools=[till.tool]), **more
        )

    return start


async def said(chats, count, chat=CHAT):
    """Wait until the bot has sent this many messages, and return them."""

    async def look():
        return [message for message in chats.messages(chat) if message.sender == BOT]

    return await comes_to(look, lambda found: len(found) == count)


async def test_only_the_last_message_of_a_long_question_has_the_choices(chats, bot):
    async with bot(asks(call(to="x " * 300))):
        await chats.say(CHAT, "Pay!")

        async def look():
            return [len(message.choices) for message in chats.messages(CHAT)[1:]]

        found = await comes_to(look, lambda counts: sum(counts) > 0)
        assert (len(found) > 1, found[-1]) == (True, 2)
        assert not any(found[:-1])


class Streaming(ScriptedProvider):
    """A model that says something, waits until the chat shows it, and asks for a call."""

    def __init__(self, chats):
        super().__init__()
        self._chats = chats

    async def chat(self, *, on_text=None, **_):
        on_text("I would like to ")
        await said(self._chats, 1)
        return asks()


async def test_a_question_that_replaces_a_draft_has_the_choices(chats, till, tmp_path):
    agent = Agent(tools=[till.tool])
    async with Bot(chats.platform(), tmp_path, provider=Streaming(chats), agent=agent):
        await chats.say(CHAT, "Pay!")
        await comes_to(lambda: labels(chats), ["Yes", "No"])


async def labels(chats):
    return [choice.label for choice in chats.messages(CHAT)[-1].choices]


async def test_a_question_that_is_sent_again_after_a_restart_has_the_choices(chats, bot):
    await chats.say(CHAT, "Pay!")
    await chats.lose(1000)
    async with bot() as killed:
        await comes_to(lambda: asked_in(killed), 1)
    chats.heal()
    async with bot("I was asked again."):
        question = (await said(chats, 1))[0]
        assert question.text.startswith("May I call pay?")
        assert [choice.label for choice in question.choices] == ["Yes", "No"]


async def asked_in(bot):
    session = await bot.loop.sessions.current(f"fake:{CHAT}")
    return len(session.approvals.asked)


async def test_other_messages_have_no_choices(chats, bot):
    async with bot("Hello."):
        await chats.say(CHAT, "Hello!")
        assert (await said(chats, 1))[0].choices == ()


@pytest.mark.parametrize("text", ["/yes 1 0123456789abcd", "/no 999999999 0123456789abcd"])
def test_a_choice_is_known_by_its_form(text):
    assert is_choice(text)


@pytest.mark.parametrize("text", [None, 7, "", "/yes 1", "/always 1 0123456789abcd", "/yes 1 0\n"])
def test_anything_else_is_no_choice(text):
    assert not is_choice(text)


# Replies


CHOICES = (
    Choice(label="Yes", text="/yes 1 0123456789abcd", is_only=True),
    Choice(label="No", text="/no 1 0123456789abcd", is_only=True),
)


@pytest.fixture
def questions():
    known = Questions()
    known.keep(Place(CHAT), ["m1", "m2"], CHOICES)
    yield known
    known.close()


def reply(text, **more):
    told = {"chat": CHAT, "id": "r", "sender": "ann", "text": text, "reply_to": "m2"}
    return Heard(**(told | more))


def read(questions, text, language="en", **more):
    say = Sentences(language=language).text
    return questions.answered(reply(text, **more), say).text.split(maxsplit=1)[0]


@pytest.mark.parametrize("language", get_args(Language))
def test_each_languages_words_answer_and_the_english_ones(questions, language):
    for name, command in (("approval_yes", "/yes"), ("approval_no", "/no")):
        words = f"{in_language(language)[f'{name}_words']} {ENGLISH[f'{name}_words']}".split()
        assert {read(questions, word, language) for word in words} == {command}
        assert read(questions, in_language(language)[name], language) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [("YES!", "/yes"), (" ok. ", "/yes"), ("\uff4f\uff4b", "/yes"), ("No", "/no")],
)
def test_case_width_and_a_full_stop_make_no_difference(questions, text, command):
    assert read(questions, text) == command


@pytest.mark.parametrize(
    "text", ["yes please", "yes no", "oui", "/yes", "y/n", "yes\nyes", "", "y" * 1000, "not"]
)
def test_more_than_a_word_of_the_language_is_an_ordinary_message(questions, text):
    assert questions.answered(reply(text), in_english).text == text


@pytest.mark.parametrize(
    "more",
    [
        {"reply_to": None},
        {"reply_to": "m3"},
        {"chat": "with-bob"},
        {"reply_to": None, "quote": "May I call pay? (number 1)"},
        {"files": (File(kind="file", fetch=None),)},
    ],
)
def test_what_is_no_reply_to_the_question_is_an_ordinary_message(questions, more):
    assert questions.answered(reply("yes", **more), in_english).text == "yes"


def test_a_reply_is_the_choice_where_the_question_was_asked():
    known = Questions()
    known.keep(Place("group", "7"), ["m1"], CHOICES)
    heard = known.answered(reply("no", chat="group", reply_to="m1"), in_english)
    assert (heard.text, heard.thread, heard.addressed) == (CHOICES[1].text, "7", True)
    known.close()


def test_in_a_questions_thread_only_the_first_message_is_a_reply(questions):
    inside = {"reply_to": None, "thread": "m1"}
    assert read(questions, "yes", **inside) == "/yes"
    assert read(questions, "why?", **inside) == "why?"
    assert read(questions, "yes", **inside) == "yes"
    assert read(questions, "yes") == "/yes"


def test_processes_on_a_folder_share_the_questions(tmp_path):
    first, second = (Questions(tmp_path / "q.sqlite") for _ in range(2))
    first.keep(Place(CHAT), ["m2"], CHOICES)
    assert read(second, "yes") == "/yes"
    for known in (first, second):
        known.close()


def test_old_and_surplus_questions_are_forgotten(monkeypatch):
    now = 0.0
    known = Questions(clock=lambda: now)
    monkeypatch.setattr(kit_questions, "QUESTIONS", 3)
    known.keep(Place(CHAT), ["m1", "m2", "m3", "m4"], CHOICES)
    found = [name for name in ("m1", "m2", "m3", "m4") if is_known(known, name)]
    assert found == ["m2", "m3", "m4"]
    now = DAYS * 86_400.0
    assert not is_known(known, "m4")
    known.close()


def is_known(questions, name):
    return read(questions, "yes", reply_to=name) == "/yes"


def test_a_file_that_can_not_be_used_stops_neither_questions_nor_replies(tmp_path):
    (tmp_path / "q.sqlite").mkdir()
    known = Questions(tmp_path / "q.sqlite")
    known.keep(Place(CHAT), ["m2"], CHOICES)
    assert read(known, "yes") == "yes"


async def test_a_word_names_none_of_several_calls(chats, bot, till):
    async with bot(asks(call(to="Ada"), call(to="Bob", call_id="c2"))):
        await chats.say(CHAT, "Pay both!")
        question = (await said(chats, 1))[0]
        await chats.say(CHAT, "yes", reply_to=question.id)
        assert (await said(chats, 2))[1].text == "done"
    assert till.paid == []


def test_a_word_names_no_call_beside_a_servers_question():
    ask = {"number": 1, "code": "0123456789abcd", "seq": 2, "who": "asker", "seconds": 60}
    entry = Entry(type=APPROVAL, content={"asks": [ask, ask | {"number": 2, "form": 3}]})
    choices, known = choices_in(entry, in_english), Questions()
    assert [choice.label for choice in choices] == ["Yes 1", "No 1"]
    known.keep(Place(CHAT), ["m2"], choices)
    assert read(known, "yes") == "yes"
    known.close()


async def test_a_message_that_is_edited_into_a_yes_answers_nothing(chats, bot, till):
    async with bot():
        await chats.say(CHAT, "Pay!")
        question = (await said(chats, 1))[0]
        message = await chats.say(CHAT, "hm", reply_to=question.id)
        await said(chats, 2)
        await chats.edit(CHAT, message, "yes")
        await chats.say(CHAT, "well?")
        await said(chats, 3)
    assert till.paid == []


async def test_a_channel_in_another_language_takes_its_words(chats, bot, till):
    async with bot(rules=open_to_all(language="de")):
        await chats.say(CHAT, "Zahl!")
        question = (await said(chats, 1))[0]
        await chats.say(CHAT, "Ja", reply_to=question.id)
        await said(chats, 2)
    assert till.paid == [("Ada", 5)]
