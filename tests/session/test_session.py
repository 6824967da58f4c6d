"""What people's own code uses of a session, and the shape of its classes."""

from dataclasses import fields, replace
from datetime import datetime, timezone

import pytest

from nanoloop.errors import HistoryNotLoaded
from nanoloop.session.conversation import PARTS, Conversation
from nanoloop.session.entry import Entry
from nanoloop.session.head import Head, Identity
from nanoloop.session.log import Archive
from nanoloop.session.session import Session


def test_a_session_is_a_conversation_and_nothing_else():
    assert Session.__mro__ == (Session, Conversation, object)


def test_no_method_is_defined_in_both_of_its_classes():
    mine, theirs = ({n for n in vars(c) if not n.startswith("__")} for c in (Session, Conversation))
    assert mine & theirs == set()


@pytest.mark.parametrize("name", PARTS)
def test_each_part_comes_back_as_it_was_dumped(name):
    session, again = Session(), Session()
    session.add_message("user", "hello")
    again.restore(again.head(), {name: session.part(name)})
    assert again.part(name) == session.part(name)


def test_a_head_comes_back_as_it_was_dumped():
    head = Head(
        rev=3, shown=(1, {"id": "x"}), hidden=((2, 4),), spent={"tokens_in": 1}, unsent=(5,)
    )
    spent = {"tokens_in": 1, "tokens_out": 0, "tokens_cached": 0}
    again = Head.load(head.dump())
    assert {f.name: getattr(again, f.name) for f in fields(Head)} == {
        f.name: getattr(head, f.name) for f in fields(Head)
    } | {"spent": spent}


MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def talked(turns=3, **about):
    return talk(Session(about=Identity(**about)), turns)


def talk(session, turns=3):
    for n in range(turns):
        session.add_message("user", f"q{n}")
        session.add_message("assistant", f"a{n}")
    return session


def texts(messages):
    return [message["content"] for message in messages]


# Reading


def test_r0_17_r0_18_r0_20_a_new_session_has_nothing():
    session = Session()
    assert session.full_chat_history == session.current_chat_history == []
    assert session._turns == session._last_resize_turn == session._memo_cursor == 0


def test_r0_34_a_message_goes_to_both_histories():
    session = Session()
    message = {"role": "user", "content": "hi", "name": "ada"}
    session.append_message(message)
    assert session.full_chat_history == session.current_chat_history == [message]


def test_r0_34_c1_only_the_assistant_makes_a_turn():
    session = Session()
    for role in ("user", "system", "assistant", "tool"):
        session.append_message({"role": role, "content": "x"})
    assert session.turns == session._turns == 1


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (0, 6), (-1, 6), (99, 6)])
def test_r2_4_the_most_recent_entries(limit, count):
    history = talked().history(limit)
    assert len(history) == count
    assert history[0].content["text"] == "a2"


def test_fix_c10_of_equal_times_the_last_added_comes_first():
    session = Session()
    for text in "abc":
        session.add_entry(replace(Entry.message("user", text), timestamp=MOMENT))
    assert [entry.content["text"] for entry in session.history(2)] == ["c", "b"]


def test_r2_3_entries_are_copies_on_the_way_in_and_out():
    session = Session()
    entry = Entry.tool_call("t", {"q": [1]})
    added = session.add_entry(entry)
    for copy in (entry, added, session.history()[0]):
        copy.content["parameters"]["q"].append(2)
    session.full_chat_history[0]["tool_calls"].clear()
    assert session.history()[0].content["parameters"] == {"q": [1]}


def test_r3_4_c9_the_newest_is_at_hand():
    assert Session().newest is None
    assert talked().newest.content["text"] == "a2"


# Setting


def test_r0_7_set_add_and_reset():
    session = talked()
    session.memo = {"k": 1}
    session.set_chat_history([{"role": "user", "content": "a"}])
    session.add_chat_history({"role": "user", "content": "b"})
    session.add_chat_history([{"role": "user", "content": "c"}])
    assert texts(session.full_chat_history) == texts(session.messages) == ["a", "b", "c"]
    assert session.reset_chat_history() is session
    assert session.full_chat_history == session.messages == []
    assert session.memo == {"k": 1}


def test_c29_a_reset_keeps_memo_summary_and_state_and_clear_only_the_state():
    session = talked()
    session.memo, epoch = {"k": 1}, session.epoch
    session.update_summary("s")
    session.set("x", 1)
    session.resize(force="lite")
    session.reset_history()
    assert (session.memo["k"], session.summary, session.get("x")[0]) == (1, "s", 1)
    assert (session.turns, session.last_resize_turn, session.memo_cursor) == (0, 0, 0)
    session.clear()
    assert (session.memo, session.summary, session.get("x")[0]) == ({}, "", 1)
    assert session.epoch > epoch + 1


def test_the_histories_may_be_assigned():
    session = talked()
    full = session.full_chat_history
    session.current_chat_history = full[-1:]
    assert session.messages == full[-1:]
    session.full_chat_history = full[2:]
    assert (session.full_chat_history, session.messages) == (full[2:], full[-1:])
    assert [entry.seq for entry in session.history()] == [6, 5, 4, 3]


# Bounds


def test_r3_12_r3_14_each_add_keeps_exactly_max_history():
    session = Session(about=Identity(max_history=3))
    for n in range(5):
        session.add_message("user", f"m{n}")
        assert len(session.messages) == min(n + 1, 3)
    assert texts(session.messages) == ["m2", "m3", "m4"]


def test_c11_what_max_history_cuts_stays_in_the_log():
    session = talked(max_history=2)
    assert len(session.full_chat_history) == 6


@pytest.mark.parametrize("most", [10**12, None, 0])
def test_r3_16_no_bound(most):
    assert len(talked(20, max_history=most).messages) == 40


def test_b3_1_no_orphan_after_each_add():
    session = Session(about=Identity(max_history=3))
    use = {"type": "tool_use", "id": "c", "name": "t", "input": {}}
    session.add_message("user", "q")
    session.add_message("assistant", [{"type": "text", "text": "a"}, use])
    session.add_tool_result("c", "r")
    session.add_message("assistant", "b")
    assert [m["role"] for m in session.messages] == ["assistant", "tool", "assistant"]
    session.add_message("user", "q2")
    assert [m["role"] for m in session.messages] == ["assistant", "user"]


def test_b2_6_a_bound_hands_the_oldest_to_the_archive():
    taken = []
    session = Session()
    session.archiving = Archive(keep=4, take=taken.extend)
    talk(session)
    assert [entry.content["text"] for entry in taken] == ["q0", "a0"]
    assert texts(session.full_chat_history) == ["q1", "a1", "q2", "a2"]
    assert session.entry_count == 4


def test_b2_6_what_the_archive_refuses_stays():
    def refuse(_):
        raise OSError("disk full")

    session = talked()
    with pytest.raises(OSError, match="disk full"):
        session.archive(2, refuse)
    assert session.entry_count == 6


def test_b2_6_what_waits_for_its_summary_is_not_archived():
    session = talked(4)
    session.trim_if_needed(limit=4, min_keep=2)
    assert session.archive(1) == []
    session.update_summary("s", seq=session.pending_seq)
    assert len(session.archive(2)) == 6


def test_b2_6_the_archive_parts_no_call_from_its_result():
    session = Session()
    session.add_entry(Entry.tool_call("t", call_id="c"))
    session.add_entry(Entry.tool_result("t", call_id="c"))
    assert session.archive(1) == []


# Taking back


def test_undo_takes_the_last_exchange_back():
    session = talked(2)
    session.add_message("user", "q2")
    session.add_entry(Entry.tool_call("t", call_id="c"))
    session.add_entry(Entry.tool_result("t", call_id="c"))
    session.add_message("assistant", "a2")
    assert [entry.type for entry in session.undo()] == [
        "message",
        "tool_call",
        "tool_result",
        "message",
    ]
    assert texts(session.full_chat_history) == ["q0", "a0", "q1", "a1"]
    assert (session.turns, session.entry_count) == (2, 4)


def test_undo_shows_what_came_before_where_the_window_would_be_empty():
    session = talked(3)
    session.trim_if_needed(limit=3, min_keep=2)
    session.undo()
    assert texts(session.messages) == ["q1", "a1"]
    session.add_message("user", "again")
    assert texts(session.messages) == ["q1", "a1", "again"]


def test_undo_of_nothing_is_nothing():
    assert Session().undo() == []
    session = talked(1)
    session.undo()
    assert (session.messages, session.undo()) == ([], [])


def test_undo_says_where_the_rest_is_only_in_the_store():
    session = talked(3)
    session.trim_if_needed(limit=3, min_keep=2)
    session.committed(session.changes())
    session.release()
    with pytest.raises(HistoryNotLoaded):
        session.undo()
    assert texts(session.messages) == ["q2", "a2"]


# Forking


def test_a_fork_goes_its_own_way_from_an_entry_on():
    session = talked(3, agent="helper")
    session.set("k", 1)
    point = session.history()[2]
    for fork in (session.fork(point.seq), session.fork(point.id)):
        fork.add_message("user", "else")
        assert texts(fork.full_chat_history) == ["q0", "a0", "q1", "a1", "else"]
        assert (fork.agent, fork.get("k"), fork.metadata) == (
            "helper",
            (1, True),
            {"forked_from": session.id},
        )
        assert fork.id != session.id
    assert len(session.full_chat_history) == 6
    with pytest.raises(ValueError, match="no entry"):
        session.fork("nobody")


def test_a_fork_goes_by_the_same_handlers():
    session = talk(Session(policy_handler=lambda *_: "mine"), 1)
    session.set_resize_handlers("mine", lambda f, c, m, _: (f, c[-1:], m))
    fork = session.fork()
    assert texts(fork.resize()) == ["a0"]
    assert len(session.messages) == 2


def test_a_fork_takes_the_summary_along_only_where_it_fits():
    session = talked(4)
    session.trim_if_needed(limit=4, min_keep=4)
    session.update_summary("of q0 to a1", seq=4)
    assert texts(session.fork().messages) == texts(session.messages)
    assert (session.fork().summary, session.fork().covered_seq) == ("of q0 to a1", 4)
    early = session.fork(3)
    assert (early.summary, texts(early.messages), early.has_pending) == (
        "",
        ["q0", "a0", "q1"],
        False,
    )
