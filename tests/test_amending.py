"""Messages that are changed or taken back, before their answer, during it and after."""

import anyio

from nanoloop import tool
from nanoloop.agents import Agent
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing.faults import FaultyStore, Gate
from nanoloop.testing.trial import pair_violations
from tests.test_holds import log_of, running, said, store  # noqa: F401 - a fixture

CALL = Reply(tool_calls=(ToolCall(id="c", name="look", arguments="{}"),))


class Failing(FaultyStore):
    """Its saves go as `plan` says, and well when that is empty."""

    def __init__(self, store):  # noqa: F811 - a fixture
        self.plan = []
        super().__init__(store, iter(lambda: self.plan.pop(0) if self.plan else "fine", None))


class Looking:
    """A tool that waits at a gate."""

    def __init__(self):
        self.gate = Gate()

        @tool
        async def look() -> str:
            """Look."""
            await self.gate.passes()
            return "seen"

        self.agent = Agent(tools=[look])


async def test_a_change_that_could_not_be_kept_is_no_question():
    failing = Failing(InMemoryStore())
    provider = ScriptedProvider(["1", "2", "3"], held=True)
    async with running(provider, failing) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        failing.plan = ["before"]
        loop.bus.put_nowait(said("two, really", "e1", edits="two"))
        await anyio.wait_all_tasks_blocked()
        provider.release()
        await loop.chat.until(2)
        await anyio.wait_all_tasks_blocked()
        assert [item.reply_to for item in loop.chat.sent] == ["one", "two"]


async def test_a_change_of_what_is_owed_asks_the_store_for_nothing(monkeypatch):
    provider, store = ScriptedProvider(["1", "2"], held=True), InMemoryStore()  # noqa: F811
    asked, has_heard = [], store.has_heard

    async def counted(chat, message_id):
        asked.append(message_id)
        return await has_heard(chat, message_id)

    monkeypatch.setattr(store, "has_heard", counted)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        await loop.bus.hand_in(said("two, really", "e2", edits="two"))
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        assert asked == []
        await loop.bus.hand_in(said("unheard of", "e0", edits="zero"))
        assert asked == ["zero"]
        provider.release(9)
        await loop.chat.until(2)
    assert (await log_of(store))[::2] == ["one, really", "two, really"]


async def test_an_edit_that_has_no_room_is_not_run_as_a_command():
    provider, slowly = ScriptedProvider(["1", "2"], held=True), InMemoryStore()
    gate, save = anyio.Event(), slowly.save
    async with running(provider, slowly, lane_limit=1) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()

        async def slow(session):
            await gate.wait()
            await save(session)

        slowly.save = slow
        for name in ("two", "three"):
            loop.bus.put_nowait(said(name))
            await anyio.wait_all_tasks_blocked()
        loop.bus.put_nowait(said("/new", "e1", edits="two"))
        assert await loop.chat.until(1) == [ENGLISH["busy"]]
        gate.set()


async def test_an_edit_right_behind_its_message_is_not_lost(store):  # noqa: F811 - a fixture
    provider, gate = ScriptedProvider(["1", "2"], held=True), Gate()
    bound = store.bound
    calls = []

    async def slow(key):
        calls.append(key)
        if len(calls) == 1:  # the message itself takes longer than its edit
            await gate.passes()
        return await bound(key)

    store.bound = slow
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        loop.bus.put_nowait(said("one, really", "e1", edits="one"))
        await gate.reached(1)
        gate.open()
        await provider.asked()
        await anyio.wait_all_tasks_blocked()
        provider.release()
        await loop.chat.until(1)
    assert "one, really" in str(await log_of(store))


async def test_a_changed_question_is_durable_when_it_is_handed_in(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["never", "1"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        assert await log_of(store) == ["one, really"]
        await loop.bus.hand_in(said("one, at last", "e2", edits="one"))
        assert await log_of(store) == ["one, at last"]
        await provider.asked(3)
        provider.release()
        await loop.chat.until(1)
        assert loop.chat.sent[0].reply_to == "one"


async def test_what_the_tools_did_is_not_forgotten_when_the_question_changes(store):  # noqa: F811 - a fixture
    looking = Looking()
    looking.gate.open()
    provider = ScriptedProvider([CALL, "never", "both"], held=True)
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        provider.release(1)
        await provider.asked(2)
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        await provider.asked(3)
        provider.release()
        assert await loop.chat.until(1) == ["both"]
    asked = provider.calls[2].messages
    assert not list(pair_violations(asked))
    assert "seen" in str(asked)
    assert asked[-1]["content"] == "[edit by the user of an earlier message] one, really"


async def test_what_was_told_to_a_turn_survives_a_change_of_its_question(store):  # noqa: F811 - a fixture
    looking = Looking()
    provider = ScriptedProvider([CALL, "never", "both"], held=True)
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        provider.release(1)
        await looking.gate.reached(1)
        await loop.bus.hand_in(said("and two", steers=True))
        await anyio.wait_all_tasks_blocked()
        looking.gate.open()
        await provider.asked(2)
        await loop.bus.hand_in(said("", "d1", deletes="one"))
        loop.bus.put_nowait(said("three"))
        await provider.asked(3)
        provider.release()
        await loop.chat.until(1)
    assert "and two" in await log_of(store)


async def test_an_older_message_that_changes_during_a_turn_breaks_no_call_from_its_result(store):  # noqa: F811 - a fixture
    looking = Looking()
    provider = ScriptedProvider(["0", CALL, "1"])
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("zero"))
        await loop.chat.until(1)
        loop.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        await loop.bus.hand_in(said("zero, really", "e1", edits="zero"))
        looking.gate.open()
        await loop.chat.until(2)
    asked = provider.calls[2].messages
    assert not list(pair_violations(asked))
    assert "zero, really" in str(asked)


async def test_a_question_changes_though_all_before_it_has_left_the_window(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1", "2", "never", "3"])
    options = {"message_buffer_limit": 2, "message_buffer_min": 1}
    options["summarizer"] = Summarizer(ScriptedProvider())
    async with running(provider, store, **options) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        loop.bus.put_nowait(said("two"))
        await loop.chat.until(2)
        provider.hold()
        loop.bus.put_nowait(said("three"))
        await provider.asked(3)
        await loop.bus.hand_in(said("three, really", "e1", edits="three"))
        await provider.asked(4)
        provider.release()
        assert (await loop.chat.until(3))[2] == "3"
    assert "three, really" in str(provider.calls[3].messages[-1])


async def test_a_change_that_is_heard_again_is_told_to_the_model_once(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1", "2"])
    edit, delete = said("one, really", "e1", edits="one"), said("", "d1", deletes="two")
    async with running(provider, store) as loop:
        for name in ("one", "two"):
            loop.bus.put_nowait(said(name))
        await loop.chat.until(2)
        for amendment in (edit, delete, edit, delete):
            await loop.bus.hand_in(amendment)
    async with running(provider, store) as loop:  # also after a restart
        for amendment in (edit, delete):
            assert await loop.bus.hand_in(amendment) == "repeated"
    told = str(await log_of(store))
    assert [told.count("one, really"), told.count("took back")] == [1, 1]


async def test_an_older_change_that_is_heard_again_undoes_no_newer_one(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        for text, name in (("B", "e1"), ("C", "e2"), ("B", "e1")):
            await loop.bus.hand_in(said(text, name, edits="two"))
        provider.release()
        await loop.chat.until(2)
    assert await log_of(store) == ["one", "1", "C", "2"]


async def test_a_question_is_asked_anew_once_though_its_change_is_heard_again(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["never", "1"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        await provider.asked(2)
        await loop.bus.hand_in(said("one, really", "e1", edits="one"))
        provider.release()
        assert await loop.chat.until(1) == ["1"]
    assert len(provider.calls) == 2
    assert await log_of(store) == ["one, really", "1"]


async def test_a_change_under_the_name_of_its_message_is_taken_each_time(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1"])
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await loop.chat.until(1)
        for text in ("B", "C"):
            await loop.bus.hand_in(said(text, "one", edits="one"))
    assert (await log_of(store))[-1] == "C"


async def test_what_waits_behind_a_new_beginning_is_changed_where_it_waits(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        for name in ("/new", "three", "four"):
            await loop.bus.hand_in(said(name))
        await loop.bus.hand_in(said("", "e1", deletes="four"))
        for text, name in (("B", "e2"), ("C", "e3"), ("B", "e2")):
            await loop.bus.hand_in(said(text, name, edits="three"))
        provider.release(9)
        assert (await loop.chat.until(3))[::2] == ["You said: one", "You said: C"]
        await anyio.wait_all_tasks_blocked()
        new = await loop.sessions.current("test:a")
    assert await log_of(store) == ["one", "You said: one"]
    assert await log_of(store, new.id) == ["C", "You said: C"]
