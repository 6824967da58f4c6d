"""What every store says of what is owed in it, and of the processes that live."""

import json

import anyio
import pytest

from nanoloop.attachments import Forgetting
from nanoloop.protocols import Node
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.stores.copying import copy
from nanoloop.stores.database import FORGET_NODE_SECONDS, NODE_SECONDS
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing.faults import FaultyStore
from tests.test_stores import STORES, Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
async def store(request, clock):
    opened = request.param(request, clock)
    yield opened
    await opened.close()


async def owed(store, *, pending=False):
    return {each.id: (each.revision, each.by) async for each in store.owing(pending=pending)}


async def both(store):
    """Those that owe something to their chat, and those that owe a summary only."""
    chats, all_of_them = await owed(store), await owed(store, pending=True)
    assert chats.items() <= all_of_them.items()
    return set(chats), set(all_of_them) - set(chats)


async def asked(store, name="s", text="hi", **options):
    """A session with a question that awaits its answer."""
    session = await store.create(id=name, **options)
    session.add_message("user", text)
    session.awaiting = session.last_seq
    await store.save(session)
    return session


class TestOwing:
    async def test_one_that_owes_nothing_is_not_among_them(self, store):
        session = await store.create(id="s")
        session.add_message("user", "hi")
        session.add_message("assistant", "hello")
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_a_question_is_owed_until_it_has_its_answer(self, store):
        session = await asked(store)
        assert await owed(store) == {"s": (session.revision, "")}
        session.add_message("assistant", "hello")
        session.awaiting = 0
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_an_answer_is_owed_until_it_has_arrived(self, store):
        session = await asked(store)
        session.add_message("assistant", "hello")
        session.awaiting = 0
        session.owe(2)
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.arrived(2)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_what_waits_is_owed_until_it_is_taken(self, store):
        session = await store.create(id="s")
        entry = Entry.message("user", "hi")
        session.hold(entry)
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.let_go_held(entry.id)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_a_summary_is_owed_until_it_covers_what_left_the_window(self, store):
        session = await store.create(id="s")
        for number in range(9):
            session.add_message("user", str(number))
        session.trim_if_needed(1, 4)
        await store.save(session)
        assert await both(store) == (set(), {"s"})
        session.awaiting = 9
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.awaiting = 0
        session.update_summary("some", seq=3)
        await store.save(session)
        assert await both(store) == (set(), {"s"})
        session.update_summary("all", seq=session.pending_seq)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_it_says_whose_the_session_is_and_its_revision(self, store):
        session = await asked(store)
        for name in ("process 1", "\ud800 ż\x00 'x'"):
            session.claim(name)
            await store.save(session)
            assert await owed(store) == {"s": (session.revision, name)}

    async def test_one_that_was_erased_in_is_known_as_before(self, store):
        session = await asked(store)
        session.claim("me")
        await store.erase(session, [1])
        assert await both(store) == (set(), set())

    async def test_a_replaced_one_owes_nothing_and_a_deleted_one_neither(self, store):
        await asked(store)
        await asked(store, "t")
        await store.create(id="s", replace=True)
        assert await both(store) == ({"t"}, set())
        await store.delete("t")
        assert await both(store) == (set(), set())

    async def test_one_that_was_made_elsewhere_is_known(self, store):
        session = Session(id="s")
        session.hold(Entry.message("user", "hi"))
        await store.add(session)
        assert await both(store) == ({"s"}, set())

    async def test_so_is_one_that_was_copied(self, store):
        source = InMemoryStore()
        session = await asked(source)
        session.claim("me")
        await source.save(session)
        await copy(source, store)
        assert await owed(store) == {"s": (session.revision, "me")}

    async def test_one_whose_time_is_over_owes_nothing_before_the_sweep_and_after_it(
        self, store, clock
    ):
        await asked(store, ttl=10)
        clock.advance(10)
        assert await both(store) == ({"s"}, set())
        clock.advance(0.001)
        assert await both(store) == (set(), set())
        assert await store.delete_expired() == 1
        assert await both(store) == (set(), set())

    async def test_a_commit_that_came_second_changes_nothing_in_it(self, store):
        await asked(store)
        one, two = await store.load("s"), await store.load("s")
        one.claim("one")
        await store.save(one)
        two.awaiting = 0
        with pytest.raises(Exception, match="is at revision"):
            await store.save(two)
        assert await owed(store) == {"s": (one.revision, "one")}

    async def test_many_are_all_there(self, store):
        names = {f"s{number}" for number in range(300)}
        for name in sorted(names):
            await asked(store, name)
            await store.create(id=f"{name}-idle")
        assert await both(store) == (names, set())


class TestNodes:
    async def test_all_that_live_are_told_with_what_they_say(self, store):
        first = Node(id="a\ud800", place="host\x00 ż", pid=7, holds=frozenset({"tg:1", "\udfff"}))
        assert await living(store, first) == {first}
        second = Node(id='"b"', pid=8)
        assert await living(store, second) == {first, second}
        await store.leave(first.id)
        await store.leave(first.id)
        assert await living(store, second) == {second}

    async def test_of_two_that_want_one_account_one_gets_it(self, store):
        got = {}

        async def want(name):
            nodes = await store.beat(Node(id=name, holds=frozenset({"x", name})))
            got[name] = next(node.holds for node in nodes if node.id == name)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(want, f"n{number}")
        assert sorted(account for held in got.values() for account in held) == sorted(["x", *got])

    async def test_it_is_free_when_its_holder_lets_go_or_leaves(self, store):
        await store.beat(Node(id="a", holds=frozenset({"x", "y"})))
        wants = Node(id="b", holds=frozenset({"x", "y"}))
        assert await held(store, wants) == frozenset()
        await store.beat(Node(id="a", holds=frozenset({"y"})))
        assert await held(store, wants) == {"x"}
        await store.leave("a")
        assert await held(store, wants) == {"x", "y"}

    async def test_a_dead_one_holds_nothing_against_others(self, store):
        await store.beat(Node(id="a", holds=frozenset({"x", "y"})))
        await aged(store, "a", NODE_SECONDS - 2)
        wants = Node(id="b", holds=frozenset({"x"}))
        assert await held(store, wants) == frozenset()
        await aged(store, "a", 2)
        assert await held(store, wants) == {"x"}
        assert await held(store, Node(id="a", holds=frozenset({"x", "y"}))) == {"y"}

    async def test_a_beat_tells_how_long_nobody_heard_of_the_others(self, store):
        await store.beat(Node(id="a"))
        await aged(store, "a", 100)
        ages = {node.id: node.age for node in await store.beat(Node(id="b"))}
        assert ages["a"] == pytest.approx(100, abs=10)
        assert ages["b"] < 1
        ages = {node.id: node.age for node in await store.beat(Node(id="a"))}
        assert ages["a"] < 1

    async def test_one_that_was_not_heard_of_for_an_hour_is_forgotten(self, store):
        await store.beat(Node(id="a"))
        await aged(store, "a", FORGET_NODE_SECONDS - 60)
        assert {node.id for node in await store.beat(Node(id="b"))} == {"a", "b"}
        await aged(store, "a", 60)
        assert {node.id for node in await store.beat(Node(id="b"))} == {"b"}

    async def test_processes_are_no_part_of_a_copy(self, store):
        await store.beat(Node(id="a"))
        await asked(store)
        target = InMemoryStore()
        await copy(store, target)
        assert await living(target, Node(id="b")) == {Node(id="b")}
        assert await owed(target) == await owed(store)


class TestAround:
    async def test_what_stands_around_a_store_passes_all_of_it_on(self, tmp_path):
        store = InMemoryStore()
        session = await asked(store)
        for around in (FaultyStore(store), Forgetting(store, tmp_path)):
            assert await owed(around, pending=True) == {"s": (session.revision, "")}
            assert await living(around, Node(id="a")) == {Node(id="a")}
            await around.leave("a")
            assert await living(around, Node(id="b")) == {Node(id="b")}
            await around.leave("b")


async def living(store, node):
    """All that this beat tells of, their ages aside."""
    told = await store.beat(node)
    assert all(0 <= each.age < NODE_SECONDS for each in told)
    return {Node(id=e.id, place=e.place, pid=e.pid, holds=e.holds) for e in told}


async def held(store, node):
    """What it holds after this beat."""
    return next(each.holds for each in await store.beat(node) if each.id == node.id)


async def aged(store, node_id, seconds):
    """Have the store think that it heard of this process so much earlier than it did."""
    database = getattr(store.database, "_behind", store.database)
    await AGED[type(database).__module__.rpartition(".")[2]](database, node_id, seconds)


async def aged_in_memory(database, node_id, seconds):
    seen, node = database._nodes[node_id]
    database._nodes[node_id] = seen - seconds, node


async def aged_in_a_file(database, node_id, seconds):
    file = database._nodes._file(node_id)
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "seen": told["seen"] - seconds}))


async def aged_in_postgresql(database, node_id, seconds):
    ageing = "UPDATE {}.node SET seen = seen - make_interval(secs => $2) WHERE id = $1"
    statement = ageing.format(database._schema)
    await database._connections.run(lambda server: server.execute(statement, node_id, seconds))


async def aged_in_redis(database, node_id, seconds):
    key = database._keys.nodes
    (row,) = await database._ask(("HGET", key, node_id))
    told = json.loads(row)
    row = json.dumps({**told, "seen": told["seen"] - seconds * 1000})
    await database._ask(("HSET", key, node_id, row))


AGED = {
    "in_memory": aged_in_memory,
    "sqlite": aged_in_a_file,
    "store": aged_in_a_file,  # of JSONL
    "postgres": aged_in_postgresql,
    "redis": aged_in_redis,
}
