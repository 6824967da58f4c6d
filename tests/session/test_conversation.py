from nanoloop.session.entry import Entry
from nanoloop.session.queue import SEEN_LIMIT
from nanoloop.session.session import Session


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


def test_message_ids_are_remembered_also_by_a_store():
    session = Session()
    for n in range(SEEN_LIMIT + 1):
        session.add_entry(Entry.message("user", "ok", metadata={"message_id": f"i{n}"}))
    assert not session.has_seen("i0")
    assert session.has_seen("i1")
    changes = session.changes()
    again = Session.restored(
        head=changes.head,
        sections=changes.sections,
        entries=changes.entries[-1:],
        after=SEEN_LIMIT,
        seen=["i7"],
    )
    assert again.has_seen(f"i{SEEN_LIMIT}")
    assert again.has_seen("i7")
    assert not again.has_seen("i8")


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
