import threading

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from nanoloop.fairness import FairLimiter
from nanoloop.providers.local.provider import WaitingLine


class Served:
    """Turns that last until the test lets them go."""

    def __init__(self, line):
        self.line = line
        self.begun = []
        self.may_end = {}
        self.broken_off = 0

    async def turn(self, name):
        self.may_end[name] = anyio.Event()
        async with self.line.turn():
            self.begun.append(name)
            await self.may_end[name].wait()

    async def work(self, name="work"):
        self.may_end[name] = anyio.Event()

        async def work():
            self.begun.append(name)
            try:
                await self.may_end[name].wait()
            except BaseException:
                self.broken_off += 1
                raise
            return name

        return await self.line.in_gaps(work)

    def end(self, *names):
        for name in names:
            self.may_end[name].set()


async def settled():
    for _ in range(5):  # what one loop tells another takes a few rounds to arrive
        await checkpoint()
    await anyio.wait_all_tasks_blocked()


async def begin(group, *calls):
    for function, name in calls:
        group.start_soon(function, name)
        await settled()


async def test_turns_beyond_the_width_wait_in_the_order_they_came():
    served = Served(WaitingLine(2))
    async with anyio.create_task_group() as group:
        await begin(group, *[(served.turn, name) for name in "abcd"])
        assert served.begun == ["a", "b"]
        served.end("b")
        await settled()
        assert served.begun == ["a", "b", "c"]
        served.end("a", "c", "d")
    assert served.begun == ["a", "b", "c", "d"]


async def test_who_waits_for_much_delays_another_by_one_turn_at_most():
    served, turns = Served(WaitingLine(1)), FairLimiter(10)

    async def flood(name):
        async with turns.turn("one"):
            await served.turn(name)

    async with anyio.create_task_group() as group:
        await begin(group, *[(flood, name) for name in "abcd"], (served.turn, "ann"))
        served.end("a")
        await settled()
        assert served.begun == ["a", "ann"]
        served.end("b", "c", "d", "ann")


async def test_both_places_may_be_one_owners():
    served = Served(WaitingLine(2))
    async with anyio.create_task_group() as group:
        await begin(group, *[(served.turn, name) for name in "ab"])
        assert served.begun == ["a", "b"]
        served.end("a", "b")


async def test_one_that_stops_waiting_is_passed_over():
    served = Served(WaitingLine(1))
    async with anyio.create_task_group() as group:
        await begin(group, (served.turn, "a"))
        with anyio.move_on_after(0):
            await served.turn("b")
        await begin(group, (served.turn, "c"))
        served.end("a", "c")
    assert served.begun == ["a", "c"]


async def test_one_that_is_cancelled_as_its_time_comes_gives_it_on():
    served = Served(WaitingLine(1))
    async with anyio.create_task_group() as group:
        await begin(group, (served.turn, "a"))
        scope = anyio.CancelScope()

        async def cancelled():
            with scope:
                await served.turn("b")

        group.start_soon(cancelled)
        await settled()
        served.end("a")
        while served.line._turns:
            await checkpoint()
        scope.cancel()  # the place is given to b, which has not woken up yet
        await begin(group, (served.turn, "c"))
        assert "c" in served.begun
        served.end("c")


async def test_a_turn_that_fails_leaves_its_place():
    line = WaitingLine(1)
    with pytest.raises(ValueError, match="no"):
        async with line.turn():
            raise ValueError("no")
    with anyio.fail_after(1):
        async with line.turn():
            pass


async def test_background_work_waits_until_no_turn_is_about():
    served = Served(WaitingLine(2))
    async with anyio.create_task_group() as group:
        await begin(group, (served.turn, "a"), (served.work, "work"))
        assert served.begun == ["a"]
        served.end("a")
        await settled()
        assert served.begun == ["a", "work"]
        served.end("work")


async def test_background_work_steps_aside_for_a_turn_and_is_begun_again_after():
    served = Served(WaitingLine(2))
    async with anyio.create_task_group() as group:
        await begin(group, (served.work, "work"), (served.turn, "a"))
        assert (served.begun, served.broken_off) == (["work", "a"], 1)
        served.end("a", "work")
    assert served.begun == ["work", "a", "work"]


async def test_background_work_is_done_one_after_the_other():
    served = Served(WaitingLine(2))
    async with anyio.create_task_group() as group:
        await begin(group, (served.work, "first"), (served.work, "second"))
        assert served.begun == ["first"]
        served.end("first", "second")
    assert served.begun == ["first", "second"]


async def test_background_work_that_has_waited_long_enough_stands_in_line_as_a_turn():
    served = Served(WaitingLine(1, patience_seconds=0.05))
    async with anyio.create_task_group() as group:
        await begin(group, (served.turn, "a"), (served.work, "work"))
        with anyio.fail_after(5):
            while not served.line._turns:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.01)
        await begin(group, (served.turn, "b"))
        served.end("a")
        await settled()
        assert served.begun == ["a", "work"]
        served.end("work", "b")
    assert served.broken_off == 0


async def test_one_line_serves_all_event_loops():
    line, order = WaitingLine(1), []
    is_held = threading.Event()

    def elsewhere():
        async def hold():
            async with line.turn():
                is_held.set()
                await to_thread.run_sync(may_end.wait)
                order.append("there")

        anyio.run(hold)

    may_end = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(to_thread.run_sync, elsewhere)
        await to_thread.run_sync(is_held.wait)
        group.start_soon(to_thread.run_sync, may_end.set)
        async with line.turn():
            order.append("here")
    assert order == ["there", "here"]
