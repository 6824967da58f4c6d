import gc
from datetime import datetime, timedelta, timezone
from weakref import ref

import anyio
import pytest

from nanoloop import Session, Summarizer
from nanoloop.app import App
from nanoloop.errors import AnswerRefused, NoConnection, StoreError
from nanoloop.events import (
    BreakerClosed,
    BreakerOpened,
    SummaryCommitted,
    SummaryFailed,
    SummaryPostponed,
)
from nanoloop.memory import schedule
from nanoloop.memory.schedule import RETRY_SECONDS, SESSIONS_LIMIT, Budget
from nanoloop.memory.summarizer import state_text
from nanoloop.parts import spent_file
from nanoloop.protocols import Reply, Usage
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore


def trimmed(count=52, text="m", session=None):
    session = session or Session()
    for number in range(count):
        session.add_message("user" if number % 2 == 0 else "assistant", f"{text}{number}")
    session.trim_if_needed(10, 4)
    return session


async def settled(summarizer):
    with anyio.fail_after(5):
        assert await summarizer.drain(5) == 0


async def until(condition):
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - a real timer is waited for
            await anyio.sleep(0.001)


class Times:
    """A clock that the test moves."""

    def __init__(self):
        self.seconds = 0.0
        self.day = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)

    def summarizer(self, provider, **settings):
        return Summarizer(provider, clock=lambda: self.seconds, now=lambda: self.day, **settings)


@pytest.fixture
def times():
    return Times()


DOWN = NoConnection("nothing there")


async def fold(summarizer, *sessions):
    for session in sessions:
        summarizer.fire_and_forget(session)
        await settled(summarizer)


# Failures


async def test_case_3_what_failed_last_thing_in_the_evening_is_made_by_the_timer(
    monkeypatch,
):
    monkeypatch.setattr(schedule, "RETRY_SECONDS", 0.01)
    session, provider = trimmed(), ScriptedProvider([DOWN, DOWN, "S"])
    async with Summarizer(provider) as summarizer:
        summarizer.fire_and_forget(session)
        await until(lambda: session.summary == "S")
    assert not session.has_pending


async def test_case_16_after_three_failures_of_any_sessions_no_call_is_made_and_all_stay_pending(
    times, heard
):
    provider = ScriptedProvider([DOWN] * 3)
    async with times.summarizer(provider) as summarizer:
        await fold(summarizer, *(trimmed() for _ in range(3)))
        late = trimmed()
        assert not summarizer.fire_and_forget(late)
        assert summarizer.waits_for(late.id) == "breaker"
        assert summarizer.models == {"": "open"}
        assert summarizer.waiting == {"failure": 3, "breaker": 1}
    assert (provider.count, late.has_pending) == (3, True)
    assert [type(e) for e in heard if isinstance(e, BreakerOpened | SummaryPostponed)] == [
        BreakerOpened,
        SummaryPostponed,
    ]


async def test_case_16_half_open_lets_one_through_and_with_it_all_that_waited(times, heard):
    provider = ScriptedProvider([DOWN] * 3, otherwise="S")
    async with times.summarizer(provider) as summarizer:
        await fold(summarizer, *(trimmed() for _ in range(3)))
        late = [trimmed() for _ in range(5)]
        await fold(summarizer, *late)
        times.seconds = 60
        provider.hold()
        summarizer.start_due()
        await anyio.wait_all_tasks_blocked()
        assert provider.waiting == 1
        provider.release()
        await settled(summarizer)
        assert summarizer.models == {"": "closed"}
    assert [session.summary for session in late] == ["S"] * 5
    assert BreakerClosed(model="") in heard


async def test_a_refusal_of_one_text_opens_no_breaker(times):
    provider = ScriptedProvider([AnswerRefused("no")] * 3)
    async with times.summarizer(provider) as summarizer:
        await fold(summarizer, *(trimmed() for _ in range(3)))
        assert summarizer.models == {"": "closed"}


async def test_where_one_model_fails_the_other_is_asked_and_the_receipt_says_so(times, heard):
    provider = ScriptedProvider([DOWN, "S"])
    session = trimmed()
    async with times.summarizer(provider, model="small", fallback_model="big") as summarizer:
        await fold(summarizer, session)
    assert [call.model for call in provider.calls] == ["small", "big"]
    receipt = next(event for event in heard if isinstance(event, SummaryCommitted))
    assert (session.summary, receipt.model, receipt.tries) == ("S", "big", 2)
    assert not any(isinstance(event, SummaryFailed) for event in heard)


async def test_a_model_that_rests_is_passed_over_for_the_other(times):
    provider = ScriptedProvider([DOWN, "S"] * 3, otherwise="T")
    async with times.summarizer(provider, model="small", fallback_model="big") as summarizer:
        await fold(summarizer, *(trimmed() for _ in range(3)))
        await fold(summarizer, last := trimmed())
        assert summarizer.models == {"small": "open", "big": "closed"}
    assert (provider.calls[-1].model, last.summary) == ("big", "T")


async def test_force_asks_in_spite_of_a_rest(times):
    session = trimmed()
    async with times.summarizer(ScriptedProvider([DOWN, "S"])) as summarizer:
        await fold(summarizer, session)
        assert not summarizer.fire_and_forget(session)
        assert summarizer.fire_and_forget(session, force=True, focus="the budget")
        await settled(summarizer)
    assert session.summary == "S"


# Budget


async def test_above_its_budget_it_waits_for_the_next_day(times, heard):
    usage = Usage(tokens_in=90, tokens_out=10)
    provider = ScriptedProvider(otherwise=Reply(text="S", usage=usage))
    first, second = trimmed(), trimmed()
    async with times.summarizer(provider, daily_tokens=100) as summarizer:
        await fold(summarizer, first, second)
        assert (first.summary, second.summary, provider.count) == ("S", "", 1)
        assert summarizer.waits_for(second.id) == "budget"
        times.day += timedelta(hours=12)
        times.seconds += 12 * 3600
        assert summarizer.start_due() == 1
        await settled(summarizer)
    assert second.summary == "S"
    (postponed,) = [event for event in heard if isinstance(event, SummaryPostponed)]
    assert (postponed.reason, postponed.seconds) == ("budget", 12 * 3600)


async def test_a_provider_that_counts_no_tokens_keeps_to_the_budget_too(times):
    provider = ScriptedProvider(otherwise="S")
    async with times.summarizer(provider, daily_tokens=100) as summarizer:
        await fold(summarizer, trimmed(), trimmed())
        assert summarizer.spent_today().tokens > 100
    assert provider.count == 1


async def test_an_answer_that_is_not_taken_is_paid_for_all_the_same(times):
    usage = Usage(tokens_in=90, tokens_out=10)
    cut_off = Reply(text="half", finish_reason="length", usage=usage)
    async with times.summarizer(ScriptedProvider([cut_off])) as summarizer:
        await fold(summarizer, trimmed())
        assert summarizer.spent_today().tokens == 100


async def test_a_session_knows_what_its_summaries_cost_in_all(times):
    usage = Usage(tokens_in=90, tokens_out=10, tokens_cached=5)
    store, session = InMemoryStore(), trimmed()
    await store.add(session)
    provider = ScriptedProvider(otherwise=Reply(text="S", usage=usage))
    async with times.summarizer(provider, store=store) as summarizer:
        await fold(summarizer, session)
        await fold(summarizer, trimmed(session=session))
    spent = {"calls": 2, "tokens_in": 180, "tokens_out": 20, "tokens_cached": 10}
    assert (await store.load(session.id)).summary_spent == spent


# Too little to be worth it


def with_little(summary="a summary of some length " * 10):
    session = trimmed(20)
    session.update_summary(summary, seq=session.pending_seq)
    session.add_message("user", "ok")
    session.shrink()
    assert session.has_pending
    return session


async def test_less_than_the_summary_is_long_waits_for_more_and_costs_nothing(times):
    session, provider = with_little(), ScriptedProvider()
    async with times.summarizer(provider, idle_seconds=60) as summarizer:
        await fold(summarizer, session)
        assert summarizer.waits_for(session.id) == "small"
        assert not summarizer.fire_and_forget(session)
    assert (provider.count, session.has_pending) == (0, True)


async def test_more_talk_brings_what_was_small_along(times):
    session, provider = with_little(), ScriptedProvider(["T"])
    async with times.summarizer(provider, idle_seconds=60) as summarizer:
        await fold(summarizer, session)
        trimmed(40, "some words of a longer talk ", session)
        await fold(summarizer, session)
    assert (session.summary, session.has_pending) == ("T", False)


async def test_an_idle_session_is_summarised_however_little_there_is(times):
    session, provider = with_little(), ScriptedProvider(["T"])
    async with times.summarizer(provider, idle_seconds=60) as summarizer:
        await fold(summarizer, session)
        times.seconds = 50
        summarizer.fire_and_forget(session)  # somebody spoke
        times.seconds = 100
        assert (summarizer.start_due(), summarizer.summarize_idle(60)) == (0, 0)
        times.seconds = 110
        assert summarizer.summarize_idle(60) == 1
        await settled(summarizer)
    assert (session.summary, session.has_pending) == ("T", False)


async def test_the_timer_finds_idle_sessions_by_itself():
    session = with_little()
    async with Summarizer(ScriptedProvider(["T"]), idle_seconds=0.01) as summarizer:
        summarizer.fire_and_forget(session)
        await until(lambda: session.summary == "T")


async def test_force_sends_even_a_little(times):
    session = with_little()
    async with times.summarizer(ScriptedProvider(["T"]), idle_seconds=60) as summarizer:
        assert summarizer.fire_and_forget(session, force=True)
        await settled(summarizer)
    assert session.summary == "T"


async def test_the_end_of_a_long_talk_is_folded_in_with_the_rest(times):
    session = trimmed(12, "x" * 290)
    session.update_summary("y" * 500)
    provider = ScriptedProvider(otherwise="z" * 500)
    async with times.summarizer(provider, idle_seconds=60, batch_chars=1000) as summarizer:
        await fold(summarizer, session)
    assert (provider.count, session.has_pending) == (3, False)


async def test_without_one_who_keeps_time_nothing_is_left_waiting():
    session = with_little()
    summarizer = Summarizer(ScriptedProvider(["T"]), idle_seconds=60)
    await fold(summarizer, session)
    assert session.summary == "T"


# Bounds


async def test_case_10_only_so_many_sessions_are_held_for_later_and_none_when_done(times):
    provider = ScriptedProvider([DOWN] * 3, otherwise="S")
    async with times.summarizer(provider, max_concurrent=1) as summarizer:
        await fold(summarizer, *(trimmed(12) for _ in range(3)))
        held = [trimmed(12) for _ in range(SESSIONS_LIMIT + 5)]
        for session in held:
            summarizer.fire_and_forget(session)
        assert sum(summarizer.waiting.values()) == SESSIONS_LIMIT
        times.seconds = 1000
        summarizer.start_due()
        await until(lambda: not summarizer.waiting)
        await settled(summarizer)
    assert provider.count == 3 + SESSIONS_LIMIT


async def test_what_waits_is_let_go_of_meanwhile_and_opened_again_when_it_is_due(times):
    store, provider = InMemoryStore(), ScriptedProvider([NoConnection("its own"), "T"])
    session = trimmed(session=await store.create(id="a"))
    await store.save(session)
    async with times.summarizer(provider, store=store) as summarizer:
        await fold(summarizer, session)
        held = ref(session)
        del session
        gc.collect()
        assert held() is None
        times.seconds = 100
        assert summarizer.start_due() == 1
        await until(lambda: provider.count == 2)
        await settled(summarizer)
        assert not summarizer.waiting
    assert (await store.load("a")).summary == "T"


async def test_what_waits_waits_on_while_its_store_is_away(times, monkeypatch):
    store, provider = InMemoryStore(), ScriptedProvider([NoConnection("its own"), "T"])
    session = trimmed(session=await store.create(id="a"))
    await store.save(session)
    tried = []

    async def away(session_id):
        tried.append(session_id)
        raise StoreError("away")

    async with times.summarizer(provider, store=store) as summarizer:
        await fold(summarizer, session)
        del session
        gc.collect()
        with monkeypatch.context() as without_store:
            without_store.setattr(summarizer, "_open", away)
            times.seconds = 100
            summarizer.start_due()
            await until(lambda: tried)
        times.seconds += RETRY_SECONDS
        summarizer.start_due()
        await until(lambda: not summarizer.waiting)
        await settled(summarizer)
    assert (await store.load("a")).summary == "T"


async def test_a_deleted_session_is_not_sent_anywhere_by_the_timer(times):
    store, provider = InMemoryStore(), ScriptedProvider([DOWN])
    session = await store.create(id="a")
    trimmed(session=session)
    await store.save(session)
    session.release()
    async with times.summarizer(provider, store=store) as summarizer:
        await fold(summarizer, session)
        await store.delete("a")
        times.seconds = 100
        summarizer.start_due()
        await settled(summarizer)
    assert (provider.count, len(summarizer.waiting)) == (1, 0)


async def test_how_it_stands_is_one_line_for_people(times):
    async with times.summarizer(ScriptedProvider([DOWN] * 3)) as summarizer:
        await fold(summarizer, *(trimmed() for _ in range(4)))
        line = state_text(summarizer)
    assert line == (
        "0 running; 3 waiting for another attempt; 1 waiting for the model to recover; "
        "breaker of the answering model open; today 0 calls, 0 tokens"
    )


async def test_a_daemon_that_crashed_has_no_new_budget_for_its_day(tmp_path):
    settings = Settings(data=tmp_path, summary={"daily_tokens": 100})
    Budget(100, kept_in=spent_file(settings)).add(Usage(tokens_in=90))
    again = App.of(settings, provider=ScriptedProvider()).loop.summarizer
    assert again.spent_today().tokens == 90


@pytest.mark.parametrize("given", [{}, {"store": {"url": "memory:"}}])
def test_without_a_budget_or_a_place_no_file_counts_the_day(tmp_path, given):
    limit = {"daily_tokens": 100 if given else None}
    assert spent_file(Settings(data=tmp_path, summary=limit, **given)) is None
