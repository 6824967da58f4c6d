"""What waits."""

from datetime import datetime, timedelta, timezone

import pytest

from nanoloop.intake import amendment, user_entry
from nanoloop.messages import Inbound
from nanoloop.session.entry import Entry
from nanoloop.session.queue import seconds_before
from nanoloop.session.session import Session


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
    assert texts(session)[2] == "otherwise"
    assert (session.turns, session.entry_count) == (1, 3)
    session.undo()
    assert (texts(session), session.undo()) == ([], [])


def test_where_there_is_only_a_note_nothing_can_be_taken_back():
    session = talked("~one")
    assert (session.undo(), len(session.messages)) == ([], 1)


def test_an_answer_that_another_process_goes_on_to_send_keeps_its_place():
    session = Session(id="a")
    for seq in (2, 4, 6):
        session.owe(seq)
    session.claim("other")
    session.owe(2)
    assert session.unsent == (2, 4, 6)
    assert list(session.queue.senders) == [4, 6]
