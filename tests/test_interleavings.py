"""Two processes on one store, one chat, one step at a time: what must always hold, always does."""

import pytest

from tests.interleavings import Figures, Item, Scenario, Wrong, explore

FEW, MANY = 1200, 15_000
"""States of each scenario: in the short form and in the long one."""
ONE, TWO, THREE = Item("A", "one"), Item("B", "two"), Item("A", "three")

SCENARIOS = {
    "a message, and a death at any step": Scenario(items=(ONE,)),
    "a message of which the chat hears, and a death": Scenario(
        items=(ONE,), before=1, confirms=True
    ),
    "a message, and two deaths": Scenario(items=(ONE,), before=1, crashes=2, confirms=True),
    "a message, and a look at it elsewhere": Scenario(items=(ONE,), before=1, crashes=0, looks=1),
    "a message, and a sleep": Scenario(items=(ONE,), before=1, crashes=0, sleeps=1, confirms=True),
    "messages to both, the first ones there are": Scenario(items=(ONE, TWO), crashes=0),
    "messages to both, and a death": Scenario(items=(ONE, TWO, THREE), before=1),
    "messages to both, and a sleep": Scenario(items=(ONE, TWO), before=1, crashes=0, sleeps=1),
    "a message to both, and a death": Scenario(items=(ONE, Item("B", "one"), TWO), before=1),
    "a message and its edit elsewhere": Scenario(
        items=(ONE, Item("B", "one!", edits="one"), Item("B", "two")),
        before=1,
        crashes=0,
        looks=1,
    ),
    "a message and its edit elsewhere, and a death": Scenario(
        items=(ONE, Item("B", "one!", edits="one")), before=1, looks=1
    ),
    "a new conversation between two messages, and a death": Scenario(
        items=(ONE, Item("A", "/new"), THREE), before=1
    ),
    "a new conversation, and a sleep": Scenario(
        items=(Item("A", "/new"), THREE), before=1, crashes=0, sleeps=1
    ),
    "a new conversation begun elsewhere": Scenario(
        items=(ONE, Item("B", "/new"), THREE, Item("B", "four")), before=1, crashes=0
    ),
    "a new conversation begun elsewhere, and a sleep": Scenario(
        items=(ONE, Item("B", "/new"), THREE), before=1, crashes=0, sleeps=1
    ),
    "two new conversations": Scenario(
        items=(ONE, Item("B", "/new"), THREE, Item("A", "/new 2"), TWO), before=1, crashes=0
    ),
    "a message that is stopped elsewhere": Scenario(
        items=(ONE, Item("B", "/stop"), TWO), before=1, crashes=0, looks=1
    ),
    "a message that is stopped elsewhere, and a death": Scenario(
        items=(ONE, Item("B", "/stop")), before=1, looks=1
    ),
    "a tool with effects, and a death": Scenario(items=(Item("A", "pay"), TWO), before=1),
    "a tool with effects, and two deaths": Scenario(items=(Item("A", "pay"),), crashes=2),
    "a tool with effects, and a sleep": Scenario(
        items=(Item("A", "pay"),), before=1, crashes=0, sleeps=1
    ),
    "a tool with effects, whose question is changed": Scenario(
        items=(Item("A", "pay"), Item("B", "pay!", edits="pay")), before=1, crashes=0, looks=1
    ),
    "a call that is approved, and a death": Scenario(
        items=(Item("A", "order"), Item("A", "/yes 1")), before=1, confirms=True
    ),
    "a call that is approved elsewhere, and a death": Scenario(
        items=(Item("A", "order"), Item("B", "/yes 1")), before=1
    ),
    "a call that is approved twice, and a sleep": Scenario(
        items=(Item("A", "order"), Item("A", "/yes 1"), Item("B", "/yes")),
        before=1,
        crashes=0,
        sleeps=1,
    ),
    "a call that is approved and refused at once": Scenario(
        items=(Item("A", "order"), Item("A", "/yes 1"), Item("B", "/no 1")), before=1, crashes=0
    ),
    "a call that is approved behind a message": Scenario(
        items=(Item("A", "order"), Item("A", "two"), Item("B", "/yes 1")), before=1, crashes=0
    ),
    "a call that is approved while its question is changed": Scenario(
        items=(Item("A", "order"), Item("B", "order!", edits="order"), Item("A", "/yes 1")),
        before=1,
        crashes=0,
        looks=1,
    ),
    "a call that is approved behind a new conversation": Scenario(
        items=(Item("A", "order"), Item("A", "/new"), Item("B", "/yes 1")), before=1, crashes=0
    ),
    "a title given on a command line, and a death": Scenario(
        items=(ONE, Item("W", "title"), TWO), before=1
    ),
    "a fold of the summary, and a death": Scenario(items=(ONE, TWO), before=2, limit=3, keep=1),
    "a fold of the summary, a title and a new conversation": Scenario(
        items=(ONE, Item("W", "title"), Item("B", "/new"), THREE),
        before=2,
        crashes=0,
        limit=3,
        keep=1,
    ),
}


def explored(name, *, most):
    figures = explore(SCENARIOS[name], most=most)
    print(f"{name}: {figures}")  # noqa: T201 - what a run in which nothing happened would hide
    assert figures.states >= most or not figures.left
    assert figures.endings, "no run came to its end"
    scenario = SCENARIOS[name]
    assert bool(figures.crashes) == bool(scenario.crashes)
    assert bool(figures.sleeps) == bool(scenario.sleeps)
    if len(scenario.items) > 1 and {each.to for each in scenario.items} != {"A"}:
        assert figures.conflicts, "no two of them ever wrote at once"
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_happens_first_nothing_is_lost_doubled_or_out_of_order(name):
    explored(name, most=FEW)


# What it is good for: each of these is broken, and it has to notice.


async def at_once(_, session, act):
    return act(session)


BROKEN = {
    "a turn's fence": (
        "nanoloop.exchange._TurnFence.act",
        lambda _, session, act: act(session),
        "a message and its edit elsewhere",
    ),
    "a command's claim": (
        "nanoloop.writing.Claim.act",
        lambda claim, session, act: (act(session), session.let_go_held(claim.entry_id))[0],
        "a new conversation, and a sleep",
    ),
    "nobody acts on what is not durable": (
        "nanoloop.writing.SessionWriter.look",
        at_once,
        "a new conversation between two messages, and a death",
    ),
    "a call that was broken off does not run again": (
        "nanoloop.tools.effects.Effects.recall",
        lambda effects, entries: None,
        "a tool with effects, and a death",
    ),
    "a call runs only once it was approved": (
        "nanoloop.tools.effects.Effects._may_run",
        lambda effects, call: True,
        "a call that is approved, and a death",
    ),
    "an approved call that was broken off does not run again": (
        "nanoloop.tools.effects.Effects.is_resumed",
        lambda effects, session, call: True,
        "a call that is approved, and a death",
    ),
    "what another one has heard is its own": (
        "nanoloop.nodes.Nodes.is_other",
        lambda nodes, name: False,
        "a message, and a look at it elsewhere",
    ),
    "a repeated message is known": (
        "nanoloop.stores.in_memory._Memory._take",
        lambda rows, commit: None,
        "a message to both, and a death",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("promise", BROKEN)
def test_it_notices_what_is_broken(promise, monkeypatch):
    place, broken, name = BROKEN[promise]
    monkeypatch.setattr(place, broken)
    with pytest.raises(Wrong):
        explore(SCENARIOS[name], most=5 * FEW)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_whatever_happens_first_in_all_its_length():
    figures = Figures()
    for name in SCENARIOS:
        figures += explored(name, most=MANY)
    assert figures.states > 100_000
