"""What waits, and which messages were heard."""

import sys
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.intake import amendment, user_entry
from nanoloop.messages import Inbound
from nanoloop.session.entry import Entry
from nanoloop.session.queue import SEEN_LIMIT, MessageIds, seconds_before
from nanoloop.session.session import Session

IDS = st.one_of(
    st.text(max_size=4), st.sampled_from(["a", "b", "a\nb", '"', "\\n", "\x00", "\ud800"])
)


@given(st.lists(st.tuples(st.booleans(), st.lists(IDS, max_size=3)), max_size=30))
def test_it_is_a_list_of_the_newest_each_once(steps):
    seen, known = MessageIds(), []
    for comes, names in steps:
        known = [name for name in known if name not in names]
        if comes:
            known += dict.fromkeys(names)
            seen.add(*names, None)
        else:
            for name in names:
                seen.remove(name)
    assert list(seen) == known
    assert all(name in seen for name in known)
    assert "never" not in seen


def early(sender="ann", seconds=60):
    moment = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return user_entry(said("hello", sender=sender, not_before=moment))


def test_what_is_early_waits_for_its_time():
    entry = early()
    later = entry.timestamp + timedelta(seconds=20)
    assert seconds_before(entry, [entry, early()], later) == pytest.approx(40, abs=0.1)
    assert seconds_before(entry, [entry], later + timedelta(seconds=60)) == 0
    assert seconds_before(user_entry(said("hello")), [], later) == 0


def test_what_is_early_waits_no_more_where_somebody_else_waits_behind_it():
    entry = early()
    assert seconds_before(entry, [entry, early("bob")], entry.timestamp) == 0


def test_a_clock_that_is_set_back_keeps_nothing_waiting():
    entry = early()
    assert seconds_before(entry, [entry], entry.timestamp - timedelta(hours=1)) == 0


def test_it_is_bounded_and_small():
    seen = MessageIds()
    for number in range(10 * SEEN_LIMIT):
        seen.add(f"{number:032x}")
    assert list(seen) == [f"{n:032x}" for n in range(9 * SEEN_LIMIT, 10 * SEEN_LIMIT)]
    assert sys.getsizeof(seen._lines) < 40 * SEEN_LIMIT


def said(text, **options):
    return Inbound(channel="test", chat="a", text=text, **options)


def talked(*texts):
    """Each text asked, under its own name, and answered; one that begins with ~ is a note."""
    session = Session()
    for text in texts:
        if text.startswith("~"):
            session.add_entry(amendment(said("otherwise", edits=text[1:])))
        else:
            asked = {"metadata": {"message_id": text}}
            session.add_entry(Entry.message("user", text, **asked))
            session.add_message("assistant", f"to {text}")
    return session


def texts(session):
    return [message["content"] for message in session.messages]


def test_an_undo_takes_an_exchange_with_the_notes_on_it():
    session = talked("one", "two", "~two", "~two")
    assert len(session.undo()) == 4
    assert texts(session) == ["one", "to one"]
    assert session.undo()[0].content["text"] == "one"


def test_an_undo_leaves_a_note_on_what_was_said_before():
    session = talked("one", "two", "~one")
    assert [entry.content["text"] for entry in session.undo()] == ["two", "to two"]
    assert texts(session)[:2] == ["one", "to one"]
    assert "which says now: otherwise" in texts(session)[2]
    assert (session.turns, session.entry_count) == (1, 3)
    session.undo()
    assert (texts(session), session.undo()) == ([], [])


def test_where_there_is_only_a_note_nothing_can_be_taken_back():
    session = talked("~one")
    assert (session.undo(), len(session.messages)) == ([], 1)
