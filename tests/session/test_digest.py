from nanoloop.session.digest import quotes_in
from nanoloop.session.session import Session

ITEM = {"kind": "date", "text": "2026-05-01", "who": "user", "seq": 2, "count": 1}


def talked():
    session = Session()
    for n in range(6):
        session.add_message("user" if n % 2 == 0 else "assistant", f"m{n}")
    session.trim_if_needed(4, 2)
    return session


def summarised():
    session = talked()
    session.update_summary("S", seq=4, ledger=[ITEM], spent={"calls": 1, "tokens_in": 10})
    return session


def test_summary_ledger_and_cost_are_one_record():
    changes = summarised().changes()
    assert changes.sections["summary"] == {
        "value": "S",
        "seq": 4,
        "ledger": [ITEM],
        "spent": {"calls": 1, "tokens_in": 10},
    }


def test_a_stored_session_has_its_ledger_again():
    changes = summarised().changes()
    session = Session.restored(head=changes.head, sections=changes.sections, entries=[])
    assert session.ledger == (ITEM,)
    assert session.summary_spent == {"calls": 1, "tokens_in": 10}


def test_what_comes_too_late_leaves_the_ledger_as_it_was():
    session = summarised()
    assert not session.update_summary("late", seq=3, ledger=[], spent={"calls": 1})
    assert not session.update_summary("late", seq=4, epoch=9, ledger=[])
    assert (session.ledger, session.summary_spent["calls"]) == ((ITEM,), 1)


def test_a_new_text_alone_keeps_the_ledger_and_costs_add_up():
    session = summarised()
    session.update_summary("T", spent={"calls": 1, "tokens_in": 5})
    assert session.ledger == (ITEM,)
    assert session.summary_spent == {"calls": 2, "tokens_in": 15}


def test_clearing_a_session_empties_its_ledger():
    session = summarised()
    session.clear()
    assert session.ledger == ()


def test_a_fork_and_an_import_have_the_ledger_with_their_own_numbers():
    session = talked()
    session.reset_history()
    for n in range(6):
        session.add_message("user" if n % 2 == 0 else "assistant", f"n{n}")
    session.trim_if_needed(4, 2)
    session.update_summary("S", seq=10, ledger=[{**ITEM, "seq": 8}])
    assert [item["seq"] for item in session.fork().ledger] == [2]
    assert [item["seq"] for item in Session.load(session.dump()).ledger] == [2]


def test_an_import_without_a_ledger_leaves_none_of_the_old_one():
    session = summarised()
    session.load_dict(talked().to_dict())
    assert session.ledger == ()


def test_what_is_no_item_is_left_out():
    assert quotes_in(["x", {"text": "y"}, {"seq": "1", "text": "y"}, ITEM]) == (ITEM,)
    assert quotes_in(None) == quotes_in("text") == ()
