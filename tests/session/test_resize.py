"""When and how a session is resized, and what becomes of its memo."""

import json
import sys
from functools import partial

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nanoloop.errors import HistoryNotLoaded, NoConnection, SettingsError
from nanoloop.protocols import Reply
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.resize import (
    REF_LIMIT,
    attachment_summaries,
    chunks,
    unwrapped,
    without_payloads,
)
from nanoloop.session.session import Session

FORCED = {"type": "lite", "turn": 0, "reason": "force"}


def talked(*texts, **given):
    session = Session(**given)
    for text in texts:
        session.add_message("user", text)
    return session


def texts(messages):
    return [message["content"] for message in messages]


class Heard:
    """A memo handler that notes what it was given."""

    def __init__(self, *, gate=None):
        self.batches = []
        self.gate = gate

    async def __call__(self, memo, messages, attachments, settings):
        self.batches.append(texts(messages))
        if self.gate is not None:
            await self.gate.wait()
        return {"seen": [*memo.get("seen", []), *texts(messages)]}


def with_memo(*said, heard, limit=None):
    return talked(*said, memo_update_handler=heard).configure(mode="memo", limit=limit or {})


# Lite


async def test_r0_11_lite_never_asks_a_model():
    heard = Heard()
    session = talked("a", "b", "c", memo_update_handler=heard).configure(limit={"messages": 1})
    assert texts(await session.async_resize()) == ["c"]
    assert heard.batches == []


async def test_r0_43_lite_takes_in_what_the_memo_has_not():
    heard = Heard()
    session = with_memo("a", "b", heard=heard)
    await session.async_resize(force="lite")
    session.add_message("user", "c")
    await session.async_resize(force="lite")
    assert heard.batches == [["a", "b"], ["c"]]
    assert session.memo["seen"] == ["a", "b", "c"]


async def test_r0_43_no_delta_no_call():
    heard = Heard()
    session = with_memo("a", heard=heard)
    await session.async_resize(force="lite")
    await session.async_resize(force="lite")
    assert heard.batches == [["a"]]


async def test_r0_43_a_memo_that_is_no_dict_is_left_alone():
    heard = Heard()
    session = with_memo("a", heard=heard)
    session.memo = ["mine"]
    await session.async_resize(force="lite")
    assert session.memo == ["mine"]
    assert heard.batches == []
    assert session.last_resize == FORCED


async def test_r0_44_the_cursor_moves_to_the_end_also_without_a_memo():
    session = talked("a", "b")
    await session.async_resize(force="lite")
    assert session.memo_cursor == session._memo_cursor == 2


async def test_r0_45_without_a_count_characters_prune():
    session = talked("aaaaa", "bbbbb", "ccccc").configure(limit={"chars": 20})  # 10 each
    assert texts(await session.async_resize(force="lite")) == ["bbbbb", "ccccc"]


async def test_r0_45_the_newest_message_stays_even_alone_over_the_limit():
    session = talked("a", "b" * 50).configure(limit={"chars": 20})
    assert texts(await session.async_resize(force="lite")) == ["b" * 50]


@pytest.mark.parametrize("kind", ["lite", "deep"])
async def test_r0_46_r0_50_c6_the_last_n_and_then_by_characters(kind):
    session = talked("aaaaa", "bbbbb", "ccccc").configure(limit={"messages": 3, "chars": 20})
    assert texts(await session.async_resize(force=kind)) == ["bbbbb", "ccccc"]
    session.configure(limit={"messages": 1})
    assert texts(await session.async_resize(force=kind)) == ["ccccc"]


@pytest.mark.parametrize("kind", ["lite", "deep"])
async def test_c7_a_count_of_0_keeps_all(kind):
    session = talked("a", "b").configure(limit={"messages": 0})
    assert texts(await session.async_resize(force=kind)) == ["a", "b"]


async def test_r0_47_r0_51_c5_the_type_is_the_reason_where_the_policy_gives_none():
    for kind in ("lite", "deep"):
        session = talked("a", policy_handler=lambda *_, kind=kind: kind)
        session.add_message("assistant", "b")
        await session.async_resize()
        assert session.memo["last_resize"] == {
            "type": kind,
            "turn": 1,
            "reason": f"{kind}_resize",
        }


async def test_r0_36_c5_the_decisions_reason_wins():
    session = talked("a", "b").configure(limit={"messages": 1})
    await session.async_resize()
    assert session.memo["last_resize"]["reason"] == "max_keep_messages_count"


# Deep


async def test_r0_48_deep_reads_the_whole_history_in_order_piece_by_piece():
    heard = Heard()
    said = ["1" * 10, "2" * 10, "3" * 10, "4" * 10, "5" * 10]  # 15 each
    session = with_memo(*said, heard=heard, limit={"chars": 30})
    await session.async_resize(force=True)
    assert [len(batch) for batch in heard.batches] == [2, 2, 1]
    assert session.memo["seen"] == said
    await session.async_resize(force=True)
    assert len(heard.batches) == 6


async def test_r0_49_deep_moves_the_cursor_to_the_end():
    session = with_memo("a", "b", heard=Heard())
    await session.async_resize(force="deep")
    assert session.memo_cursor == 2


async def test_r0_52_the_whole_history_is_never_pruned():
    session = talked("a", "b", "c").configure(limit={"messages": 1})
    for kind in ("lite", "deep"):
        await session.async_resize(force=kind)
        assert texts(session.full_chat_history) == ["a", "b", "c"]


def test_chunks_close_when_the_next_message_would_exceed_the_limit():
    messages = [{"role": "user", "content": "x" * 10} for _ in range(5)]
    assert [len(chunk) for chunk in chunks(messages, 30)] == [2, 2, 1]
    assert [len(chunk) for chunk in chunks(messages, 29)] == [1] * 5
    assert [len(chunk) for chunk in chunks(messages, 3)] == [1] * 5
    assert [len(chunk) for chunk in chunks(messages, 0)] == [5]
    assert list(chunks([], 10)) == []


# What resize() promises


async def test_r0_36_without_a_decision_nothing_changes():
    session = talked("a", "b")
    session.committed(session.changes())
    assert texts(await session.async_resize()) == ["a", "b"]
    assert session.changes() is None


async def test_r0_36_a_custom_type_is_recorded_too():
    session = talked("a", "b", policy_handler=lambda *_: {"type": "mine", "reason": "why"})
    session.add_message("assistant", "c")
    session.set_resize_handlers("mine", lambda f, c, m, _: (f, c[-1:], {**m, "k": 1}))
    assert texts(await session.async_resize()) == ["c"]
    assert session.memo == {"k": 1, "last_resize": {"type": "mine", "turn": 1, "reason": "why"}}
    assert session._last_resize_turn == 1


async def test_r0_59_a_missing_handler_is_a_key_error_and_changes_nothing():
    session = talked("a")
    before = session.to_dict()
    with pytest.raises(KeyError, match="nobody"):
        await session.async_resize(force="nobody")
    assert session.to_dict() == before


async def test_a_handler_that_raises_changes_nothing():
    def broken(memo, *_):
        memo["k"] = 1
        raise ValueError("broken")

    session = talked("a", "b", memo_update_handler=broken)
    session.configure(mode="memo", limit={"messages": 1})
    before = session.to_dict()
    with pytest.raises(ValueError, match="broken"):
        await session.async_resize(force="lite")
    assert session.to_dict() == before


async def test_r0_57_r1_15_handlers_of_the_constructor_replace_both_defaults():
    session = talked("a", resize_handlers={"lite": lambda f, c, m, _: (f, [], m)})
    assert await session.async_resize(force="lite") == []
    with pytest.raises(KeyError):
        await session.async_resize(force="deep")


async def test_r1_15_set_resize_handlers_replaces_one():
    session = talked("a", "b").configure(limit={"messages": 1})
    session.set_resize_handlers("lite", lambda f, c, m, _: (f, c, {"mine": True}))
    await session.async_resize(force="lite")
    assert session.memo["mine"]
    assert texts(await session.async_resize(force="deep")) == ["b"]


@pytest.mark.parametrize("name", ["", "  ", None])
def test_a_handler_without_a_type_is_refused(name):
    def handler(full, current, memo, _):
        return full, current, memo

    session = talked("a")
    with pytest.raises(ValueError, match="is not a type of resize"):
        session.set_resize_handlers(name, handler)
    with pytest.raises(ValueError, match="is not a type of resize"):
        talked("a", resize_handlers={name: handler})


async def test_r1_10_r1_14_handlers_may_be_sync_or_async():
    async def handler(full, current, memo, settings):
        return full, current[-1:], {"limit": settings["session.limit.messages"]}

    session = talked("a", "b", resize_handlers={"mine": handler})
    session.configure(limit={"messages": 7})
    assert texts(await session.async_resize(force="mine")) == ["b"]
    assert session.memo["limit"] == 7


async def test_a_custom_handler_may_show_the_oldest_message():
    session = talked("a", "b", "c", resize_handlers={"mine": lambda f, c, m, _: (f, f[:1], m)})
    assert texts(await session.async_resize(force="mine")) == ["a"]
    session.add_message("user", "d")
    assert texts(session.messages) == ["a", "d"]
    assert texts(session.full_chat_history) == ["a", "b", "c", "d"]


async def test_a_custom_handler_may_bring_a_new_history():
    note = {"role": "system", "content": "so far: a, b"}

    def handler(full, current, memo, _):
        return [note, *full[2:]], [note, *current[2:]], memo

    session = talked("a", "b", "c", resize_handlers={"mine": handler})
    session.awaiting = session.last_seq
    await session.async_resize(force="mine")
    assert texts(session.full_chat_history) == ["so far: a, b", "c"]
    assert texts(session.messages) == ["so far: a, b", "c"]
    assert session.entries_between(session.awaiting - 1, session.awaiting)[0].content["text"] == "c"


async def test_a_custom_handler_may_drop_the_oldest_for_good():
    session = talked("a", "b", "c", resize_handlers={"mine": lambda f, c, m, _: (f[1:], c[1:], m)})
    await session.async_resize(force="mine")
    assert texts(session.full_chat_history) == texts(session.messages) == ["b", "c"]


async def test_of_equal_messages_the_newer_ones_stay_in_order():
    def newer(full, current, memo, _):
        return full, [dict(message) for message in current[1:]], memo

    session = talked("ok", "ok", "ok", resize_handlers={"mine": newer})
    await session.async_resize(force="mine")
    assert [entry.seq for entry in session.window] == [2, 3]


@pytest.mark.parametrize("said", [None, (1, 2), ([], [], {}, 4), ("x", [], {}), ([1], [], {})])
async def test_a_custom_handler_that_returns_anything_else_changes_nothing(said):
    session = talked("a", resize_handlers={"mine": lambda *_: said})
    with pytest.raises(TypeError, match="full, current, memo"):
        await session.async_resize(force="mine")
    assert texts(session.messages) == ["a"]


async def test_handlers_get_snapshots():
    def spoil(full, current, memo, settings):
        before = [*full], [*current], dict(memo)
        full[0]["content"] = "spoilt"
        settings["session.mode"] = "memo"
        raise RuntimeError(str(before))

    session = talked("a", resize_handlers={"mine": spoil})
    session.memo = {"k": [1]}
    with pytest.raises(RuntimeError):
        await session.async_resize(force="mine")
    assert texts(session.full_chat_history) == ["a"]
    assert session.settings["session.mode"] == "lite"


# The window at once, the memo behind it


def seeing(messages, *_):
    """The memo of a model that notes all it was given."""
    asked = json.loads(messages[-1]["content"])
    seen = [*asked["current_memo"].get("seen", []), texts(asked["messages"])]
    return json.dumps({"memo": {"seen": seen}})


def limited(**limits):
    session = Session(provider=ScriptedProvider(otherwise=seeing))
    session.configure(mode="memo", limit=limits, every_n_turns=0)
    return session


async def in_two_steps(session, **options):
    left = session.cut_by_rules(**options)
    while session.is_memo_due:
        assert await session.update_memo(change=partial(done_to, session))
    return left


async def done_to(session, act):
    return act(session)


def outcome(session):
    return session.messages, session.memo, session.memo_seq, session.resized


@settings(max_examples=40, deadline=None)
@given(
    said=st.lists(st.text("x", min_size=1, max_size=30), min_size=1, max_size=8),
    limits=st.fixed_dictionaries({"messages": st.integers(0, 5), "chars": st.integers(0, 90)}),
    every=st.integers(0, 4),
    mode=st.sampled_from(["lite", "memo"]),
)
def test_in_two_steps_a_resize_comes_to_the_same(said, limits, every, mode):
    async def compare():
        whole, parted = limited(**limits), limited(**limits)
        for session in (whole, parted):
            session.configure(mode=mode, every_n_turns=every)
        for text in said:
            for session in (whole, parted):
                session.add_message("user", text)
                session.add_message("assistant", "ok")
            await whole.async_resize()
            await in_two_steps(parted)
            assert outcome(parted) == outcome(whole)

    anyio.run(compare)


async def test_a_rule_that_weighs_less_than_was_asked_cuts_nothing():
    session = limited(messages=1)
    session.add_chat_history([{"role": "user", "content": text} for text in "abc"])
    assert session.cut_by_rules(least_severity=51) == 0
    assert (session.cut_by_rules(least_severity=50), texts(session.messages)) == (2, ["c"])


async def test_a_window_that_sits_at_its_limit_is_not_cut_for_ever():
    session = limited(chars=20)
    session.add_chat_history([{"role": "user", "content": text * 5} for text in "ab"])
    await in_two_steps(session)
    session.committed(session.changes())
    assert (await session.async_judge_resize())["type"] == "deep"
    assert (await in_two_steps(session), session.changes()) == (0, None)


async def test_what_a_memo_has_yet_to_take_in_is_taken_in_though_it_was_cut_twice():
    session = limited(messages=1)
    for text in "abc":
        session.add_message("user", text)
        session.cut_by_rules()
    assert (texts(session.messages), session.memo_cursor) == (["c"], 0)
    await in_two_steps(session)
    assert session.memo["seen"] == [["a", "b", "c"]]
    assert session.memo["last_resize"] == session.last_resize


async def test_what_is_more_than_one_call_takes_is_taken_in_piece_by_piece():
    session = limited(messages=1, chars=0)
    for text in "abcd":
        session.add_message("user", text * 9000)
        session.cut_by_rules()
    await in_two_steps(session)
    assert [[said[0] for said in piece] for piece in session.memo["seen"]] == [
        ["a", "b"],
        ["c", "d"],
    ]
    assert session.memo_cursor == 4


async def test_no_memo_is_due_where_none_is_kept_or_nobody_can_be_asked():
    session = limited(messages=1)
    session.add_chat_history([{"role": "user", "content": text} for text in "ab"])
    session.cut_by_rules()
    assert session.is_memo_due
    session.provider = None
    assert not session.is_memo_due
    session.provider = ScriptedProvider()
    session.configure(mode="lite")
    assert not session.is_memo_due


async def test_a_handler_of_the_users_is_known_until_it_is_gone():
    session = limited()
    for name in ("policy", "memo_update", "attachment_summary"):
        set_handler = getattr(session, f"set_{name}_handler")
        assert set_handler(lambda *_: None).has_resize_handlers
        assert not set_handler(None).has_resize_handlers
    assert session.set_resize_handlers("lite", lambda *_: None).has_resize_handlers
    assert Session(resize_handlers={}).has_resize_handlers


# Fixes


async def test_fix_a_window_exactly_at_the_limit_is_not_resized_for_ever():
    heard = Heard()
    session = with_memo("aaaaa", "bbbbb", heard=heard, limit={"chars": 20})
    await session.async_resize()
    before = session.to_dict()
    for _ in range(3):
        assert (await session.async_judge_resize())["type"] == "deep"
        assert len(await session.async_resize()) == 2
    assert len(heard.batches) == 1
    assert session.to_dict() == before


async def test_fix_one_oversize_message_is_not_resized_for_ever_but_force_always_runs():
    heard = Heard()
    session = with_memo("x" * 100, heard=heard, limit={"chars": 20})
    for _ in range(3):
        await session.async_resize()
    assert len(heard.batches) == 1
    await session.async_resize(force=True)
    assert len(heard.batches) == 2


async def test_fix_a_message_that_comes_during_an_update_is_in_the_window_once_and_in_the_next():
    gate = anyio.Event()
    heard = Heard(gate=gate)
    session = with_memo("a", "b", heard=heard, limit={"messages": 1})
    async with anyio.create_task_group() as group:
        group.start_soon(session.async_resize, "lite")
        await anyio.wait_all_tasks_blocked()
        session.add_message("user", "c")
        gate.set()
    assert texts(session.messages) == ["b", "c"]
    await session.async_resize(force="lite")
    assert heard.batches == [["a", "b"], ["c"]]
    assert texts(session.full_chat_history) == ["a", "b", "c"]


async def test_fix_what_comes_while_a_handler_brings_a_new_history_is_kept_once():
    gate = anyio.Event()

    async def handler(full, current, memo, _):
        await gate.wait()
        return [{"role": "system", "content": "note"}], [], memo

    session = talked("a", resize_handlers={"mine": handler})
    async with anyio.create_task_group() as group:
        group.start_soon(session.async_resize, "mine")
        await anyio.wait_all_tasks_blocked()
        session.add_message("user", "b")
        gate.set()
    assert texts(session.messages) == ["b"]
    assert texts(session.full_chat_history) == ["note", "b"]


async def test_a_resize_that_returns_after_a_reset_is_dropped():
    gate = anyio.Event()
    session = with_memo("a", heard=Heard(gate=gate))
    async with anyio.create_task_group() as group:
        group.start_soon(session.async_resize, "lite")
        await anyio.wait_all_tasks_blocked()
        session.reset_history()
        gate.set()
    assert session.memo == {}
    assert session.messages == []


async def test_what_was_taken_back_meanwhile_stays_away():
    gate = anyio.Event()
    session = with_memo("a", "b", heard=Heard(gate=gate))
    async with anyio.create_task_group() as group:
        group.start_soon(session.async_resize, "lite")
        await anyio.wait_all_tasks_blocked()
        session.undo()
        gate.set()
    assert texts(session.messages) == ["a"]


# A session of which only the window is in memory


async def test_a_memo_reads_what_is_only_in_the_store():
    heard = Heard()
    session = with_memo("a", "b", "c", heard=heard, limit={"messages": 1})
    stored = session.window
    session.trim_if_needed(1, 1)
    session.committed(session.changes())
    session.release()

    async def read(*, after, upto):
        return [entry for entry in stored if after < entry.seq <= upto]

    with pytest.raises(HistoryNotLoaded):
        await session.async_resize(force="deep")
    await session.async_resize(force="deep", read=read)
    assert heard.batches == [["a", "b", "c"]]


def with_turns(messages=0, turns=0, text="x", **given):
    session = Session(**given)
    for _ in range(turns):
        session.add_message("user", "q")
        session.add_message("assistant", "a")
    for _ in range(messages):
        session.add_message("user", text)
    return session


async def test_r0_35_any_yes_forces_a_decision():
    session = Session()
    forced = {"type": "deep", "reason": "force", "severity": 1000}
    assert await session.async_judge_resize(force=True) == forced
    assert await session.async_judge_resize(1) == forced
    assert await session.async_judge_resize(force="lite") == {**forced, "type": "lite"}


@pytest.mark.parametrize("force", [False, None, ""])
async def test_r0_35_a_no_asks_the_policy(force):
    assert await with_turns(1).async_judge_resize(force) is None


async def test_r0_38_r1_6_as_many_characters_as_the_limit_are_deep():
    session = with_turns(2, text="hello")  # 10 each
    session.configure(limit={"chars": 21})
    assert await session.async_judge_resize() is None
    session.configure(limit={"chars": 20})
    assert await session.async_judge_resize() == {
        "type": "deep",
        "reason": "max_messages_text_length",
        "severity": 100,
    }


async def test_r0_39_r1_7_more_messages_than_the_limit_are_lite():
    session = with_turns(3).configure(limit={"messages": 3})
    assert await session.async_judge_resize() is None
    session.add_message("user", "x")
    assert await session.async_judge_resize() == {
        "type": "lite",
        "reason": "max_keep_messages_count",
        "severity": 50,
    }


async def test_r0_40_r1_8_enough_turns_are_lite():
    session = with_turns(turns=7)
    assert await session.async_judge_resize() is None
    session.add_message("assistant", "a")
    assert await session.async_judge_resize() == {
        "type": "lite",
        "reason": "every_n_turns",
        "severity": 10,
    }


async def test_r0_40_turns_are_counted_from_the_last_resize():
    session = with_turns(turns=8)
    await session.async_resize()
    assert session.last_resize_turn == 8
    assert await session.async_judge_resize() is None


async def test_r0_41_r1_9_else_nothing_is_done():
    assert await with_turns(1).async_judge_resize() is None


async def test_r0_38_to_r0_40_c33_the_most_severe_decides():
    session = with_turns(2, turns=8).configure(limit={"chars": 5, "messages": 1})
    assert (await session.async_judge_resize())["reason"] == "max_messages_text_length"
    session.configure(limit={"chars": 100_000})
    assert (await session.async_judge_resize())["reason"] == "max_keep_messages_count"


@pytest.mark.parametrize("off", [0, None, -1, "0"])
async def test_c7_a_limit_of_nothing_is_none(off):
    session = with_turns(3, turns=9)
    session.settings["session.resize.max_messages_text_length"] = off
    session.settings["session.resize.max_keep_messages_count"] = off
    session.settings["session.resize.every_n_turns"] = off
    assert await session.async_judge_resize() is None


async def test_r1_5_a_policy_may_name_a_type_only():
    session = Session(policy_handler=lambda *_: "mine")
    assert await session.async_judge_resize() == {"type": "mine"}


async def test_r1_5_a_policys_dict_is_passed_on_as_it_is():
    decision = {"type": "lite", "reason": "mine", "severity": 3, "meta": {"a": 1}}
    session = Session(policy_handler=lambda *_: decision)
    assert await session.async_judge_resize() == decision


@pytest.mark.parametrize("said", [3, ["lite"], {"reason": "no type"}, True, {"type": 3}])
async def test_r0_58_any_other_answer_of_a_policy_is_a_type_error(said):
    with pytest.raises(TypeError, match="a policy must return"):
        await Session(policy_handler=lambda *_: said).async_judge_resize()


async def test_r0_57_r1_16_a_policy_replaces_the_default():
    session = with_turns(turns=20)
    session.set_policy_handler(lambda *_: None)
    assert await session.async_judge_resize() is None


async def test_r0_31_r0_13_an_async_policy_beats_the_settings():
    async def policy(full, current, settings):
        return f"{len(full)}-{len(current)}-{settings['session.limit.messages']}"

    session = with_turns(3, policy_handler=policy).configure(limit={"messages": 1})
    assert await session.async_judge_resize() == {"type": "3-3-1"}


def test_a_policy_may_take_fewer_arguments():
    assert Session(policy_handler=lambda: "a").judge_resize() == {"type": "a"}
    assert Session(policy_handler=lambda _: "a").judge_resize() == {"type": "a"}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA" + "A" * 500}}


class Model:
    """A provider that says one thing and notes what it was asked."""

    def __init__(self, text="", error=None):
        self.text = text
        self.error = error
        self.asked = []

    async def chat(self, *, messages, tools=None, model=None, on_text=None):
        self.asked.append(messages)
        if self.error:
            raise self.error
        return Reply(text=self.text)

    async def close(self): ...


def with_model(text="", *, error=None, **given):
    provider = Model(text, error)
    session = Session(provider=provider, **given).configure(mode="memo")
    session.add_message("user", "my name is Ada")
    return session, provider


async def test_r0_53_no_memo_without_being_enabled():
    session, provider = with_model('{"memo": {"name": "Ada"}}')
    session.configure(mode="lite")
    await session.async_resize(force=True)
    assert provider.asked == []


async def test_r0_54_the_model_gets_memo_messages_and_attachments():
    session, provider = with_model("{}", settings={"session.memo.instruct": ["one", "two"]})
    session.memo = {"k": 1, "last_resize": {"turn": 3}}
    session.add_message("user", [{"type": "text", "text": "look"}, IMAGE])
    await session.async_resize(force="lite")
    system, user = provider.asked[0]
    assert system == {"role": "system", "content": "one\ntwo"}
    assert json.loads(user["content"]) == {
        "current_memo": {"k": 1},
        "messages": [
            {"role": "user", "content": "my name is Ada"},
            {"role": "user", "content": "look\n[image_url]"},
        ],
        "attachments": [{"type": "image_url", "ref": "data:image/png;base64", "meta": {}}],
    }


async def test_r1_17_no_payload_is_ever_sent():
    session, provider = with_model("{}")
    session.add_message("user", [IMAGE])
    await session.async_resize(force="deep")
    assert "AAAA" not in json.dumps(provider.asked)


@pytest.mark.parametrize(
    "text",
    [
        '{"memo": {"name": "Ada"}}',
        '{"name": "Ada"}',
        '```json\n{"memo": {"name": "Ada"}}\n```',
        'Here it is:\n{"memo": {"name": "Ada"}}\nDone.',
    ],
)
async def test_r0_55_what_stands_under_memo_or_the_dict_itself(text):
    session, _ = with_model(text)
    await session.async_resize(force="lite")
    assert session.memo.pop("last_resize")
    assert {k: v for k, v in session.memo.items() if k != "last_resize"} == {"name": "Ada"}


@pytest.mark.parametrize("text", ["", "no idea", "[1]", '"x"', "null", '{"memo": '])
async def test_r0_55_anything_else_leaves_the_memo(text):
    session, _ = with_model(text)
    session.memo = {"k": 1}
    await session.async_resize(force="lite")
    assert session.memo == {"k": 1, "last_resize": session.last_resize}


def test_r0_55_memo_that_is_no_dict_falls_back_to_the_whole():
    assert unwrapped({"memo": "x", "a": 1}) == {"memo": "x", "a": 1}
    assert unwrapped({"memo": {}}) == {}
    assert unwrapped(3) is None


async def test_a_models_failure_reaches_the_caller_and_changes_nothing():
    session, _ = with_model(error=NoConnection("no connection"))
    before = session.to_dict()
    with pytest.raises(NoConnection):
        await session.async_resize(force="lite")
    assert session.to_dict() == before


async def test_a_custom_updater_gets_four_things_and_is_taken_as_it_is():
    given = []

    def update(memo, messages, attachments, settings):
        given.append((memo, messages, attachments, settings["session.mode"]))
        return {"memo": {"x": 1}}

    session, provider = with_model(memo_update_handler=update)
    await session.async_resize(force="lite")
    assert given == [({}, [{"role": "user", "content": "my name is Ada"}], [], "memo")]
    assert session.memo["memo"] == {"x": 1}
    assert provider.asked == []


async def test_a_custom_updater_that_returns_no_dict_leaves_the_memo():
    session, _ = with_model(memo_update_handler=lambda *_: "no")
    session.memo = {"k": 1}
    await session.async_resize(force="lite")
    assert session.memo["k"] == 1


async def test_r0_57_attachments_are_described_by_the_users_handler():
    heard = []
    session, _ = with_model(memo_update_handler=lambda _, __, about, ___: heard.append(about))
    session.set_attachment_summary_handler(lambda message: [{"of": message["content"]}])
    await session.async_resize(force="lite")
    assert heard == [[{"of": "my name is Ada"}]]


async def test_without_anyone_to_ask_what_is_new_waits():
    session = Session().configure(mode="memo")
    session.add_message("user", "a")
    await session.async_resize(force="lite")
    assert session.memo_cursor == 0
    session.provider = Model('{"k": 1}')
    await session.async_resize(force="lite")
    assert (session.memo["k"], session.memo_cursor) == (1, 1)


class Name(BaseModel):
    name: str


OBJECT = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["x"]}}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [Name, OBJECT, lambda memo: isinstance(memo.get("name"), str)])
@pytest.mark.parametrize(("said", "fits"), [({"name": "Ada"}, True), ({"name": 3}, False)])
async def test_b0_3_a_memo_that_does_not_fit_is_not_taken(schema, said, fits):
    session, _ = with_model(json.dumps(said), memo_schema=schema)
    await session.async_resize(force="lite")
    assert session.memo.get("name") == ("Ada" if fits else None)


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ({"name": "a", "tags": ["x"]}, True),
        ({"name": "a", "tags": ["y"]}, False),
        ({"name": "a", "more": 1}, False),
        ({}, False),
    ],
)
async def test_b0_3_json_schema_words_that_count(said, fits):
    session, _ = with_model(memo_update_handler=lambda *_: said, memo_schema=OBJECT)
    await session.async_resize(force="lite")
    assert ("name" in session.memo) == fits


def test_b0_3_a_json_schema_without_the_library_for_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema.validators", None)
    with pytest.raises(SettingsError, match="-m pip install jsonschema, or use a pydantic model"):
        Session(memo_schema=OBJECT)


def test_r0_19_c4_a_memo_is_any_json_value_and_a_copy():
    session = Session()
    assert session.memo == {}
    session.memo = {"a": [1]}
    session.memo["a"].append(2)
    assert session.memo == {"a": [1]}
    session.memo = "text"
    assert session.memo == "text"


def about(*parts):
    return attachment_summaries({"role": "user", "content": list(parts)})


@pytest.mark.parametrize("content", ["text", None, {"type": "image"}, 3, []])
def test_r0_56_only_a_list_has_attachments(content):
    assert attachment_summaries({"role": "user", "content": content}) == []


def test_r0_56_r1_17_type_reference_and_known_facts():
    part = {
        "type": "image",
        "path": "/p.png",
        "url": "http://x/y.png",
        "name": "y",
        "mime_type": "image/png",
        "size": 3,
        "width": 1,
        "height": 2,
        "duration": 4,
        "data": "AAAA",
    }
    facts = {k: part[k] for k in ("name", "mime_type", "size", "width", "height", "duration")}
    assert about(part) == [{"type": "image", "ref": "http://x/y.png", "meta": facts}]


@pytest.mark.parametrize("name", ["file", "url", "path", "id", "name"])
def test_r0_56_any_of_five_names_is_a_reference(name):
    assert about({"type": "file", name: "here"})[0]["ref"] == "here"


def test_r0_56_the_first_of_them_that_is_there_counts():
    part = {"type": "file", "name": "n", "id": "i", "path": "p", "url": "", "file": None}
    assert about(part)[0]["ref"] == "p"


def test_a_reference_may_be_nested():
    assert about({"type": "image_url", "image_url": {"url": "http://x"}})[0]["ref"] == "http://x"
    assert about({"type": "image_url", "image_url": "http://x"})[0]["ref"] == "http://x"
    assert about({"type": "file", "file": {"id": "f1"}})[0]["ref"] == "f1"


def test_text_and_parts_without_a_type_are_skipped():
    assert about("words", {"type": "text", "text": "t"}, {"url": "x"}, {"type": ""}, 3) == []


def test_falsy_facts_are_skipped_and_no_reference_is_none():
    assert about({"type": "audio", "size": 0, "name": ""}) == [
        {"type": "audio", "ref": None, "meta": {}}
    ]


def test_r1_17_a_payload_is_no_reference():
    assert about({"type": "image", "url": "data:image/png;base64,AAAA"})[0]["ref"] == (
        "data:image/png;base64"
    )
    assert len(about({"type": "file", "file": "A" * 9999})[0]["ref"]) == REF_LIMIT + 1


def test_a_content_without_payloads_names_what_was_there():
    image = {"type": "image", "data": "AAAA"}
    use = {"type": "tool_use", "name": "t"}
    assert without_payloads(["a", {"type": "text", "text": "b"}, image, use, 3]) == (
        "a\nb\n[image]\n[calls t]"
    )
    assert without_payloads("a") == "a"
