import pytest

from nanoloop.session.session import Session


def talked(messages=0, turns=0, text="x", **given):
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
    assert await talked(1).async_judge_resize(force) is None


async def test_r0_38_r1_6_as_many_characters_as_the_limit_are_deep():
    session = talked(2, text="hello")  # 10 each
    session.configure(limit={"chars": 21})
    assert await session.async_judge_resize() is None
    session.configure(limit={"chars": 20})
    assert await session.async_judge_resize() == {
        "type": "deep",
        "reason": "max_messages_text_length",
        "severity": 100,
    }


async def test_r0_39_r1_7_more_messages_than_the_limit_are_lite():
    session = talked(3).configure(limit={"messages": 3})
    assert await session.async_judge_resize() is None
    session.add_message("user", "x")
    assert await session.async_judge_resize() == {
        "type": "lite",
        "reason": "max_keep_messages_count",
        "severity": 50,
    }


async def test_r0_40_r1_8_enough_turns_are_lite():
    session = talked(turns=7)
    assert await session.async_judge_resize() is None
    session.add_message("assistant", "a")
    assert await session.async_judge_resize() == {
        "type": "lite",
        "reason": "every_n_turns",
        "severity": 10,
    }


async def test_r0_40_turns_are_counted_from_the_last_resize():
    session = talked(turns=8)
    await session.async_resize()
    assert session.last_resize_turn == 8
    assert await session.async_judge_resize() is None


async def test_r0_41_r1_9_else_nothing_is_done():
    assert await talked(1).async_judge_resize() is None


async def test_r0_38_to_r0_40_c33_the_most_severe_decides():
    session = talked(2, turns=8).configure(limit={"chars": 5, "messages": 1})
    assert (await session.async_judge_resize())["reason"] == "max_messages_text_length"
    session.configure(limit={"chars": 100_000})
    assert (await session.async_judge_resize())["reason"] == "max_keep_messages_count"


@pytest.mark.parametrize("off", [0, None, -1, "0"])
async def test_c7_a_limit_of_nothing_is_none(off):
    session = talked(3, turns=9)
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
    with pytest.raises(TypeError, match="a policy returns"):
        await Session(policy_handler=lambda *_: said).async_judge_resize()


async def test_r0_57_r1_16_a_policy_replaces_the_default():
    session = talked(turns=20)
    session.set_policy_handler(lambda *_: None)
    assert await session.async_judge_resize() is None


async def test_r0_31_r0_13_an_async_policy_beats_the_settings():
    async def policy(full, current, settings):
        return f"{len(full)}-{len(current)}-{settings['session.limit.messages']}"

    session = talked(3, policy_handler=policy).configure(limit={"messages": 1})
    assert await session.async_judge_resize() == {"type": "3-3-1"}


def test_a_policy_may_take_fewer_arguments():
    assert Session(policy_handler=lambda: "a").judge_resize() == {"type": "a"}
    assert Session(policy_handler=lambda _: "a").judge_resize() == {"type": "a"}
