import json

from nanoloop.session.entry import Entry
from nanoloop.session.export import rendered
from nanoloop.session.session import Session


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


def test_a_thought_is_its_text_and_any_unknown_type_its_json():
    assert text(Entry.thinking("hm")) == "hm"
    vote = Entry(type="vote", content={"up": 1})
    assert rendered(vote).type == "vote"
    assert json.loads(text(vote)) == vote.to_dict()


def test_a_session_renders_its_last_entries():
    session = Session()
    for word in "abc":
        session.add_message("user", word)
    assert [piece.text for piece in session.rendered(2)] == ["b", "c"]
    assert len(session.rendered()) == 3
