"""Whatever is done to a session, every store tells the same of it."""

import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoloop.errors import AlreadyHeard, SessionError, SessionNotFound
from nanoloop.session.entry import Entry
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore

NUMBERS = count(1)
STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 8)),
    st.tuples(st.just("trim"), st.integers(1, 5)),
    st.tuples(st.just("summarise"), st.integers(0, 40)),
    st.tuples(st.just("erase"), st.sets(st.integers(1, 40), min_size=1, max_size=5)),
    st.tuples(st.just("pin"), st.integers(0, 3)),
    st.tuples(st.just("set"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["save", "load", "get", "undo", "release"]), st.none()),
    st.tuples(st.sampled_from(["reset", "clear", "replace", "delete", "reopen"]), st.none()),
    st.tuples(st.just("wait"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["ask", "answer", "arrive", "hold", "let_go"]), st.none()),
    st.tuples(st.just("take"), st.tuples(st.sampled_from("xy"), st.sampled_from("123"))),
    st.tuples(st.just("sweep"), st.none()),
    st.tuples(st.just("claim"), st.sampled_from(["a", "b", "\ud800 'ż\x00"])),
)


class World:
    """One store, one session in it, and a clock."""

    def __init__(self, make):
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.make = lambda: make(lambda: self.now)
        self.store = self.make()
        self.session = None
        self.words = 0

    async def begin(self, *, replace=True):
        self.session = await self.store.create(
            id="s", ttl=10, sliding=True, replace=replace, metadata={"n": 1}
        )

    async def step(self, name, number):
        try:
            await getattr(self, name)(number)
        except SessionNotFound:
            await self.begin()

    async def say(self, number):
        for _ in range(number):
            self.words += 1
            self.session.add_message("user" if self.words % 3 else "assistant", str(self.words))

    async def trim(self, number):
        self.session.trim_if_needed(number, number)

    async def summarise(self, number):
        self.session.update_summary(f"summary {number}", seq=number)

    async def erase(self, seqs):
        await self.store.erase(self.session, seqs)

    async def pin(self, number):
        for entry in self.session.window[number : number + 1]:
            with suppress(SessionError):
                self.session.pin(entry)

    async def set(self, number):
        self.session.set(f"k{number}", self.words)

    async def ask(self, _):
        await self.say(1)
        self.session.awaiting = self.session.last_seq
        await self.save(_)

    async def answer(self, _):
        self.session.awaiting = 0
        self.session.owe(self.session.last_seq)
        await self.save(_)

    async def arrive(self, _):
        for seq in self.session.unsent[:1]:
            self.session.arrived(seq)
        await self.save(_)

    async def hold(self, _):
        self.session.hold(Entry.message("user", "wait"))
        await self.save(_)

    async def let_go(self, _):
        for entry in self.session.waiting[:1]:
            self.session.let_go_held(entry.id)
        await self.save(_)

    async def take(self, message):
        await self.say(1)
        self.session.hear(*message)
        try:
            await self.save(None)
        except AlreadyHeard:
            self.session = await self.store.load("s")

    async def sweep(self, _):
        self.now += timedelta(hours=36)
        await self.store.delete_expired()
        await self.begin()

    async def claim(self, name):
        self.session.claim(name)
        await self.save(None)

    async def undo(self, _):
        self.session.undo()

    async def reset(self, _):
        self.session.reset_history()

    async def clear(self, _):
        self.session.clear()

    async def wait(self, number):
        self.now += timedelta(seconds=number)

    async def replace(self, _):
        await self.begin()

    async def delete(self, _):
        await self.store.delete("s")

    async def save(self, _):
        await self.store.save(self.session)

    async def release(self, _):
        self.session.release()

    async def load(self, _):
        await self.save(_)
        self.session = await self.store.load("s")

    async def get(self, _):
        await self.save(_)
        self.session = await self.store.get("s")

    async def reopen(self, _):
        if not isinstance(self.store, InMemoryStore):
            await self.store.close()
            self.store = self.make()

    async def told(self):
        """Everything the store tells, but for ids and times of its own."""
        infos = [replace(info, size=0) async for info in self.store.list()]
        owing = [(owed.id, owed.by) async for owed in self.store.owing()]
        behind = [owed async for owed in self.store.owing(pending=True)]
        heard = sorted([(each.chat, each.id, each.at) async for each in self.store.heard()])
        try:
            whole, window = await self.store.get("s"), await self.store.load("s")
        except SessionNotFound:
            return infos, owing, behind, heard
        return [
            (infos, owing, len(behind), heard),
            all(owed.revision == whole.revision for owed in behind),
            seqs(whole.window),
            seqs(window.window),
            seqs(whole.pending),
            seqs(whole.history()),
            seqs(await self.store.entries("s")),
            seqs(await self.store.entries("s", after=window.covered_seq, limit=3)),
            [(each.summary, each.state, each.epoch, each.title) for each in (whole, window)],
            [(each.pins, each.ledger, each.awaiting, each.turns) for each in (whole, window)],
            [(each.covered_seq, each.pending_seq) for each in (whole, window)],
            [(each.unsent, len(each.waiting), each.by, each.claims) for each in (whole, window)],
            whole.revision == window.revision,
        ]


def seqs(entries):
    return [(entry.seq, entry.content.get("text")) for entry in entries]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(STEPS, max_size=25))
def test_a_folder_tells_what_memory_tells(steps):
    with tempfile.TemporaryDirectory() as folder:
        told_the_same(steps, lambda clock: JsonlStore(folder, clock=clock, open_files=1))


@settings(max_examples=15)
@given(st.lists(STEPS, max_size=25))
def test_sqlite_tells_what_memory_tells(steps):
    with tempfile.TemporaryDirectory() as folder:
        told_the_same(steps, lambda clock: SqliteStore(f"{folder}/s.sqlite", clock=clock))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(STEPS, max_size=25))
def test_redis_tells_what_memory_tells(shared_redis, steps):
    url = shared_redis.fresh()
    told_the_same(steps, lambda clock: RedisStore(url, clock=clock))


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(STEPS, max_size=25))
def test_postgresql_tells_what_memory_tells(shared_postgres, steps):
    schema = f"parity_{next(NUMBERS)}"
    url = shared_postgres.url
    told_the_same(steps, lambda clock: PostgresStore(url, schema=schema, clock=clock))


def told_the_same(steps, make):
    async def run():
        worlds = [World(lambda clock: InMemoryStore(clock=clock)), World(make)]
        for world in worlds:
            await world.begin(replace=False)
        for name, number in steps:
            for world in worlds:
                await world.step(name, number)
            assert await worlds[0].told() == await worlds[1].told()
        await worlds[1].store.close()

    anyio.run(run)
