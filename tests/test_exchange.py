"""The daemon keeps a history as small as its session's own rules say, and nothing waits for it."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop import Agent, AgentLoop, Entry
from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import NoConnection
from nanoloop.events import ResizeFailed, SummaryStarted, WindowTrimmed, hearing
from nanoloop.parts import make_agents
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore

MEMO = '{"memo": {"name": "Ann"}}'


class Model:
    """Answers chats at once; a memo's call may be held."""

    def __init__(self, *memos):
        self.chats, self.memos = ScriptedProvider(), ScriptedProvider(memos, otherwise=MEMO)

    async def chat(self, *, messages, **asked):
        is_memo = "current_memo" in messages[-1]["content"]
        return await (self.memos if is_memo else self.chats).chat(messages=messages, **asked)

    async def close(self):
        pass


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


async def test_a_memo_that_hangs_holds_up_no_answer_and_is_asked_for_once():
    model = Model()
    model.memos.hold()
    settings = {"session.mode": "memo", "session.resize.every_n_turns": 1}
    async with running(model, settings=settings) as loop:
        session = await after(loop, 5)
        assert (model.chats.count, model.memos.count, session.memo) == (5, 1, {})
        model.memos.release()
        await anyio.wait_all_tasks_blocked()
        assert session.memo["name"] == "Ann"


async def test_a_memo_outlasts_the_process():
    store = InMemoryStore()
    settings = {"session.mode": "memo", "session.resize.every_n_turns": 1}
    async with running(store=store, settings=settings) as loop:
        session = await after(loop, 1)
    assert (await store.load(session.id)).memo["name"] == "Ann"


async def test_a_memo_that_fails_is_told_and_costs_no_answer():
    settings = {"session.mode": "memo", "session.resize.every_n_turns": 1}
    async with running(Model(NoConnection("down")), settings=settings) as loop:
        session = await after(loop, 1)
        assert [m["content"] for m in session.messages] == ["m0", "You said: m0"]
        assert [e.error for e in loop.events if isinstance(e, ResizeFailed)] == ["NoConnection"]


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
