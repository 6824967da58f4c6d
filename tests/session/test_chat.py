"""Entries to chat messages and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.chat import (
    char_size,
    decoded,
    entry_text,
    messages_of,
    model_messages,
    orphan_results,
    rough_tokens,
    spans_of,
    total_chars,
)
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

TEXT = st.text(max_size=12)
JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
IDS = st.text("abc123", min_size=1, max_size=4)
ARGUMENTS = st.one_of(
    st.dictionaries(TEXT, JSON_VALUE, max_size=3).map(json.dumps),
    st.dictionaries(TEXT, JSON_VALUE, max_size=3).map(
        lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    ),
    st.just(""),
    st.just("{broken"),
)


def openai_call(call_id, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


@pytest.mark.parametrize("given", ["hello", None, 3, [("role", "user")]])
def test_r0_34_what_is_no_message_is_refused_by_its_type(given):
    session = Session()
    with pytest.raises(TypeError, match="role and content"):
        session.append_message(given)
    assert session.full_chat_history == []


CALLS = st.lists(st.builds(openai_call, IDS, TEXT, ARGUMENTS), min_size=1, max_size=3)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXT),
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, TEXT),
    ),
    max_size=3,
)
USES = st.lists(
    st.builds(
        lambda i, name, given: {"type": "tool_use", "id": i, "name": name, "input": given},
        IDS,
        TEXT,
        JSON_VALUE.filter(lambda value: value is not None),
    ),
    min_size=1,
    max_size=2,
)
MESSAGES = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system"]),
        st.one_of(TEXT, PARTS, st.none()),
    ),
    st.builds(
        lambda content, calls: {"role": "assistant", "content": content, "tool_calls": calls},
        st.one_of(TEXT, st.none()),
        CALLS,
    ),
    st.builds(
        lambda parts, uses: {"role": "assistant", "content": [*parts, *uses]},
        st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=2),
        USES,
    ),
    st.builds(
        lambda text, i: {"role": "tool", "content": text, "tool_call_id": i},
        TEXT,
        IDS,
    ),
    st.builds(
        lambda value, i: {
            "role": "tool",
            "content": {"type": "tool_result", "tool_use_id": i, "content": value},
        },
        JSON_VALUE,
        IDS,
    ),
    st.builds(lambda name: {"role": "user", "content": "x", "name": name}, TEXT),
)


@given(st.lists(MESSAGES, max_size=6))
def test_messages_come_back_in_the_form_they_came_in(messages):
    session = Session()
    session.set_chat_history(messages)
    assert session.full_chat_history == messages


@given(st.lists(MESSAGES, max_size=6))
def test_spans_part_all_entries_and_lose_none(messages):
    session = Session()
    session.set_chat_history(messages)
    spans = spans_of(session.window)
    assert [e for span in spans for e in span.entries] == list(session.window)


@given(st.lists(MESSAGES, max_size=8))
def test_a_model_never_sees_a_call_without_its_result_or_the_other_way(messages):
    session = Session()
    session.set_chat_history(messages)
    shown = model_messages(session.window)
    calls = [call["id"] for message in shown for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in shown if message["role"] == "tool"]
    assert sorted(calls) == sorted(results)


def test_a_thought_rides_with_the_words_after_it():
    entries = [Entry.message("user", "q"), Entry.thinking("hm"), Entry.message("assistant", "a")]
    assert [len(span.entries) for span in spans_of(entries)] == [1, 2]
    assert messages_of(entries) == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]


def test_c26_calls_pair_by_id_both_ways():
    call = openai_call("c1", "search", '{"q": "x"}')
    session = Session()
    session.append_message({"role": "assistant", "content": None, "tool_calls": [call]})
    session.append_message({"role": "tool", "tool_call_id": "c1", "content": "found"})
    assert session.window[0].tool_call_content() == {"tool": "search", "parameters": {"q": "x"}}
    assert session.window[1].call_id == "c1"
    assert not orphan_results(session.window)
    assert session.messages[0]["tool_calls"] == [call]


def test_r3_6_r3_7_blocks_become_entries_and_blocks_again():
    use = {"type": "tool_use", "id": "call_123", "name": "read_file", "input": {"path": "main.el"}}
    said = {"role": "assistant", "content": [{"type": "text", "text": "I'll read it."}, use]}
    session = Session()
    session.append_message(said)
    session.add_tool_result("call_123", ";;; main.el")
    assert [entry.type for entry in session.window] == ["message", "tool_call", "tool_result"]
    assert session.window[2].content["tool"] == "read_file"
    assert session.messages == [
        said,
        {
            "role": "tool",
            "content": {
                "type": "tool_result",
                "tool_use_id": "call_123",
                "content": ";;; main.el",
            },
        },
    ]


def test_two_messages_of_the_assistant_stay_two():
    call = openai_call("c1", "t", "{}")
    messages = [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [openai_call("c2", "t", "{}")]},
    ]
    session = Session()
    session.set_chat_history(messages)
    assert session.messages == messages


NO_JSON = {
    "broken": "{broken",
    "infinite": '{"a": 1e999}',
    "no number": '{"a": NaN}',
    "less than all": '{"a": -Infinity}',
    "long": "9" * 5000,
    "deep": "[" * 51 + "]" * 51,
    "deeper": '{"a":' * 200 + "1" + "}" * 200,
    "endlessly deep": "[" * 100_000,
    "of many parts": f"[{'[],' * 10_000}[]]",
}


@pytest.mark.parametrize("text", NO_JSON.values(), ids=NO_JSON)
def test_arguments_that_not_everyone_reads_as_json_stay_text(text):
    assert decoded(text) == text


def test_arguments_are_what_their_json_means():
    assert decoded("[" * 50 + "]" * 50) != "[" * 50 + "]" * 50
    assert decoded('{"a": [1e99, {"b": "c"}]}') == {"a": [1e99, {"b": "c"}]}
    assert decoded("") == {}
    assert decoded({"a": 1}) == {"a": 1}


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
