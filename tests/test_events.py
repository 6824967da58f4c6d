"""Whoever hears of events hears those of its own context, and nothing depends on it."""

import threading
from contextvars import copy_context

import anyio
import anyio.to_thread
import pytest

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import BreakerClosed, announce, hearing
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

CLOSED = BreakerClosed(model="m")


def tell():
    announce(CLOSED)


def test_nothing_is_heard_outside_of_hearing():
    heard = []
    announce(CLOSED)
    with hearing(heard.append):
        pass
    announce(CLOSED)
    assert heard == []


def test_one_who_hears_inside_leaves_the_others_hearing():
    outer, inner = [], []
    with hearing(outer.append):
        with hearing(inner.append):
            announce(CLOSED)
        announce(CLOSED)
    assert (outer, inner) == ([CLOSED] * 2, [CLOSED])


def test_an_observer_that_always_raises_is_told_of_once_for_each_event(heard_by_all):
    def fails(_):
        raise ValueError("no")

    with hearing(fails):
        announce(CLOSED)
    assert [event.name() for event in heard_by_all] == ["breaker_closed", "observer_failed"]


@pytest.fixture
def heard_by_all():
    events = []
    with hearing(events.append):
        yield events


async def test_tasks_and_threads_are_heard_where_they_were_begun(heard):
    async def task():
        announce(CLOSED)

    async with anyio.create_task_group() as group:
        group.start_soon(task)
        await anyio.to_thread.run_sync(tell)
    assert heard == [CLOSED] * 2


def test_a_plain_thread_is_heard_with_the_context_it_is_given(heard_by_all):
    here = copy_context()
    for work in (tell, lambda: here.run(tell)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert heard_by_all == [CLOSED]


async def served(name):
    """What the log of an app has that answers one message and ends."""
    heard = []
    settings = Settings(store={"url": "memory:"}, recall={"enabled": False})
    app = App.of(settings, provider=ScriptedProvider(), telemetry=Telemetry(level="error"))
    app.observers.append(heard.append)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        await DirectChannel(app.loop.bus).ask("hi", chat=name)
        app.stop()
    return heard


async def test_two_apps_in_one_process_hear_only_their_own():
    found = {}

    async def serve(name):
        found[name] = await served(name)

    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(serve, name)
    for name, heard in found.items():
        keys = [event.key for event in heard if event.name() == "session_started"]
        assert keys == [f"direct:{name}"]
        assert heard[-1].name() == "loop_stopped"
