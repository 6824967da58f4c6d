from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import Entry
from nanoloop.memory.index import Index
from nanoloop.memory.ranking import ranked
from nanoloop.memory.terms import (
    MOST_WORDS,
    ONLY_ASKS,
    TELLS_AMOUNT,
    TELLS_TIME,
    Query,
    marks_of,
    words_of,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Caroline's dogs", ["caroline", "dogs"]),
        ("She didn't, she'll", ["she", "didn"]),
        ("1,000 on the 7th", ["1000", "on", "the", "7"]),
        ("at 7:30", ["at", "7", "30", "7x30"]),
        ("東京都", ["東", "京", "都", "東京", "京都"]),
        ("5月", ["5", "月", "5月"]),
        ("ＡＢＣ naïve", ["abc", "naive"]),  # noqa: RUF001 - wide letters
        ("it went", ["it", "go"]),
    ],
)
def test_words_are_what_is_said_in_any_script(text, words):
    assert words_of(text) == words


@given(st.text(max_size=80))
def test_a_query_has_words_where_its_text_has(text):
    assert len(Query.of(text).words) <= MOST_WORDS
    assert bool(Query.of(text).words) == bool(words_of(text))


@given(st.text(min_size=1, max_size=60))
def test_any_text_is_found_by_itself_and_breaks_no_search(text):
    with closing(Index(None)) as index:
        index.add("s", "now", [replace(Entry.message("user", text), seq=1)], 1)
        with index.reading("s", index.sessions().get("s", "")) as rows:
            found = ranked(Query.of(text), rows, limit=3)
    assert [place for place, _ in found] == ([1] if rows.total and words_of(text) else [])


def test_a_query_drops_what_carries_no_search_unless_nothing_is_left():
    assert list(Query.of("When did Caroline go to the store?").words) == ["caroline", "go", "store"]
    assert list(Query.of("what is it").words) == ["what", "is", "it"]
    assert "什么" not in Query.of("我姐姐的生日是什么时候").words


def test_a_query_knows_what_it_asks_for():
    query = Query.of("How many times did we meet in May 2023?")
    assert (query.wants, query.month, query.year) == (TELLS_AMOUNT, 5, 2023)
    assert Query.of("我什么时候去的").wants == TELLS_TIME


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("We met last Tuesday", TELLS_TIME),
        ("I have 3 cats", TELLS_AMOUNT),
        ("Hi! How are you?", ONLY_ASKS),
        ("I moved away from the coast. And you?", 0),
        ("去年去了北京", TELLS_TIME),
    ],
)
def test_what_a_text_tells_is_noted(text, marks):
    assert marks_of(text) == marks


def test_nothing_is_found_where_there_is_nothing():
    class Empty:
        total = 0

    assert ranked(Query.of("anything"), Empty(), limit=3) == []
