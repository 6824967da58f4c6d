"""What a lane does when something goes wrong: nothing is lost, doubled or left without a word."""

from datetime import datetime, timedelta, timezone

import anyio
import pytest

from nanoloop import Inbound, Session
from nanoloop.intake import user_entry
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.session.head import Identity
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_amending import Failing
from tests.test_holds import log_of, running, said, store  # noqa: F401 - a fixture


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("named", [True, False])
async def test_what_could_not_be_kept_before_its_turn_is_answered_in_it(store, fault, named):  # noqa: F811 - a fixture
    failing, provider = Failing(store), ScriptedProvider(["1", "2"], held=True)
    async with running(provider, failing) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        failing.plan = [fault]
        two = Inbound(channel="test", chat="a", text="two", message_id="two" if named else None)
        loop.bus.put_nowait(two)
        await anyio.wait_all_tasks_blocked()
        provider.release()
        assert await loop.chat.until(2) == ["1", "2"]
        await anyio.wait_all_tasks_blocked()
    assert await log_of(store) == ["one", "1", "two", "2"]
    assert not (await store.get("test:a")).waiting


async def test_who_waited_hears_of_it_when_its_turn_fails_to_be_kept():
    failing = Failing(InMemoryStore())
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, failing) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        failing.plan = [
            "fine",
            "before",
            "before",
        ]  # the answer; its arrival and the second question
        provider.release()
        assert ENGLISH["store_down"] in (await loop.chat.until(2))[1]
        assert loop.chat.sent[1].reply_to == "two"


async def test_an_answer_that_could_not_be_kept_is_not_owed():
    failing = Failing(InMemoryStore())
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, failing) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        failing.plan = ["before"]
        provider.release()
        assert ENGLISH["store_down"] in (await loop.chat.until(1))[0]
        loop.bus.put_nowait(said("two"))
        await loop.chat.until(2)
        await anyio.wait_all_tasks_blocked()
        assert (await failing.get("test:a")).unsent == ()


async def test_a_store_that_breaks_in_its_own_way_stops_no_other_chat():
    provider, inner = ScriptedProvider(["1", "other"], held=True), InMemoryStore()
    async with running(provider, inner) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        save = inner.save

        async def broken(session):
            inner.save = save
            raise TypeError("a bug")

        inner.save = broken
        await loop.bus.put(said("two"))
        await anyio.wait_all_tasks_blocked()
        loop.bus.put_nowait(Inbound(channel="test", chat="b", text="hello"))
        await provider.asked(2)
        provider.release()
        await loop.chat.until(2)


async def test_stop_ends_a_message_that_waits_for_its_burst():
    async with running(ScriptedProvider(["1"]), InMemoryStore()) as loop:
        loop.bus.put_nowait(said("one", burst_seconds=30))
        await anyio.wait_all_tasks_blocked()
        loop.bus.put_nowait(said("/stop"))
        assert sorted(await loop.chat.until(2)) == ["Stopped.", "Stopped."]


async def test_a_burst_stays_in_the_conversation_it_began_in(store):  # noqa: F811 - a fixture
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("one", burst_seconds=0.1))
        await loop.bus.hand_in(said("two", burst_seconds=0.1))
        new = await loop.sessions.start_new("test:a")
        await loop.bus.hand_in(said("three"))
        assert await loop.chat.until(2) == ["1", "2"]
    assert await log_of(store) == ["one", "two", "1"]
    assert await log_of(store, new.id) == ["three", "2"]


async def test_what_waits_in_a_conversation_that_goes_away_is_answered_all_the_same(store):  # noqa: F811 - a fixture
    provider = ScriptedProvider(["1", "2"], held=True)
    async with running(provider, store) as loop:
        loop.bus.put_nowait(said("one"))
        await provider.asked()
        await loop.bus.hand_in(said("two"))
        await store.delete("test:a")
        loop.sessions.forget("test:a")
        provider.release()
        assert "2" in await loop.chat.until(2)
    assert await log_of(store) == ["two", "2"]


async def test_a_message_that_waits_keeps_its_conversation_alive():
    moments = [datetime(2030, 1, 1, hour, tzinfo=timezone.utc) for hour in (12, 13)]
    about = Identity(ttl=7200, sliding=True, created_at=moments[0])
    session = Session(about=about, clock=lambda: moments[0])
    moments.pop(0)
    session.hold(user_entry(said("one")))
    moments[0] += timedelta(hours=1, minutes=30)
    assert not session.has_expired()
