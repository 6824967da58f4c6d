"""A commit whose answer got lost is neither lost nor made twice, in any store."""

import pytest

from nanoloop.errors import StoreConflict, StoreError
from nanoloop.session.entry import utc_now
from nanoloop.session.session import Session
from nanoloop.stores.database import COMMIT_ID
from nanoloop.stores.in_memory import InMemoryStore


class Unsure:
    """A database that fails when told to, before or after it wrote."""

    def __init__(self, database):
        self._database = database
        self.fails = None

    def __getattr__(self, name):
        return getattr(self._database, name)

    async def commit(self, commit, *, now):
        if self.fails == "before":
            raise StoreError("away")
        stood = await self._database.commit(commit, now=now)
        if self.fails == "after":
            raise StoreError("away")
        if self.fails == "asked again":
            return await self._database.commit(commit, now=now)
        return stood

    async def insert(self, commit, *, over):
        is_done = await self._database.insert(commit, over=over)
        again = self.fails == "asked again"
        return await self._database.insert(commit, over=over) if again else is_done


@pytest.fixture
async def store():
    store = InMemoryStore()
    store.database = Unsure(store.database)
    yield store
    await store.close()


async def talk(store, session, *said):
    """Say each of these and save; `fails` is when the database fails then."""
    for text, fails in said:
        session.add_message("user", text)
        store.database.fails = fails
        if fails:
            with pytest.raises(StoreError, match="away"):
                await store.save(session)
        else:
            await store.save(session)


async def texts(store):
    return [entry.content["text"] for entry in (await store.get("s")).window]


@pytest.mark.parametrize("first", [None, "before", "after"])
@pytest.mark.parametrize("second", [None, "before", "after"])
async def test_what_was_said_is_there_once_whenever_it_failed(store, first, second):
    session = await store.create(id="s")
    await talk(store, session, ("one", first))
    session.set("mood", "good")
    await talk(store, session, ("two", second), ("three", None), ("four", None))
    assert await texts(store) == ["one", "two", "three", "four"]
    back = await store.get("s")
    assert (back.revision, back.state) == (session.revision, {"mood": "good"})


async def test_saving_it_again_is_enough(store):
    session = await store.create(id="s")
    await talk(store, session, ("one", "after"))
    store.database.fails = None
    await store.save(session)
    assert await texts(store) == ["one"]


async def test_a_change_without_words_is_known_again_too(store):
    session = await store.create(id="s")
    session.set("mood", "good")
    await talk(store, session)
    store.database.fails = "after"
    with pytest.raises(StoreError):
        await store.save(session)
    await talk(store, session, ("one", None))
    assert (await store.get("s")).state == {"mood": "good"}


async def test_another_writer_is_still_a_conflict(store):
    session = await store.create(id="s")
    other = await store.load("s")
    await talk(store, session, ("mine", "before"))
    await talk(store, other, ("theirs", None))
    with pytest.raises(StoreConflict):
        await store.save(session)
    assert await texts(store) == ["theirs"]


async def test_so_is_one_that_went_on_from_what_was_written(store):
    session = await store.create(id="s")
    await talk(store, session, ("mine", "after"))
    await talk(store, await store.load("s"), ("theirs", None))
    with pytest.raises(StoreConflict):
        await store.save(session)
    assert await texts(store) == ["mine", "theirs"]


async def test_so_is_one_that_says_the_same_at_the_same_moment():
    now = utc_now()
    store = InMemoryStore(clock=lambda: now)
    session = await store.create(id="s")
    other = await store.load("s")
    for each in (session, other):
        each.set("mood", "good")
    await store.save(other)
    with pytest.raises(StoreConflict):
        await store.save(session)


async def test_what_is_heard_late_leaves_what_was_tried_since_in_doubt(store):
    session = await store.create(id="s")
    await talk(store, session, ("one", "after"))
    ((old, _),) = store._tried._tried[session.tracker]
    session.committed(old)
    await talk(store, session, ("two", "after"))
    store._tried.forget(session, upto=old)  # as when another event loop gets its answer now
    await talk(store, session, ("three", None))
    assert await texts(store) == ["one", "two", "three"]


async def test_a_session_that_is_gone_is_not_remembered(store):
    session = Session(id="s")
    await store.add(session)
    await talk(store, session, ("one", "after"))
    assert len(store._tried._tried) == 1
    del session
    assert len(store._tried._tried) == 0


async def test_it_is_still_known_after_the_database_could_not_be_asked(store):
    session = await store.create(id="s")
    await talk(store, session, ("one", "after"))
    head = store.database.head

    async def away(_):
        raise StoreError("away")

    store.database.head = away
    session.add_message("user", "two")
    store.database.fails = None
    with pytest.raises(StoreError, match="away"):
        await store.save(session)
    store.database.head = head
    await store.save(session)
    assert await texts(store) == ["one", "two"]


async def test_a_database_that_asks_again_writes_once(store):
    store.database.fails = "asked again"
    session = await store.create(id="s")
    for text in ("one", "two"):
        session.add_message("user", text)
        await store.save(session)
    assert await texts(store) == ["one", "two"]
    assert (await store.get("s")).revision == session.revision


async def test_so_it_does_where_it_erases(store):
    session = await store.create(id="s")
    await talk(store, session, ("one", None), ("two", None))
    store.database.fails = "asked again"
    await store.erase(session, [1])
    erased, _ = await store.entries("s")
    assert erased.content == {}
    await talk(store, session, ("three", None))
    assert (await store.get("s")).revision == session.revision


async def test_so_it_does_where_a_copy_is_made(store):
    await talk(store, await store.create(id="s"), ("one", None))
    snapshot = await store.snapshot("s")
    await store.delete("s")
    store.database.fails = "asked again"
    await store.restore(snapshot)
    assert await texts(store) == ["one"]


async def test_a_head_of_an_older_version_has_no_id_and_is_gone_on_from(store):
    await talk(store, await store.create(id="s"), ("one", None))
    del store.database._database._rows["s"].head[COMMIT_ID]
    session = await store.load("s")
    await talk(store, session, ("two", "before"), ("three", None))
    assert await texts(store) == ["one", "two", "three"]
