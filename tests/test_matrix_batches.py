"""What was read from Matrix: in order in each room, no waiting for others, and the bookmark."""

import anyio
import pytest

from nanoloop.channels.kit.platform import Heard
from nanoloop.channels.matrix import sync
from nanoloop.channels.matrix.sync import Batches, Bookmark
from nanoloop.testing.faults import Gate


class Kit:
    """Hears; what is said in the slow room waits at a gate."""

    def __init__(self):
        self.gate = Gate()
        self.heard = []

    async def hear(self, *heard):
        if heard[0].chat == "slow":
            await self.gate.passes()
        self.heard += [one.text for one in heard]


@pytest.fixture
def kit():
    return Kit()


@pytest.fixture
def bookmark():
    return Bookmark()


def said(room, *texts):
    return {room: [Heard(chat=room, id=text, sender="ann", text=text) for text in texts]}


async def test_a_slow_room_holds_up_no_other_and_keeps_its_order(kit, bookmark):
    async with Batches(kit.hear, bookmark=bookmark) as open_batches:
        await open_batches.put("s1", said("slow", "a", "b") | said("quick", "1"))
        await open_batches.put("s2", said("slow", "c") | said("quick", "2"))
        await anyio.wait_all_tasks_blocked()
        assert kit.heard == ["1", "2"]
        kit.gate.open()
        await anyio.wait_all_tasks_blocked()
        assert kit.heard == ["1", "2", "a", "b", "c"]


async def test_the_bookmark_stays_before_what_is_not_durable(kit, bookmark):
    async with Batches(kit.hear, bookmark=bookmark) as open_batches:
        await open_batches.put("s1", said("quick", "1"))
        await open_batches.put("s2", said("slow", "a"))
        await open_batches.put("s3", said("quick", "2"))
        await open_batches.put("s4", {})
        await anyio.wait_all_tasks_blocked()
        assert bookmark.since == "s1"
        kit.gate.open()
        await anyio.wait_all_tasks_blocked()
        assert bookmark.since == "s4"


async def test_nothing_more_is_read_while_too_much_is_on_its_way(kit, bookmark, monkeypatch):
    monkeypatch.setattr(sync, "LIMIT", 2)
    async with Batches(kit.hear, bookmark=bookmark) as open_batches, anyio.create_task_group() as g:
        for number in range(3):
            g.start_soon(open_batches.put, f"s{number}", said("slow", f"{number}"))
        await anyio.wait_all_tasks_blocked()
        assert len(open_batches._open) == 2
        kit.gate.open()
    assert kit.heard[:2] == ["0", "1"]


async def test_where_it_is_cut_short_the_bookmark_does_not_move(kit, bookmark):
    async with Batches(kit.hear, bookmark=bookmark) as open_batches:
        await open_batches.put("s1", said("slow", "a"))
        await anyio.wait_all_tasks_blocked()
    assert (bookmark.since, kit.heard) == (None, [])
