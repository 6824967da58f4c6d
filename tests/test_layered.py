"""Memory in front of a database never tells what is no longer true."""

from functools import wraps

import pytest

from nanoloop.errors import StoreError
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.layered import LayeredStore


@pytest.fixture
def behind():
    """A database that counts what is asked of it."""
    store = InMemoryStore()
    store.asked = []
    for name in ("window", "commit", "head"):
        setattr(store.database, name, counted(store, getattr(store.database, name)))
    return store


def counted(store, call):
    @wraps(call)
    async def counting(*args, **options):
        store.asked.append(call.__name__)
        if call.__name__ in getattr(store, "broken", ()):
            raise StoreError("the server went away: try again")
        return await call(*args, **options)

    return counting


async def said(store, *texts):
    session = await store.create(id="s") if "s" not in await ids(store) else await store.load("s")
    for text in texts:
        session.add_message("user", text)
    await store.save(session)
    return session


async def ids(store):
    return [info.id async for info in store.list()]


def texts(session):
    return [entry.content["text"] for entry in session.window]


async def test_a_window_is_read_once(behind):
    store = LayeredStore(behind)
    await said(store, "one", "two")
    await store.load("s")
    assert texts(await store.load("s")) == ["one", "two"]
    assert behind.asked.count("window") == 1


async def test_what_is_saved_is_in_memory_at_once(behind):
    store = LayeredStore(behind)
    await said(store, "one")
    session = await store.load("s")
    session.add_message("assistant", "two")
    session.trim_if_needed(1, 1)
    await store.save(session)
    again = await store.load("s")
    assert texts(again) == texts(session)
    assert behind.asked.count("window") == 1
    assert again.dump() == (await store.load("s")).dump()


async def test_what_another_process_wrote_is_seen(behind):
    mine, theirs = LayeredStore(behind), LayeredStore(behind)
    await said(mine, "one")
    await mine.load("s")
    await said(theirs, "two")
    assert texts(await mine.load("s")) == ["one", "two"]


async def test_after_a_commit_of_unknown_end_the_database_is_asked(behind):
    store = LayeredStore(behind)
    await said(store, "one")
    session = await store.load("s")
    session.add_message("assistant", "two")
    behind.broken = {"commit"}
    with pytest.raises(StoreError, match="went away"):
        await store.save(session)
    behind.broken = ()
    assert texts(await store.load("s")) == ["one"]
    assert behind.asked.count("window") == 2


async def test_only_so_many_are_kept(behind):
    store = LayeredStore(behind, sessions=2)
    for name in "abc":
        await store.create(id=name)
        await store.load(name)
    before = behind.asked.count("window")
    await store.load("c")
    await store.load("a")
    assert behind.asked.count("window") == before + 1


async def test_a_window_that_grew_at_its_front_is_read_anew(behind):
    store = LayeredStore(behind)
    session = await said(store, "one", "two", "three")
    session.trim_if_needed(1, 1)
    await store.save(session)
    assert texts(await store.load("s")) == ["three"]
    session = await store.get("s")
    session.undo()
    await store.save(session)
    assert texts(await store.load("s")) == texts(await behind.load("s"))
