"""`stores/heartbeats.py`: which processes live, in files that any number of them share."""

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from time import sleep as real_sleep

import pytest

from nanoloop.protocols import Node
from nanoloop.stores import heartbeats
from nanoloop.stores.database import FORGET_NODE_SECONDS, NODE_SECONDS
from nanoloop.stores.heartbeats import NodeFiles


class MachineClock:
    """The machine's clock as the test sets it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = MachineClock()
    monkeypatch.setattr(heartbeats, "time", clock)
    return clock


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sessions.sqlite.nodes"


def named(nodes):
    return {node.id: node for node in nodes}


def holding(name, *accounts):
    return Node(id=name, holds=frozenset(accounts))


def test_another_process_sees_all_that_a_beat_says_and_how_old_it_is(folder, clock):
    first = Node(id="a/\ud800 A", place="host boot", pid=7, holds=frozenset({"telegram:1"}))
    assert NodeFiles(folder).beat(first) == [first]
    clock.now += 2.5
    seen = named(NodeFiles(folder).beat(Node(id="b")))
    assert seen == {first.id: replace(first, age=2.5), "b": Node(id="b")}


def test_an_account_that_a_living_one_holds_is_not_granted_and_goes_to_the_next_when_it_is_dead(
    folder, clock
):
    nodes = NodeFiles(folder)
    nodes.beat(holding("a", "x", "y"))
    clock.now += NODE_SECONDS - 0.1
    assert named(nodes.beat(holding("b", "x", "z")))["b"].holds == {"z"}
    clock.now += 0.1
    assert named(nodes.beat(holding("b", "x", "z")))["b"].holds == {"x", "z"}
    assert named(nodes.beat(holding("a", "x", "y")))["a"].holds == {"y"}


def test_what_one_lets_go_of_is_free_at_once(folder, clock):
    nodes = NodeFiles(folder)
    nodes.beat(holding("a", "x", "y"))
    nodes.beat(holding("a", "y"))
    assert named(nodes.beat(holding("b", "x", "y")))["b"].holds == {"x"}
    nodes.leave("a")
    assert named(nodes.beat(holding("b", "x", "y"))) == {"b": holding("b", "x", "y")}
    nodes.leave("a")


def test_one_that_was_not_heard_of_for_an_hour_leaves_no_file(folder, clock):
    nodes = NodeFiles(folder)
    nodes.beat(Node(id="old"))
    clock.now += FORGET_NODE_SECONDS - 1
    assert set(named(nodes.beat(Node(id="new")))) == {"old", "new"}
    clock.now += 1
    assert set(named(nodes.beat(Node(id="new")))) == {"new"}
    assert sorted(file.name for file in folder.iterdir()) == ["lock", "new.json"]


def test_one_from_before_the_machine_was_started_again_is_dead(folder, clock):
    nodes = NodeFiles(folder)
    nodes.beat(holding("before", "x"))
    clock.now = 5.0
    assert named(nodes.beat(holding("now", "x"))) == {"now": holding("now", "x")}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id": "a"', '{"id":1,"place":2,"pid":"x"}'])
def test_a_file_that_is_none_of_ours_costs_no_beat(folder, clock, text):
    nodes = NodeFiles(folder)
    nodes.beat(Node(id="a"))
    (folder / "b.json").write_text(text)
    assert set(named(nodes.beat(Node(id="a")))) == {"a"}
    assert not (folder / "b.json").exists()


def test_its_files_are_for_their_owner_only(folder):
    NodeFiles(folder).beat(Node(id="a"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_no_beat_waits_for_the_disk(folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a beat was synced"))
    NodeFiles(folder).beat(Node(id="a"))
    assert json.loads((folder / "a.json").read_text())["id"] == "a"


def test_one_that_was_stopped_in_its_beat_stops_no_other_which_gets_nothing_new_meanwhile(
    folder, clock
):
    nodes = NodeFiles(folder)
    nodes.beat(holding("a", "x"))
    stopped = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    assert named(nodes.beat(holding("a", "x", "y"))) == {"a": holding("a", "x")}
    assert clock.now > 1000
    os.close(stopped)
    assert named(nodes.beat(holding("a", "x", "y"))) == {"a": holding("a", "x", "y")}


def test_nor_does_it_keep_what_others_may_have_got_since(folder, clock):
    nodes = NodeFiles(folder)
    nodes.beat(holding("a", "x"))
    clock.now += NODE_SECONDS
    stopped = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    assert named(nodes.beat(holding("a", "x"))) == {"a": holding("a")}
    os.close(stopped)


class Gated(NodeFiles):
    """One whose beat, once it has read what the others hold, waits for the test."""

    def __init__(self, folder):
        super().__init__(folder)
        self.is_inside, self.gate = Event(), Event()

    def _read(self):
        found = super()._read()
        self.is_inside.set()
        assert self.gate.wait(10)
        return found


def test_of_two_that_want_one_account_at_the_same_moment_one_gets_it(folder, monkeypatch):
    first, has_tried = Gated(folder), Event()

    class Clock(MachineClock):
        def sleep(self, _):
            has_tried.set()
            real_sleep(0)

    monkeypatch.setattr(heartbeats, "time", Clock())

    def beat_second():
        try:
            return NodeFiles(folder).beat(holding("second", "x"))
        finally:
            has_tried.set()

    with ThreadPoolExecutor() as threads:
        one = threads.submit(first.beat, holding("first", "x"))
        assert first.is_inside.wait(10)
        two = threads.submit(beat_second)
        assert has_tried.wait(10)
        first.gate.set()
        assert named(one.result())["first"].holds == {"x"}
        assert named(two.result())["second"].holds == frozenset()
