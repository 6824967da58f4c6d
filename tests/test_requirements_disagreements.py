"""Where the documents disagree: what a session does, line by line."""

import pytest

from nanoloop import Entry, JsonlStore, Session, Summarizer, build_messages
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.chat import char_size, entry_text, rough_tokens


def talked(*texts, role="user", **given):
    session = Session(**given)
    for text in texts:
        session.add_message(role, text)
    return session


async def test_c8_a_session_is_data_and_a_store_makes_it_last(tmp_path):
    session = talked("a", id="s")
    assert Session.load(session.to_dict()).to_dict() == session.to_dict()
    assert list(tmp_path.iterdir()) == []
    store = JsonlStore(tmp_path)
    await store.add(session)
    assert (await store.get("s")).messages == session.messages
    await store.close()


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"limit": {"chars": 26}}, "max_messages_text_length"),  # at the limit
        ({"limit": {"messages": 1}}, "max_keep_messages_count"),  # only above it
        ({"every_n_turns": 2}, "every_n_turns"),  # at the limit
    ],
)
def test_c12_each_rule_compares_in_its_own_way(limits, reason):
    session = talked("aaa", role="assistant").configure(**limits)  # 13 characters each
    before = session.judge_resize()
    session.add_message("assistant", "aaa")
    assert (before, session.judge_resize()["reason"]) == (None, reason)


@pytest.mark.parametrize(("count", "kept"), [(50, 50), (51, 11)])
def test_c12_the_buffer_is_cut_above_its_limit_down_to_another(count, kept):
    session = Session()
    for number in range(count):
        session.add_message("assistant" if number % 2 else "user", "m")
    session.trim_if_needed(50, 10)
    assert len(session.messages) == kept


def test_c27_size_in_characters_counts_the_role_and_tokens_only_the_text():
    assert char_size({"role": "user", "content": "hello"}) == 10
    assert rough_tokens(len(entry_text(Entry.message("user", "hello")))) == 1
    assert talked("hello").context_size() == 1


def test_c31_memo_and_summary_stand_behind_the_prompt_and_then_the_window():
    said = {"role": "user", "content": "Hello"}
    system, *rest = build_messages("PROMPT", [said], memo={"a": "MEMO"}, summary="SUMMARY")
    places = [system["content"].index(word) for word in ("PROMPT", "MEMO", "SUMMARY")]
    assert places == sorted(places)
    assert rest == [said]


async def test_c32_a_resize_writes_the_memo_and_the_summariser_the_summary():
    session = talked(*["m"] * 52, memo_update_handler=lambda *_: {"memo of": "resize"})
    session.configure(mode="memo").trim_if_needed(50, 10)
    summarizer = Summarizer(ScriptedProvider(["S"]))
    summarizer.fire_and_forget(session)
    assert await summarizer.drain(5) == 0
    assert (session.memo, session.summary) == ({}, "S")
    await session.async_resize(force="deep")
    assert (session.memo["memo of"], session.summary) == ("resize", "S")


def test_c33_the_most_severe_reason_decides():
    session = talked(*["m"] * 5, role="assistant")
    said = []
    for limits in ({"every_n_turns": 1}, {"limit": {"messages": 1}}, {"limit": {"chars": 1}}):
        decision = session.configure(**limits).judge_resize()
        said.append((decision["reason"], decision["severity"]))
    severities = {"every_n_turns": 10, "max_keep_messages_count": 50}
    assert said == [*severities.items(), ("max_messages_text_length", 100)]
    assert session.judge_resize(force=True)["severity"] == 1000


def test_c35_one_rule_counts_tool_entries_and_the_other_does_not():
    session = talked("look")
    for call_id in ("1", "2", "3", "4", "5"):
        use = {"type": "tool_use", "id": call_id, "name": "ls", "input": {}}
        session.add_message("assistant", [use])
        session.add_tool_result(call_id, "a.txt")
    session.add_message("user", "thanks")
    session.configure(limit={"messages": 10})
    assert session.judge_resize()["reason"] == "max_keep_messages_count"
    assert session.trim_if_needed(2, 1) == ([], False)
    assert session.trim_if_needed(1, 1)[1]
