"""What a running call knows of itself, what it tells its chat, and what a kill does to it."""

import threading
from contextlib import suppress
from random import Random

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import Agent, current_call, tool
from nanoloop.embedding import DirectChannel
from nanoloop.errors import ToolError
from nanoloop.intake import user_entry
from nanoloop.messages import Speaker
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing import Gate
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import Bot, says
from nanoloop.tools.call import LONGEST_SAID, MOST_SAID
from nanoloop.tools.effects import MOST_ATTEMPTS
from nanoloop.tools.toolbox import NOT_DONE, NOT_SETTLED, Toolbox
from tests.test_holds import Chat, running, said
from tests.test_tools_effects import FIVE, Till, calls
from tests.web_server import serving

KEY = "test:a"


async def results_in(store):
    entries = await store.entries(KEY)
    return [e.content["result"] or e.content["error"] for e in entries if e.type == "tool_result"]


# What it knows


async def test_a_call_knows_who_asked_for_it_where_and_its_own_id():
    seen, store = [], InMemoryStore()

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        seen.append(current_call())  # in a thread
        return "paid"

    provider = ScriptedProvider([calls(FIVE), "done"])
    async with running(provider, store, agent=Agent(tools=[pay])) as loop:
        speaker = Speaker(name="Ann", id="7", platform="test")
        loop.bus.put_nowait(said("Pay!", message_id="m1", speaker=speaker, group=True))
        assert await loop.chat.until(1) == ["done"]
    [call] = seen
    asked = next(e for e in await store.entries(KEY) if e.type == "tool_call")
    assert (call.call, call.attempt, call.tool, call.arguments) == (
        asked.id,
        1,
        "pay",
        {"amount": 5},
    )
    assert (call.session, call.channel, call.chat, call.is_group) == (KEY, "test", "a", True)
    assert (call.message, call.message_id, call.sender) == ("Pay!", "m1", speaker)


async def test_an_agent_on_its_own_has_calls_without_a_chat():
    seen = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        seen.append((current_call(), current_call().say("paying")))
        return "paid"

    await Agent(provider=ScriptedProvider([calls(FIVE), "done"]), tools=[pay]).ask("Pay!")
    [(call, is_told)] = seen
    assert (call.message, call.sender, call.channel, is_told) == ("Pay!", None, "", False)


def test_where_no_call_runs_there_is_none():
    with pytest.raises(LookupError, match="no tool call is running here"):
        current_call()


# What it says


async def told_by(function, *, chat=None, count=1, **options):
    """What a chat was told, with a tool that does this."""
    provider = ScriptedProvider([calls("{}", name="work"), "done"])
    agent = Agent(tools=[tool(name="work")(function)])
    async with running(provider, InMemoryStore(), agent=agent, chat=chat, **options) as loop:
        loop.bus.put_nowait(said("go"))
        return await loop.chat.until(count + 1)


async def test_what_a_tool_says_is_told_at_once_and_in_order():
    gate, chat = Gate(), Chat()

    async def work() -> str:
        """Work."""
        assert current_call().say("one")
        assert current_call().say("two")
        await gate.passes()
        return "ok"

    async def see():
        await gate.reached()
        assert await chat.until(2) == ["one", "two"]  # while it still runs
        gate.open()

    async with anyio.create_task_group() as group:
        group.start_soon(see)
        assert await told_by(work, chat=chat, count=2) == ["one", "two", "done"]


async def test_a_thread_may_say_something_too():
    def work() -> str:
        """Work."""
        return str(current_call().say("from a thread"))

    assert await told_by(work) == ["from a thread", "done"]


async def test_it_says_no_more_than_some_texts_of_some_length():
    answers = []

    async def work() -> str:
        """Work."""
        for number in range(MOST_SAID + 5):
            answers.append(current_call().say(f"{number} " + "x" * LONGEST_SAID))
            await anyio.lowlevel.checkpoint()
        answers.append(current_call().say("  "))
        return "ok"

    told = await told_by(work, count=MOST_SAID)
    assert answers == [True] * MOST_SAID + [False] * 6
    assert {len(text) for text in told[:-1]} == {LONGEST_SAID}


async def test_after_its_step_nobody_hears_it():
    kept = []

    async def work() -> str:
        """Work."""
        kept.append(current_call())
        return "ok"

    assert await told_by(work, count=0) == ["done"]
    assert not kept[0].say("too late")
    thread = threading.Thread(target=lambda: kept.append(kept[0].say("too late, in a thread")))
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110 - the event loop has to go on for it
        await anyio.sleep(0.001)
    assert kept[1] is False


async def test_a_bus_that_fails_at_what_a_tool_says_costs_nothing():
    class Broken(Chat):
        async def send(self, message):
            if message.kind == "notice":
                raise OSError("gone")
            await super().send(message)

    async def work() -> str:
        """Work."""
        return str(current_call().say("one"))

    assert await told_by(work, chat=Broken(), count=0) == ["done"]


async def test_a_program_that_asks_gets_the_answer_and_not_what_a_tool_said():
    async def work() -> str:
        """Work."""
        current_call().say("working")
        return "ok"

    provider = ScriptedProvider([calls("{}", name="work"), "done"])
    agent = Agent(tools=[tool(name="work")(work)])
    async with running(provider, InMemoryStore(), agent=agent) as loop:
        assert (await DirectChannel(loop.bus).ask("go")).text == "done"


# After a kill


async def killed_in(store, *, claims=3, name="pay", **more):
    """A chat that was killed while it paid 5, in the turn of its third claim."""
    session = await store.create(id=KEY, key=KEY)
    asked = Entry.message("user", "Pay!", metadata={"channel": "test", "chat": "a", **more})
    session.awaiting = session.add_entry(asked).seq
    for _ in range(claims):
        session.claim("gone")
    call = Entry.tool_call(name, {"amount": 5}, call_id="c1", metadata={"claim": 3})
    session.add_entry(call)
    await store.save(session)
    return call.id


async def after_a_kill(*tools, claims=3, script=("done",)):
    store = InMemoryStore()
    name = await killed_in(store, claims=claims)
    provider = ScriptedProvider(list(script))
    async with running(provider, store, agent=Agent(tools=tools), recover=True) as loop:
        assert await loop.chat.until(1) == ["done"]
    return name, await results_in(store), provider


@pytest.mark.parametrize("options", [{"effect": "reads"}, {"idempotent": True}])
async def test_a_call_that_is_safe_to_repeat_runs_again_with_the_same_id(options):
    seen = []

    @tool(**options)
    async def pay(amount: int) -> str:
        """Pay."""
        seen.append((current_call().call, current_call().attempt))
        return f"paid {amount}"

    name, results, provider = await after_a_kill(pay)
    assert (seen, results) == ([(name, 2)], ["paid 5"])
    assert provider.calls[0].messages[-1]["content"] == "paid 5"  # before the model is asked


async def test_a_call_that_writes_is_reported_as_unknown_and_not_run():
    till = Till()
    _, results, _ = await after_a_kill(till.tool, script=(calls(FIVE), "done"))
    assert till.paid == []
    assert results[0] == "interrupted by a restart; it is unknown whether it took effect"
    assert results[1].startswith("not run: the same call was interrupted")


SETTLED = {
    "it happened": (lambda _: "paid 5, says the bank", "paid 5, says the bank", 0),
    "it did not": (
        lambda _: None,
        NOT_DONE,
        1,
    ),
    "nobody knows": (
        lambda _: 1 / 0,
        f"{NOT_SETTLED}: ZeroDivisionError: division by zero",
        0,
    ),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("settle", "told", "paid"), SETTLED.values(), ids=SETTLED)
async def test_a_tool_that_can_find_out_is_asked_and_not_run(settle, told, paid, is_async):
    asked = []

    def find(call: str):
        asked.append((call, current_call().call))
        return settle(call)

    async def found(call: str):
        return find(call)

    till = Till(settle=found if is_async else find)
    # The model then asks for it once more: only what was not done is done.
    name, results, _ = await after_a_kill(till.tool, script=(calls(FIVE), "done"))
    assert (asked, results[0]) == ([(name, name)], told)
    assert till.paid == [5] * paid


async def test_a_message_that_waits_is_not_joined_to_a_question_whose_calls_go_on():
    store, till = InMemoryStore(), Till(effect="reads")
    await killed_in(store, burst=0.001)
    session = await store.get(KEY)
    session.hold(user_entry(said("And more", message_id="m2")))
    await store.save(session)
    agent, provider = Agent(tools=[till.tool]), ScriptedProvider(["paid", "more"])
    async with running(provider, store, agent=agent, recover=True) as loop:
        assert await loop.chat.until(2) == ["paid", "more"]
    assert till.paid == [5]
    assert provider.calls[0].messages[-1]["content"] == "paid 5"


async def test_a_tool_that_is_no_longer_there_is_not_run():
    _, results, _ = await after_a_kill()
    assert results == ["interrupted by a restart; it is unknown whether it took effect"]


@pytest.mark.parametrize(("kills", "ran"), [(MOST_ATTEMPTS - 1, 1), (MOST_ATTEMPTS, 0)])
async def test_a_call_that_ends_the_process_each_time_is_given_up(kills, ran):
    till = Till(effect="reads")
    await after_a_kill(till.tool, claims=2 + kills)
    assert len(till.paid) == ran


async def test_a_call_of_an_earlier_turn_is_not_run_again():
    store, till = InMemoryStore(), Till(effect="reads")
    await killed_in(store)
    session = await store.get(KEY)
    asked = Entry.message("user", "Hello", metadata={"channel": "test", "chat": "a"})
    session.awaiting = session.add_entry(asked).seq
    await store.save(session)
    agent = Agent(tools=[till.tool])
    async with running(ScriptedProvider(["done"]), store, agent=agent, recover=True) as loop:
        assert await loop.chat.until(1) == ["done"]
    assert till.paid == []


async def test_stopped_by_its_user_a_call_that_reads_is_not_run_again():
    store, gate, count = InMemoryStore(), Gate(), []

    @tool(effect="reads")
    async def pay(amount: int) -> str:
        """Pay."""
        count.append(amount)
        await gate.passes()
        return "ok"

    agent = Agent(tools=[pay])
    async with running(ScriptedProvider([calls(FIVE)]), store, agent=agent) as loop:
        loop.bus.put_nowait(said("go"))
        await gate.reached()
        loop.bus.put_nowait(said("/stop"))
        while not await results_in(store):
            await anyio.lowlevel.checkpoint()
    assert await results_in(store) == ["stopped by the user before it finished"]
    async with running(ScriptedProvider([]), store, agent=agent, recover=True):
        await anyio.wait_all_tasks_blocked()
    assert count == [5]


@pytest.mark.parametrize("kind", [OSError, TimeoutError])
async def test_a_lost_reply_is_settled_at_once_so_that_the_model_does_not_pay_twice(kind):
    paid = {}

    @tool(settle=paid.get)
    async def pay(amount: int) -> str:
        """Pay."""
        paid[current_call().call] = f"paid {amount}"
        raise kind("the reply was lost")

    provider = ScriptedProvider([calls(FIVE), calls(FIVE), "done"])
    await Agent(provider=provider, tools=[pay]).ask("Pay!")
    told = [m["content"] for m in provider.calls[-1].messages if m["role"] == "tool"]
    assert (len(paid), told[0]) == (1, "paid 5")
    assert told[1].startswith("Already done")


@pytest.mark.parametrize("options", [{"idempotent": True}, {"settle": lambda _: None}])
async def test_an_equal_call_after_a_lost_reply_has_the_same_id(options):
    seen, fails = [], [ConnectionError("lost"), ToolError("refused"), ConnectionError("lost")]

    @tool(**options)
    async def pay(amount: int) -> str:
        """Pay."""
        seen.append((current_call().call, current_call().attempt))
        if fails:
            raise fails.pop(0)
        return "paid"

    # Equal calls in a row would end the turn.
    other = calls('{"amount": 1}', name="other")
    provider = ScriptedProvider([x for _ in range(4) for x in (calls(FIVE), other)] + ["done"])
    await Agent(provider=provider, tools=[pay]).ask("Pay!")
    assert [attempt for _, attempt in seen] == [1, 2, 2, 3]
    assert len({name for name, _ in seen}) == 1


async def test_an_equal_call_after_a_refusal_has_an_id_of_its_own():
    seen = []

    @tool(idempotent=True)
    async def pay(amount: int) -> str:
        """Pay."""
        seen.append((current_call().call, current_call().attempt))
        raise ToolError("refused")

    provider = ScriptedProvider([calls(FIVE), calls(FIVE), "done"])
    await Agent(provider=provider, tools=[pay]).ask("Pay!")
    assert ([attempt for _, attempt in seen], len(set(seen))) == ([1, 1], 2)


async def test_the_id_of_a_failed_call_stays_the_same_for_an_equal_one_after_a_restart():
    seen, store = [], InMemoryStore()

    @tool(idempotent=True)
    async def pay(amount: int) -> str:
        """Pay."""
        seen.append((current_call().call, current_call().attempt))
        return "paid"

    name = await killed_in(store)
    session = await store.get(KEY)
    failed = {"again": ["first", 1]}
    session.add_entry(Entry.tool_result("pay", None, "lost", call_id="c1", metadata=failed))
    await store.save(session)
    provider = ScriptedProvider([calls(FIVE), "done"])
    async with running(provider, store, agent=Agent(tools=[pay]), recover=True) as loop:
        assert await loop.chat.until(1) == ["done"]
    assert (seen, name != "first") == ([("first", 2)], True)


async def test_what_a_tool_refuses_itself_is_not_asked_about():
    till = Till(failures=9, settle=lambda _: 1 / 0)
    provider = ScriptedProvider([calls(FIVE), "done"])
    await Agent(provider=provider, tools=[till.tool]).ask("Pay!")
    assert provider.calls[-1].messages[-1]["content"] == "Error: no connection"


MISUSED = {
    "reads, idempotent": {"effect": "reads", "idempotent": True},
    "reads, settle": {"effect": "reads", "settle": str},
    "both": {"idempotent": True, "settle": str},
}


@pytest.mark.parametrize("options", MISUSED.values(), ids=MISUSED)
def test_options_that_would_do_nothing_are_refused(options):
    with pytest.raises(ValueError, match="leave out"):
        Till(**options)


# Whatever a tool does


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no words")


def endless():
    while True:
        yield 1


async def ticks():
    yield 1


def circle():
    inner = []
    inner.append(inner)
    return inner


RESULTS = {
    "huge": lambda: "ü" * 1_000_000,
    "bytes": lambda: b"\xff\x00",
    "no JSON": object,
    "none": lambda: None,
    "a set": lambda: {1, 2},
    "a circle": circle,
    "odd keys": lambda: {(1, 2): 3},
    "not a number": lambda: float("nan"),
    "half a character": lambda: "\ud800",
    "it can't be shown": Unshowable,
    "an endless generator": endless,
    "an async generator": ticks,
    "deep": lambda: eval("[" * 90 + "]" * 90),
}
ERRORS = {
    "an error": lambda: ValueError("x" * 100_000),
    "a tool's": lambda: ToolError("no"),
    "without words": Unsayable,
    "the end": SystemExit,
    "a group": lambda: ExceptionGroup("several", [ValueError("a"), OSError("b")]),
    "a group of one": lambda: ExceptionGroup("one", [ValueError("a")]),
    "a group with a cancellation": lambda: BaseExceptionGroup(
        "several", [anyio.get_cancelled_exc_class()(), ValueError("a")]
    ),
    "a cancellation": lambda: anyio.get_cancelled_exc_class()("x"),
    "memory": MemoryError,
    "the stack": RecursionError,
    "iteration": StopIteration,
    "async iteration": StopAsyncIteration,
}
DOINGS = st.sampled_from([*RESULTS.values(), *ERRORS.values()])


@given(st.lists(DOINGS, min_size=1, max_size=6), st.booleans())
def test_whatever_tools_return_or_raise_the_turn_is_answered(doings, in_threads):
    def done(number):
        doing = doings[number]
        value = doing()
        if doing in ERRORS.values():
            raise value
        return value

    def work(number: int) -> object:
        return done(number)

    async def awork(number: int) -> object:
        return done(number)

    provider = ScriptedProvider(
        [calls(*(f'{{"number": {n}}}' for n in range(len(doings))), name="work"), "done"]
    )
    made = tool(name="work", repeatable=True)(work if in_threads else awork)

    async def ask():
        with anyio.fail_after(30):
            return await Agent(provider=provider, tools=[made]).ask("go")

    assert anyio.run(ask) == "done"
    told = [m["content"] for m in provider.calls[-1].messages if m["role"] == "tool"]
    assert len(told) == len(doings)
    for text in told:
        text.encode()
        assert len(text) < 17_000


async def test_a_tool_that_cancels_its_own_tasks_does_not_end_the_turn():
    @tool
    async def work() -> str:
        """Work."""
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            with suppress(ValueError):
                raise ValueError
            group.cancel_scope.cancel()
        raise anyio.get_cancelled_exc_class()

    provider = ScriptedProvider([calls("{}", name="work"), "done"])
    assert await Agent(provider=provider, tools=[work]).ask("go") == "done"


# On a platform, and on the page


@tool(name="work")
async def talking() -> str:
    """Work."""
    current_call().say("**half** done")
    current_call().say("**half** done")
    return "ok"


async def test_a_platforms_chat_reads_what_a_tool_says_and_then_the_answer(tmp_path):
    chats = FakeChats()
    provider = ScriptedProvider([calls("{}", name="work"), "done"])
    bot = Bot(chats.platform(), tmp_path, provider=provider)
    bot.loop.agents.default.toolbox = Toolbox([talking])
    async with bot:
        await chats.say("alice", "go")
        await says(chats, "alice", "*half* done", "*half* done", "done")


async def test_a_lost_reply_costs_no_payment_and_makes_no_second_one():
    draw, ledger, calls_made = Random(7), {}, 0

    async def bank(call, amount):
        """Pays at most once for each id, and drops requests and replies at random."""
        nonlocal calls_made
        calls_made += 1
        await anyio.lowlevel.checkpoint()
        if draw.random() < 0.3:
            raise ConnectionError("the request was lost")
        ledger.setdefault(call, amount)
        if draw.random() < 0.3:
            raise ConnectionError("the reply was lost")

    @tool(settle=lambda call: f"paid {ledger[call]}" if call in ledger else None)
    async def pay(amount: int) -> str:
        """Pay."""
        await bank(current_call().call, amount)
        return f"paid {amount}"

    def answer(messages, *_):
        last = messages[-1]
        if last["role"] == "tool" and "paid" in last["content"]:
            return "paid"
        return calls(f'{{"amount": {payment}}}')

    agent = Agent(provider=ScriptedProvider(otherwise=answer), tools=[pay])
    for payment in range(100):  # noqa: B007 - the model pays it
        while await agent.ask("Pay!") != "paid":
            """It gave up after some equal calls: it is asked again."""
    assert sorted(ledger.values()) == [*range(100)]
    assert calls_made > 130


async def test_the_page_shows_what_a_tool_says_as_a_notice_that_answers_nothing(tmp_path):
    provider = ScriptedProvider([calls("{}", name="work"), "done"])
    async with serving(tmp_path, provider=provider) as web:
        web.app.loop.agents.default.toolbox = Toolbox([talking])
        session = await web.begin()
        async with web.reading(session) as reader:
            await reader.until("hello")
            asked = await web.say(session, "go")
            told = [(await reader.until("answer"))[-1].data for _ in range(3)]
        assert told == [
            {"message_id": None, "text": "**half** done", "kind": "notice"},
            {"message_id": None, "text": "**half** done", "kind": "notice"},
            {"message_id": asked, "text": "done", "kind": "answer"},
        ]
        assert "half" not in str(await web.messages(session))
