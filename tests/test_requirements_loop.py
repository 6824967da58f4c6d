"""The lines on the loop and its summaries that no other test carries by their name."""

from contextlib import asynccontextmanager

import anyio

from nanoloop import AgentLoop, Inbound, InMemoryStore, Session, Summarizer
from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import NoConnection
from nanoloop.events import FailureTold, SummaryDropped, SummaryFailed, hearing
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings


def talk(session, count):
    for number in range(count):
        session.add_message("assistant" if number % 2 else "user", f"m{number}")
    return session


def trimmed(session=None):
    session = talk(session or Session(), 52)
    session.trim_if_needed(50, 10)
    return session


class Running:
    """A loop, its two models and a chat with it."""

    def __init__(self, chat, summaries, **options):
        self.chat, self.summaries, self.events = chat, summaries, []
        self.store = InMemoryStore()
        self.loop = AgentLoop(
            provider=chat,
            store=self.store,
            summarizer=Summarizer(summaries),
            **options,
        )
        self._direct = DirectChannel(self.loop.bus)

    async def says(self, text, chat="a"):
        with anyio.fail_after(5):
            return (await self._direct.ask(text, chat=chat)).text

    async def session(self, chat="a"):
        return await self.loop.sessions.current(f"direct:{chat}")

    async def settled(self):
        assert await self.loop.summarizer.drain(5) == 0

    def system(self):
        return self.chat.calls[-1].messages[0]["content"]


@asynccontextmanager
async def running(chat=None, summaries=None, **options):
    made = Running(chat or ScriptedProvider(), summaries or ScriptedProvider(["new"]), **options)
    with hearing(made.events.append):
        async with anyio.create_task_group() as group:
            await group.start(made.loop.run)
            yield made
            made.summaries.release()
            made.chat.release()
            made.loop.bus.close()


async def summarised(session, model, **options):
    summarizer = Summarizer(model, **options)
    summarizer.fire_and_forget(session)
    assert await summarizer.drain(5) == 0


# R4


async def test_r4_1_the_settings_say_50_10_and_no_other_model_and_the_loop_goes_by_them(tmp_path):
    settings = Settings(data=tmp_path)
    loop = App.of(settings, provider=ScriptedProvider()).loop
    assert (loop.message_buffer_limit, loop.message_buffer_min) == (50, 10)
    assert settings.summary_model is None
    other = Settings(data=tmp_path, message_buffer_limit=8, message_buffer_min=2)
    loop = App.of(other, provider=ScriptedProvider()).loop
    assert (loop.message_buffer_limit, loop.message_buffer_min) == (8, 2)


async def test_r4_9_the_transcript_is_lines_behind_the_previous_summary():
    model, session = ScriptedProvider(["S"]), trimmed()
    session.update_summary("Before.")
    await summarised(session, model)
    said = model.calls[0].messages[-1]["content"]
    assert "user: m0\nassistant: m1\nuser: m2\n" in said
    assert said.index("Before.") < said.index("user: m0")


async def test_r4_11_the_prompt_asks_for_what_the_next_turns_need():
    model = ScriptedProvider(["S"])
    await summarised(trimmed(), model)
    prompt = " ".join(model.calls[0].messages[0]["content"].split())
    wanted = ("what happened", "names", "facts", "unfinished tasks", "open questions", "promises")
    assert [word for word in wanted if word not in prompt] == []
    assert "previous summary" in prompt
    assert "fewer than 200 words, and nothing but the summary" in prompt


async def test_r4_12_a_summary_that_is_there_is_set_and_saved():
    store = InMemoryStore()
    session = trimmed(await store.create(id="s"))
    await store.save(session)
    await summarised(session, ScriptedProvider(["They counted."]), store=store)
    assert (await store.get("s")).summary == session.summary == "They counted."


async def test_r4_13_a_summary_that_fails_is_told_and_no_turn_notices():
    async with running(summaries=ScriptedProvider([NoConnection("down")])) as made:
        session = talk(await made.session(), 54)
        assert await made.says("T1") == "You said: T1"
        await made.settled()
        assert await made.says("T2") == "You said: T2"
    assert [e.reason for e in made.events if isinstance(e, SummaryFailed)] == ["NoConnection"]
    assert not [e for e in made.events if isinstance(e, FailureTold)]
    assert (session.summary, session.summary_in_progress) == ("", False)


async def test_r4_18_the_window_is_cut_and_a_summary_begun_before_the_model_sees_the_old_one():
    async with running(summaries=ScriptedProvider(["new"], held=True)) as made:
        session = talk(await made.session(), 54)
        session.update_summary("old")
        await made.says("T1")
        assert session.summary_in_progress
        assert len(made.chat.calls[0].messages) <= 13
        assert made.system().endswith("\n\nold")


async def test_r4_20_no_message_waits_for_a_summary():
    async with running(summaries=ScriptedProvider(["new"], held=True)) as made:
        session = talk(await made.session(), 54)
        session.update_summary("old")
        for text in ("T1", "T2", "T3"):
            assert await made.says(text) == f"You said: {text}"
            assert made.system().endswith("\n\nold")
        assert made.summaries.count == 1


async def test_r4_19_what_a_background_job_reports_is_handled_alike():
    async with running(summaries=ScriptedProvider(["new"], held=True)) as made:
        session = talk(await made.session(), 54)
        session.update_summary("old")
        report = Inbound(channel="direct", chat="a", text="done", sender="job", origin="system")
        made.loop.bus.put_nowait(report)
        with anyio.fail_after(5):
            await made.chat.asked()
        assert session.summary_in_progress
        assert len(made.chat.calls[0].messages) <= 13
        assert made.system().endswith("\n\nold")


async def test_r4_21_a_summary_is_seen_from_the_first_turn_after_it():
    async with running() as made:
        talk(await made.session(), 54)
        await made.says("T1")
        assert "Conversation Summary" not in made.system()
        await made.settled()
        await made.says("T2")
        assert made.system().endswith("\n\nnew")


async def test_r4_24_the_task_writes_the_summary_and_nothing_else():
    session = trimmed()
    session.set("k", "v")
    before = session.to_dict()
    await summarised(session, ScriptedProvider(["S"]))
    after = session.to_dict()
    changed = {name for name in after if after[name] != before.get(name)}
    assert {"summary", "summary_cursor"} <= changed
    assert changed <= {"summary", "summary_cursor", "ledger", "updated_at"}


async def test_b4_4_chats_run_side_by_side_and_each_in_its_order():
    model = ScriptedProvider(held=True)
    async with running(model) as made, anyio.create_task_group() as group:
        for text, chat in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            group.start_soon(made.says, text, chat)
            await anyio.wait_all_tasks_blocked()
        assert [call.messages[-1]["content"] for call in model.calls] == ["a1", "b1"]
        model.release()
    assert model.calls[-1].messages[-1]["content"] == "a2"


# Of R3, what a loop does


async def test_b3_3_each_exchange_is_saved_by_itself():
    async with running() as made:
        for count, text in ((2, "one"), (4, "two")):
            await made.says(text)
            stored = await made.store.get("direct:a")
            assert len(stored.messages) == count
            assert stored.messages[-1]["content"] == f"You said: {text}"


async def test_b3_5_each_chat_has_a_session_of_its_own():
    async with running() as made:
        await made.says("one", chat="project one")
        await made.says("two", chat="project two")
        one, two = [await made.session(f"project {name}") for name in ("one", "two")]
    assert one.id != two.id
    assert [s.messages[0]["content"] for s in (one, two)] == ["one", "two"]


async def test_b3_6_a_conversation_may_be_compacted_at_any_time():
    async with running(message_buffer_min=2) as made:
        session = talk(await made.session(), 8)
        assert "6 messages left" in await made.says("/compact")
        await made.settled()
        assert (len(session.messages), session.summary) == (2, "new")
        assert len((await made.store.get(session.id)).full_chat_history) == 8


# Where the documents disagree


async def test_c15_a_summary_call_has_two_messages():
    model, session = ScriptedProvider(["S"]), trimmed()
    session.update_summary("Before.")
    await summarised(session, model)
    system, user = model.calls[0].messages
    assert (system["role"], user["role"]) == ("system", "user")
    assert "Before." not in system["content"]
    assert "m0" not in system["content"]


async def test_c21_the_loop_saves_after_each_exchange_and_each_summary():
    async with running() as made:
        session = talk(await made.session(), 54)
        await made.says("Hello")
        await made.settled()
        stored = await made.store.get(session.id)
    assert stored.messages == session.messages
    assert stored.summary == "new"


async def test_c23_a_summary_that_comes_after_a_delete_is_let_go(heard):
    store, model = InMemoryStore(), ScriptedProvider(["late"], held=True)
    session = trimmed(await store.create(id="s"))
    await store.save(session)
    async with Summarizer(model, store=store) as summarizer:
        summarizer.fire_and_forget(session)
        await model.asked()
        await store.delete("s")
        model.release()
        assert await summarizer.drain(5) == 0
    assert isinstance(heard[-1], SummaryDropped)
    assert [info async for info in store.list()] == []
