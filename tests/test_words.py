"""`words.py`: what a mistyped word is answered with."""

import pytest

from nanoloop.words import did_you_mean, nearest

KNOWN = ("recall", "recap", "weather")


@pytest.mark.parametrize(
    ("word", "otherwise", "asked"),
    [
        ("wether", "", "did you mean 'weather'?"),
        ("recal", "", "did you mean 'recall' or 'recap'?"),
        ("stove", "there are three", "there are three"),
        ("stove", "", ""),
    ],
)
def test_the_words_that_come_nearest_are_asked_for(word, otherwise, asked):
    assert did_you_mean(word, KNOWN, otherwise, most=2) == asked


def test_a_word_is_shown_as_its_reader_would_type_it():
    assert did_you_mean("wether", KNOWN, shown="/{}".format) == "did you mean /weather?"


@pytest.mark.parametrize(("word", "near"), [("wether", "weather"), ("stove", None)])
def test_the_nearest_word_is_none_if_none_comes_near(word, near):
    assert nearest(word, KNOWN) == near
