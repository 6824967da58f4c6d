"""The steps of a chat: what may follow what, and that nothing else is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import StepRefused
from nanoloop.session.entry import Entry
from nanoloop.session.queue import COMMAND, FOLLOWS, PassOn, Queue, Run, Send
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.writing import SessionWriter

NEW = Entry.message("user", "/new", metadata={"origin": COMMAND})
HELLO = Entry.message("user", "hello")
FIRST = Entry.message("user", "first")


@given(
    waiting=st.lists(st.sampled_from([NEW, HELLO]), max_size=2),
    unsent=st.lists(st.integers(1, 3), unique=True, max_size=2),
    awaiting=st.integers(0, 2),
    moved=st.sampled_from(["", "elsewhere"]),
)
def test_a_chat_stands_at_what_is_next_once_its_answers_are_on_their_way(
    waiting, unsent, awaiting, moved
):
    queue = Queue()
    queue.waiting, queue.unsent = tuple(waiting), tuple(unsent)
    stage, todo = queue.stage(awaiting, moved), queue.next(awaiting, unsent, moved)
    assert stage is (Send if todo is None and unsent else type(todo))
    assert stage in FOLLOWS


async def held(entry, moved=""):
    """A session in which this waits, and what writes it."""
    store = InMemoryStore()
    session = await store.create(id="a")
    session.hold(entry)
    session.move(moved)
    await store.save(session)
    return session, SessionWriter(store)


def begin(session):
    session.awaiting = session.add_entry(FIRST).seq


@pytest.mark.parametrize(("entry", "moved", "stage"), [(NEW, "", Run), (HELLO, "b", PassOn)])
async def test_what_overtakes_what_is_owed_first_is_refused_and_leaves_no_trace(
    entry, moved, stage
):
    session, writer = await held(entry, moved)
    with pytest.raises(StepRefused, match=f"from {stage.__name__} to Think"):
        await writer.change(session, begin)
    stored = await writer.store.load("a")
    for there in (session, stored):
        assert (there.awaiting, there.last_seq, type(there.next())) == (0, 0, stage)


async def test_a_step_that_is_in_the_table_is_written():
    session, writer = await held(HELLO)
    await writer.change(session, begin)
    assert (await writer.store.load("a")).awaiting == 1


async def test_who_saves_a_session_by_hand_is_not_hindered():
    session, writer = await held(NEW)
    begin(session)
    await writer.store.save(session)
    assert (await writer.store.load("a")).awaiting == 1
