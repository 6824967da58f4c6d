import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.chat import char_size, entry_text, rough_tokens, total_chars
from nanoloop.session.entry import Entry


@pytest.mark.parametrize(
    ("content", "size"),
    [
        ("hello", 10),
        ([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], 66),
        ("", 5),
        ([], 5),
        (None, 5),
        (["ab", {"type": "text", "text": "cd"}], 9),
        ({"text": "abc"}, 8),
        ([3, None], 5 + 1 + 4),
        ("你好", 7),
        (12345, 10),
    ],
)
def test_r0_42_c27_characters_of_a_message(content, size):
    assert char_size({"role": "user", "content": content}) == size


@given(st.lists(st.text(max_size=9), max_size=5))
def test_r0_42_the_sum_of_all(texts):
    messages = [{"role": "user", "content": text} for text in texts]
    assert total_chars(messages) == sum(5 + len(text) for text in texts)


def test_what_json_does_not_know_counts_too():
    assert char_size({"role": "", "content": [{"a": object()}]}) > 10


def test_r3_18_four_characters_a_token():
    assert [rough_tokens(n) for n in (0, 3, 4, 9)] == [0, 0, 1, 2]


def test_tool_entries_have_text_too():
    assert entry_text(Entry.tool_call("ab", {"q": 1})) == 'ab{"q": 1}'
    assert entry_text(Entry.tool_result("ab", None, "no")) == "abno"
    assert entry_text(Entry.message("user", None)) == ""
