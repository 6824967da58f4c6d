"""Whoever hears of events hears those of its own context, and nothing depends on it."""

import io
import json
import re
import threading
from contextlib import asynccontextmanager
from contextvars import copy_context

import anyio
import anyio.to_thread
import pytest

from nanoloop import Agent, Session
from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import (
    BreakerClosed,
    FileUnreadable,
    LogRepaired,
    about,
    announce,
    current_session,
    current_turn,
    hearing,
)
from nanoloop.loop import AgentLoop
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
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


def test_an_answer_that_sync_code_asks_for_is_heard(heard_by_all):
    said = []
    with hearing(
        lambda event: said.append((event.name(), current_session(), bool(current_turn())))
    ):
        agent = Agent(provider=ScriptedProvider()).attach_session(session := Session())
        agent.ask_sync("hi")
    assert ("model_answered", session.id, True) in said
    assert len(said) == len(heard_by_all)


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


async def test_readiness_and_what_chats_were_told_need_nobody_who_hears():
    loop = AgentLoop(provider=ScriptedProvider([RuntimeError("a bug")]))
    assert not loop.is_serving
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        told = await DirectChannel(loop.bus).ask("hi", chat="a")
        assert loop.is_serving
        loop.bus.close()
    assert not loop.is_serving
    (report,) = loop.sentences.incidents.last(5)
    assert (report.place, report.incident.incident) == ("direct:a", told.incident)


async def dice(sides: int) -> str:
    """Roll a die."""
    return f"{sides} of {sides}"


CALL = Reply(text="", tool_calls=(ToolCall(id="1", name="dice", arguments='{"sides": 6}'),))
TYPED = ("one", "roll", "/pin 1", "three", "four", "bad", "five", "six", "/undo", "/stauts", "/new")


async def what_came_of_it(observer):
    """All that a chat was told, that the model was sent and that was kept."""
    replies = ["1", CALL, "rolled", "3", "4", RuntimeError("a bug")]
    provider, store = ScriptedProvider(replies), InMemoryStore()
    with hearing(observer):
        loop = AgentLoop(
            provider=provider,
            store=store,
            tools=[dice],
            summarizer=Summarizer(ScriptedProvider(otherwise="they counted")),
            message_buffer_limit=6,
            message_buffer_min=2,
        )
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            chat, told = DirectChannel(loop.bus), []
            for text in TYPED:
                told.append((await chat.ask(text, chat="a")).text)
                await anyio.wait_all_tasks_blocked()
            loop.bus.close()
    entries = await store.entries("direct:a")
    kept = [(entry.seq, entry.type, entry.role, str(entry.content)) for entry in entries]
    sent = [(call.messages, call.tools, call.streamed) for call in provider.calls]
    return [re.sub(r"incident \w{6}", "incident", text) for text in told], sent, kept


async def test_an_observer_that_raises_on_every_event_changes_no_answer_and_no_byte():
    heard = set()

    def hostile(event):
        heard.add(event.name())
        raise OSError("nothing can be written")

    quiet = await what_came_of_it(lambda _: None)
    assert await what_came_of_it(hostile) == quiet
    told, sent, _ = quiet
    assert told[1] == "rolled"
    assert "they counted" in str(sent[-1])
    kinds = {
        "turn_finished",
        "tool_finished",
        "summary_committed",
        "turn_failed",
        "session_started",
    }
    assert kinds | {"observer_failed"} <= heard


# Of which session and turn


class Telling(InMemoryStore):
    """A store that tells something whenever it saves."""

    async def save(self, session):
        announce(FileUnreadable(file="f", error="e"))
        await super().save(session)


@asynccontextmanager
async def logged(**options):
    """A loop that writes a log, with a chat; its lines are there when it has ended."""
    stream = io.StringIO()
    with hearing(Telemetry(level="debug", format="json", stream=stream)):
        loop = AgentLoop(**options)
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            loop.direct = DirectChannel(loop.bus)
            yield loop, (lines := [])
            loop.bus.close()
    lines += map(json.loads, stream.getvalue().splitlines())


def of(lines, name):
    """Of which session and turn the lines of this event are."""
    found = [line for line in lines if line["event"] == name]
    return [(line.get("session_id"), line.get("turn_id")) for line in found]


async def test_what_a_store_tells_in_a_turn_has_its_session_and_its_turn():
    async with logged(provider=ScriptedProvider(), store=Telling()) as (loop, lines):
        await loop.direct.ask("one", chat="a")
        await loop.direct.ask("two", chat="b")
    turns = of(lines, "turn_finished")
    assert [session for session, _ in turns] == ["direct:a", "direct:b"]
    assert len({turn for _, turn in turns}) == 2
    assert set(of(lines, "file_unreadable")) >= set(turns)


async def test_a_summary_has_its_session_and_no_turn():
    options = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with logged(provider=ScriptedProvider(), **options) as (loop, lines):
        for number in range(3):
            await loop.direct.ask(f"m{number}", chat="a")
    (trimmed,) = of(lines, "window_trimmed")
    assert trimmed == ("direct:a", None)  # its question was taken in before its turn began
    assert of(lines, "summary_started") == of(lines, "summary_committed") == [("direct:a", None)]


async def test_what_comes_in_after_a_turn_is_of_no_turn():
    async with logged(provider=ScriptedProvider()) as (loop, lines):
        for _ in range(2):
            await loop.direct.ask("hi", chat="a")
    assert of(lines, "message_accepted") == [(None, None)] * 2


async def test_a_chat_that_cannot_be_reached_is_of_no_turn_though_an_answer_opened_its_lane():
    async with logged(provider=ScriptedProvider()) as (loop, lines):
        loop.bus.put_nowait(Inbound(channel="nowhere", chat="a", text="hi"))
    assert of(lines, "send_failed") == [(None, None)]


def test_an_event_that_names_a_session_itself_is_of_that_one():
    stream = io.StringIO()
    with hearing(Telemetry(format="json", stream=stream)), about(session_id="bound"):
        announce(LogRepaired(session_id="torn", bytes_cut=1, file="torn.jsonl.corrupt"))
    assert json.loads(stream.getvalue())["session_id"] == "torn"


def test_inside_about_nothing_there_is_no_session():
    with about(session_id="s", turn_id="t"):
        with about():
            assert (current_session(), current_turn()) == ("", "")
        assert (current_session(), current_turn()) == ("s", "t")
