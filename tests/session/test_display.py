from nanoloop.session.export import shortened
from nanoloop.session.session import Session


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


def test_fix_context_size_counts_tools_and_never_raises():
    session = talked()
    session.add_tool_result("c2", {"a": object()})
    bare = Session()
    bare.add_message("user", "Find all .el files")
    assert session.context_size() > bare.context_size()


def test_b0_2_a_token_counter_may_be_plugged_in():
    session = Session(token_counter=lambda text: len(text.split()))
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
