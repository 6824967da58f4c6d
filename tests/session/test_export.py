"""A session exported, imported, and shown to people."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import InvalidSessionId
from nanoloop.events import NumberMended, hearing
from nanoloop.session.entry import Entry
from nanoloop.session.export import rendered, shortened
from nanoloop.session.head import Identity
from nanoloop.session.imports import from_magent, from_nanobot
from nanoloop.session.session import Session

SAID = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def test_r0_61_a_session_that_was_never_resized_comes_back_as_one():
    session = Session().set_chat_history(SAID)
    text = session.dump()
    again = Session.load(text)
    assert again.last_resize is None
    assert again.dump() == text
    session.resize(force=True)
    assert session.load(text).last_resize is None


def lived(**given):
    """A session with something of everything."""
    session = Session(about=Identity(agent="helper", metadata={"k": 1}, max_history=50), **given)
    session.configure(limit={"messages": 4}, mode="memo")
    session.set_memo_update_handler(lambda memo, messages, *_: {"n": len(messages)})
    for n in range(6):
        session.add_message("user", f"q{n} 你好 🙂")
        session.add_entry(Entry.thinking("hm"))
        session.add_entry(Entry(type="vote", content={"up": n}))
        session.add_entry(Entry.tool_call("t", {"q": n}, call_id=f"c{n}"))
        session.add_entry(Entry.tool_result("t", [n], call_id=f"c{n}"))
        session.add_message("assistant", f"a{n}")
    session.resize(force="lite")
    session.update_summary("so far", seq=session.pending_seq - 3)
    session.set("x", {"y": [1, None, True]})
    return session


def known(session):
    """All that an export says but what differs by its making."""
    return session.to_dict()


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_r0_61_r0_14_everything_comes_back(form):
    session = lived()
    again = Session.load(session.dump(form), form)
    assert known(again) == known(session)
    assert again.pending == session.pending or len(again.pending) == len(session.pending)
    assert [e.id for e in again.window] == [e.id for e in session.window]


def test_r0_61_the_export_says_all_that_the_seed_names():
    data = json.loads(lived().dump())
    assert {
        "id",
        "memo",
        "full_chat_history",
        "current_chat_history",
        "settings",
        "turns",
        "last_resize_turn",
        "memo_cursor",
        "summary",
    } <= set(data)


def test_the_form_is_guessed():
    session = lived()
    for form in ("json", "yaml"):
        assert Session().load(session.dump(form)).id == session.id
    assert Session().load_json(session.dump_json()).id == session.id
    assert Session().load_yaml(session.dump_yaml()).id == session.id


def test_loading_into_a_session_returns_it():
    session = Session()
    assert session.load('{"memo": {"a": 1}}') is session


def test_import_of_a_part_keeps_what_is_absent():
    session = lived()
    before = known(session)
    session.load({"memo": {"new": 1}})
    after = known(session)
    assert after.pop("memo") == {"new": 1}
    before.pop("memo")
    before.pop("updated_at")
    after.pop("updated_at")
    assert after == before


def test_a_full_history_without_a_current_one_sets_it():
    session = Session().load({"full_chat_history": SAID})
    assert session.current_chat_history == session.full_chat_history == SAID
    assert session.turns == 1


def test_a_current_history_alone_changes_the_window_only():
    session = Session().set_chat_history(SAID)
    session.load({"current_chat_history": SAID[1:]})
    assert session.full_chat_history == SAID
    assert session.current_chat_history == SAID[1:]
    assert session.window[0].seq == 2


def test_a_history_edited_by_hand_counts():
    data = lived().to_dict()
    data["full_chat_history"] = SAID
    del data["current_chat_history"]
    assert Session.load(data).full_chat_history == SAID


def test_the_seeds_own_names_are_read():
    session = Session.load(
        {"full_chat_history": SAID, "_turns": 7, "_last_resize_turn": 5, "_memo_cursor": 1}
    )
    assert (session._turns, session._last_resize_turn, session._memo_cursor) == (7, 5, 1)


@pytest.mark.parametrize("text", ["null", "[]", '"x"', "3", "", "  ", "- a\n- b", "~"])
def test_r0_60_anything_but_an_object_is_a_type_error(text):
    with pytest.raises(TypeError):
        Session.load(text)
    with pytest.raises(TypeError):
        Session.load(3)


@pytest.mark.parametrize("text", ['{"a": ', "{]"])
def test_broken_json_is_a_value_error_with_the_place(text):
    with pytest.raises(ValueError, match=r"line 1 column \d"):
        Session.load(text, "json")


def test_broken_yaml_is_a_value_error_with_the_place():
    with pytest.raises(ValueError, match=r"line 2 column \d"):
        Session.load("a: 1\nb: [", "yaml")


def test_an_unknown_form_is_a_value_error():
    with pytest.raises(ValueError, match="'json' or 'yaml'"):
        Session().dump("xml")


def test_a_nested_session_is_found():
    text = json.dumps({"payload": {"session": {"memo": {"a": 1}}}})
    assert Session.load(text, key_path="payload.session").memo == {"a": 1}
    with pytest.raises(ValueError, match="nowhere"):
        Session.load(text, key_path="payload.nowhere")
    with pytest.raises(TypeError):
        Session.load(text, key_path="payload.session.memo.a.b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../x"},
        {"full_chat_history": "x"},
        {"full_chat_history": [3]},
        {"full_chat_history": SAID, "current_chat_history": [3]},
        {"entries": [{"no": "type"}]},
        {"settings": []},
        {"state": 3},
        {"updated_at": "yesterday"},
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(wrong):
    session = lived()
    before = known(session)
    with pytest.raises((TypeError, ValueError, InvalidSessionId)):
        session.load({"memo": {"new": 1}, **wrong})
    assert known(session) == before


@pytest.mark.parametrize("odd", [-3, "many", [1], float("inf")], ids=str)
@pytest.mark.parametrize("name", ["memo_cursor", "summary_cursor", "last_resize_turn", "turns"])
def test_a_number_that_makes_no_sense_is_mended_and_told_and_the_rest_is_kept(name, odd):
    data, heard = lived().to_dict(), []
    with hearing(heard.append):
        session = Session.load({**data, name: odd})
    assert session.full_chat_history == data["full_chat_history"]
    # How often it was answered can be counted, and the last resize tells its turn once more.
    assert session.to_dict()[name] == (data[name] if "turn" in name else 0)
    assert heard == [NumberMended(session_id=session.id, number=name)]


def test_where_turns_are_counted_no_resize_was_in_a_later_one():
    data = {"full_chat_history": SAID, "turns": "many", "last_resize_turn": 9}
    session = Session.load(data)
    assert (session.turns, session.last_resize_turn) == (1, 1)


def test_places_of_the_window_that_are_none_are_left_out_and_told():
    session, heard = Session().set_chat_history(SAID), []
    data = session.to_dict()
    del data["current_chat_history"]
    with hearing(heard.append):
        assert Session.load({**data, "window": [-1, "x", 1, 7]}).messages == SAID[1:]
        assert Session.load({**data, "window": ["x"]}).messages == SAID
    assert heard == [NumberMended(session_id=session.id, number="window")] * 2


def test_fix_no_inherited_secret_is_exported():
    session = Session(
        settings={"model.api_key": "sk-planted", "session.memo": {"api_key": "sk-planted"}}
    )
    session.settings["session.memo.password"] = "sk-planted"
    for text in (session.dump("json"), session.dump("yaml"), session.to_markdown()):
        assert "planted" not in text


def test_a_session_that_a_store_knows_keeps_its_id():
    session = Session(id="mine")
    session.committed(session.changes())
    assert session.load({"id": "other"}).id == "mine"


def test_an_import_is_all_to_save():
    session = Session()
    session.committed(session.changes())
    session.load(lived().dump())
    changes = session.changes()
    assert [entry.seq for entry in changes.entries] == list(range(1, session.entry_count + 1))
    assert set(changes.sections) == {"about", "state", "summary", "memo", "settings"}


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.sampled_from(["json", "yaml"]))
def test_r2_25_any_json_value_survives(value, form):
    session = Session()
    session.memo = value
    session.set("k", value)
    again = Session.load(session.dump(form), form)
    assert again.memo == value
    assert again.get("k") == (value, True)


# Other systems' files


MAGENT = {
    "id": "session-20250221-143015",
    "messages": SAID,
    "timestamp": "2025-02-21T14:30:15-0800",
}


def test_a_magent_file_is_read():
    session = from_magent(json.dumps(MAGENT))
    assert (session.id, session.messages) == (MAGENT["id"], SAID)
    assert from_magent({**MAGENT, "messages": SAID[::-1]}, newest_first=True).messages == SAID


def test_c30_an_unknown_agent_is_left_out_and_told():
    heard = []
    data = {**MAGENT, "agent": "ghost", "max_history": 7}
    session = from_magent(data, agents={"build"}, unknown_agent=heard.append)
    assert (session.agent, session.max_history, heard) == (None, 7, ["ghost"])
    assert from_magent(data, agents={"ghost"}).agent == "ghost"


def test_a_nanobot_file_is_read():
    lines = [
        {"_type": "metadata", "created_at": "2026-01-01T00:00:00", "summary": "so far"},
        {"role": "user", "content": "q", "timestamp": "2026-01-01T00:00:01"},
        {"role": "assistant", "content": "a", "timestamp": "2026-01-01T00:00:02"},
    ]
    session = from_nanobot("\n".join(map(json.dumps, lines)), key="telegram:1")
    assert (session.key, session.id, session.summary) == ("telegram:1", "telegram:1", "so far")
    assert session.messages == SAID
    assert session.window[0].timestamp.second == 1


@pytest.mark.parametrize(("number", "like"), [(0, 1), (1, 0), (2, 1)])
def test_an_imported_time_that_can_not_be_read_is_that_of_the_message_before(number, like):
    rows = [
        {"role": "user", "content": "x", "timestamp": f"2026-01-01T00:00:0{n}"} for n in range(3)
    ]
    rows[number]["timestamp"] = "yesterday"
    session = from_nanobot("\n".join(map(json.dumps, rows)))
    assert session.window[number].timestamp == session.window[like].timestamp
    data = session.to_dict()
    data["entries"][number]["timestamp"] = "yesterday"
    again = Session.load(data)
    assert again.window[number].timestamp == session.window[like].timestamp
    assert len(again.window) == 3


def test_r4_16_a_nanobot_file_without_a_summary_has_none():
    assert from_nanobot('{"_type": "metadata"}\n{"role": "user", "content": "q"}').summary == ""
    with pytest.raises(ValueError, match="line 2"):
        from_nanobot('{"_type": "metadata"}\n{broken')


def talked():
    session = Session()
    session.add_message("user", "Find all .el files")
    use = {"type": "tool_use", "id": "c1", "name": "glob", "input": {}}
    text = {"type": "text", "text": "I'll search for .el files using glob."}
    session.add_message("assistant", [text, use])
    session.add_tool_result("c1", "file1.el\nfile2.el\nfile3.el")
    session.add_message("assistant", "I found 3 Emacs Lisp files.")
    return session


def test_r3_21_display_is_as_the_document_has_it():
    assert talked().display() == (
        "Session Summary:\n\n"
        "[USER] Find all .el files\n"
        "[ASSISTANT] I'll search for .el files using glob.\n"
        "[TOOL] tool_use: glob\n"
        "[TOOL] tool_result: file1.el\\nfile2.el\\nfile3.el\n"
        "[ASSISTANT] I found 3 Emacs Lisp files."
    )


def test_r3_20_an_empty_session_displays_nothing():
    assert Session().display() is None


def test_display_shows_the_last_20_messages():
    session = Session()
    for n in range(25):
        session.add_message("user", f"m{n}")
    lines = session.display().splitlines()[2:]
    assert lines == [f"[USER] m{n}" for n in range(5, 25)]
    assert session.display(last=1).endswith("\n\n[USER] m24")


def test_display_cuts_at_80_columns_and_wide_characters_count_two():
    session = Session()
    session.add_message("user", "x" * 100)
    session.add_message("user", "你" * 100)
    first, second = session.display().splitlines()[2:]
    assert first == "[USER] " + "x" * 70 + "..."
    assert second == "[USER] " + "你" * 35 + "..."


def test_a_line_that_fits_is_not_cut():
    assert shortened("x" * 80, 80) == "x" * 80
    assert shortened("x" * 500, 0) == "x" * 500
    assert shortened("abc", 2) == ".."


def test_fix_display_does_not_fail_on_tool_results():
    session = Session()
    session.add_tool_result("nobody", {"a": [1]})
    session.add_tool_result("nobody", None)
    assert session.display().count("tool_result:") == 2


def test_r3_22_statistics_by_role_and_the_tools_used():
    assert talked().stats() == {
        "user": 1,
        "assistant": 2,
        "tool": 1,
        "tool_calls": 1,
        "tools_used": ["glob"],
    }
    assert Session().stats()["tools_used"] == []


def test_r3_23_conversation_text():
    session = Session()
    session.add_message("user", "q")
    session.add_message("assistant", "a")
    assert session.conversation_text() == "[user] q\n\n[assistant] a"


def test_r3_18_context_size_is_a_quarter_of_the_characters():
    sizes = []
    for text in ("", "abc", "abcd", "abcdefgh"):
        session = Session()
        session.add_message("user", text)
        sizes.append(session.context_size())
    assert sizes == [0, 0, 1, 2]


def test_nothing_is_counted_or_shown_between_the_blocks_of_a_message():
    session = Session()
    blocks = [{"type": "text", "text": "abcd"}, {"type": "image_url"}, {"text": "efg"}]
    session.add_message("user", blocks)
    assert session.context_size() == 1
    assert session.display().endswith("[USER] abcdefg")
    session.token_counter = len
    assert session.context_size() == 7


def test_fix_context_size_counts_tools_and_never_raises():
    session = talked()
    session.add_tool_result("c2", {"a": object()})
    bare = Session()
    bare.add_message("user", "Find all .el files")
    assert session.context_size() > bare.context_size()


def test_b0_2_a_token_counter_may_be_plugged_in():
    session = Session()
    session.token_counter = lambda text: len(text.split())
    session.add_message("user", "one two three")
    assert session.context_size() == 3


def test_markdown_has_everything_for_people():
    session = talked()
    session.update_summary("what came before")
    text = session.to_markdown()
    assert text.startswith("# Find all .el files\n")
    for piece in ("**User**", "**Tool call** `glob`", "file1.el\nfile2.el", "what came before"):
        assert piece in text


def test_a_fence_in_a_result_does_not_end_the_block():
    session = Session()
    session.add_tool_result("c", "a\n````\nb")
    assert "`````\na\n````\nb\n`````" in session.to_markdown()


def text(entry):
    return rendered(entry).text


def test_a_message_is_its_role_and_text():
    said = rendered(Entry.message("user", "hi"))
    assert (said.type, said.text) == ("user", "hi")


def test_a_tool_call_names_the_tool_and_its_parameters():
    assert text(Entry.tool_call("search", {"q": "航班"})) == (
        'Tool: search\nParameters: {"q": "航班"}'
    )


def test_a_tool_result_says_how_it_went():
    assert text(Entry.tool_result("t", [1])) == "Tool: t\nSuccess: true\nResult: [1]"
    assert text(Entry.tool_result("t", None, "no net")) == (
        "Tool: t\nSuccess: false\nError: no net"
    )


def test_a_thought_is_its_text_and_any_unknown_type_its_content_as_json():
    assert text(Entry.thinking("hm")) == "hm"
    vote = Entry(type="vote", content={"up": 1})
    assert rendered(vote).type == "vote"
    assert text(vote) == '{"up": 1}'


def test_a_session_renders_its_last_entries():
    session = Session()
    for word in "abc":
        session.add_message("user", word)
    assert [piece.text for piece in session.rendered(2)] == ["b", "c"]
    assert len(session.rendered()) == 3
