import warnings

import pytest

from nanoloop.session.options import Options
from nanoloop.session.session import Session


def test_r0_23_to_r0_29_r1_3_the_defaults():
    settings = Session().settings
    assert settings["session.resize.every_n_turns"] == 8
    assert settings["session.resize.max_messages_text_length"] == 12000
    assert settings["session.resize.max_keep_messages_count"] is None
    assert len(settings["session.memo.instruct"]) == 4
    assert settings["session.memo.enabled"] is False
    assert settings["session.mode"] == "lite"
    assert settings["session.limit"] == {}


@pytest.mark.parametrize(
    "parent",
    [
        {"session.resize.every_n_turns": 3},
        {"session": {"resize": {"every_n_turns": 3}}},
        {"session": {"resize.every_n_turns": 3}},
    ],
)
def test_r1_3_the_parents_settings_win_over_the_defaults(parent):
    session = Session(settings=parent)
    assert session.settings["session.resize.every_n_turns"] == 3
    assert session.settings.every_n_turns == 3
    session.configure(every_n_turns=5)
    assert session.settings.every_n_turns == 5


def test_a_change_in_the_parent_is_heard():
    parent = {"session.mode": "lite"}
    session = Session(settings=parent)
    parent["session.mode"] = "memo"
    assert session.settings.memo_enabled


def test_r0_30_c2_legacy_keys_have_no_effect_and_one_warning():
    legacy = {"session.resize.max_current_chars": 5, "session.resize.keep_last_messages": 1}
    with pytest.warns(DeprecationWarning, match=r"max_current_chars.*session\.limit") as heard:
        session = Session(settings=legacy)
    session.settings.update(legacy)
    assert len(heard) == 1
    assert (session.settings.chars, session.settings.messages) == (12000, 0)


def test_c2_nothing_more_is_said_of_legacy_keys_by_what_goes_on():
    with pytest.warns(DeprecationWarning, match="keep_last_messages"):
        session = Session(settings={"session.resize.keep_last_messages": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.append_message({"role": "user", "content": "a"})
        assert session.judge_resize() is None
        session.resize("lite")


def test_without_legacy_keys_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Session(settings={"session.mode": "memo"})


def test_r0_32_limit_beats_resize_key_by_key():
    options = Options(
        {
            "session.limit": {"chars": 10},
            "session.resize.max_messages_text_length": 99,
            "session.resize.max_keep_messages_count": 7,
        }
    )
    assert (options.chars, options.messages) == (10, 7)
    options["session.limit.messages"] = 2
    assert (options.chars, options.messages) == (10, 2)


@pytest.mark.parametrize(
    ("mode", "enabled", "expected"),
    [
        ("lite", None, False),
        ("memo", None, True),
        ("lite", True, True),
        ("memo", False, False),
        ("memo", "false", False),
        ("lite", "true", True),
        ("memo", "", True),
    ],
)
def test_r0_33_c3_memo_enabled_beats_the_mode_when_it_is_set(mode, enabled, expected):
    options = Options({"session.mode": mode, "session.memo": {"enabled": enabled}})
    assert options.memo_enabled is expected


def test_configure_adds_limits_up_and_mode_sets_the_memo():
    session = Session().configure(limit={"chars": 5}).configure(limit={"messages": 2}, mode="memo")
    assert session.settings["session.limit"] == {"chars": 5, "messages": 2}
    assert session.settings["session.memo.enabled"] is True
    assert session.configure(mode="lite").settings["session.memo.enabled"] is False


def test_configure_refuses_an_unknown_mode():
    with pytest.raises(ValueError, match="'lite' or 'memo'"):
        Session().configure(mode="deep")


@pytest.mark.parametrize(
    ("value", "chars", "messages", "turns"),
    [
        ("10", 10, 10, 10),
        (10.0, 10, 10, 10),
        ("ten", 12000, 0, 8),
        ([], 12000, 0, 8),
        (True, 12000, 0, 8),
        (float("inf"), 12000, 0, 8),
        (0, 0, 0, 0),
        ("-3", 0, 0, 0),
        (None, 0, 0, 0),
    ],
)
def test_limits_arrive_as_numbers_or_words(value, chars, messages, turns):
    options = Options()
    options["session.resize.max_messages_text_length"] = value
    options["session.resize.max_keep_messages_count"] = value
    options["session.resize.every_n_turns"] = value
    assert (options.chars, options.messages, options.every_n_turns) == (chars, messages, turns)


def test_it_is_a_mapping():
    options = Options()
    options["session.limit"] = {"chars": 1, "messages": 2}
    options["session.limit"] = {"chars": 3}
    assert options.get("session.limit") == {"chars": 3}
    assert options.get("session.nothing") is None
    assert options.setdefault("session.mode", "memo") == "lite"
    assert "session.limit.chars" in options
    assert "session.limit.chars" in list(options)
    assert len(options) == len(list(options))
    del options["session.limit.chars"]
    assert options["session.limit"] == {}
    with pytest.raises(KeyError):
        del options["session.limit.chars"]
    with pytest.raises(KeyError, match="begin with"):
        options["mode"] = "memo"


def test_the_whole_tree_may_be_read_and_set():
    options = Options()
    options["session"] = {"mode": "memo"}
    assert options["session"]["memo"]["enabled"] is True
    options["session"] = {"limit": {"chars": 1}}
    assert (options["session.mode"], options.chars) == ("lite", 1)


def test_what_is_handed_out_is_a_copy():
    options = Options()
    options["session.memo.instruct"] = ["a"]
    options["session.memo.instruct"].append("b")
    assert options["session.memo.instruct"] == ["a"]


def test_a_setting_is_a_change_to_save():
    session = Session()
    session.committed(session.changes())
    session.settings["session.mode"] = "memo"
    assert session.changes().sections == {"settings": {"mode": "memo"}}


def test_fix_nothing_that_looks_like_a_secret_is_exported():
    options = Options({"model.api_key": "sk-1", "session.memo.model": "m"})
    options["session.memo.api_key"] = "planted"
    options["session.memo.auth_token"] = "planted"
    options["session.memo.note"] = "sk-planted"
    options["session.limit.max_tokens"] = 3
    assert options.exported() == {"session": {"memo": {"model": "m"}, "limit": {"max_tokens": 3}}}
