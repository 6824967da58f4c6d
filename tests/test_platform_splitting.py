"""Long texts as several messages: nothing lost, nothing too long, fences whole."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.kit.markdown import closed, split, utf8, utf16

WORDS = st.text(alphabet="abc äß中文👍🏽👩‍👩‍👧\u0301.!?()[]*_~`\n \t", max_size=40)
FENCES = st.sampled_from(["```\n", "```py\n", "~~~\n", "````md\n", "\n```\n", "\n\n", "# A\n"])
TEXTS = st.lists(st.one_of(WORDS, FENCES), max_size=60).map("".join)
SIZES = st.sampled_from([len, utf16, utf8])


def bare(text):
    """What a text says beside white space and fences."""
    lines = (line for line in text.split("\n") if not re.match(r"\s*(```|~~~)", line))
    return re.sub(r"\s", "", "".join(lines))


@given(TEXTS, st.integers(100, 400), SIZES)
def test_no_part_is_too_long(text, limit, size):
    assert all(size(part) <= limit for part in split(text, limit, size))


@given(TEXTS, st.integers(100, 400), SIZES)
def test_no_text_is_lost(text, limit, size):
    assert bare("\n".join(split(text, limit, size))) == bare(text)


@given(TEXTS, st.integers(100, 400))
def test_every_part_but_the_last_has_its_fences_closed(text, limit):
    assert all(closed(part) == part for part in split(text, limit)[:-1])


@given(TEXTS, TEXTS, st.integers(100, 400))
def test_parts_stay_as_they_are_while_a_text_grows(text, more, limit):
    before, after = split(text, limit), split(text + more, limit)
    assert after[: len(before) - 1] == before[:-1]


def test_a_text_that_fits_is_one_part():
    assert split("short", 100) == ["short"]
    assert split("\n \n", 100) == []


def test_paragraphs_are_kept_together():
    first, second = "a " * 40, "b " * 40
    assert split(f"{first}\n\n{second}", 120) == [first.rstrip(), second]


def test_a_code_block_that_fits_in_one_message_is_kept_whole():
    code = "```py\n" + "x = 1\n" * 8 + "```"
    parts = split(f"{'words ' * 10}\n{code}\nthe end", 110)
    assert code in parts[1]


def test_a_long_code_block_is_closed_and_reopened_in_its_language():
    parts = split("```py\n" + "x = 1\n" * 60 + "```\nthe end", 120)
    assert all(part.startswith("```py\n") and part.endswith("\n```") for part in parts[:-1])
    assert parts[-1].endswith("the end")


@pytest.mark.parametrize(("size", "count"), [(len, 1), (utf16, 2), (utf8, 4)])
def test_sizes_are_counted_as_the_platform_does(size, count):
    assert size("👍") == count


def test_no_character_is_cut_in_two():
    parts = split("👩‍👩‍👧" * 100, 101)
    assert not any(
        part.startswith(("\u200d", "\ufe0f")) or part.endswith("\u200d") for part in parts
    )


def test_what_grows_is_shown_with_its_fence_closed():
    assert closed("look:\n```py\nx = 1") == "look:\n```py\nx = 1\n```"
    assert closed("look") == "look"
