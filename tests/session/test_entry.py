import json
import os
import random
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.entry import Entry, fresh_id, from_rfc3339

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


def test_r2_16_r2_17_a_constructor_for_each_type():
    assert Entry.message("user", "hi").type == "message"
    assert Entry.tool_call("t", {}).type == "tool_call"
    assert Entry.tool_result("t", 1).type == "tool_result"
    assert Entry.thinking("hm").type == "thinking"


def test_a_single_entry_whose_time_can_not_be_read_is_refused():
    with pytest.raises(ValueError, match="yesterday"):
        Entry.from_dict({"type": "message", "content": {}, "timestamp": "yesterday"})


def test_r2_18_an_extractor_gives_nothing_for_another_type():
    message, call = Entry.message("user", "hi"), Entry.tool_call("t")
    assert message.message_content() == {"role": "user", "text": "hi"}
    assert call.tool_call_content() == {"tool": "t", "parameters": {}}
    assert message.tool_call_content() is None
    assert message.tool_result_content() is None
    assert message.thinking_content() is None
    assert call.message_content() is None


def test_r2_17_what_makes_an_entry_may_be_given_by_name():
    assert Entry.message(role="user", text="hi").content == {"role": "user", "text": "hi"}
    assert Entry.tool_call(tool="t", params={"q": 1}).content["parameters"] == {"q": 1}
    assert Entry.tool_result(tool="t", result=1, err="no").content["error"] == "no"


def test_r2_19_the_json_form_has_five_keys_and_metadata_is_never_null():
    data = json.loads(Entry.message("user", "hi").to_json())
    assert set(data) == {"id", "type", "timestamp", "content", "metadata"}
    assert data["metadata"] == {}


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_r2_20_a_message_has_role_and_text(role):
    assert Entry.message(role, "hi").content == {"role": role, "text": "hi"}


def test_r2_21_a_tool_call_has_tool_and_parameters():
    assert Entry.tool_call("search", {"query": "航班"}).content == {
        "tool": "search",
        "parameters": {"query": "航班"},
    }


def test_r2_22_success_is_no_error():
    assert Entry.tool_result("t", ["a"]).content == {
        "tool": "t",
        "success": True,
        "result": ["a"],
        "error": "",
    }
    assert Entry.tool_result("t", None, ValueError("no net")).content["error"] == "no net"


def test_a_failed_tool_result_keeps_its_result():
    content = Entry.tool_result("t", "half", "stopped").content
    assert (content["success"], content["result"]) == (False, "half")


def test_r2_23_timestamps_are_rfc3339():
    moment = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    entry = Entry(type="message", content={}, timestamp=moment)
    assert entry.to_dict()["timestamp"] == "2024-01-01T12:00:00Z"
    assert from_rfc3339("2024-01-01T12:00:00Z") == moment
    assert from_rfc3339("2025-02-21T14:30:15-0800").utcoffset().total_seconds() == -8 * 3600


@given(JSON, st.text())
def test_r2_24_r2_25_any_value_survives_the_way_through_json(value, text):
    for entry in (
        Entry.tool_call("t", {"v": value}, call_id="c"),
        Entry.tool_result("t", value),
        Entry.message("user", text, metadata={"v": value}),
        Entry.thinking(text),
        Entry(type="unknown", content={"v": value}),
    ):
        assert Entry.from_json(entry.to_json()) == entry


def test_fix_extractors_work_on_what_came_back_from_json():
    entry = Entry.from_json(Entry.tool_result("t", [1], "no").to_json())
    assert entry.tool_result_content() == {
        "tool": "t",
        "success": False,
        "result": [1],
        "error": "no",
    }


def test_b2_5_thoughts_have_a_constructor_and_an_extractor():
    assert Entry.thinking("hm").thinking_content() == {"text": "hm"}


def test_an_unknown_type_is_kept_as_it_is():
    data = {**Entry.thinking("x").to_dict(), "type": "vote", "content": {"up": [1]}}
    assert Entry.from_dict(data).to_dict() == data


def test_a_copy_handed_out_leaks_no_change():
    given = {"q": [1]}
    entry = Entry.tool_call("t", given)
    given["q"].append(2)
    entry.tool_call_content()["parameters"]["q"].append(3)
    entry.to_dict()["content"]["parameters"]["q"].append(4)
    entry.copy().content["parameters"]["q"].append(5)
    assert entry.content["parameters"] == {"q": [1]}


@pytest.mark.parametrize("data", [None, [], {}, {"type": 3}])
def test_what_is_no_entry_is_a_type_error(data):
    with pytest.raises(TypeError):
        Entry.from_dict(data)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # it has threads of its own
def test_an_id_is_nobody_elses_in_a_child_and_after_a_seed_either():
    random.seed(1)
    read, write = os.pipe()
    mine = [fresh_id() for _ in range(1000)]
    if (child := os.fork()) == 0:
        os.write(write, "\n".join(fresh_id() for _ in range(1000)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        theirs = said.read().split()
    os.waitpid(child, 0)
    random.seed(1)
    mine += [Entry.message("user", "a").id for _ in range(1000)]
    assert len({*mine, *theirs}) == 3000
    assert {len(name) for name in mine} == {32}
