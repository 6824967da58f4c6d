"""What every store says of what is owed in it, and of the processes that live."""

import json

import pytest

from nanoloop.attachments import Attachments, Forgetting
from nanoloop.protocols import Node
from nanoloop.sessions import Sessions
from nanoloop.stores.copying import copy
from nanoloop.stores.database import FORGET_NODE_SECONDS, NODE_SECONDS
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing.faults import FaultyStore
from nanoloop.testing.stores.stage import SetClock
from nanoloop.writing import erased
from tests.test_stores import STORES


@pytest.fixture
def clock():
    return SetClock()


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
    async def test_so_is_one_that_was_copied(self, store):
        source = InMemoryStore()
        session = await asked(source)
        session.claim("me")
        await source.save(session)
        await copy(source, store)
        assert await owed(store) == {"s": (session.revision, "me")}

    async def test_that_copies_of_erased_words_are_left_is_told_apart(self, store):
        await asked(store, "a", text='"erasing"')
        await asked(store, "b")
        session = await Sessions(store).erase("b", [1])
        told = {each.id: each.erasing async for each in store.owing()}
        assert told == {"a": False, "b": True}
        erased(session, upto=session.erasures)
        await store.save(session)
        assert not any([each.erasing async for each in store.owing()])


class TestNodes:
    async def test_all_that_live_are_told_with_what_they_say(self, store):
        first = Node(id="a\ud800", place="host\x00 ż", pid=7, holds=frozenset({"tg:1", "\udfff"}))
        assert await living(store, first) == {first}
        second = Node(id='"b"', pid=8)
        assert await living(store, second) == {first, second}
        await store.leave(first.id)
        await store.leave(first.id)
        assert await living(store, second) == {second}

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
        for around in (FaultyStore(store), Forgetting(store, Attachments(tmp_path, limit_bytes=1))):
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
