import json
import sys

import pytest
from pydantic import BaseModel

from nanoloop.errors import NoConnection, SettingsError
from nanoloop.protocols import Reply
from nanoloop.session.resize import unwrapped
from nanoloop.session.session import Session

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


def talked(text="", *, error=None, **given):
    provider = Model(text, error)
    session = Session(provider=provider, **given).configure(mode="memo")
    session.add_message("user", "my name is Ada")
    return session, provider


async def test_r0_53_no_memo_without_being_enabled():
    session, provider = talked('{"memo": {"name": "Ada"}}')
    session.configure(mode="lite")
    await session.async_resize(force=True)
    assert provider.asked == []


async def test_r0_54_the_model_gets_memo_messages_and_attachments():
    session, provider = talked("{}", settings={"session.memo.instruct": ["one", "two"]})
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
    session, provider = talked("{}")
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
    session, _ = talked(text)
    await session.async_resize(force="lite")
    assert session.memo.pop("last_resize")
    assert {k: v for k, v in session.memo.items() if k != "last_resize"} == {"name": "Ada"}


@pytest.mark.parametrize("text", ["", "no idea", "[1]", '"x"', "null", '{"memo": '])
async def test_r0_55_anything_else_leaves_the_memo(text):
    session, _ = talked(text)
    session.memo = {"k": 1}
    await session.async_resize(force="lite")
    assert session.memo == {"k": 1, "last_resize": session.last_resize}


def test_r0_55_memo_that_is_no_dict_falls_back_to_the_whole():
    assert unwrapped({"memo": "x", "a": 1}) == {"memo": "x", "a": 1}
    assert unwrapped({"memo": {}}) == {}
    assert unwrapped(3) is None


async def test_a_models_failure_reaches_the_caller_and_changes_nothing():
    session, _ = talked(error=NoConnection("no connection"))
    before = session.to_dict()
    with pytest.raises(NoConnection):
        await session.async_resize(force="lite")
    assert session.to_dict() == before


async def test_a_custom_updater_gets_four_things_and_is_taken_as_it_is():
    given = []

    def update(memo, messages, attachments, settings):
        given.append((memo, messages, attachments, settings["session.mode"]))
        return {"memo": {"x": 1}}

    session, provider = talked(memo_update_handler=update)
    await session.async_resize(force="lite")
    assert given == [({}, [{"role": "user", "content": "my name is Ada"}], [], "memo")]
    assert session.memo["memo"] == {"x": 1}
    assert provider.asked == []


async def test_a_custom_updater_that_returns_no_dict_leaves_the_memo():
    session, _ = talked(memo_update_handler=lambda *_: "no")
    session.memo = {"k": 1}
    await session.async_resize(force="lite")
    assert session.memo["k"] == 1


async def test_r0_57_attachments_are_described_by_the_users_handler():
    heard = []
    session, _ = talked(memo_update_handler=lambda _, __, about, ___: heard.append(about))
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
    session, _ = talked(json.dumps(said), memo_schema=schema)
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
    session, _ = talked(memo_update_handler=lambda *_: said, memo_schema=OBJECT)
    await session.async_resize(force="lite")
    assert ("name" in session.memo) == fits


def test_b0_3_a_json_schema_without_the_library_for_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema.validators", None)
    with pytest.raises(SettingsError, match="pip install jsonschema, or give a pydantic model"):
        Session(memo_schema=OBJECT)


def test_r0_19_c4_a_memo_is_any_json_value_and_a_copy():
    session = Session()
    assert session.memo == {}
    session.memo = {"a": [1]}
    session.memo["a"].append(2)
    assert session.memo == {"a": [1]}
    session.memo = "text"
    assert session.memo == "text"
