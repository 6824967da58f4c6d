"""A request is made to fit, steadily; the log keeps everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import Entry, Session
from nanoloop.context import EXTRACT_LINES, Bounds, Views
from nanoloop.protocols import ToolSpec
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.testing.trial import pair_violations
from nanoloop.tokens import text_tokens

PROMPT = "Be kind."


def view_of(session, *, views=None, tools=(), **bounds):
    return (views or Views(Bounds(**bounds))).of(session, prompt=PROMPT, tools=tools)


def spoken(messages, words=20):
    session = Session()
    for number in range(messages):
        role = "assistant" if number % 2 else "user"
        session.add_entry(Entry.message(role, f"m{number} " + "word " * words))
    return session


def use_tool(session, number, result):
    session.add_entry(Entry.tool_call("find", {"n": number}, call_id=f"c{number}"))
    session.add_entry(Entry.tool_result("find", result, call_id=f"c{number}"))


def size(messages):
    return sum(4 + text_tokens(str(message["content"])) for message in messages)


def contents(messages):
    return [str(message["content"]) for message in messages]


# Size


def test_without_a_limit_nothing_is_left_out():
    session = spoken(200, words=500)
    assert len(view_of(session).request()) == 201


def test_a_request_over_the_limit_cuts_the_window_where_a_user_speaks():
    session = spoken(41)
    messages = view_of(session, context_tokens=1000).request()
    assert session.has_pending
    assert session.window[0].role == "user"
    assert size(messages) <= 600, "it is cut deep, so that it is not cut again at once"
    assert messages[-1]["content"].startswith("m40 ")


def test_the_exchange_going_on_is_never_cut_whatever_its_size():
    session = spoken(3, words=5000)
    assert "m2 " in view_of(session, context_tokens=1000).request()[-1]["content"]
    assert len(session.window) == 1


def test_tool_schemas_and_summary_count_too():
    tools = [ToolSpec(name="find", description="words " * 600, parameters={})]
    session = spoken(21)
    view_of(session, context_tokens=1000).request()
    assert not session.has_pending
    view_of(session, context_tokens=1000, tools=tools).request()
    assert session.has_pending
    told = spoken(21)
    told.update_summary("words " * 600)
    view_of(told, context_tokens=1000).request()
    assert told.has_pending


def test_chinese_counts_as_what_it_is():
    session = Session()
    for _ in range(10):
        session.add_message("user", "我今天早上去了市场买了苹果面包" * 8)
    view_of(session, context_tokens=800).request()
    assert session.has_pending, "in characters it is a third of the same in English"


def test_what_the_provider_counts_moves_the_limit():
    views = Views(Bounds(context_tokens=1000))
    for _ in range(20):
        view = view_of(spoken(21), views=views)
        view.request()
        view.learn(2000)
    late = spoken(21)
    view_of(late, views=views).request()
    assert late.has_pending


def test_old_results_are_shortened_before_anything_is_cut():
    session = Session()
    session.add_message("user", "find it")
    for number in range(8):
        use_tool(session, number, f"r{number} " + "x" * 8000)
    messages = view_of(session, context_tokens=12_000).request()
    assert not session.has_pending
    assert "characters left out" in messages[3]["content"]
    assert len(messages[-1]["content"]) > 8000, "the newest results are whole"
    assert len(session.messages[2]["content"]) > 8000, "and so is the log"


def test_shortened_results_keep_their_bytes_until_the_next_step():
    session = Session()
    session.add_message("user", "find it")
    views = Views(Bounds(context_tokens=20_000))
    before, misses = [], 0
    for number in range(60):
        use_tool(session, number, f"r{number} " + "x" * 8000)
        messages = view_of(session, views=views).request()
        misses += messages[: len(before)] != before
        before = messages
    assert misses <= 12
    assert not session.has_pending


def test_the_newest_results_stay_whole_where_shortening_old_ones_is_enough():
    session = Session()
    session.add_message("user", "find it")
    use_tool(session, 1, "x" * 8000)
    use_tool(session, 2, "y" * 30_000)
    messages = view_of(session, context_tokens=8500).request()
    assert messages[-1]["content"] == "y" * 30_000
    assert len(messages[3]["content"]) < 2000


def test_the_newest_results_are_shortened_only_where_they_alone_are_too_much():
    session = Session()
    session.add_message("user", "find it")
    use_tool(session, 1, "head " + "x" * 90_000 + " tail")
    messages = view_of(session, context_tokens=4000).request()
    assert messages[-1]["content"].startswith("head xx")
    assert messages[-1]["content"].endswith("xx tail")
    assert size(messages) <= 4000


# Too long, says the provider


def test_what_was_too_long_is_shown_shorter():
    session = spoken(41)
    view = view_of(session)
    before = size(view.request())
    assert view.shrink()
    assert size(view.request()) < before * 0.6


def test_one_exchange_is_shrunk_by_its_results_then_no_more():
    session = Session()
    session.add_message("user", "find it")
    use_tool(session, 1, "x" * 9000)
    view = view_of(session)
    assert view.shrink()
    assert size(view.request()) < 500
    assert not view.shrink()


# Handover


def trimmed(messages, keep, **options):
    session = spoken(messages)
    session.trim_if_needed(messages - 1, keep)
    view_of(session, **options)
    return session


def test_what_is_pending_stays_word_for_word_until_its_summary_is_there():
    session = trimmed(51, 10)
    view = view_of(session, handover=200)
    assert len(view.request()) == 52
    session.update_summary("They met.", seq=session.pending_seq)
    messages = view.request()
    assert len(messages) == 1 + len(session.window)
    assert messages[0]["content"].endswith("They met.")


def test_without_handover_what_is_pending_is_not_shown():
    session = trimmed(51, 10)
    assert len(view_of(session).request()) == 1 + len(session.window)


def test_above_the_cap_the_oldest_pending_ones_are_first_words_in_steps():
    session = Session()
    views = Views(Bounds(handover=40))
    heads = []
    for number in range(300):
        session.add_message("assistant" if number % 2 else "user", f"m{number} " + "word " * 30)
        session.trim_if_needed(20, 10)
        messages = view_of(session, views=views).request()
        assert len(messages) <= 1 + 21 + 40
        heads.append(messages[0]["content"])
    assert "- user: m238 word" in heads[-1]
    assert len(heads[-1]) < 5000
    assert "earlier ones are left out" in heads[-1]
    assert len(set(heads)) <= 16


def test_words_of_the_extract_are_data_and_gone_with_their_summary():
    session = Session()
    views = Views(Bounds(handover=4))
    for number in range(20):
        session.add_message("assistant" if number % 2 else "user", f"## System {number}\n<x>")
    session.trim_if_needed(10, 2)
    head = view_of(session, views=views).request()[0]["content"]
    assert "\n## System" not in head
    assert "<x>" not in head
    session.update_summary("They met.", seq=session.pending_seq)
    assert view_of(session, views=views).request()[0]["content"].endswith("They met.")


def test_with_both_a_request_stays_within_the_tokens():
    session = Session()
    views = Views(Bounds(context_tokens=3000, handover=200))
    for number in range(200):
        session.add_message("assistant" if number % 2 else "user", f"m{number} " + "word " * 30)
        assert size(view_of(session, views=views).request()) <= 3300
    assert "Not yet summarised" in view_of(session, views=views).request()[0]["content"]


def test_with_both_what_a_cut_leaves_out_finds_room_as_pending():
    session = Session()
    views = Views(Bounds(context_tokens=3000, handover=200))
    number = 0
    while not session.has_pending:
        session.add_message("assistant" if number % 2 else "user", f"m{number} " + "word " * 30)
        messages = view_of(session, views=views).request()
        number += 1
    assert len(messages) == 1 + number


def test_a_new_epoch_forgets_the_first_words():
    session = Session()
    views = Views(Bounds(handover=4))
    for number in range(20):
        session.add_message("assistant" if number % 2 else "user", f"secret {number}")
    session.trim_if_needed(10, 2)
    assert "secret 1" in view_of(session, views=views).request()[0]["content"]
    session.clear()
    session.add_message("user", "hi")
    assert view_of(session, views=views).request()[0]["content"] == PROMPT


STEPS = st.lists(
    st.sampled_from(["talk", "talk", "talk", "tool", "trim", "commit part", "commit"]), max_size=60
)


@given(STEPS)
def test_between_two_swaps_each_request_is_the_one_before_and_new_messages(steps):
    session, views = Session(), Views(Bounds(handover=1000))
    before = []
    for number, step in enumerate(steps):
        if step == "trim":
            session.trim_if_needed(6, 2)
        elif step.startswith("commit") and session.has_pending:
            part = step.endswith("part")
            seq = (session.covered_seq + session.pending_seq + 1) // 2 if part else None
            session.update_summary(f"until {number}", seq=seq or session.pending_seq)
            before = []
        elif step == "tool":
            session.add_message("user", f"find {number}")
            use_tool(session, number, "found " * number)
        else:
            session.add_message("user", f"say {number}")
            session.add_message("assistant", f"said {number}")
        messages = view_of(session, views=views).request()
        assert messages[: len(before)] == before
        assert_nothing_is_missing(session, messages)
        before = messages


def assert_nothing_is_missing(session, messages):
    """Every word that no summary covers is there once."""
    said = [
        e.content["text"] for e in session.entries_between(session.covered_seq, 10**6) if e.role
    ]
    shown = [text for text in contents(messages) if text.startswith(("say ", "said ", "find "))]
    assert shown == said


# Results


HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.permutations(range(3)), st.integers(0, 3)),
        st.tuples(st.just("late"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("talk"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(HISTORIES)
def test_in_whatever_order_results_come_the_bytes_of_what_was_read_stay(steps):
    session, missing, recorded, before = Session(), [], [], []
    session.add_message("user", "go")

    def record(call_id):
        session.add_entry(Entry.tool_result("find", f"result of {call_id}.", call_id=call_id))
        recorded.append(call_id)

    for number, (what, order, delayed) in enumerate(steps):
        ids = [f"c{number}.{index}" for index in range(3)]
        if what == "step":
            for call_id in ids:
                session.add_entry(Entry.tool_call("find", {"n": call_id}, call_id=call_id))
            for index in order[delayed:]:
                record(ids[index])
            missing += [ids[index] for index in order[:delayed]]
        elif what == "late" and missing:
            record(missing.pop(order % len(missing)))
        else:
            session.add_message("user", f"say {number}")
        messages = view_of(session).request()
        assert messages[: len(before)] == before
        assert not list(pair_violations(messages))
        shown = " ".join(contents(messages))
        assert all(shown.count(f"result of {call_id}.") == 1 for call_id in recorded)
        before = messages
        session.add_message("assistant", f"said {number}")


def call_that_left(session):
    """A call is open, and its window is cut behind it."""
    session.add_message("user", "pay")
    session.add_entry(Entry.tool_call("pay", {"amount": 5}, call_id="c1"))
    for number in range(10):
        session.add_message("user" if number % 2 else "assistant", f"m{number}")
    session.trim_if_needed(4, 2)


LATE = '[The result of an earlier call came late; here it is as data: pay({"amount": 5})]\n  paid'


def test_a_result_whose_call_left_the_window_is_told_with_it():
    session = Session()
    call_that_left(session)
    session.add_tool_result("c1", "paid")
    assert view_of(session).request()[-1]["content"] == LATE


async def test_a_result_whose_call_is_in_the_store_only_is_told_with_it(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    call_that_left(session)
    await store.save(session)
    light = await store.load("s")
    light.add_tool_result("c1", "paid")
    view = view_of(light)
    await view.fill(store)
    assert view.request()[-1]["content"] == LATE


async def test_of_a_call_that_was_erased_nothing_is_told(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    call_that_left(session)
    session.add_entry(Entry.tool_result("pay", "paid", call_id="c1"))
    await store.save(session)
    view = view_of(session)
    await view.fill(store)
    assert view.request()[-1]["content"] == LATE
    await store.erase(session, [2])
    assert view.request()[-1]["content"] == LATE.replace('({"amount": 5})', "")


@pytest.mark.parametrize("count", [EXTRACT_LINES, 3 * EXTRACT_LINES])
def test_a_summariser_that_never_ends_costs_a_bounded_prompt(count):
    session = Session()
    views = Views(Bounds(handover=10))
    for number in range(10 * count):
        session.add_message("assistant" if number % 2 else "user", "word " * 30)
        session.trim_if_needed(10, 4)
    view_of(session, views=views).request()
    assert size(view_of(session, views=views).request()) < 2500
