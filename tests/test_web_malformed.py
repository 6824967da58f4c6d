"""A request that is wrong is told which field, what it was, and what it may be."""

import pytest

from tests.web_server import TOKENS, bearer, serving

SAY = "/api/sessions/web:local.x/messages"
COMPLETE = "/v1/chat/completions"


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def told(web, method, path, status, **more):
    return (await web.call(method, path, status=status, **more))["error"]["message"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"txt": "hi"}, "txt is unknown: did you mean text?"),
        ({"qqq": 1}, "qqq is unknown: use text, message_id, attachments"),
        ({"text": 5}, "text is 5, not a string"),
        ({"attachments": "a"}, 'attachments is "a", not a list'),
        ({"attachments": ["a"] * 11}, "attachments has too many items: at most 10 are allowed"),
        ({"message_id": "x"}, 'message_id is "x", which does not match ^[A-Za-z0-9_-]{8,64}$'),
        (
            {"message_id": "x" * 99},
            f'message_id is "{"x" * 59}…, which does not match ^[A-Za-z0-9_-]{{8,64}}$',
        ),
        ({"text": "x" * 100_001}, "text is too long: at most 100000 characters are allowed"),
        ([], "the body is a list, not an object"),
    ],
)
async def test_a_body_that_is_wrong_is_told_with_its_value(web, said, sentence):
    assert await told(web, "POST", SAY, 422, json=said) == sentence


async def test_what_is_no_json_is_told_so(web):
    assert (await told(web, "POST", SAY, 422, content=b"{")).startswith("the body is not JSON: EOF")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=many", 'limit is "many", not a whole number'),
        ("limit=0", 'limit is "0", less than 1'),
        ("limit=201", 'limit is "201", more than 200'),
        ("archived=perhaps", 'archived is "perhaps", not true or false'),
    ],
)
async def test_a_query_that_is_wrong_is_told_with_its_value(web, query, sentence):
    assert await told(web, "GET", f"/api/sessions?{query}", 422) == sentence


async def test_a_choice_that_there_is_not_is_told_with_those_there_are(web):
    session = await web.begin()
    said = await told(web, "GET", f"/api/sessions/{session}/export?format=pdf", 422)
    assert said == "format is \"pdf\", not 'md', 'json' or 'yaml'"


async def test_what_is_not_there_is_named_as_it_was_asked_for(web):
    assert await told(web, "GET", "/api/sessions/nobody", 404) == "there is no session 'nobody'"
    said = await told(web, "POST", "/api/sessions", 422, json={"agent": "cok"})
    assert said.startswith("there is no agent 'cok': ")
    asked = {"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}]}
    said = await told(web, "POST", COMPLETE, 404, json=asked)
    assert said.startswith("there is no model 'gpt-9': ")


async def test_others_sessions_are_told_like_those_there_are_not(tmp_path):
    async with serving(tmp_path, tokens=TOKENS, headers=bearer()) as web:
        for name in ("web:bob.s", "nowhere"):
            said = await told(web, "GET", f"/api/sessions/{name}", 404)
            assert said == f"there is no session {name!r}"


async def test_clients_of_openai_are_told_alike(web):
    asked = {"model": "assistant", "messages": [{"role": "user", "content": "hi"}]}
    said = await told(web, "POST", COMPLETE, 400, json=asked | {"stream": "perhaps"})
    assert said == 'stream is "perhaps", not true or false'
    assert await told(web, "POST", COMPLETE, 400, json={"model": "a"}) == "messages is missing"


async def test_a_token_is_never_said_again(tmp_path):
    async with serving(tmp_path, tokens=TOKENS) as web:
        said = await told(web, "POST", "/login", 422, json={"token": 1234567890})
    assert said == "token is (not shown), not a string"
