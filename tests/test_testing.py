import anyio
import pytest

from nanoloop import Entry, Session, Summarizer
from nanoloop.errors import NoConnection, ProviderTimeout, StoreError
from nanoloop.protocols import Reply
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing.faults import Faulty, FaultyStore, Gate, seeded
from nanoloop.testing.trial import (
    Fact,
    HandedOver,
    PlantedFacts,
    coverage,
    coverage_of,
    pair_violations,
    trial,
)

HELLO = [{"role": "user", "content": "hello there"}]


async def test_an_example_try_your_own_summariser_offline():
    facts = PlantedFacts([Fact(said="My dog is called Biscuit.", signs=("Biscuit",))])

    report = await trial(ScriptedProvider(otherwise="Their dog is Biscuit."), facts=facts)

    assert report.survival == 1.0
    assert report.is_lossless
    assert report.committed == len(report.calls) > 1


async def test_a_summariser_that_keeps_nothing_scores_nothing_and_loses_nothing():
    report = await trial(ScriptedProvider(otherwise="They talked."))
    assert report.survival == 0.0
    assert report.in_prompt == 0.0
    assert report.is_lossless


async def test_a_fact_still_in_the_window_is_in_the_prompt_and_not_in_the_summary():
    facts = PlantedFacts()
    talk = facts.conversation(8)[:6]
    report = await trial(ScriptedProvider(otherwise="They talked."), conversation=talk, facts=facts)
    assert report.survival == 0.0
    assert report.in_prompt > 0.0


async def test_a_summariser_that_fails_commits_nothing_and_loses_nothing():
    report = await trial(Faulty(ScriptedProvider(), seeded(1, share=1, kinds=["raises"])))
    assert (report.committed, report.summary) == (0, "")
    assert report.failed >= 1
    assert report.coverage.pending
    assert report.is_lossless


def test_every_planted_fact_is_said_once_and_survives_where_it_is_told():
    facts = PlantedFacts()
    said = "\n".join(words for words, _ in facts.conversation(60))
    assert facts.survival(said) == 1.0
    assert all(said.count(fact.said) == 1 for fact in facts.facts)
    assert facts.survival("Biscuit, 成都") == 1 / 8


FAULTS = {
    "raises": NoConnection,
    "times_out": ProviderTimeout,
    "bug": RuntimeError,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_provider_raises_what_the_plan_says_and_then_is_well(fault):
    provider = Faulty(ScriptedProvider(["fine again"]), [fault])
    with pytest.raises(FAULTS[fault]):
        await provider.chat(messages=HELLO)
    assert (await provider.chat(messages=HELLO)).text == "fine again"


async def test_a_faulty_provider_spoils_its_answers():
    plan = ["empty", "cut_off", "tool_call", "too_long"]
    provider = Faulty(ScriptedProvider(otherwise=Reply(text="good answer")), plan)
    empty, cut, calling, long = [await provider.chat(messages=HELLO) for _ in plan]
    assert empty.text == ""
    assert (cut.text, cut.finish_reason) == ("good ", "length")
    assert calling.tool_calls
    assert len(long.text) > 1000
    assert provider.calls == plan


async def test_a_slow_call_waits_for_the_gate_and_a_hung_one_for_ever():
    provider = Faulty(ScriptedProvider(otherwise="late"), ["slow", "hangs"])
    heard = []

    async def ask():
        heard.append((await provider.chat(messages=HELLO)).text)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        group.start_soon(ask)
        await provider.gate.reached()
        await anyio.wait_all_tasks_blocked()
        assert provider.gate.open() == 1
        await anyio.wait_all_tasks_blocked()
        assert heard == ["late"]
        group.cancel_scope.cancel()


async def test_whoever_gives_up_at_a_gate_takes_nobodys_place():
    gate = Gate()
    with anyio.move_on_after(0):
        await gate.passes()
    assert (gate.count, gate.waiting, gate.open(1)) == (1, 0, 0)


def test_the_same_seed_gives_the_same_faults():
    first, second = ([next(plan) for _ in range(50)] for plan in (seeded(7), seeded(7)))
    assert first == second
    assert 5 < sum(fault != "fine" for fault in first) < 30


async def test_a_faulty_store_fails_before_or_after_it_wrote():
    store = FaultyStore(InMemoryStore(), ["before", "after"])
    session = await store.create(id="s")
    for number in range(2):
        session.add_message("user", f"m{number}")
        with pytest.raises(StoreError):
            await store.save(session)
        assert len(await store.entries("s")) == number * 2
    assert store.saves == ["before", "after"]


async def test_only_calls_that_returned_are_handed_over():
    ledger = HandedOver(Faulty(ScriptedProvider(), ["raises"]))
    with pytest.raises(NoConnection):
        await ledger.chat(messages=HELLO)
    assert not ledger.has("hello")
    await ledger.chat(messages=HELLO)
    assert ledger.has("hello there")
    assert (ledger.begun, ledger.finished[0].begun) == (2, 1)


async def test_coverage_says_where_each_entry_is():
    store = InMemoryStore()
    session = await store.create(id="s")
    for number in range(12):
        session.add_message("user" if number % 2 == 0 else "assistant", f"m{number}")
    session.trim_if_needed(8, 4)
    session.update_summary("S", seq=3)
    await store.save(session)
    report = await coverage(store, "s")
    report.check()
    places = (report.covered, report.pending, report.window)
    assert [len(place) for place in places] == [3, 5, 4]
    assert [entry for place in places for entry in place] == list(report.log)


def test_coverage_finds_an_entry_that_no_one_has():
    session = Session()
    for number in range(6):
        session.add_message("user", f"m{number}")
    session.trim_if_needed(4, 2)
    session.is_pending = lambda entry: entry.seq != 2
    report = coverage_of(session)
    assert "neither pending nor covered" in " ".join(report.violations)
    with pytest.raises(AssertionError):
        report.check()


def test_a_call_without_its_result_and_a_result_without_its_call_are_found():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    assert list(pair_violations([call, result])) == []
    assert len(list(pair_violations([result]))) == 1
    assert len(list(pair_violations([call]))) == 1
    assert len(list(pair_violations([call, *HELLO, result]))) == 2


async def test_a_summary_provider_that_copies_is_handed_everything_once():
    ledger = HandedOver(ScriptedProvider(otherwise="S"))
    session = Session()
    for number in range(52):
        session.add_entry(Entry.message("user", f"<m{number}>"))
    session.trim_if_needed(50, 10)
    async with Summarizer(ledger) as summarizer:
        summarizer.fire_and_forget(session)
        await summarizer.drain(5)
    assert all(ledger.has(f"<m{number}>") for number in range(42))
    assert not ledger.has("<m42>")
