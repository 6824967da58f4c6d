"""What people do with sessions, on any store; finding one among many."""

from datetime import datetime, timezone

import anyio
import pytest

from nanoloop.errors import NotReadable, SessionError, SessionExists
from nanoloop.protocols import SessionInfo
from nanoloop.session.entry import Entry
from nanoloop.session.queue import COMMAND
from nanoloop.sessions import ENTRIES_READ, Sessions, matching, mentions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.testing import Gate


@pytest.fixture(params=["memory", "jsonl"])
async def sessions(request, tmp_path):
    store = InMemoryStore() if request.param == "memory" else JsonlStore(tmp_path)
    yield Sessions(store)
    await store.close()


async def talked(sessions, key="k", count=3):
    session = await sessions.current(key)
    for number in range(count):
        session.append_message({"role": "user", "content": f"q{number}"})
        session.append_message({"role": "assistant", "content": f"a{number}"})
    await sessions.store.save(session)
    return session


async def test_b3_7_put_away_and_got_back_it_is_the_same_but_for_that(sessions):
    session = await talked(sessions)
    session.title = "T"
    session.set("x", 1)
    await sessions.store.save(session)
    (before,) = [info async for info in sessions.store.list()]
    await sessions.archive("k")
    (away,) = [info async for info in sessions.store.list()]
    assert (away.archived, away.updated_at) == (True, before.updated_at)
    assert (await sessions.store.get("k")).state == {"x": 1}
    await sessions.archive("k", archived=False)
    (back,) = [info async for info in sessions.store.list()]
    assert (back.archived, back.title, back.entries) == (False, "T", 6)


async def test_b3_7_much_metadata_hides_no_flag(sessions):
    session = await sessions.store.create(id="k", metadata={"much": "x" * 50})
    session.load_dict({"metadata": {"much": "x" * 9000}})
    await sessions.store.save(session)
    sessions.forget("k")
    await sessions.archive("k")
    assert [info.archived async for info in sessions.store.list()] == [True]


async def test_a_fork_has_a_free_id_and_is_not_put_away(sessions):
    await talked(sessions)
    await sessions.archive("k")
    forks = [await sessions.fork("k", upto=2), await sessions.fork("k")]
    assert len({fork.id for fork in forks}) == 2
    assert [len((await sessions.store.get(fork.id)).messages) for fork in forks] == [2, 6]
    assert (
        sorted(info.archived for info in [i async for i in sessions.store.list()])[:2]
        == [False] * 2
    )


async def test_a_fork_takes_no_ones_id(sessions):
    await talked(sessions)
    with pytest.raises(SessionExists):
        await sessions.fork("k", new_id="k")
    with pytest.raises(ValueError, match="no entry"):
        await sessions.fork("k", upto="nothing")


async def test_an_undo_waits_for_no_summary_that_is_being_written_of_it(sessions):
    session = await talked(sessions)
    session.trim_if_needed(1, 1)
    session.undo()  # now the exchange before it, which left the window, is the last one
    assert session.messages[0]["content"] == "q1"
    session.current_chat_history = []
    session.summary_in_progress = True
    with pytest.raises(SessionError, match="part of the summary"):
        await sessions.undo(session)


async def test_an_undo_behind_another_writer_takes_back_what_is_there_now(sessions):
    session = await talked(sessions)
    other = await sessions.store.get("k")
    other.add_message("user", "q2")
    await sessions.store.save(other)
    assert [e.content["text"] for e in await sessions.undo(session)] == ["q2"]
    assert (await sessions.open("k")) is session


async def test_nobody_follows_a_chat_before_it_is_durable_that_it_goes_on_elsewhere(monkeypatch):
    store, gate = InMemoryStore(), Gate()
    sessions = Sessions(store)
    await talked(sessions)
    commit = store.database.commit

    async def held(change, *, now):
        if change.head.get("moved"):
            await gate.passes()
        return await commit(change, now=now)

    monkeypatch.setattr(store.database, "commit", held)
    async with anyio.create_task_group() as group:
        group.start_soon(sessions.start_new, "k")
        await gate.reached(1)
        group.start_soon(sessions.current, "k")
        await anyio.wait_all_tasks_blocked()
        bound = await store.bound("k")  # it is killed here, say
        gate.open()
    assert bound is None
    assert (await store.load("k")).moved == await store.bound("k")


async def test_a_command_that_was_passed_on_and_run_is_not_passed_on_again():
    store = InMemoryStore()
    one, other = Sessions(store), Sessions(store)
    entry = Entry.message("user", "/new", metadata={"origin": COMMAND})
    await one.change(await one.current("k"), lambda now: now.hold(entry))
    await one.change(await one.current("k"), lambda now: now.move("next"))
    late = await other.open("k")
    following = await one.follow(await one.open("k"))
    await one.change(following, lambda now: now.let_go_held(now.waiting[0].id))
    await other.follow(late)  # it was run meanwhile
    assert (await store.load("next")).waiting == ()


async def test_what_is_passed_on_comes_back_once_its_chat_does():
    store, entry = InMemoryStore(), Entry.message("user", "hello")
    sessions = Sessions(store)
    await sessions.change(await sessions.current("k"), lambda now: now.hold(entry))
    new = await sessions.start_new("k")
    for session_id in ("k", new.id, "k"):
        await sessions.switch("k", session_id)
        waiting = [(await store.load(name)).waiting for name in ("k", new.id)]
        assert list(map(len, waiting)) == ([1, 0] if session_id == "k" else [0, 1])


async def test_a_chat_can_leave_a_session_that_can_not_be_read(sessions):
    await talked(sessions)
    await talked(sessions, "other")
    load = sessions.store.load

    async def damaged(session_id):
        if session_id == "k":
            raise NotReadable("damaged")
        return await load(session_id)

    sessions.store.load = damaged
    sessions.forget("k")
    assert (await sessions.switch("k", "other")).id == "other"
    assert await sessions.current_id("k") == "other"


NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def info(session_id, *, key=None, title=""):
    counts = dict.fromkeys(("entries", "awaiting", "pending", "size"), 0)
    times = {"created_at": NOW, "updated_at": NOW, "expires_at": None}
    return SessionInfo(id=session_id, key=key, title=title, agent=None, **counts, **times)


INFOS = [
    info("a1", title="the best Tea"),
    info("tg-42", key="telegram:42", title="Teapots"),
    info("tea@x", title="Other"),
    info("b", key="terminal:work", title="nothing"),
]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("tea", ["tg-42", "tea@x", "a1"]),
        ("TELEGRAM:", ["tg-42"]),
        ("wor", ["b"]),
        ("ork", []),
        ("", ["a1", "tg-42", "tea@x", "b"]),
    ],
)
def test_b3_4_beginnings_come_first_then_titles_that_have_it(text, ids):
    assert [each.id for each in matching(INFOS, text)] == ids


async def test_b3_4_all_words_have_to_be_in_one_message_wherever_it_stands():
    store = InMemoryStore()
    session = await store.create(id="s")
    session.add_message("user", "a grey Cat")
    for _ in range(ENTRIES_READ):
        session.add_message("assistant", "hm")
    session.add_message("user", "a brown DOG")
    await store.save(session)
    assert await mentions(store, "s", "cat grey")
    assert await mentions(store, "s", "dog brown")
    assert not await mentions(store, "s", "cat dog")
    assert not await mentions(store, "gone", "cat")
