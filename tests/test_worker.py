"""A chat's worker: everything that arrives is done once, in order, in its conversation."""

from nanoloop.intake import user_entry
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_amending import CALL, Looking
from tests.test_holds import log_of, running, said, store  # noqa: F401 - a fixture

KEY = "test:a"


async def session_with(store, *waiting, session_id=KEY, moved=""):  # noqa: F811
    """A chat's session in which these wait."""
    session = await store.create(id=session_id, key=KEY)
    for message in waiting:
        session.hold(user_entry(message))
    session.move(moved)
    await store.save(session)
    return session


async def test_a_command_that_steers_is_run_and_not_told_to_the_model():
    looking, store = Looking(), InMemoryStore()  # noqa: F811
    provider = ScriptedProvider([CALL, "1", "2"])
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        await loop.bus.hand_in(said("/new", steers=True))
        await loop.bus.hand_in(said("two", steers=True))
        looking.gate.open()
        await loop.chat.until(3)
    assert [m["content"] for m in provider.calls[2].messages if m["role"] == "user"] == ["two"]
    assert "/new" not in str(await log_of(store))


async def test_what_waited_behind_new_when_the_process_was_killed_goes_on_in_the_new_one(store):  # noqa: F811
    await session_with(store, said("two"), moved="test:a@new")
    await store.create(id="test:a@new", key=KEY)
    async with running(ScriptedProvider(["2"]), store, recover=True) as loop:
        assert await loop.chat.until(1) == ["2"]
    assert await log_of(store) == []
    assert await log_of(store, "test:a@new") == ["two", "2"]


async def test_a_conversation_whose_next_one_was_deleted_goes_on_in_a_new_one():
    store = InMemoryStore()  # noqa: F811
    await session_with(store, said("one"), moved="test:a@gone")
    async with running(ScriptedProvider(["1", "2"]), store) as loop:
        loop.bus.put_nowait(said("two"))
        await loop.chat.until(2)
    assert await log_of(store, "test:a@gone") == ["one", "1", "two", "2"]


async def test_conversations_that_point_at_each_other_end_in_one_of_them():
    store = InMemoryStore()  # noqa: F811
    await session_with(store, moved="test:a@2")
    await session_with(store, session_id="test:a@2", moved=KEY)
    async with running(ScriptedProvider(["1"]), store) as loop:
        loop.bus.put_nowait(said("one"))
        assert await loop.chat.until(1) == ["1"]
