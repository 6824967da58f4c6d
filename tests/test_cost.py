"""What a turn costs, counted and not timed: nothing of it may grow with the history."""

import gc
import inspect
import json
import sys
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from nanoloop import Entry
from nanoloop.channels.direct import DirectChannel
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.jsonl.store import JsonlStore
from tests.bench.bytes_moved import COUNTERS, moved
from tests.bench.calls import Calls
from tests.bench.living import ANSWERED, SAID, running, with_history

SIZES = (10, 1_000, 10_000)
FLAT = 1.2
CYCLE = 20
"""Turns from one trim to the next."""

kernel_counts = pytest.mark.skipif(not COUNTERS.exists(), reason="only Linux counts bytes")


def scripted():
    return ScriptedProvider(otherwise=ANSWERED, keep_calls=0)


def without_summaries():
    """A provider that answers every chat, and no summary ever."""

    async def answer(messages, *_):
        if messages[0]["content"].startswith("You keep the memory"):
            await anyio.sleep_forever()
        return ANSWERED

    return ScriptedProvider(otherwise=answer, keep_calls=0)


@asynccontextmanager
async def talking(folder, provider=None, *, summary_seconds=5):
    """A loop on this folder; `loop.turn` is a turn and, if it ends in time, its summary."""
    options = {"shutdown_summaries_seconds": 0}
    async with running(provider or scripted(), JsonlStore(folder), **options) as loop:
        direct = DirectChannel(loop.bus)

        async def turn(chat="a"):
            assert (await direct.ask(SAID, chat=str(chat))).text == ANSWERED
            await loop.summarizer.drain(summary_seconds)

        loop.turn = turn
        yield loop


async def with_histories(folder, sizes=SIZES):
    store = JsonlStore(folder)
    for messages in sizes:
        await with_history(store, f"direct:{messages}", messages)
    await store.close()


def assert_flat(costs):
    smallest, *others = costs
    assert max(others) <= FLAT * smallest, costs


@kernel_counts
async def test_a_turn_writes_and_reads_as_much_after_any_history(tmp_path):
    await with_histories(tmp_path)
    written, read = [], []
    async with talking(tmp_path) as loop:
        for messages in SIZES:
            await loop.turn(messages)
            with moved() as bytes_moved:
                for _ in range(CYCLE):
                    await loop.turn(messages)
            written.append(bytes_moved.written)
            read.append(bytes_moved.read)
    assert_flat(written)
    assert_flat(read)


@kernel_counts
async def test_a_turn_between_two_trims_reads_nothing(tmp_path):
    async with talking(tmp_path) as loop:
        await loop.turn()
        with moved() as bytes_moved:
            await loop.turn()
    assert bytes_moved.read == 0


@kernel_counts
async def test_a_turn_writes_what_was_said_and_two_small_heads(tmp_path):
    await with_histories(tmp_path, [10_000])
    async with talking(tmp_path) as loop:
        await loop.turn(10_000)
        with moved() as bytes_moved:
            await loop.turn(10_000)
        session = await loop.sessions.open("direct:10000")
    said = sum(size_of(entry) for entry in session.window[-2:])
    heads = bytes_moved.written - said
    assert 0 < heads <= 830, heads  # 817 with numbers of five digits, 130 for the message's id


@kernel_counts
async def test_opening_a_session_reads_as_much_after_any_history(tmp_path):
    await with_histories(tmp_path, SIZES[1:])
    read = []
    for messages in SIZES[1:]:
        store = JsonlStore(tmp_path)
        with moved() as bytes_moved:
            await store.load(f"direct:{messages}")
        read.append(bytes_moved.read)
        await store.close()
    assert_flat(read)
    assert max(read) < 100_000


@pytest.mark.slow
def test_a_turn_and_opening_make_as_many_calls_after_any_history(tmp_path):
    calls = Calls()
    opening, turns = [], []

    async def measure():
        await with_histories(tmp_path)
        async with talking(tmp_path) as loop:
            await loop.turn("warm")
            for messages in SIZES:
                before = calls.count
                await loop.turn(messages)
                opened = calls.count
                for _ in range(CYCLE):
                    await loop.turn(messages)
                opening.append(opened - before)
                turns.append(calls.count - opened)

    with calls.listening():
        anyio.run(measure)
    assert_flat(turns)
    assert_flat(opening[1:])  # a file of ten messages is smaller than one read


def size_of(entry):
    """Bytes of an entry's JSON: its words, id, time and where it came from."""
    return len(json.dumps(entry.to_dict(), separators=(",", ":")).encode())


def entries_in_memory():
    gc.collect()
    return sum(isinstance(thing, Entry) for thing in gc.get_objects())


async def test_while_a_summary_hangs_memory_holds_nothing_more_for_what_leaves_the_window(tmp_path):
    before = entries_in_memory()
    held = []
    async with talking(tmp_path, without_summaries(), summary_seconds=0) as loop:
        for _ in range(2):
            for _ in range(5 * CYCLE):
                await loop.turn()
            held.append(entries_in_memory() - before)
        session = await loop.sessions.open("direct:a")
        assert session.summary_in_progress
        assert session.entry_count == 20 * CYCLE
        in_window = len(session.window)
    asked_for = 42  # what the hanging call is to summarise
    assert held[0] == held[1] <= in_window + asked_for


@contextmanager
def awaited_in_lanes():
    """The coroutines of ours that run in the task that answers: of what arrived, or of a lane."""
    found = set()

    def hear(frame, event, _):
        code = frame.f_code
        is_ours = "/nanoloop/" in code.co_filename and code.co_flags & inspect.CO_COROUTINE
        if event == "call" and is_ours and is_answering():
            found.add(code.co_qualname)

    def is_answering():
        return anyio.get_current_task().name.startswith(("lane", "arrival"))

    sys.setprofile(hear)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def test_no_turn_awaits_a_summary_not_the_one_that_starts_it_nor_those_beside_it(tmp_path):
    paths = []
    async with talking(tmp_path, without_summaries(), summary_seconds=0) as loop:
        await loop.turn()
        session = await loop.sessions.open("direct:a")
        for _ in range(40):
            with awaited_in_lanes() as path:
                await loop.turn()
            paths.append((session.summary_in_progress, path))
    quiet = [path for is_running, path in paths if not is_running]
    beside = [path for is_running, path in paths if is_running]
    assert len(quiet) > 10 < len(beside)
    assert all(path == quiet[0] for path in quiet + beside)
    assert "Exchange.think" in quiet[0]
    assert not [name for name in quiet[0] if "ummar" in name]
