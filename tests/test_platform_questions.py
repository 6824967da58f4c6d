"""Questions about tool calls on platforms: the choices that the kit hands over."""

import pytest

from nanoloop.agents import Agent
from nanoloop.channels.kit import is_choice
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.fake import BOT, FakeChats
from nanoloop.testing.channels.stage import Bot, comes_to
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
