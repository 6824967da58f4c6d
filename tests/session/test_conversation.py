"""What the loop and the stores use of a session."""

from datetime import datetime, timedelta, timezone

import pytest

from nanoloop.session.entry import Entry
from nanoloop.session.head import Identity
from nanoloop.session.session import Session
from nanoloop.stores.in_memory import InMemoryStore


def talked(messages):
    session = Session()
    for n in range(messages):
        session.add_message("user" if n % 2 == 0 else "assistant", f"m{n}")
    return session


def texts(messages):
    return [message["content"] for message in messages]


def test_r4_2_up_to_the_limit_nothing_happens():
    session = talked(50)
    assert session.trim_if_needed(limit=50, min_keep=10) == ([], False)
    assert len(session.messages) == 50


def test_r4_3_r4_4_r4_5_r4_6_beyond_it_the_window_is_cut_at_a_users_message():
    for count in range(51, 60):
        session = talked(count)
        evicted, did_trim = session.trim_if_needed(limit=50, min_keep=10)
        assert did_trim
        assert len(session.messages) in (10, 11)
        assert session.messages[0]["role"] == "user"
        assert texts(evicted + session.messages) == [f"m{n}" for n in range(count)]


def test_one_turn_longer_than_the_limit_stays_whole():
    session = Session()
    session.add_message("user", "q")
    for n in range(60):
        session.add_entry(Entry.tool_call("t", call_id=str(n)))
        session.add_entry(Entry.tool_result("t", call_id=str(n)))
        session.add_message("assistant", "step")
    assert session.trim_if_needed(limit=50, min_keep=10) == ([], False)


def test_c14_reading_cuts_nothing():
    session = talked(60)
    assert len(session.messages) == len(session.history()) == 60


def test_r4_22_what_left_the_window_stays_in_the_log():
    session = talked(60)
    session.trim_if_needed(limit=50, min_keep=10)
    assert len(session.full_chat_history) == 60


def test_r4_14_r4_15_a_summary_clears_the_flag():
    session = talked(1)
    assert (session.summary, session.summary_in_progress) == ("", False)
    session.summary_in_progress = True
    assert session.update_summary("so far")
    assert (session.summary, session.summary_in_progress) == ("so far", False)


def test_r4_14_a_summary_that_is_set_reaches_as_far_as_the_one_before():
    session = Session()
    session.update_summary("first", seq=0)
    session.summary = "by hand"
    assert (session.summary, session.covered_seq) == ("by hand", 0)


def test_c17_a_summary_and_its_reach_move_together_and_only_forward():
    session = talked(60)
    session.trim_if_needed(limit=50, min_keep=10)
    assert session.pending_seq == 50
    assert session.update_summary("first", seq=20)
    assert (session.covered_seq, len(session.pending)) == (20, 30)
    assert not session.update_summary("late", seq=10)
    assert session.summary == "first"
    assert session.update_summary("all and more", seq=99)
    assert (session.covered_seq, session.has_pending) == (50, False)


def test_b4_1_what_is_evicted_during_a_summary_waits_for_the_next():
    session = talked(60)
    session.trim_if_needed(limit=50, min_keep=10)
    batch = session.pending
    for n in range(60):
        session.add_message("user", f"n{n}")
    session.trim_if_needed(limit=50, min_keep=10)
    session.update_summary("of the batch", seq=batch[-1].seq)
    assert [entry.seq for entry in session.pending] == list(range(51, session.pending_seq + 1))


def test_a_summary_of_an_earlier_epoch_is_dropped():
    session = talked(4)
    epoch = session.epoch
    session.reset_history()
    assert not session.update_summary("ghost", seq=4, epoch=epoch)
    assert session.summary == ""


def test_c18_the_flag_is_never_saved():
    session = talked(1)
    session.summary_in_progress = True
    changes = session.changes()
    again = Session.restored(head=changes.head, sections=changes.sections, entries=changes.entries)
    assert not again.summary_in_progress


def test_shrink_keeps_the_exchange_going_on():
    session = talked(9)
    assert session.shrink()
    assert texts(session.messages) == ["m4", "m5", "m6", "m7", "m8"]
    while session.shrink():
        pass
    assert texts(session.messages) == ["m8"]


def test_what_a_commit_takes_is_in_it_until_it_is_durable():
    session = Session()
    assert session.hear("tg:1", "m1")
    assert not session.hear("tg:1", "m1")
    first = session.changes()
    assert session.hear("tg:2", "m1")
    assert (first.heard, session.changes().heard) == (
        (("tg:1", "m1"),),
        (("tg:1", "m1"), ("tg:2", "m1")),
    )
    session.committed(first)
    assert session.changes().heard == (("tg:2", "m1"),)
    session.committed(session.changes())
    assert session.changes() is None
    assert session.hear("tg:1", "m1")  # whether it was taken before is for the store to say


def test_one_that_is_renewed_takes_nothing_that_it_was_to_take():
    session = Session(id="s")
    session.hear("tg:1", "m1")
    session.renew(Session(id="s"))
    assert session.changes().heard == ()


def test_everything_small_comes_back_from_a_store():
    session = talked(6)
    session.configure(mode="memo", limit={"messages": 2})
    session.set_memo_update_handler(lambda *_: {"k": 1})
    session.resize(force="lite")
    session.update_summary("s", seq=2)
    session.awaiting = 5
    session.title = "named"
    changes = session.changes()
    again = Session.restored(head=changes.head, sections=changes.sections, entries=changes.entries)
    assert again.to_dict() == session.to_dict()
    assert (again.awaiting, again.revision, again.updated_at) == (5, 1, session.updated_at)
    assert again.changes() is None


def test_entries_newer_than_the_head_are_taken_in():
    session = talked(2)
    head = session.changes()
    session.add_message("assistant", "late")
    late = session.changes().entries
    again = Session.restored(head=head.head, sections=head.sections, entries=late)
    assert texts(again.messages) == ["m0", "m1", "late"]
    assert (again.turns, again.last_seq) == (2, 3)


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


START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock:
    """A clock that moves by hand."""

    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now

    def forward(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


def test_r2_1_who_it_is_and_since_when(clock):
    session = Session(id="mine", clock=clock)
    assert (session.id, session.created_at, session.updated_at) == ("mine", START, START)


def test_r2_2_state_is_got_set_and_deleted():
    session = Session()
    assert session.get("k") == (None, False)
    session.set("k", None)
    assert session.get("k") == (None, True)
    session.delete("k")
    session.delete("k")
    assert session.get("k") == (None, False)


def test_r2_9_a_life_span_is_seconds_or_a_timedelta(clock):
    in_seconds = Session(about=Identity(ttl=3600))
    as_delta = Session(about=Identity(ttl=timedelta(hours=1), created_at=clock()), clock=clock)
    assert as_delta.to_dict()["ttl"] == in_seconds.to_dict()["ttl"] == 3600
    clock.forward(3600)
    assert not as_delta.has_expired()
    clock.forward(0.1)
    assert as_delta.has_expired()
    assert not Session(about=Identity(ttl=timedelta(0))).has_expired()


@pytest.mark.parametrize("ttl", [float("inf"), 10**12, timedelta.max])
def test_r2_9_a_life_longer_than_time_has_no_end(ttl):
    session = Session(about=Identity(ttl=ttl))
    assert not session.has_expired()
    assert Session.load(session.dump()).dump() == session.dump()


def test_state_is_copied_in_and_out():
    session, value = Session(), {"a": [1]}
    session.set("k", value)
    value["a"].append(2)
    session.get("k")[0]["a"].append(3)
    session.state["k"]["a"].append(4)
    assert session.get("k")[0] == {"a": [1]}


CHANGES = [
    lambda s: s.set("k", 1),
    lambda s: s.delete("missing"),
    lambda s: s.add_entry(Entry.message("user", "x")),
    lambda s: s.append_message({"role": "user", "content": "x"}),
    lambda s: s.update_summary("x"),
    lambda s: s.reset_history(),
    lambda s: s.clear(),
    lambda s: s.settings.set("session.mode", "memo"),
    lambda s: setattr(s, "memo", {}),
    lambda s: setattr(s, "agent", "a"),
    lambda s: setattr(s, "title", "a"),
    lambda s: setattr(s, "max_history", 3),
    lambda s: s.load({"memo": 1}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_r2_5_every_change_moves_updated_at(clock, change):
    session = Session(clock=clock)
    clock.forward(1)
    change(session)
    assert session.updated_at == clock.now


def test_r2_5_reading_is_no_change(clock):
    session = Session(clock=clock)
    session.add_message("user", "x")
    session.committed(session.changes())
    clock.forward(1)
    session.get("k")
    session.history()
    session.dump()
    session.display()
    session.stats()
    session.fork()
    session.judge_resize()
    assert session.updated_at == START
    assert session.changes() is None


def test_r2_6_expiry_is_strictly_after_its_moment(clock):
    session = Session(about=Identity(ttl=10, created_at=clock()), clock=clock)
    clock.forward(10)
    assert not session.has_expired()
    clock.forward(0.001)
    assert session.has_expired()


@pytest.mark.parametrize("ttl", [None, 0, -5])
def test_r2_9_without_a_ttl_it_never_expires(clock, ttl):
    session = Session(about=Identity(ttl=ttl, created_at=clock()), clock=clock)
    clock.forward(1e9)
    assert not session.has_expired()


@pytest.mark.parametrize(("sliding", "expired"), [(False, True), (True, False)])
def test_c22_only_sliding_extends_it(clock, sliding, expired):
    session = Session(about=Identity(ttl=10, sliding=sliding, created_at=clock()), clock=clock)
    clock.forward(6)
    session.set("k", 1)
    clock.forward(6)
    assert session.has_expired() is expired


def test_c22_maintenance_does_not_slide_it(clock):
    session = Session(about=Identity(ttl=10, sliding=True, created_at=clock()), clock=clock)
    clock.forward(6)
    session.update_summary("x")
    session.committed(session.changes())
    clock.forward(6)
    assert session.has_expired()


def test_r3_2_a_new_session(clock):
    session = Session(clock=clock)
    assert (session.messages, session.agent, session.title, session.metadata) == ([], None, "", {})


def test_r3_11_an_agent_stays_and_may_be_changed():
    session = Session(about=Identity(agent="build"))
    session.reset_history()
    assert session.agent == "build"
    session.agent = "plan"
    assert Session.load(session.dump()).agent == "plan"


def test_the_title_is_the_first_users_words_until_it_is_renamed():
    session = Session()
    session.add_message("assistant", "hello")
    session.add_message("user", "  plan\n a trip " + "x" * 99)
    assert session.title.startswith("plan a trip x")
    assert len(session.title) == 60
    session.title = "Tokyo"
    session.add_message("user", "more")
    assert session.title == "Tokyo"


def test_metadata_is_a_copy():
    session = Session(about=Identity(metadata={"a": [1]}))
    session.metadata["a"].append(2)
    assert session.metadata == {"a": [1]}


def test_only_what_changed_is_to_be_saved():
    session = Session()
    session.committed(session.changes())
    session.set("k", 1)
    session.add_message("assistant", "a")
    changes = session.changes()
    assert (set(changes.sections), len(changes.entries)) == ({"state"}, 1)
    session.add_message("assistant", "b")
    session.committed(changes)
    assert [e.content["text"] for e in session.changes().entries] == ["b"]


def test_an_entry_that_was_reset_before_it_was_saved_is_saved_all_the_same():
    session = Session()
    session.add_message("user", "a")
    session.reset_history()
    session.add_message("user", "b")
    assert [entry.seq for entry in session.changes().entries] == [1, 2]
