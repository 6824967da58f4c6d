import anyio
import pytest

from nanoloop.errors import LaneFull
from nanoloop.lanes import Lanes


class Recorder:
    """Handles items by noting them; those of a held key wait for its gate."""

    def __init__(self):
        self.done = []
        self.gates = {}

    async def __call__(self, key, item):
        if key in self.gates:
            await self.gates[key].wait()
        self.done.append((key, item))


async def test_one_lane_keeps_the_order():
    handle = Recorder()
    async with Lanes(handle, limit=10) as lanes:
        for number in range(5):
            lanes.put_nowait("a", number)
        await lanes.idle()
    assert handle.done == [("a", number) for number in range(5)]


async def test_a_stuck_lane_holds_up_no_other():
    handle = Recorder()
    handle.gates["stuck"] = anyio.Event()
    async with Lanes(handle, limit=10) as lanes:
        lanes.put_nowait("stuck", 1)
        lanes.put_nowait("free", 2)
        await anyio.wait_all_tasks_blocked()
        assert handle.done == [("free", 2)]
        handle.gates["stuck"].set()
        await lanes.idle()
    assert ("stuck", 1) in handle.done


async def test_a_full_lane_refuses_and_a_waiting_put_gets_in_later():
    handle = Recorder()
    handle.gates["a"] = anyio.Event()
    async with Lanes(handle, limit=2) as lanes, anyio.create_task_group() as group:
        for number in range(3):  # one is being handled, two wait
            lanes.put_nowait("a", number)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(LaneFull, match="2 messages are already waiting in 'a'"):
            lanes.put_nowait("a", 3)
        group.start_soon(lanes.put, "a", 4)
        await anyio.wait_all_tasks_blocked()
        handle.gates["a"].set()
        await anyio.wait_all_tasks_blocked()
    assert [item for _, item in handle.done] == [0, 1, 2, 4]


async def test_a_thousand_lanes_leave_nothing_behind():
    handle = Recorder()
    async with Lanes(handle, limit=2) as lanes:
        for number in range(1000):
            lanes.put_nowait(number, number)
        assert len(lanes) == 1000
        await lanes.idle()
        assert len(lanes) == 0
        assert not lanes._waiting
        assert not lanes._room
    assert len(handle.done) == 1000


async def test_an_item_put_by_the_handler_of_the_last_one_is_handled():
    done = []

    async def handle(key, item):
        done.append(item)
        if item < 3:
            lanes.put_nowait(key, item + 1)

    async with Lanes(handle, limit=2) as lanes:
        lanes.put_nowait("a", 0)
        await lanes.idle()
    assert done == [0, 1, 2, 3]
