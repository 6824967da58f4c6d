import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nanoloop.session.session import Session
from nanoloop.session.sync import Mutex


def texts(messages):
    return [message["content"] for message in messages]


class Seen:
    """A memo handler that notes every message it was given."""

    def __init__(self):
        self.texts = []

    async def __call__(self, memo, messages, *_):
        self.texts += texts(messages)
        await anyio.lowlevel.checkpoint()
        return {"n": memo.get("n", 0) + len(messages)}


def with_memo(keep=3):
    seen = Seen()
    session = Session(memo_update_handler=seen)
    return session.configure(mode="memo", limit={"messages": keep}), seen


# Sync and async


def outcome(session, *, force):
    return session.judge_resize(force), session.resize(force), session.to_dict()["memo"]


@pytest.mark.parametrize("force", [False, True, "lite"])
async def test_r0_13_r0_37_sync_and_async_say_the_same_inside_and_outside_a_loop(force):
    sessions = [with_memo()[0] for _ in range(3)]
    for session in sessions:
        session.set_chat_history([{"role": "user", "content": str(n)} for n in range(5)])
    inside, outside, waited = sessions
    expected = (
        await waited.async_judge_resize(force),
        await waited.async_resize(force),
        waited.memo,
    )
    assert outcome(inside, force=force) == expected
    outside_of_it = await anyio.to_thread.run_sync(lambda: outcome(outside, force=force))
    assert outside_of_it == expected


def test_sync_works_without_a_loop():
    session, seen = with_memo()
    session.add_message("user", "a")
    assert texts(session.resize(force=True)) == seen.texts == ["a"]


async def test_r0_57_a_sync_handler_runs_beside_the_loop():
    threads = []
    session = Session(policy_handler=lambda *_: threads.append(threading.get_ident()))
    await session.async_judge_resize()
    session.judge_resize()
    assert threading.get_ident() not in threads
    assert len(threads) == 2


async def test_sync_in_the_loop_of_a_resize_that_is_going_on_says_so():
    gate = anyio.Event()

    async def wait(*_):
        await gate.wait()

    session = Session(memo_update_handler=wait).configure(mode="memo")
    session.add_message("user", "a")
    async with anyio.create_task_group() as group:
        group.start_soon(session.async_resize, "lite")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="await async_resize"):
            session.resize()
        gate.set()


async def test_a_handler_can_not_resize_its_own_session():
    session = Session(resize_handlers={"mine": lambda *_: session.resize(force="mine")})
    with pytest.raises(RuntimeError, match="that called it"):
        await session.async_resize(force="mine")


# Many at once


def test_r2_7_ten_threads_lose_and_double_nothing():
    session, seen = with_memo()

    def talk(name):
        for n in range(20):
            session.add_message("user", f"{name}-{n}")
            session.set(name, n)
            if n % 5 == 0:
                session.resize(force="lite")

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(talk, "abcdefghij"))
    session.resize(force="lite")
    said = texts(session.full_chat_history)
    assert sorted(said) == sorted(f"{name}-{n}" for name in "abcdefghij" for n in range(20))
    assert seen.texts == said
    assert session.memo["n"] == 200
    assert [entry.seq for entry in session.changes().entries] == list(range(1, 201))
    assert texts(session.messages) == said[-3:]


async def test_r2_7_ten_tasks_lose_and_double_nothing():
    session, seen = with_memo()

    async def talk(name):
        for n in range(20):
            session.add_message("user", f"{name}-{n}")
            await session.async_resize()
            if n % 5 == 0:
                await session.async_resize(force="lite")

    async with anyio.create_task_group() as group:
        for name in "abcdefghij":
            group.start_soon(talk, name)
    await session.async_resize(force="lite")
    said = texts(session.full_chat_history)
    assert len(said) == len(set(said)) == 200
    assert seen.texts == said
    assert texts(session.messages) == said[-3:]


# The lock


async def test_c25_the_lock_lets_one_in_at_a_time_across_loops():
    mutex, inside, most = Mutex(), [], []

    async def enter():
        async with mutex:
            inside.append(1)
            most.append(len(inside))
            await anyio.lowlevel.checkpoint()
            inside.pop()

    def in_a_loop_of_its_own():
        for _ in range(10):
            anyio.run(enter)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(anyio.to_thread.run_sync, in_a_loop_of_its_own)
        for _ in range(10):
            group.start_soon(enter)
    assert most == [1] * 40


async def test_one_who_stops_waiting_holds_up_nobody():
    mutex, gate, entered = Mutex(), anyio.Event(), []

    async def hold():
        async with mutex:
            await gate.wait()

    async def enter(name):
        async with mutex:
            entered.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(hold)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01):
            await enter("impatient")
        group.start_soon(enter, "patient")
        gate.set()
    assert entered == ["patient"]


async def test_the_lock_is_free_after_a_failure():
    mutex = Mutex()
    for _ in range(2):
        with pytest.raises(ValueError, match="oh"):
            async with mutex:
                raise ValueError("oh")
