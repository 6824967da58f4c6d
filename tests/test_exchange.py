"""The daemon keeps a history as small as its session's own rules say, and nothing waits for it."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import Agent, AgentLoop, Entry
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import NoConnection, StoreError
from nanoloop.events import ResizeFailed, SummaryStarted, WindowTrimmed, hearing
from nanoloop.memory.summarizer import Summarizer
from nanoloop.parts import make_agents
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_chat import Counted, Recorded
from tests.test_chat import after as done

MEMO = '{"memo": {"name": "Ann"}}'
EACH_ANSWER = {"session.mode": "memo", "session.resize.every_n_turns": 1}
TWO_AND_MEMO = {"session.mode": "memo", "session.limit": {"messages": 2}}


class Model:
    """Answers chats at once; a memo's call may be held."""

    def __init__(self, *memos, otherwise=MEMO):
        self.chats, self.memos = ScriptedProvider(), ScriptedProvider(memos, otherwise=otherwise)

    async def chat(self, *, messages, **asked):
        is_memo = "current_memo" in messages[-1]["content"]
        return await (self.memos if is_memo else self.chats).chat(messages=messages, **asked)

    async def close(self):
        pass


class Refusing(InMemoryStore):
    """Saves nothing while it refuses."""

    refuses = False

    async def save(self, session):
        if self.refuses:
            raise StoreError("it is away")
        await super().save(session)


@asynccontextmanager
async def running(model=None, *, settings=None, **options):
    loop = AgentLoop(
        provider=model or Model(),
        agent=Agent(settings=settings),
        shutdown_summaries_seconds=0,
        **options,
    )
    loop.events, loop.direct = [], DirectChannel(loop.bus)
    with hearing(loop.events.append):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            yield loop
            loop.bus.close()


async def session_of(loop):
    return await loop.sessions.current("direct:default")


async def after(loop, turns, **configured):
    """The session after so many turns, and what was done behind them."""
    session = await session_of(loop)
    session.configure(**configured)
    for number in range(turns):
        await loop.direct.ask(f"m{number}")
        await anyio.wait_all_tasks_blocked()
    return session


@pytest.mark.parametrize("by_session", [True, False])
async def test_r0_39_a_limit_of_messages_counts_behind_each_answer(by_session):
    limit = {"messages": 4}
    settings = {} if by_session else {"session.limit": limit}
    async with running(settings=settings) as loop:
        session = await after(loop, 5, limit=limit if by_session else None)
        assert [m["content"] for m in session.messages][::2] == ["m3", "m4"]
        assert session.last_resize["reason"] == "max_keep_messages_count"
        assert session.entry_count == 10
        assert any(isinstance(event, SummaryStarted) for event in loop.events)


async def test_the_seeds_defaults_cut_no_window_of_a_daemon():
    async with running(settings={"session.mode": "memo"}) as loop:
        session = await session_of(loop)
        session.add_entry(Entry.message("user", "x" * 20_000))
        await after(loop, 10)
        assert (session.last_resize, len(session.messages)) == (None, 21)


async def test_where_one_rule_is_set_the_other_defaults_stay_off():
    async with running() as loop:
        session = await session_of(loop)
        session.add_entry(Entry.message("user", "x" * 20_000))
        await after(loop, 10, limit={"messages": 100})
        assert (session.last_resize, len(session.messages)) == (None, 21)


async def test_c33_where_two_rules_hold_at_once_the_full_window_weighs_more_than_the_turns():
    async with running(message_buffer_limit=3, message_buffer_min=1) as loop:
        session = await after(loop, 1, every_n_turns=1)
        assert session.last_resize_turn == 1
        await after(loop, 1)
        assert (len(session.messages), session.last_resize_turn) == (4, 1)
        await after(loop, 1)
        assert (len(session.messages), session.last_resize_turn) == (2, 3)


async def test_c33_and_less_than_a_limit_of_characters():
    async with running(message_buffer_limit=3, message_buffer_min=1) as loop:
        session = await after(loop, 2, limit={"chars": 40})
        assert session.last_resize["type"] == "deep"
        assert [m["content"] for m in session.messages] == ["m1", "You said: m1"]


async def test_what_a_resize_took_out_of_the_window_is_told():
    async with running(message_buffer_limit=30, message_buffer_min=2) as loop:
        await after(loop, 3, limit={"messages": 2})
        assert [e.kept for e in loop.events if isinstance(e, WindowTrimmed)] == [2, 2]


def given(model, number=-1):
    """What the memo of this call was to take in."""
    asked = json.loads(model.memos.calls[number].messages[-1]["content"])
    return [message["content"] for message in asked["messages"]]


def held_back():
    """A model whose memos wait to be released."""
    model = Model()
    model.memos.hold()
    return model


async def commits_of_a_turn(settings):
    """In a store, with summaries held back, which are commits of their own."""
    store, summarizer = Counted(), Summarizer(ScriptedProvider(held=True))
    async with running(settings=settings, store=store, summarizer=summarizer) as loop:
        await after(loop, 2)
        store.calls.clear()
        session = await after(loop, 1)
        return store.calls["commit"], len(session.messages)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (2, 6)),
        ({"session.limit": {"messages": 2}}, (2, 2)),
        (TWO_AND_MEMO, (3, 2)),
        (EACH_ANSWER, (3, 6)),
    ],
    ids=["no resize", "a resize", "with a memo", "a memo alone"],
)
async def test_a_resize_is_in_its_answers_commit_and_its_memo_is_one_more(settings, expected):
    assert await commits_of_a_turn(settings) == expected


async def test_a_memo_that_hangs_holds_up_neither_an_answer_nor_its_cut():
    model, store = held_back(), InMemoryStore()
    async with running(model, settings=TWO_AND_MEMO, store=store) as loop:
        session = await after(loop, 5)
        assert model.memos.count == 1
        stored = await store.load(session.id)
        assert [m["content"] for m in stored.messages] == ["m4", "You said: m4"]
        assert (stored.last_resize["turn"], stored.memo_seq) == (5, 0)


async def test_two_memos_of_a_session_are_not_written_at_once_and_the_second_has_the_rest():
    model = held_back()
    async with running(model, settings=TWO_AND_MEMO) as loop:
        session = await after(loop, 4)
        assert model.memos.waiting == 1
        model.memos.release()
        await anyio.wait_all_tasks_blocked()
        assert given(model, 0)[::2] == ["m0", "m1"]
        assert given(model, 1)[::2] == ["m2", "m3"]
        assert (model.memos.count, session.memo_seq) == (2, session.last_seq)
        assert session.memo == {"name": "Ann", "last_resize": session.last_resize}


async def test_a_memo_outlasts_the_process():
    store = InMemoryStore()
    async with running(store=store, settings=EACH_ANSWER) as loop:
        session = await after(loop, 1)
    assert (await store.load(session.id)).memo["name"] == "Ann"


async def test_what_a_kill_kept_out_of_the_memo_is_taken_in_behind_a_later_answer():
    store = InMemoryStore()
    async with running(held_back(), settings=TWO_AND_MEMO, store=store) as loop:
        await after(loop, 3)
    model = Model()
    async with running(model, settings={"session.mode": "memo"}, store=store) as loop:
        session = await after(loop, 1)  # no resize is due
        assert given(model)[::2] == ["m0", "m1", "m2", "m0"]
        assert (session.memo_seq, session.last_resize["turn"]) == (8, 3)


def noting(messages, *_):
    """A memo that is all of what it was made from."""
    asked = json.loads(messages[-1]["content"])
    said = [message["content"] for message in asked["messages"]]
    return json.dumps({"memo": {"seen": [*asked["current_memo"].get("seen", []), *said]}})


async def test_wherever_a_process_ends_an_answer_has_its_cut_and_the_memo_misses_nothing():
    store, settings = InMemoryStore(), TWO_AND_MEMO
    store.database = Recorded(store.database)
    async with running(Model(otherwise=noting), settings=settings, store=store) as loop:
        name = (await after(loop, 2)).id
    log = store.database.log
    ends = [number for number, (call, *_) in enumerate(log, 1) if call == "commit"]
    for end in ends:
        left = await done(log[:end])
        stood = await left.get(name)
        if stood.newest.role == "assistant":
            assert len(stood.messages) == 2
        said = [entry.content["text"] for entry in stood.whole() if entry.seq <= stood.memo_seq]
        assert stood.memo.get("seen", []) == said
        async with running(Model(otherwise=noting), settings=settings, store=left) as loop:
            await after(loop, 1)
        whole = await left.get(name)
        assert whole.memo["seen"] == [message["content"] for message in whole.full_chat_history]
    assert len(ends) >= 2 * 2 + 1  # each turn's, and the memo's


async def test_a_memo_that_fails_is_told_and_asked_for_behind_the_next_answer():
    model = Model(NoConnection("down"))
    async with running(model, settings=TWO_AND_MEMO) as loop:
        session = await after(loop, 2)
        assert [e.error for e in loop.events if isinstance(e, ResizeFailed)] == ["NoConnection"]
        assert [m["content"] for m in session.messages] == ["m1", "You said: m1"]
        assert session.memo_seq == 0
        await after(loop, 1)
        assert given(model)[::2] == ["m0", "m1", "m0"]
        assert (session.memo["name"], session.memo_seq) == ("Ann", 6)


async def test_a_memo_that_was_not_saved_is_with_the_next_answer():
    model, store = held_back(), Refusing()
    async with running(model, settings=TWO_AND_MEMO, store=store, store_timeout_seconds=0) as loop:
        session = await after(loop, 2)
        store.refuses = True
        model.memos.release()
        await anyio.wait_all_tasks_blocked()
        assert [e.error for e in loop.events if isinstance(e, ResizeFailed)] == ["StoreError"]
        assert (await store.load(session.id)).memo_seq == 0
        store.refuses = False
        await after(loop, 1)
        stored = await store.get(session.id)
        assert (stored.memo["name"], stored.memo_seq) == ("Ann", 6)
        said = [message["content"] for message in stored.full_chat_history]
        assert given(model, 0) + given(model, 1) == said


async def test_what_left_with_an_answer_is_summarised_at_once_and_in_memory_no_more():
    async with running(settings={"session.limit": {"messages": 2}}) as loop:
        session = await after(loop, 2)
        started = [event for event in loop.events if isinstance(event, SummaryStarted)]
        assert [(event.first_seq, event.last_seq) for event in started] == [(1, 2)]
        assert session.entries_between(0, 4) == list(session.window)


@pytest.mark.parametrize("rules_are_ours", [True, False])
async def test_a_cut_in_an_answers_commit_goes_by_what_another_writer_left(rules_are_ours):
    limit = {"messages": 2}
    model, store = Model(), InMemoryStore()
    settings = {"session.limit": limit} if rules_are_ours else {}
    async with running(model, settings=settings, store=store) as loop:
        session = await after(loop, 2)
        model.chats.hold()
        async with anyio.create_task_group() as group:
            group.start_soon(loop.direct.ask, "now")
            await model.chats.asked(model.chats.count + 1)
            changed = {} if rules_are_ours else {"limit": limit}
            other = await store.load(session.id)
            await Sessions(store).change(other, lambda it: it.configure(mode="lite", **changed))
            model.chats.release()
        stored = await store.load(session.id)
        assert [m["content"] for m in stored.messages] == ["now", "You said: now"]
        assert stored.entry_count == session.entry_count == 6
        cuts = [e.evicted for e in loop.events if isinstance(e, WindowTrimmed)]
        assert cuts == ([2, 2] if rules_are_ours else [4])


async def test_a_memo_that_somebody_wrote_meanwhile_stays():
    model = held_back()
    async with running(model, settings=EACH_ANSWER) as loop:
        session = await after(loop, 1)
        session.memo = {"name": "Bob"}
        model.memos.release()
        await anyio.wait_all_tasks_blocked()
        assert (session.memo, session.memo_seq) == ({"name": "Bob"}, 0)
        await after(loop, 1)
        assert given(model)[::2] == ["m0", "m0"]
        assert session.memo_seq == 4


async def test_a_memo_of_a_history_that_was_emptied_is_late():
    model = held_back()
    async with running(model, settings=EACH_ANSWER) as loop:
        session = await after(loop, 1)
        await loop.sessions.change(session, lambda it: it.clear())
        model.memos.release()
        await anyio.wait_all_tasks_blocked()
        assert (session.memo, session.has_entry(1)) == ({}, False)


@pytest.mark.parametrize("by", ["policy", "memo_update", "attachment_summary"])
async def test_where_a_handler_of_the_users_has_a_say_it_is_waited_for_by_the_cut_alone(by):
    gate, called = anyio.Event(), []

    async def handler(*given):
        called.append(given)
        await gate.wait()
        return {"policy": "lite", "memo_update": {"name": "Ann"}}.get(by)

    async with running(settings=TWO_AND_MEMO) as loop:
        session = await session_of(loop)
        getattr(session, f"set_{by}_handler")(handler)
        await after(loop, 3)
        assert (len(session.messages), len(called)) == (6, 1)
        gate.set()
        await after(loop, 1)
        assert [m["content"] for m in session.messages] == ["m0", "You said: m0"]


async def test_a_policy_that_raises_stops_no_conversation():
    async with running() as loop:
        (await session_of(loop)).set_policy_handler(lambda *_: 1 / 0)
        await after(loop, 2)
        failed = [e.error for e in loop.events if isinstance(e, ResizeFailed)]
        assert failed == ["ZeroDivisionError"] * 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"messages": 4}, "max_keep_messages_count"),
        ({"chars": 60}, "max_messages_text_length"),
        ({"every_n_turns": 3, "mode": "memo"}, "every_n_turns"),
        ({"mode": "memo"}, None),
        ({}, None),
    ],
)
async def test_the_settings_file_may_say_when(given, reason):
    agents = make_agents(Settings(session=given))
    async with running(agents=agents) as loop:
        session = await after(loop, 4)
        assert (session.last_resize or {}).get("reason") == reason
