"""Shortening is for the view only, says what is left out, and is the same every time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nanoloop import Entry
from nanoloop.context import Shortening, first_words, shortened, with_short_result


def result(seq, text, err=None):
    return replace(Entry.tool_result("find", text, err, call_id=f"c{seq}"), seq=seq)


def test_a_result_keeps_head_and_tail_and_says_how_much_is_left_out():
    text = shortened("a" * 500 + "z" * 500, 300)
    assert text == "a" * 200 + "\n[…700 characters left out…]\n" + "z" * 100


def test_only_long_results_up_to_the_number_are_shortened():
    entries = [result(1, "x" * 900), result(2, "short"), result(3, "y" * 900)]
    rules = [Shortening(upto=2, chars=100)]
    shown = [with_short_result(entry, rules) for entry in entries]
    assert len(shown[0].content["result"]) < 200
    assert shown[1:] == entries[1:]
    assert entries[0].content["result"] == "x" * 900


def test_a_shortened_error_is_still_told_as_one():
    shown = with_short_result(result(1, None, "e" * 900), [Shortening(upto=1, chars=90)])
    assert shown.content["result"].startswith("Error: eee")
    assert shown.call_id == "c1"


@given(st.text(min_size=1, max_size=400), st.integers(1, 200))
def test_shortening_is_bounded_and_the_same_every_time(text, chars):
    rules = [Shortening(upto=1, chars=chars)]
    once = with_short_result(result(1, text), rules)
    assert len(once.content["result"]) <= chars + 60
    assert with_short_result(result(1, text), rules).content == once.content


def test_first_words_are_of_messages_only_in_one_line_each():
    said = [
        replace(Entry.message("user", "one\ntwo " + "word " * 50), seq=4),
        result(5, "found"),
        replace(Entry.message("assistant", "fine"), seq=6),
    ]
    (first, line), (last, reply) = first_words(said)
    assert (first, last, reply) == (4, 6, "assistant: fine")
    assert line.startswith("user: one two word")
    assert line.endswith("…")
    assert "\n" not in line
