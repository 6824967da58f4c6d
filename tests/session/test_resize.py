import anyio
import pytest

from nanoloop.errors import HistoryNotLoaded
from nanoloop.session.resize import chunks
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
