"""Who is next: by owner, with some of it kept for those who have nothing."""

import asyncio
import sys
from contextlib import contextmanager
from itertools import count

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.fairness import FairLimiter, RoundRobin, Shares, current_owner

OWNERS = st.sampled_from("abcd")
ACTS = st.tuples(st.sampled_from(["begin", "join", "join", "leave", "end"]), OWNERS, st.booleans())


class Plain:
    """The same rule, written as it is said: everything is looked through each time."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.reserved = max(1, capacity // 4) if capacity > 1 else 0
        self.waiting = []
        self.running = []
        self.since = {}
        """When each owner that waits took its place behind the others."""
        self.now = count()

    def join(self, owner, item):
        self.since.setdefault(owner, next(self.now))
        self.waiting.append((owner, item))

    def leave(self, owner, item):
        self.waiting.remove((owner, item))
        if owner not in dict(self.waiting):
            del self.since[owner]

    def draw(self):
        owners = [owner for owner, _ in self.waiting if self.has_room(owner)]
        if not owners:
            return None
        owner = min(owners, key=lambda owner: (self.running.count(owner), self.since[owner]))
        item = next(item for of, item in self.waiting if of == owner)
        self.running.append(owner)
        self.since[owner] = next(self.now)
        self.leave(owner, item)
        return item

    def has_room(self, owner):
        kept = self.reserved if owner in self.running else 0
        return self.capacity - len(self.running) > kept

    def end(self, owner):
        self.running.remove(owner)
        if owner in self.since:
            self.since[owner] = next(self.now)


@given(st.integers(1, 5), st.lists(ACTS, min_size=30, max_size=60))
def test_it_draws_as_the_rule_says(capacity, acts):
    order, plain, items = RoundRobin(capacity), Plain(capacity), count()
    for act, owner, draws in acts:
        mine = [item for of, item in plain.waiting if of == owner]
        if act == "begin":
            has_begun = order.begin(owner)
            assert has_begun == (not plain.waiting and plain.has_room(owner))
            if has_begun:  # as if it had joined, and been drawn at once
                plain.join(owner, item := next(items))
                assert plain.draw() == item
        elif act == "join":
            item = next(items)
            order.join(owner, item)
            plain.join(owner, item)
        elif act == "leave" and mine:
            order.leave(owner, mine[-1])
            plain.leave(owner, mine[-1])
        elif act == "end" and owner in plain.running:
            order.end(owner)
            plain.end(owner)
        if draws:
            assert order.draw() == plain.draw()


@given(st.integers(2, 40), st.integers(0, 60), st.lists(OWNERS, max_size=60))
def test_one_owner_never_has_what_is_kept_for_others(capacity, flood, others):
    order = RoundRobin(capacity)
    for number in range(flood):
        order.join("flood", ("flood", number))
    drawn = list(iter(order.draw, None))
    assert len(drawn) == min(flood, capacity - max(1, capacity // 4))
    for number, owner in enumerate(others):
        order.join(owner, (owner, number))
    assert {owner for owner, _ in iter(order.draw, None)} >= set(others[:1])


@pytest.mark.parametrize("capacity", [1, 2, 4, 512])
def test_ten_thousand_that_wait_delay_another_by_one_turn_at_most(capacity):
    order, running = RoundRobin(capacity), []
    for number in range(10_000):
        order.join("flood", ("flood", number))
    for number in range(3):  # one after the other, as someone does who waits for each answer
        running += iter(order.draw, None)
        order.join("ann", ("ann", number))
        if (drawn := order.draw()) is None:
            order.end(running.pop(0)[0])
            drawn = order.draw()
        assert drawn == ("ann", number)
        order.end("ann")


def test_owners_take_turns_whatever_each_has_waiting():
    order = RoundRobin(1)
    for owner, items in {"a": 1000, "b": 2, "c": 3}.items():
        for number in range(items):
            order.join(owner, f"{owner}{number}")
    drawn = []
    for _ in range(8):
        drawn.append(order.draw())
        order.end(drawn[-1][0])
    assert drawn == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2"]


@contextmanager
def counting_lines():
    """How many lines of Python are run meanwhile."""
    counted = [0]

    def trace(_, event, __):
        counted[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(before)


def test_a_draw_costs_the_same_however_much_waits():
    costs = set()
    for waiting in (10, 10_000):
        order = RoundRobin(4)
        for number in range(waiting):
            order.join("flood", number)
            order.join(f"owner {number}", -1 - number)
        with counting_lines() as lines:
            order.draw()
            order.end("flood")
            order.leave("flood", waiting - 1)
        costs.add(lines[0])
    assert len(costs) == 1


def test_nothing_is_left_of_owners_that_are_gone():
    order = RoundRobin(2)
    for number in range(1000):
        order.join(f"owner {number}", number)
        order.draw()
        order.end(f"owner {number}")
    assert [*order._waiting, *order._ranks, *order._shares._held] == []
    assert len(order._shares) == 0


def test_what_is_one_alone_is_kept_for_nobody():
    shares = Shares(1)
    assert shares.has_room("a")
    shares.take("a")
    assert [shares.has_room(owner) for owner in "ab"] == [False, False]


async def working(limiter, owner, done, gate, *, task_status=anyio.TASK_STATUS_IGNORED):
    with anyio.CancelScope() as scope:
        task_status.started(scope)
        async with limiter.turn(owner):
            done.append(owner)
            await gate.wait()


async def test_a_cancelled_wait_loses_its_place_and_nothing_else():
    limiter, done, gate = FairLimiter(1), [], anyio.Event()
    async with anyio.create_task_group() as group:
        scopes = [await group.start(working, limiter, owner, done, gate) for owner in "abac"]
        await anyio.wait_all_tasks_blocked()
        scopes[1].cancel()
        await anyio.wait_all_tasks_blocked()
        assert done == ["a"]
        gate.set()
    assert done == ["a", "c", "a"]


async def test_who_is_cancelled_right_when_drawn_passes_the_turn_on():
    limiter, done = FairLimiter(1), []

    async def wait(*, task_status):
        task_status.started(asyncio.current_task())
        async with limiter.turn("b"):
            done.append("b")

    async with anyio.create_task_group() as group:
        async with limiter.turn("a"):
            waiting = await group.start(wait)
            await anyio.wait_all_tasks_blocked()
        waiting.cancel()  # drawn when the turn of "a" ended, and cancelled before it could begin
    with anyio.fail_after(1):
        async with limiter.turn("c"):
            done.append("c")
    assert done == ["c"]


async def test_what_runs_in_a_turn_knows_whose_it_is():
    limiter = FairLimiter(2)
    async with limiter.turn("a"):
        async with limiter.turn("b"):
            assert current_owner() == "b"
        assert current_owner() == "a"
    assert current_owner() == ""


async def test_a_turn_that_fails_is_over():
    limiter = FairLimiter(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with limiter.turn("a"):
                raise ZeroDivisionError
    with anyio.fail_after(1):
        async with limiter.turn("b"):
            pass
