"""What was once wrong with approvals: bursts, moves, edits, erasures and other processes."""

from datetime import datetime, timedelta, timezone

import anyio
import pytest

from nanoloop import Agent, AgentLoop, Inbound, ScriptedProvider, tool
from nanoloop.agents import AgentLimits
from nanoloop.approvals import ApprovalCommands
from nanoloop.cli.approvals import _command
from nanoloop.intake import user_entry
from nanoloop.sentences import in_english
from nanoloop.sessions import Sessions
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import answers
from nanoloop.tools.approval import ApprovalRules
from nanoloop.tools.toolbox import Toolbox
from tests.test_approvals import ADA, BOB, Chat, Till, asks, call, chatting, look
from tests.test_documents import CHAT, LONG, bot_on, reader

BURST = 0.2
"""How long messages wait for others; nothing is measured by it."""


async def put(c, text, name, **more):
    """Hand in a message, without waiting for an answer."""
    message = {"speaker": ADA, "group": True, "message_id": name} | more
    await c.loop.bus.hand_in(Inbound(channel="test", chat="a", text=text, **message))


def orders():
    """A tool that needs no yes, and what was ordered."""
    ordered = []

    @tool
    async def order(what: str) -> str:
        """Order something."""
        ordered.append(what)
        return f"ordered {what}"

    return order, ordered


# Messages that are answered together


async def test_a_message_right_behind_a_yes_is_answered_after_the_call():
    till = Till()
    async with chatting(asks(), "paid", "welcome", tools=[till.tool]) as c:
        await c.say("Pay!")
        await put(c, c.choices[0], "yes", burst_seconds=BURST)
        await put(c, "Thanks!", "thanks", burst_seconds=BURST)
        assert (await c.channel.until("a", 3))[1:] == ["paid", "welcome"]
    assert till.paid == [("Ada", 5)]


async def test_a_turn_of_a_chat_that_steers_knows_its_question_after_a_yes():
    till = Till()
    async with chatting(asks(), asks(call(to="Bob")), tools=[till.tool]) as c:
        await c.say("Pay!", steers=True)
        assert (await c.say("/yes 1")).startswith("May I call pay? (number 2)")


async def test_a_permission_does_not_hold_for_somebody_elses_words_in_the_same_turn():
    till = Till()
    async with chatting(asks(), "paid", asks(), tools=[till.tool]) as c:
        await c.say("Pay!")
        await c.say("/always 1")
        await put(c, "Pay Ada again!", "one", speaker=BOB, burst_seconds=BURST)
        await put(c, "Hi all!", "two", burst_seconds=BURST)
        assert (await c.channel.until("a", 3))[-1].startswith("May I call pay?")
    assert till.paid == [("Ada", 5)]


async def test_deleting_any_message_that_led_to_a_call_withdraws_it():
    till = Till()
    async with chatting(asks(), tools=[till.tool]) as c:
        await put(c, "Pay Ada 5", "one", burst_seconds=BURST)
        await put(c, "quickly", "two", burst_seconds=BURST)
        await c.channel.until("a", 1)
        await put(c, "", None, deletes="one")
        assert (await c.say("/yes 1")).startswith("Number 1 is not run: the message that led")
    assert till.paid == []


# Moves and edits


async def test_a_permission_that_was_revoked_does_not_come_back_with_an_older_conversation():
    till = Till()
    async with chatting(asks(), "paid", asks(), tools=[till.tool]) as c:
        await c.say("Pay!")
        await c.say("/always 1")
        first = (await c.session()).id
        await c.say("/new")
        await c.say("/always off")
        await c.say(f"/switch {first}")
        assert (await c.say("Pay!")).startswith("May I call pay?")
    assert till.paid == [("Ada", 5)]


async def test_calls_of_other_turns_do_not_count_for_an_edited_question():
    till, (order, ordered) = Till(), orders()
    apples = asks(call("order", "o1", what="apples"))
    replies = asks(), apples, "ok", asks(call("order", "o2", what="apples")), "again"
    async with chatting(*replies, tools=[till.tool, order]) as c:
        await c.say("Pay!", message_id="first")
        await c.say("Order apples!")
        assert await c.say("Order apples too", edits="first", message_id=None) == "again"
    assert ordered == ["apples"] * 2


async def test_an_edited_question_that_left_the_window_is_asked_anew(tmp_path):
    till, store = Till(), SqliteStore(tmp_path / "bot.db")
    async with chatting(asks(), tools=[till.tool], store=store) as c:
        await c.say("Pay!", message_id="first")
        for number in range(4):
            await c.say(f"Message {number}")
        session = await c.session()
        await c.loop.sessions.change(session, lambda s: s.trim_if_needed(4, 2))
        session.release()
        assert await c.say("Pay Bob!", edits="first", message_id=None) == "well"


async def test_an_undo_leaves_the_result_of_an_earlier_call():
    till = Till()
    async with chatting(asks(), "sunny", "paid", "hm", tools=[till.tool]) as c:
        await c.say("Pay!")
        await c.say("The weather?")
        await c.say("/yes 1")
        await c.say("/undo")
        await c.say("And?")
        told = str(c.provider.calls[-1].messages)
    assert "paid 5 to Ada" in told


async def test_a_permission_of_an_asker_is_none_where_operators_decide():
    till, strict = Till(), AgentLimits(approval=ApprovalRules(who="operators"))
    provider = ScriptedProvider([asks(), "paid", asks()])
    agents = {"strict": Agent(tools=[till.tool], limits=strict)}
    loop = AgentLoop(provider, agent=Agent(tools=[till.tool]), agents=agents)
    c = Chat(loop, provider)
    async with loop:
        await c.say("Pay!")
        await c.say("/always 1")
        await c.say("/agent strict")
        assert (await c.say("Pay again!")).startswith("An operator has to approve")
    assert till.paid == [("Ada", 5)]


# Time


async def test_a_yes_that_was_written_long_before_the_question_does_not_count():
    till = Till()
    async with chatting(asks(), tools=[till.tool]) as c:
        await c.say("Pay!")
        early = datetime.now(timezone.utc) - timedelta(minutes=1)
        assert (await c.say("/yes", time=early)).startswith("I only asked about number 1 after")
    assert till.paid == []


# Erasing


async def test_with_a_person_their_answers_and_their_permissions_are_erased(tmp_path):
    till, store = Till(), SqliteStore(tmp_path / "bot.db")
    replies = asks(), "Hi Bob!", "Then not.", asks(), "paid"
    async with chatting(*replies, tools=[till.tool], store=store) as c:
        await c.say("Pay!")
        await c.say("Hello!", by=BOB)
        await c.say("/no 1 too dear for me")
        await c.say("Pay!")
        await c.say("/always 2")
        session = await c.session()
        await c.loop.sessions.erase_speaker(session.id, ("test", "1"))
        stored = str([e.to_dict() for e in await store.entries(session.id)])
        assert [words for words in ("too dear", "'id': '1'") if words in stored] == []
        assert session.approvals.allowed == ()


async def test_a_yes_that_is_erased_before_its_call_starts_leaves_nothing_open(tmp_path):
    till, store = Till(), SqliteStore(tmp_path / "bot.db")
    async with chatting(asks(), tools=[till.tool], store=store) as c:
        await c.say("Pay!")
        commands = ApprovalCommands(
            sessions=c.loop.sessions, agents=c.loop.agents, node="a dead process"
        )
        yes = Inbound(channel="test", chat="a", text="/yes 1", speaker=ADA, group=True)
        assert await commands.yes(yes, "1", in_english) == ""
        session = await c.session()
        await c.loop.sessions.erase(session.id, [session.awaiting])
        await c.say("And?")
        assert c.told == ["Error: not run: it was stopped before it started"]
        assert (await c.session()).approvals.open == ()


# Other processes, and our own tools


class Elsewhere:
    """A channel that nothing comes from."""

    name, streams = "elsewhere", False

    async def run(self, bus):
        pass

    async def send(self, item):
        raise AssertionError("nothing is sent here")


async def test_a_yes_waits_for_a_process_that_serves_the_chat(tmp_path):
    till, url = Till(), tmp_path / "bot.db"
    async with chatting(asks(), tools=[till.tool], store=SqliteStore(url)) as c:
        await c.say("Pay!")
    store = SqliteStore(url)
    session = await store.load("test:a")
    (asked,) = session.approvals.asked
    (question, *_) = await store.entries(session.id)
    yes = user_entry(_command("yes", asked, question.metadata, None))
    await Sessions(store).change(session, lambda now: now.hold(yes))
    other = AgentLoop(ScriptedProvider(), agent=Agent(), store=SqliteStore(url))
    other.bus.attach(Elsewhere())
    async with other:
        await other.recover()
        await other._chats.idle()
    assert (await SqliteStore(url).load("test:a")).waiting
    async with chatting("paid", tools=[till.tool], store=SqliteStore(url)) as c:
        assert await c.channel.until("a", 1) == ["paid"]
    assert till.paid == [("Ada", 5)]


async def test_nobody_is_asked_whether_the_model_may_read_on_in_a_file(tmp_path):
    name = next(iter(LONG))
    chats, read = FakeChats(), reader("read_attachment", words="the code is")
    bot = bot_on(chats, tmp_path, ScriptedProvider([read], otherwise="end"))
    rules = ApprovalRules(rules=(("*", "always"),))
    bot.loop.agents.default.toolbox = Toolbox([look], approval=rules)
    async with bot:
        await chats.say(CHAT, "What is the code?", files={name: LONG[name]}, sender="ann")
        assert await answers(chats, CHAT, 1) == ["end"]


@pytest.mark.parametrize("erased", [False, True])
async def test_a_question_whose_call_was_erased_is_not_sent_again(tmp_path, erased):
    till, url = Till(), tmp_path / "bot.db"
    async with chatting(asks(), tools=[till.tool], store=SqliteStore(url)) as c:
        await c.say("Pay!")
        session = await c.session()
        told = session.last_seq
        await c.loop.sessions.change(session, lambda s: s.owe(told))
        if erased:
            await c.loop.sessions.erase(session.id, [2])
    async with chatting(tools=[till.tool], store=SqliteStore(url)) as c:
        with anyio.fail_after(5):
            while (await c.session()).unsent:
                await anyio.lowlevel.checkpoint()
        await c.loop._chats.idle()
        assert bool(c.channel.sent.get("a")) is not erased
