from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.chat import (
    entries_of,
    messages_of,
    orphan_results,
    results_by_call,
    total_chars,
)
from nanoloop.session.entry import Entry
from nanoloop.session.log import cut, message_count


@st.composite
def histories(draw):
    entries = []
    for turn in range(draw(st.integers(0, 6))):
        entries.append(Entry.message("user", draw(st.text(max_size=8))))
        for step in range(draw(st.integers(0, 2))):
            call_id = f"{turn}-{step}"
            if draw(st.booleans()):
                entries.append(Entry.message("assistant", "let me see"))
            entries.append(Entry.tool_call("t", {"q": step}, call_id=call_id))
            if draw(st.booleans()):
                entries.append(Entry.thinking("hm"))
            entries.append(Entry.tool_result("t", "r" * draw(st.integers(0, 20)), call_id=call_id))
        if draw(st.booleans()):
            entries.append(Entry.message("assistant", draw(st.text(max_size=8))))
    return entries


KEEP = st.one_of(st.none(), st.integers(-1, 12))
CHARS = st.one_of(st.none(), st.integers(-1, 200))


@given(histories(), KEEP, CHARS, st.sampled_from(["user", "pair"]))
def test_a_cut_parts_no_call_from_its_result_and_never_empties(entries, keep, chars, align):
    start = cut(entries, keep=keep, chars=chars, align=align)
    assert 0 <= start <= max(0, len(entries) - 1)
    kept = entries[start:]
    assert not orphan_results(kept)
    assert len(results_by_call(kept)) + len(results_by_call(entries[:start])) == len(
        results_by_call(entries)
    )


@given(histories(), st.integers(1, 12))
def test_a_cut_at_a_users_message_keeps_at_least_so_many(entries, keep):
    start = cut(entries, keep=keep, align="user")
    if start:
        assert entries[start].role == "user"
        assert message_count(entries[start:]) >= keep


@given(histories(), st.integers(1, 12), st.integers(1, 200))
def test_an_exact_cut_keeps_no_more_than_it_may(entries, keep, chars):
    start = cut(entries, keep=keep, chars=chars)
    kept = messages_of(entries[start:])
    is_one_exchange = any(message["role"] == "tool" for message in kept)
    assert len(kept) <= keep or is_one_exchange
    assert total_chars(kept) <= chars or len(kept) == 1 or is_one_exchange


@given(st.lists(st.text(max_size=8), max_size=12), st.integers(1, 12))
def test_r3_14_plain_messages_are_kept_exactly(texts, keep):
    entries = [Entry.message("user", text) for text in texts]
    assert len(entries[cut(entries, keep=keep) :]) == min(keep, len(texts))


@given(histories())
def test_no_limit_cuts_nothing(entries):
    for none in (None, 0, -3):
        assert cut(entries, keep=none, chars=none) == 0
        assert cut(entries, keep=none, align="user") == 0


def test_c13_without_a_users_message_a_cut_is_by_pairs():
    entries = [Entry.message("assistant", str(n)) for n in range(5)]
    assert cut(entries, keep=2, align="user") == 3


def test_a_message_with_words_and_calls_counts_once():
    said = {"role": "assistant", "content": [{"type": "text", "text": "a"}, _use("c1")]}
    entries = [Entry.message("user", "q"), *entries_of(said), _result("c1")]
    assert cut(entries, keep=2) == 1
    assert messages_of(entries[1:])[0]["content"] == said["content"]


def test_b3_1_the_last_exchange_stays_whole_where_nothing_else_is_left():
    said = {"role": "assistant", "content": [{"type": "text", "text": "a"}, _use("c1")]}
    entries = [Entry.message("user", "q"), *entries_of(said), _result("c1")]
    assert cut(entries, keep=1) == 1


def test_a_result_without_a_call_goes_first():
    entries = [Entry.message("user", "q"), _result("gone"), Entry.message("assistant", "a")]
    assert cut(entries, keep=2) == 2
    assert cut(entries, keep=3) == 0


def test_a_late_result_holds_no_cut_back_and_is_not_cut_with_its_call():
    call, late = Entry.tool_call("t", {}, call_id="c1"), _result("c1")
    talk = [Entry.message(role, "x") for role in ("assistant", "user")]
    assert cut([call, *talk, late, *talk], keep=3) == 3
    assert cut([call, *talk, late, *talk], keep=2) == 4


def _use(call_id):
    return {"type": "tool_use", "id": call_id, "name": "t", "input": {}}


def _result(call_id):
    return Entry.tool_result("t", "r", call_id=call_id)
