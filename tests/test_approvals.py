"""Tool calls that a person approves first: asked durably, run once, and only on a yes."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import anyio
import pytest

from nanoloop import Agent, AgentLoop, Inbound, ScriptedProvider, tool
from nanoloop.agents import AgentLimits, Agents
from nanoloop.events import hearing
from nanoloop.messages import Speaker
from nanoloop.protocols import Reply, ToolCall
from nanoloop.session.approvals import APPROVED
from nanoloop.session.entry import TOOL_RESULT
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import Bot, answers
from nanoloop.tools.approval import (
    LONGEST_SHOWN,
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalRules,
)
from tests.test_loop import Chats

ADA, BOB = Speaker(id="1", name="Ada"), Speaker(id="2", name="Ada")


class Till:
    """A tool that pays, and what it has paid."""

    def __init__(self, **options):
        self.paid = []

        @tool(**{"approve": "always"} | options)
        async def pay(to: str, amount: int = 5) -> str:
            """Pay."""
            self.paid.append((to, amount))
            return f"paid {amount} to {to}"

        self.tool = pay


@tool(effect="reads")
async def look(what: str) -> str:
    """Look at something."""
    return f"saw {what}"


def call(name="pay", call_id="c1", **arguments):
    return ToolCall(id=call_id, name=name, arguments=json.dumps(arguments))


def asks(*calls):
    return Reply(tool_calls=calls or (call(to="Ada"),))


class Chat:
    """One chat with a loop, in which several people may write."""

    def __init__(self, loop, provider):
        self.loop, self.provider = loop, provider
        self.channel = Chats(loop.bus)
        self._names = uuid4().hex
        self._count = 0

    async def say(self, text, by=ADA, chat="a", **more):
        """Send a message, and return the text that it is answered with."""
        self._count += 1
        name = f"{self._names} {self._count}"
        message = {"message_id": name, "speaker": by, "group": True} | more
        before = len(self.channel.sent.get(chat, ()))
        await self.loop.bus.put(Inbound(channel="test", chat=chat, text=text, **message))
        return (await self.channel.until(chat, before + 1))[-1]

    @property
    def choices(self):
        return [each.text for each in self.channel.sent["a"][-1].choices]

    @property
    def told(self):
        """The results that the model was given with its last request."""
        messages = self.provider.calls[-1].messages
        return [m["content"] for m in messages if m["role"] == "tool"]

    async def session(self):
        return await self.loop.sessions.current("test:a")


@asynccontextmanager
async def chatting(*replies, tools=(), rules=None, store=None, otherwise="well"):
    provider = ScriptedProvider(replies, otherwise=otherwise)
    agent = Agent(tools=tools, limits=AgentLimits(approval=rules))
    loop = AgentLoop(provider, agent=agent, store=store)
    chat = Chat(loop, provider)
    async with loop:
        yield chat


async def test_a_call_is_asked_about_in_full_and_runs_once_on_a_yes():
    till = Till()
    async with chatting(
        asks(call(to="Ada\u202eadA", amount=7)), "It is paid.", tools=[till.tool]
    ) as c:
        question = await c.say("Pay!")
        assert question.startswith("May I call pay? (number 1)\n```\n")
        assert '"to": "Ada\\u{202e}adA"' in question
        assert '"amount": 7' in question
        assert till.paid == []
        assert await c.say("/yes") == "It is paid."
        assert till.paid == [("Ada\u202eadA", 7)]
        assert c.told == ["paid 7 to Ada\u202eadA"]
        assert (await c.session()).approvals.open == ()
        assert await c.say("/yes 1") == "Number 1 was already answered."
    assert till.paid == [("Ada\u202eadA", 7)]


async def test_other_messages_are_answered_while_a_call_waits():
    till = Till()
    async with chatting(asks(), "It is sunny.", "It is paid.", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say("And the weather?") == "It is sunny."
        assert c.told[0].startswith("No result yet: it waits for a person's approval.")
        assert await c.say("/yes 1") == "It is paid."
        late = c.provider.calls[-1].messages[-1]["content"]
        assert "came late" in late
        assert "paid 5 to Ada" in late


async def test_a_no_is_told_to_the_model_with_its_reason():
    till = Till()
    async with chatting(asks(), "Then not.", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say("/no 1 too much") == "Then not."
        assert c.told == ["Error: not run: the user said no: too much"]
    assert till.paid == []


async def test_calls_that_need_no_approval_run_beside_one_that_waits():
    till = Till()
    both = asks(call(to="Ada"), call("look", "c2", what="it"))
    async with chatting(both, "done", tools=[till.tool, look]) as c:
        await c.say("Pay, and look!")
        results = [e for e in (await c.session()).window if e.type == TOOL_RESULT]
        assert [e.content["result"] for e in results] == ["saw it"]
        await c.say("/yes")
        assert c.told == ["paid 5 to Ada", "saw it"]


async def test_of_several_calls_each_is_answered_by_its_number():
    till = Till()
    both = asks(call(to="Ada"), call(to="Bob", call_id="c2"))
    async with chatting(both, "one", "two", tools=[till.tool]) as c:
        question = await c.say("Pay both!")
        assert question.count("May I call pay?") == 2
        assert [text.split()[:2] for text in c.choices] == [
            ["/yes", "1"],
            ["/no", "1"],
            ["/yes", "2"],
            ["/no", "2"],
        ]
        assert (
            await c.say("/yes") == "Several calls are waiting. Which one?\n/yes 1: pay\n/yes 2: pay"
        )
        assert await c.say("/yes 2") == "one"
        assert till.paid == [("Bob", 5)]
        assert await c.say("/no 1") == "two"
    assert till.paid == [("Bob", 5)]


async def test_the_same_call_is_not_asked_about_twice():
    till = Till()
    async with chatting(asks(), asks(), "It waits.", "paid", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say("Pay, I said!") == "It waits."
        assert c.told[-1].endswith("already waits for a person's approval (number 1)")
        assert await c.say("/yes") == "paid"
    assert till.paid == [("Ada", 5)]


async def test_a_call_that_can_not_be_shown_or_is_wrong_is_refused_without_asking():
    till = Till()
    long, wrong = asks(call(to="x" * LONGEST_SHOWN)), asks(call(sum=3))
    async with chatting(long, wrong, "No.", tools=[till.tool]) as c:
        assert await c.say("Pay!") == "No."
        assert "more than the 1500 that can be shown" in c.told[0]
        assert "there is no argument 'sum'" in c.told[1]


async def test_where_nobody_can_be_asked_the_call_is_refused():
    till, provider = Till(), ScriptedProvider([asks(), "No."])
    agent = Agent(provider=provider, tools=[till.tool])
    assert await agent.ask("Pay!") == "No."
    assert provider.calls[-1].messages[-1]["content"] == (
        "Error: not run: a person has to approve it first, and nobody can be asked here"
    )
    assert till.paid == []


async def test_the_log_tells_what_was_asked_and_answered_without_the_arguments():
    till, heard = Till(), []
    with hearing(heard.append):
        async with chatting(asks(call(to="Ada")), "paid", tools=[till.tool]) as c:
            await c.say("Pay!")
            await c.say("/yes 1", by=BOB)
            await c.say("/yes 1")
    told = [e for e in heard if isinstance(e, ApprovalAsked | ApprovalAnswered)]
    assert [(type(e).__name__, e.tool, getattr(e, "void", "")) for e in told] == [
        ("ApprovalAsked", "pay", ""),
        ("ApprovalAnswered", "pay", "others"),
        ("ApprovalAnswered", "pay", ""),
    ]


async def test_a_stopped_turn_leaves_no_question_that_nobody_was_asked():
    till, started = Till(), anyio.Event()

    @tool(effect="reads")
    async def stuck() -> str:
        """Never end."""
        started.set()
        await anyio.sleep_forever()

    both = asks(call(to="Ada"), call("stuck", "c2"))
    async with chatting(both, "Hm.", tools=[till.tool, stuck]) as c:
        async with anyio.create_task_group() as group:
            group.start_soon(c.say, "Pay!")
            await started.wait()
            await c.loop.bus.put(Inbound(channel="test", chat="a", text="/stop", speaker=ADA))
            await c.channel.until("a", 2)  # twice: by the turn, and by the command
        assert await c.say("/yes") == "Nothing is waiting for an answer here."
        assert await c.say("And?") == "Hm."
        assert c.told[0] == "Error: not run: it was stopped before it started"
    assert till.paid == []


async def test_a_transcript_says_who_approved_what():
    till = Till()
    async with chatting(asks(call(to="Ada")), "paid", tools=[till.tool]) as c:
        await c.say("Pay!")
        await c.say("/yes 1")
        text = (await c.session()).to_markdown()
    assert "**Approval** · asked: 1 pay" in text
    assert "**Approval** · yes to 1, by Ada" in text


# Who may answer, and when


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        ("/yes 1", {"by": BOB}, "Only the person whose message led to this may answer it."),
        ("/yes", {"by": BOB, "rank": "operator"}, "Only the person whose message led to this may"),
        ("/yes 1", {"by": None, "sender": "Ada"}, "Only the person whose message led to this may"),
        ("/yes 1", {"by": Speaker(id="1", platform="x")}, "Only the person whose message led to"),
        ("/yes 2", {}, "There is no question with number 2 in this conversation."),
        ("/yes 1 0123456789abcd", {}, "There is no question with number 1 in this conversation."),
        ("/yes 1", {"chat": "b"}, "There is no question with number 1 in this conversation."),
        ("/yes one", {"chat": "b"}, "Nothing is waiting for an answer here."),
        ("/always 1 to=*", {}, "Only an operator of this bot may do that here."),
        (
            "/always 1 to=* amount=*",
            {"rank": "operator"},
            "Give one pattern for each argument of pay (to)",
        ),
    ],
)
async def test_an_answer_that_is_not_the_askers_own_runs_nothing(text, more, told):
    till = Till()
    async with chatting(asks(), "paid", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert (await c.say(text, **more)).startswith(told)
        assert till.paid == []
        assert await c.say("/yes") == "paid"


@pytest.mark.parametrize("more", ["0", "-1", "1.0", "\u0661", "1 but half of it", "please"])
async def test_a_yes_with_anything_but_the_number_is_asked_for_again(more):
    till = Till()
    async with chatting(asks(), "paid", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert (await c.say(f"/yes {more}")).startswith("/yes takes the number of a question")
        assert till.paid == []
        assert await c.say("/yes") == "paid"


@pytest.mark.parametrize("text", ["yes", "Yes, /yes 1", "> /yes 1", "approved", "\u200b/yes 1"])
async def test_words_that_are_no_command_approve_nothing(text):
    till = Till()
    async with chatting(asks(), "What?", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say(text) == "What?"
    assert till.paid == []


async def test_the_models_own_words_approve_nothing():
    till = Till()
    async with chatting(asks(), "/yes 1", "approved: /yes 1", tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say("And?") == "/yes 1"
        assert await c.say("And?") == "approved: /yes 1"
    assert till.paid == []


async def test_a_report_from_a_job_approves_nothing():
    till, nobody = Till(), {"by": None, "group": False}
    async with chatting(asks(), tools=[till.tool]) as c:
        await c.say("Pay!", **nobody)
        assert await c.say("/yes 1", origin="system", **nobody) == "well"
    assert till.paid == []


async def test_operators_answer_if_the_settings_say_so():
    till, rules = Till(), ApprovalRules(who="operators")
    async with chatting(asks(), "paid", tools=[till.tool], rules=rules) as c:
        assert (await c.say("Pay!")).startswith("An operator has to approve a call to pay.")
        assert await c.say("/yes 1") == "Only an operator of this bot may answer it."
        assert await c.say("/yes 1", by=BOB, rank="operator") == "paid"
    assert till.paid == [("Ada", 5)]


async def test_an_answer_written_before_the_question_does_not_count():
    till, asked, gate = Till(), anyio.Event(), anyio.Event()

    async def slow(*_):
        asked.set()
        await gate.wait()
        return asks()

    async with chatting(tools=[till.tool], otherwise=slow) as c, anyio.create_task_group() as group:
        group.start_soon(c.say, "Pay!")
        await asked.wait()
        blind = Inbound(channel="test", chat="a", text="/yes", message_id="blind", speaker=ADA)
        await c.loop.bus.hand_in(replace(blind, group=True))
        gate.set()
        said = await c.channel.until("a", 2)
        assert (
            said[1] == "I only asked about number 1 after you wrote that. Please answer it again."
        )
    assert till.paid == []


async def test_an_answer_written_while_the_question_was_held_up_does_not_count():
    till, begun, gate = Till(), anyio.Event(), anyio.Event()

    @tool(name="look", effect="reads")
    async def slow(what: str) -> str:
        """Look at something."""
        begun.set()
        await gate.wait()
        return "seen"

    both = asks(call(to="Ada"), call("look", "c2", what="it"))
    async with chatting(both, tools=[till.tool, slow]) as c, anyio.create_task_group() as group:
        group.start_soon(c.say, "Pay, and look!")
        await begun.wait()
        blind = Inbound(channel="test", chat="a", text="/yes", message_id="blind", speaker=ADA)
        await c.loop.bus.hand_in(replace(blind, group=True))
        gate.set()
        said = await c.channel.until("a", 2)
        assert said[1].startswith("I only asked about number 1 after you wrote that.")
    assert till.paid == []


async def test_an_answer_that_comes_too_late_runs_nothing_and_the_model_knows():
    till, rules = Till(), ApprovalRules(seconds=0.001)
    async with chatting(asks(), "Hm.", tools=[till.tool], rules=rules) as c:
        await c.say("Pay!")
        await anyio.sleep(0.01)
        assert await c.say("/yes 1") == "Number 1 is not run: the answer came too late."
        assert await c.say("And?") == "Hm."
        assert c.told == ["Error: not run: nobody agreed in time"]
    assert till.paid == []


async def test_what_nobody_has_approved_in_time_is_given_up_with_the_next_message():
    till, rules = Till(), ApprovalRules(seconds=0.001)
    async with chatting(asks(), "Hm.", tools=[till.tool], rules=rules) as c:
        await c.say("Pay!")
        await anyio.sleep(0.01)
        assert await c.say("And?") == "Hm."
        assert c.told == ["Error: not run: nobody agreed in time"]
        assert await c.say("/yes 1") == "Number 1 is not run: the answer came too late."


async def test_an_edited_message_is_asked_about_anew():
    till = Till()
    async with chatting(asks(), asks(call(to="Bob")), "paid", tools=[till.tool]) as c:
        await c.say("Pay Ada!", message_id="first")
        question = await c.say("Pay Bob!", edits="first", message_id=None)
        assert question.startswith("May I call pay? (number 2)")
        assert await c.say("/yes 1") == (
            "Number 1 is not run: the message that led to it was edited or deleted."
        )
        assert await c.say("/yes 2") == "paid"
    assert till.paid == [("Bob", 5)]


async def test_a_deleted_message_takes_its_call_along():
    till = Till()
    async with chatting(asks(), "Fine.", tools=[till.tool]) as c:
        await c.say("Pay Ada!", message_id="first")
        await c.loop.bus.put(Inbound(channel="test", chat="a", text="", deletes="first"))
        assert (await c.say("/yes 1")).startswith("Number 1 is not run: the message that led")
    assert till.paid == []


@pytest.mark.parametrize("command", ["/forget 1", "/forget 2-3", "/undo"])
async def test_what_is_erased_or_taken_back_is_not_run(command):
    till = Till()
    async with chatting("Hello.", asks(), tools=[till.tool]) as c:
        await c.say("Pay!" if "1" in command else "Hello!")
        await c.say("Pay!")
        await c.say(
            command.replace("1", "3") if command == "/forget 1" else command.replace("2-3", "4")
        )
        assert (await c.say("/yes 1")).startswith("Number 1 is not run: what led to it was")
    assert till.paid == []


async def test_a_new_conversation_ends_the_questions_of_the_one_before():
    till = Till()
    async with chatting(asks(), asks(call(to="Bob")), "paid", tools=[till.tool]) as c:
        await c.say("Pay!")
        old = c.choices[0]
        await c.say("/new")
        assert await c.say(old) == "There is no question with number 1 in this conversation."
        assert (await c.say("Pay Bob!")).startswith("May I call pay? (number 2)")
        assert await c.say(old) == "There is no question with number 1 in this conversation."
        assert await c.say("/yes") == "paid"
    assert till.paid == [("Bob", 5)]


@pytest.mark.parametrize("other", ["gone", "other schema", "other function"])
async def test_a_tool_that_has_changed_since_is_not_run(other):
    till, later = Till(), Till()

    @tool(name="pay", approve="always")
    async def steal(to: str, amount: int = 5) -> str:
        """Pay."""
        later.paid.append(to)
        return "stolen"

    known = {
        "gone": [],
        "other schema": [Till(description="Pay more.").tool],
        "other function": [steal],
    }
    async with chatting(asks(), tools=[till.tool]) as c:
        await c.say("Pay!")
        c.loop.agents.renew(type(c.loop.agents)(Agent(tools=known[other])))
        assert (await c.say("/yes 1")).startswith("Number 1 is not run: the tool has changed since")
    assert (till.paid, later.paid) == ([], [])


# Permissions


async def test_always_allows_the_same_call_and_no_other():
    till = Till()
    again = asks(), "paid again", asks(call(to="Ada", amount=6))
    async with chatting(asks(), "paid", *again, tools=[till.tool]) as c:
        await c.say("Pay!")
        assert await c.say("/always 1") == "paid"
        assert await c.say("/always") == "pay, with the same arguments"
        assert await c.say("Pay again!") == "paid again"
        assert till.paid == [("Ada", 5)] * 2
        assert (await c.say("Pay 6!")).startswith("May I call pay? (number 2)")
        assert await c.say("/always off") == "1 permission was revoked."
    assert till.paid == [("Ada", 5)] * 2


async def test_a_permission_holds_for_the_person_who_gave_it_and_in_the_next_conversation():
    till = Till()
    async with chatting(asks(), "paid", asks(), "paid", asks(), tools=[till.tool]) as c:
        await c.say("Pay!")
        await c.say("/always 1")
        await c.say("/new")
        assert await c.say("Pay!") == "paid"
        assert (await c.say("Pay!", by=BOB)).startswith("May I call pay?")
    assert till.paid == [("Ada", 5)] * 2


async def test_an_operator_allows_a_pattern():
    till = Till()
    replies = [asks(call(to="Ada", amount=5)), "one", asks(call(to="Ada", amount=9)), "two"]
    bob = asks(call(to="Bob", amount=5))
    async with chatting(*replies, bob, tools=[till.tool]) as c:
        await c.say("Pay!", rank="operator")
        assert await c.say("/always 1 to=Ada amount=?", rank="operator") == "one"
        assert await c.say("/always") == "pay(to=Ada, amount=?)"
        assert await c.say("Pay 9!", by=BOB) == "two"
        assert (await c.say("Pay Bob!")).startswith("May I call pay?")
    assert till.paid == [("Ada", 5), ("Ada", 9)]


async def test_words_that_are_no_pattern_allow_nothing_of_a_tool_without_arguments():
    done = []

    @tool(approve="always")
    async def reset() -> str:
        """Reset."""
        done.append("reset")
        return "done"

    async with chatting(asks(call("reset")), tools=[reset]) as c:
        await c.say("Reset!", rank="operator")
        told = await c.say("/always 1 please", rank="operator")
        assert told.startswith("Give one pattern for each argument of reset")
    assert done == []


# Which calls


@pytest.mark.parametrize(
    ("own", "effect", "rules", "is_asked"),
    [
        ("never", "writes", (), False),
        ("writes", "writes", (), True),
        ("writes", "reads", (), False),
        ("always", "reads", (("*", "never"),), True),
        ("never", "writes", (("*", "writes"),), True),
        ("never", "reads", (("*", "writes"),), False),
        ("never", "reads", (("pa*", "always"), ("*", "never")), True),
        ("never", "writes", (("p?y", "never"), ("*", "always")), False),
    ],
)
def test_settings_ask_for_more_than_a_tool_and_never_for_less(own, effect, rules, is_asked):
    pay = Till(approve=own, effect=effect).tool
    assert ApprovalRules(rules=rules).asks_first(pay) is is_asked


# Over a restart


async def test_a_question_outlives_its_process_and_its_buttons_still_work(tmp_path):
    till, url = Till(), tmp_path / "bot.db"
    async with chatting(asks(), tools=[till.tool], store=SqliteStore(url)) as c:
        await c.say("Pay!")
        button = c.choices[0]
    async with chatting("paid", tools=[till.tool], store=SqliteStore(url)) as c:
        assert await c.say(button) == "paid"
        results = [e for e in (await c.session()).window if APPROVED in e.metadata]
        assert [e.content["result"] for e in results] == ["paid 5 to Ada"]
    assert till.paid == [("Ada", 5)]


async def test_a_call_that_left_the_window_is_still_run_when_approved(tmp_path):
    till = Till()
    store = SqliteStore(tmp_path / "bot.db")
    async with chatting(asks(), tools=[till.tool], store=store) as c:
        c.loop.message_buffer_limit = 4
        await c.say("Pay!")
        session = await c.session()
        for number in range(8):
            await c.say(f"Message {number}")
        await c.loop.sessions.change(session, lambda s: s.trim_if_needed(4, 2))
        session.release()
        assert not any(e.type == "tool_call" for e in session.window)
        assert await c.say("/yes") == "well"
        assert "paid 5 to Ada" in str(c.provider.calls[-1].messages)
    assert till.paid == [("Ada", 5)]


@asynccontextmanager
async def killed(chats, folder, provider, *tools):
    """A bot that leaves nothing undone in order: the end of the block is a kill."""
    bot = Bot(chats.platform(), folder, provider=provider)
    bot.loop.agents.renew(Agents(Agent(tools=tools)))
    async with bot:
        yield bot


async def test_a_call_that_was_started_is_not_run_again_after_a_kill(tmp_path):
    chats, paid, begun = FakeChats(), [], anyio.Event()
    provider = ScriptedProvider([asks()], otherwise="It is unknown.")

    @tool(approve="always")
    async def pay(to: str, amount: int = 5) -> str:
        """Pay."""
        paid.append((to, amount))
        begun.set()
        return await anyio.sleep_forever() if len(paid) == 1 else "paid again"

    async with killed(chats, tmp_path, provider, pay):
        await chats.say("with-ann", "Pay!", sender="ann")
        await answers(chats, "with-ann", 1)
        await chats.say("with-ann", "/yes 1", sender="ann")
        await begun.wait()
    async with killed(chats, tmp_path, provider, pay):
        assert (await answers(chats, "with-ann", 2))[-1] == "It is unknown."
    assert paid == [("Ada", 5)]
    assert "it is unknown whether it took effect" in str(provider.calls[-1].messages)


async def test_a_question_that_a_kill_kept_back_is_asked_after_the_restart(tmp_path):
    chats, till, begun = FakeChats(), Till(), anyio.Event()
    provider = ScriptedProvider([asks(call(to="Ada"), call("look", "c2", what="it"))])

    @tool(name="look", effect="reads")
    async def stuck(what: str) -> str:
        """Look at something."""
        begun.set()
        return await anyio.sleep_forever()

    async with killed(chats, tmp_path, provider, till.tool, stuck):
        await chats.say("with-ann", "Pay, and look!", sender="ann")
        await begun.wait()
    async with killed(chats, tmp_path, provider, till.tool, look):
        (question,) = await answers(chats, "with-ann", 1)
    assert question.startswith("May I call pay? (number 1)")
    assert till.paid == []
