"""What a lane does when something goes wrong: nothing is lost, doubled or left without a word."""

from datetime import datetime, timedelta, timezone

import anyio
import pytest

from nanoloop import Inbound, Session
from nanoloop.intake import user_entry
from nanoloop.providers.scripted import ScriptedProvider
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
        await loop.bus.hand_in(said("/new"))
        await loop.bus.hand_in(said("three"))
        assert (await loop.chat.until(3))[::2] == ["1", "2"]
        new = await loop.sessions.current("test:a")
    assert await log_of(store) == ["one", "two", "1"]
    assert await log_of(store, new.id) == ["three", "2"]


async def test_a_message_that_waits_keeps_its_conversation_alive():
    moments = [datetime(2030, 1, 1, hour, tzinfo=timezone.utc) for hour in (12, 13)]
    about = Identity(ttl=7200, sliding=True, created_at=moments[0])
    session = Session(about=about, clock=lambda: moments[0])
    moments.pop(0)
    session.hold(user_entry(said("one")))
    moments[0] += timedelta(hours=1, minutes=30)
    assert not session.has_expired()
