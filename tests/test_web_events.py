"""Events of a session: for every reader the same, whole after being away, ended when it ends."""

import anyio
import pytest

from nanoloop.channels.web import feed
from nanoloop.channels.web.feed import EVENTS_KEPT, FeedCursor, Feeds
from nanoloop.providers.scripted import ScriptedProvider
from tests.web_server import serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


def two_steps():
    """A provider that stops between two words until it is released."""
    gate = anyio.Event()

    async def chat(**asked):
        asked["on_text"]("First")
        await gate.wait()
        asked["on_text"](" second")
        return await ScriptedProvider(["First second"]).chat(messages=[])

    provider = ScriptedProvider()
    provider.chat = chat
    provider.go_on = gate.set
    return provider


async def test_two_tabs_get_the_same(web):
    session = await web.begin()
    async with web.reading(session) as one, web.reading(session) as two:
        await one.until("hello")
        await two.until("hello")
        await web.say(session, "hello")
        first, second = await one.until("answer"), await two.until("answer")
    assert first == second


async def test_who_comes_in_the_middle_of_an_answer_has_what_was_said_so_far(tmp_path):
    async with serving(tmp_path, provider=two_steps()) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            said = await web.say(session, "hello")
            await reader.until("text")
        async with web.reading(session) as reader:
            hello = await reader.next()
            assert (hello.data["busy"], hello.data["message_id"]) == (True, said)
            assert hello.data["text"] == "First"
            web.provider.go_on()
            rest = await reader.until("answer")
    assert [e.data["piece"] for e in rest if e.name == "text"] == [" second"]
    assert next(e.data["at"] for e in rest if e.name == "text") == len("First")


async def test_who_comes_after_an_answer_hears_of_none_that_goes_on(web):
    session = await web.begin()
    await web.answered(session, "hello")
    async with web.reading(session) as reader:
        hello = (await reader.next()).data
    assert (hello["message_id"], hello["text"]) == (None, "")


async def test_what_happened_while_a_reader_was_away_is_told_when_it_is_back(web):
    session = await web.begin()
    async with web.reading(session) as reader:
        await reader.until("hello")
        last = reader.last_id
    await web.answered(session, "hello")
    async with web.reading(session, last_id=last) as reader:
        events = await reader.until("answer")
    assert [e.name for e in events if e.name in {"accepted", "answer"}] == ["accepted", "answer"]
    assert "text" not in {e.name for e in events}  # it is in the answer


async def test_nothing_is_told_twice(web):
    session = await web.begin()
    async with web.reading(session) as reader:
        await web.say(session, "one")
        await reader.until("answer")
        last = reader.last_id
    async with web.reading(session, last_id=last) as reader:
        assert (await reader.next()).name == "hello"
        await web.say(session, "two")
        answers = [e for e in await reader.until("answer") if e.name == "answer"]
    assert [answer.data["text"] for answer in answers] == ["You said: two"]


@pytest.mark.parametrize("last", ["1", "999999999999999999"])
async def test_a_place_that_is_not_known_any_more_is_a_reset(web, last):
    session = await web.begin()
    async with web.reading(session, last_id=last) as reader:
        assert [(await reader.next()).name for _ in range(2)] == ["hello", "reset"]


async def test_a_session_of_before_a_restart_goes_on(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            await web.say(session, "one")
            await reader.until("answer")
            last = reader.last_id
    async with serving(tmp_path) as web:
        async with web.reading(session, last_id=last) as reader:
            assert [(await reader.next()).name for _ in range(2)] == ["hello", "reset"]
        await web.answered(session, "two")
        assert len(await web.messages(session)) == 4


async def test_lists_hear_of_their_sessions_beside_the_events_of_one(web):
    session, other = await web.begin(), await web.begin()
    async with web.reading(session, list="1") as reader:
        await reader.until("hello")
        await web.call("PATCH", f"/api/sessions/{other}", status=200, json={"title": "Other"})
        event = (await reader.until("sessions"))[-1]
    assert event.data == {"id": other}
    assert event.id is None


async def test_open_streams_end_when_the_server_does(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            await reader.until("hello")
            web.app.stop()
            with anyio.fail_after(5):
                while await reader.next() is not None:
                    pass


async def test_a_turn_that_goes_on_when_the_server_is_told_to_stop_is_answered(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        web.provider.hold()
        await web.say(session, "hello")
        await web.provider.asked()
        web.app.stop()
        web.provider.release()
    async with serving(tmp_path) as web:
        assert [m["role"] for m in await web.messages(session)] == ["user", "assistant"]


async def test_too_many_readers_are_told_to_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "STREAMS", 1)
    async with serving(tmp_path) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            await reader.until("hello")
            refused = await web.call("GET", f"/api/sessions/{session}/events", status=503)
    assert "streams" in refused["error"]["message"]


async def test_a_reader_that_has_left_is_forgotten_at_the_next_sign_of_life(web, monkeypatch):
    monkeypatch.setattr(feed, "KEEP_ALIVE_SECONDS", 0.05)
    session = await web.begin()
    async with web.reading(session) as reader:
        await reader.until("hello")
        assert len(web.channel.backend.streams) == 1
    with anyio.fail_after(5):
        while len(web.channel.backend.streams):
            await anyio.wait_all_tasks_blocked()


# The feed itself


def test_a_feed_keeps_so_many_events_and_no_more():
    feed = Feeds().of("one")
    before = feed.last
    for number in range(EVENTS_KEPT + 1):
        feed.add("turn", {"number": number})
    assert not feed.has_since(before)
    assert len(feed.since(before)) == EVENTS_KEPT


def test_a_feed_keeps_so_many_bytes_and_at_least_one_event():
    feed = Feeds().of("one")
    for _ in range(3):
        feed.add("answer", {"text": "x" * 200_000})
    assert len(feed.since(0)) == 1


def test_a_reader_that_is_too_slow_gets_a_reset_in_place_of_what_is_gone():
    feed = Feeds().of("one")
    watched = FeedCursor(feed)
    for _ in range(EVENTS_KEPT + 1):
        feed.add("turn", {})
    assert [event.name for event in watched.take()] == ["reset"]
    feed.add("turn", {"state": "finished"})
    assert [event.data for event in watched.take()] == [{"state": "finished"}]


def test_an_event_becomes_bytes_once_for_all_who_read_it():
    feed = Feeds().of("one")
    one, other = FeedCursor(feed), FeedCursor(feed)
    feed.add("turn", {"state": "finished"})
    assert one.take()[0].frame is other.take()[0].frame


def test_feeds_that_nobody_needs_are_let_go():
    feeds = Feeds(limit=10)
    for number in range(50):
        feeds.of(f"session {number}").add("turn", {})
    assert len(feeds) == 10


def test_ids_grow_over_restarts():
    assert Feeds().of("one").last < Feeds().of("one").last
