"""The lines of the first two documents that no other test carries by their name: a lone session."""

import subprocess
import sys

import pytest

from nanoloop import Agent, JsonlStore, Session
from nanoloop.providers.scripted import ScriptedProvider


def talked(*texts, role="user", **given):
    session = Session(**given)
    for text in texts:
        session.add_message(role, text)
    return session


def texts(messages):
    return [message["content"] for message in messages]


class Heard:
    """A memo handler that notes what it was given."""

    def __init__(self):
        self.batches = []
        self.attachments = []

    def __call__(self, memo, messages, attachments, settings):
        self.batches.append(texts(messages))
        self.attachments += attachments
        return {**memo, "batches": len(self.batches)}


# R0


def test_r0_1_a_session_alone_loads_neither_agent_nor_loop():
    code = (
        "import sys, nanoloop.session.session as s; s.Session().add_message('user', 'hi'); "
        "print([m for m in ('nanoloop.agents', 'nanoloop.loop') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_r0_10_an_agent_holds_nothing_of_the_session_it_had():
    session = Session().configure(limit={"messages": 2})
    agent = Agent(provider=ScriptedProvider(["one"])).attach_session(session)
    await agent.ask("a")
    other = Agent(provider=ScriptedProvider()).attach_session(session)
    assert other.chat_history == agent.chat_history != []
    agent.detach_session()
    assert agent.chat_history == []
    assert agent.attach_session().session.settings.messages == 0
    assert other.session.settings.messages == 2


async def test_r0_12_in_mode_memo_the_model_or_a_handler_keeps_the_memo():
    model = ScriptedProvider(['{"memo": {"name": "Ada"}}'])
    session = talked("I am Ada", provider=model).configure(mode="memo")
    await session.async_resize(force="lite")
    assert (model.count, session.memo["name"]) == (1, "Ada")
    session.set_memo_update_handler(lambda *_: {"name": "Bob"}).add_message("user", "Bob, rather")
    await session.async_resize(force="lite")
    assert (model.count, session.memo["name"]) == (1, "Bob")


async def test_r0_15_tokens_are_estimated_memos_of_any_form_and_nothing_is_stored():
    odd = {"any": [1, {"form": None}]}
    session = talked("eight ch", memo_update_handler=lambda *_: odd).configure(mode="memo")
    await session.async_resize(force="lite")
    assert session.memo.items() >= odd.items()
    assert session.context_size() == 2
    assert not hasattr(session, "save")


def test_r0_21_the_turn_of_the_last_resize_is_0_at_first():
    session = talked("a", "b", role="assistant")
    assert session._last_resize_turn == 0
    session.resize(force="lite")
    assert session._last_resize_turn == 2


def test_r0_22_the_memo_cursor_is_an_index_into_the_whole_history():
    session = talked("a", "b")
    assert session._memo_cursor == 0
    session.resize(force="lite")
    session.add_message("user", "c")
    assert session._memo_cursor == 2
    assert texts(session.full_chat_history[session._memo_cursor :]) == ["c"]


def test_r0_24_at_12000_characters_a_resize_is_due():
    assert Session().settings["session.resize.max_messages_text_length"] == 12000
    assert talked("x" * (12000 - len("user") - 2)).judge_resize() is None
    assert talked("x" * (12000 - len("user") - 1)).judge_resize()["type"] == "deep"


def test_r0_25_by_default_there_is_no_limit_to_the_number_of_messages():
    session = talked(*["x"] * 500)
    assert session.settings["session.resize.max_keep_messages_count"] is None
    assert session.judge_resize() is None
    assert len(session.resize(force="lite")) == 500


async def test_r0_26_the_memo_instructions_are_four_lines_and_the_model_is_told_them():
    model = ScriptedProvider(["{}"])
    session = talked("a", provider=model).configure(mode="memo")
    await session.async_resize(force="lite")
    lines = session.settings["session.memo.instruct"]
    assert isinstance(lines, list)
    assert len(lines) == 4
    assert all(line in model.calls[0].messages[0]["content"] for line in lines)


def test_r0_27_by_default_no_memo_is_kept():
    heard = Heard()
    session = talked("a", memo_update_handler=heard)
    session.resize(force=True)
    assert session.settings["session.memo.enabled"] is False
    assert heard.batches == []


def test_r0_28_the_mode_is_lite_by_default():
    session = Session()
    assert session.settings["session.mode"] == "lite"
    assert session.configure(mode="memo").settings["session.mode"] == "memo"


async def test_b0_1_a_store_outside_keeps_a_session_and_finds_it_again(tmp_path):
    store = JsonlStore(tmp_path)
    await store.add(talked("Hello", id="mine"))
    await store.close()
    later = JsonlStore(tmp_path)
    assert texts((await later.get("mine")).messages) == ["Hello"]
    await later.close()


# R1


def test_r1_2_only_assistant_messages_are_turns():
    session = talked("a", "b")
    assert session.turns == 0
    session.add_message("assistant", "c")
    assert session.turns == 1


def test_r1_4_legacy_keys_are_told_of_and_have_no_effect():
    with pytest.warns(DeprecationWarning, match="session.limit"):
        session = Session(settings={"session.resize.keep_last_messages": 1})
    session.add_message("user", "a")
    session.add_message("user", "b")
    assert texts(session.resize(force="lite")) == ["a", "b"]


def test_r1_11_a_type_may_have_any_name():
    session = talked("a", "b", policy_handler=lambda *_: "by the moon")
    session.set_resize_handlers("by the moon", lambda full, now, memo, _: (full, now[-1:], memo))
    assert texts(session.resize()) == ["b"]
    assert session.last_resize["type"] == "by the moon"


def test_r1_12_lite_keeps_the_last_and_takes_the_new_into_the_memo():
    heard = Heard()
    session = talked("a", "b", "c", memo_update_handler=heard)
    session.configure(mode="memo", limit={"messages": 2})
    assert texts(session.resize(force="lite")) == ["b", "c"]
    assert heard.batches == [["a", "b", "c"]]
    assert session.memo["batches"] == 1


def test_r1_13_deep_reads_pieces_and_collects_what_came_with_them():
    heard = Heard()
    session = talked("a" * 15, "b" * 15, memo_update_handler=heard)  # 20 each
    session.add_message("user", [{"type": "image", "url": "http://x/y.png"}])
    session.configure(mode="memo", limit={"chars": 20})
    session.resize(force="deep")
    assert heard.batches[:2] == [["a" * 15], ["b" * 15]]
    assert heard.attachments == [{"type": "image", "ref": "http://x/y.png", "meta": {}}]
    assert session.memo["batches"] == 3
