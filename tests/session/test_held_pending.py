"""What is pending can be held in memory, bounded, and comes back from a store without a gap."""

from nanoloop.stores.in_memory import InMemoryStore


async def stored(messages, keep, *, held=0):
    store = InMemoryStore()
    session = await store.create(id="s")
    session.held_pending = held
    for number in range(messages):
        session.add_message("assistant" if number % 2 else "user", f"m{number}")
    session.trim_if_needed(keep, keep)
    await store.save(session)
    session.release()
    return store, session


async def fill(store, session):
    missing = session.missing_pending()
    if missing:
        after, upto = missing
        read = await store.entries("s", after=after, upto=upto)
        session.bring_back(read, after=after, upto=upto)
    return missing


def numbers(session):
    return [entry.seq for entry in session.pending]


async def test_release_leaves_the_newest_pending_ones_and_no_more():
    _, session = await stored(40, 10, held=8)
    assert numbers(session) == list(range(23, 31))
    assert session.missing_pending() is None


async def test_what_is_covered_is_not_held():
    store, session = await stored(40, 10, held=20)
    session.update_summary("They met.", seq=25)
    await store.save(session)
    session.release()
    assert numbers(session) == list(range(26, 31))
    session.update_summary("They met.", seq=30)
    session.release()
    assert numbers(session) == []


async def test_without_holding_nothing_pending_stays_in_memory():
    _, session = await stored(40, 10)
    assert numbers(session) == []
    assert session.missing_pending() is None


async def test_a_loaded_session_gets_its_pending_back():
    store, _ = await stored(40, 10)
    session = await store.load("s")
    session.held_pending = 8
    assert await fill(store, session) == (22, 30)
    assert numbers(session) == list(range(23, 31))
    assert await fill(store, session) is None, "it is read once"
    assert [m["content"] for m in session.messages] == [f"m{n}" for n in range(30, 40)]


async def test_what_is_brought_back_too_late_makes_no_gap():
    store, _ = await stored(40, 10)
    session = await store.load("s")
    session.held_pending = 8
    after, upto = session.missing_pending()
    read = await store.entries("s", after=after, upto=upto)
    session.held_pending = 0
    session.trim_if_needed(4, 4)
    session.release()
    session.bring_back(read, after=after, upto=upto)
    assert numbers(session) == []


async def test_what_was_taken_back_is_not_brought_back():
    store, session = await stored(40, 40, held=40)
    session.undo()
    session.trim_if_needed(4, 4)
    await store.save(session)
    loaded = await store.load("s")
    loaded.held_pending = 100
    await fill(store, loaded)
    assert numbers(loaded) == numbers(session)
