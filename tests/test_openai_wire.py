import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoloop.errors import AnswerRefused, BadAnswer, ServerFailed
from nanoloop.providers.answer import PartialAnswer
from nanoloop.providers.openai import request_bytes, take
from tests.openai_client import CLOCK, choice

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text()}),
    min_size=1,
)


@given(MESSAGES, MESSAGES)
def test_a_request_begins_with_the_one_before(before, new):
    def body(messages):
        return request_bytes(model="m", options={"n": 1}, tools=[CLOCK], messages=messages)

    assert body(before + new).startswith(body(before)[:-2])
    assert body(list(before)) == body(before)


def test_what_another_vendor_wants_back_is_not_sent():
    thought = {"vendor": "acme", "blocks": [{"type": "thinking"}]}
    messages = [{"role": "assistant", "content": "Hm.", "reasoning": thought}]
    sent = request_bytes(model="m", options={}, tools=(), messages=messages)
    assert json.loads(sent)["messages"] == [{"role": "assistant", "content": "Hm."}]


def test_half_a_character_does_not_stop_a_request():
    messages = [{"role": "user", "content": "a\ud800b"}]
    sent = request_bytes(model="m", options={}, tools=(), messages=messages)
    assert json.loads(sent)["messages"][0]["content"] == "a?b"


def test_calls_that_are_not_counted_are_told_apart_by_id():
    def part(call_id, **index):
        return index | {"id": call_id, "function": {"name": call_id, "arguments": "{}"}}

    for index in ({}, {"index": 0}):
        draft = PartialAnswer()
        take(draft, choice(tool_calls=[part("a", **index), part("b", **index)]))
        assert [call.name for call in draft.reply().tool_calls] == ["a", "b"]


def test_a_call_without_an_id_gets_one():
    draft = PartialAnswer()
    take(draft, choice(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]))
    (call,) = draft.reply().tool_calls
    assert call.id
    assert json.loads(call.arguments) == {"a": 1}


@given(st.text(alphabet=st.sampled_from('a\\\ud83d\ude00\ud800\n"u')))
def test_arguments_hold_no_half_characters_once_they_are_decoded(text):
    draft = PartialAnswer()
    arguments = json.dumps({"text": text})
    take(draft, choice(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": arguments}}]))
    (call,) = draft.reply().tool_calls
    said = json.loads(call.arguments)["text"]
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert said == whole


@pytest.mark.parametrize("said", ["say this!", "a b", "x" * 300, "\n", "é\0", 7])
def test_a_models_name_is_a_name_or_nothing(said):
    draft = PartialAnswer()
    take(draft, choice("stop", content="Hi.") | {"model": said})
    assert draft.reply().model == ""


def test_reasoning_is_kept_under_either_name_and_text_in_parts_is_joined():
    draft = PartialAnswer()
    take(draft, choice(reasoning="Let ", content=[{"type": "text", "text": "O"}, {"type": "x"}]))
    assert take(draft, choice("stop", reasoning_content="me.", content="K")) == "K"
    assert (draft.reply().thinking, draft.reply().text) == ("Let me.", "OK")


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def oddly(**fields):
    """A mapping of which any field may be missing or something else."""
    return ODD | st.fixed_dictionaries({}, optional={k: v | ODD for k, v in fields.items()})


FUNCTION = oddly(name=st.text(max_size=3), arguments=st.text(max_size=3))
CALL = oddly(id=st.text(max_size=3), index=st.integers(0, 2), function=FUNCTION)
SAID = oddly(content=st.lists(oddly(text=st.text())), tool_calls=st.lists(CALL), reasoning=ODD)
CHOICE = oddly(delta=SAID, message=SAID, finish_reason=st.just("content_filter"))
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, min_size=1) | ODD},
    optional={"usage": oddly(prompt_tokens=ODD, prompt_tokens_details=ODD), "model": ODD},
)


@pytest.mark.slow
@given(st.lists(CHUNK, max_size=3))
@example([choice(tool_calls=[{"index": [0]}])])
def test_no_answer_is_too_odd_to_be_read(chunks):
    draft = PartialAnswer()
    with suppress(BadAnswer, AnswerRefused, ServerFailed):
        for chunk in chunks:
            take(draft, chunk)
        draft.reply()
