"""What writes runs once in a turn; what reads, failed or is meant to be repeated runs again."""

import anyio.lowlevel
import pytest

from nanoloop import Agent, tool
from nanoloop.errors import ToolError
from nanoloop.events import ToolNotRepeated
from nanoloop.protocols import Reply, ToolCall, ToolSpec
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tools.ready import calculator, clock, make_recall_tool
from nanoloop.tools.toolbox import Toolbox
from tests.test_holds import running


class Till:
    """Pays, and knows how often it did."""

    def __init__(self, failures=0, **options):
        self.paid = []
        self._failures = failures

        @tool(**options)
        async def pay(amount: int) -> str:
            """Pay so much."""
            self.paid.append(amount)
            await anyio.lowlevel.checkpoint()
            if len(self.paid) <= self._failures:
                raise ToolError("no connection")
            return f"paid {amount}"

        self.tool = pay


def calls(*arguments, name="pay"):
    return Reply(tool_calls=tuple(ToolCall(id="", name=name, arguments=one) for one in arguments))


FIVE = '{"amount": 5}'


async def asked(till, *replies):
    """What the model was shown last."""
    provider = ScriptedProvider([*replies, "done"])
    await Agent(provider=provider, tools=[till.tool]).ask("Pay!")
    return [m["content"] for m in provider.calls[-1].messages if m["role"] == "tool"]


STEPS = {
    "one after the other": [calls(FIVE), calls(FIVE), calls('{ "amount" : 5 }')],
    "side by side": [calls(FIVE, FIVE, FIVE)],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_what_is_asked_for_three_times_in_a_turn_is_paid_once(steps, heard):
    till = Till()
    first, *others = await asked(till, *steps)
    assert till.paid == [5]
    assert first == "paid 5"
    assert [text.startswith("Already done: ") for text in others] == [True, True]
    assert all(text.endswith("\npaid 5") for text in others)
    assert sum(isinstance(event, ToolNotRepeated) for event in heard) == 2


async def test_other_arguments_are_another_call():
    till = Till()
    await asked(till, calls(FIVE, '{"amount": 6}'), calls('{"amount": 7}'))
    assert sorted(till.paid) == [5, 6, 7]


@pytest.mark.parametrize("steps", [[calls(FIVE, FIVE, FIVE)], [calls(FIVE)] * 3])
async def test_a_call_that_failed_may_be_tried_again(steps):
    till = Till(failures=1)
    texts = await asked(till, *steps)
    assert till.paid == [5, 5]
    assert (texts[:2], len(texts)) == (["Error: no connection", "paid 5"], 3)


@pytest.mark.parametrize("options", [{"effect": "reads"}, {"repeatable": True}])
async def test_what_reads_or_is_meant_to_be_repeated_runs_each_time(options):
    till = Till(**options)
    assert await asked(till, calls(FIVE), calls(FIVE, FIVE)) == ["paid 5"] * 3
    assert till.paid == [5, 5, 5]


async def test_a_die_may_be_rolled_as_often_as_a_turn_has_steps():
    till = Till(repeatable=True)
    await asked(till, *[calls(FIVE)] * 7)
    assert len(till.paid) == 7


async def test_the_next_turn_pays_again():
    till, provider = Till(), ScriptedProvider([calls(FIVE), "done"] * 2)
    agent = Agent(provider=provider, tools=[till.tool])
    await agent.ask("Pay!")
    await agent.ask("Once more!")
    assert till.paid == [5, 5]


class Bare:
    """A tool of somebody's who knows nothing of effects."""

    spec = ToolSpec(name="bare", description="", parameters={})

    async def call(self, arguments):
        return "ok"


def test_a_tool_that_does_not_say_so_writes():
    toolbox = Toolbox([Bare(), clock, calculator, make_recall_tool(None), Till().tool])
    assert [spec.name for spec in toolbox.specs if toolbox.writes(spec.name)] == ["bare", "pay"]
    assert not toolbox.writes("nowhere")
    assert not toolbox.is_repeatable("bare")


def test_an_effect_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match='"reads" or "writes", not \'read\''):
        Till(effect="read")


# After a restart


async def interrupted(store, *results):
    """A chat that was killed after it had asked to pay 5, with what was kept of that."""
    session = await store.create(id="test:a", key="test:a")
    question = session.add_entry(
        Entry.message("user", "Pay!", metadata={"channel": "test", "chat": "a"})
    )
    session.awaiting = question.seq
    session.add_entry(Entry.tool_call("pay", {"amount": 5}, call_id="c1"))
    for result in results:
        session.add_entry(Entry.tool_result("pay", result, call_id="c1"))
    await store.save(session)


@pytest.mark.parametrize(
    ("results", "told"),
    [(["paid 5"], "Already done: "), ([], "Error: not run: the same call was interrupted")],
    ids=["done", "interrupted"],
)
async def test_what_was_done_before_a_restart_is_not_done_again(results, told):
    till, store = Till(), InMemoryStore()
    await interrupted(store, *results)
    provider = ScriptedProvider([calls(FIVE), "done"])
    agent = Agent(tools=[till.tool])
    async with running(provider, store, agent=agent, recover=True) as loop:
        assert await loop.chat.until(1) == ["done"]
    assert till.paid == []
    assert provider.calls[-1].messages[-1]["content"].startswith(told)
