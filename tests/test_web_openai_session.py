"""The openai client in a session: the server keeps what was said, the client sends what is new."""

import hashlib

import openai
import pytest
from cryptography.fernet import Fernet

from nanoloop.protocols import Reply, Usage
from nanoloop.providers.scripted import ScriptedProvider
from tests.web_openai import (
    ask,
    asking,
    calling,
    client_of,
    in_session,
    said,
    shown,
    stream,
    text_of,
    user,
)
from tests.web_server import OTHER, TOKEN, TOKENS, bearer

ANN = "web:local.ann"
COMMANDS = {"key": TOKEN, "tokens": {"alice": {"token": TOKEN, "may_use": ("commands",)}}}
"""A caller whose program may send commands."""
"""The session that the user named ann has."""


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


async def test_only_what_is_new_is_sent_and_the_model_sees_it_all(web):
    assert await ask(web.openai, "one", user="ann") == "You said: one"
    assert await ask(web.openai, "two", user="ann") == "You said: two"
    assert shown(web) == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]


async def test_of_a_whole_history_only_what_comes_after_the_last_answer_is_taken(web):
    await ask(web.openai, "one", **in_session("s"))
    history = [said("system", "be rude"), user("one"), said("assistant", "You said: one")]
    await ask(web.openai, *history, "two", "three", **in_session("s"))
    assert shown(web)[2:] == [("user", "two\n\nthree")]
    assert "rude" not in str(web.provider.calls[-1].messages)


async def test_a_stream_has_the_chunks_that_clients_know(web):
    options = {"stream_options": {"include_usage": True}}
    chunks = await stream(web.openai, "good morning", user="ann", **options)
    assert [c.choices[0].delta.role for c in chunks if c.choices][:2] == ["assistant", None]
    assert text_of(chunks) == "You said: good morning"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "stop"]
    assert [c.usage is None for c in chunks][-2:] == [True, False]
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1


async def test_a_session_outlives_the_server(tmp_path):
    async with asking(tmp_path) as web:
        await ask(web.openai, "one", user="ann")
    async with asking(tmp_path) as web:
        await ask(web.openai, "two", user="ann")
        assert shown(web)[0] == ("user", "one")


async def test_a_page_reads_along_and_writes_on(web):
    raw = await web.openai.chat.completions.with_raw_response.create(
        model="assistant", messages=[user("one")], user="ann"
    )
    session = raw.headers["x-nanoloop-session"]
    assert await web.answered(session, "two") == "You said: two"
    async with web.reading(session) as reader:
        assert await ask(web.openai, "three", **in_session(session)) == "You said: three"
        assert (await reader.until("accepted"))[-1].data["text"] == "three"
    assert [m["text"] for m in await web.messages(session) if m["role"] == "user"] == [
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_model_does_not_hear_of_is_named(web, stream):
    asked = {"model": "assistant", "messages": [user("one")], "user": "ann", "stream": stream}
    create = web.openai.chat.completions.with_raw_response.create
    plain = await create(**asked, response_format={"type": "text"})
    assert "x-nanoloop-ignored" not in plain.headers
    fine = await create(**asked, temperature=0.2, max_tokens=5, tool_choice="auto")
    assert fine.headers["x-nanoloop-ignored"] == "max_tokens, temperature"


async def test_tools_of_the_agent_run_on_the_server(tmp_path):
    sum_up = calling("calculator", '{"expression": "6*7"}', usage=Usage(tokens_in=5, tokens_out=1))
    answer = Reply(text="It is 42.", usage=Usage(tokens_in=9, tokens_out=4, tokens_cached=5))
    async with asking(tmp_path, provider=ScriptedProvider([sum_up, answer])) as web:
        found = await web.openai.chat.completions.create(
            model="assistant", messages=[user("6*7?")], user="ann"
        )
        assert "42" in web.provider.calls[1].messages[-1]["content"]
    assert found.choices[0].message.content == "It is 42."
    assert found.choices[0].message.tool_calls is None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (14, 5)
    assert found.usage.prompt_tokens_details.cached_tokens == 5


async def test_a_command_is_answered_by_the_loop_if_the_token_may_send_it(tmp_path):
    async with asking(tmp_path, **COMMANDS) as web:
        await ask(web.openai, "one", user="ann")
        assert "new" in (await ask(web.openai, "/new", user="ann")).lower()
        await ask(web.openai, "two", user="ann")
        assert shown(web) == [("user", "two")]


async def test_a_session_of_another_token_is_refused(tmp_path):
    async with asking(tmp_path, key=TOKEN, tokens=TOKENS, headers=bearer()) as web:
        session = await web.begin()
        assert await ask(web.openai, "mine", **in_session(session)) == "You said: mine"
        async with client_of(web, key=OTHER) as bob:
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await ask(bob, "his", **in_session(session))
            assert await ask(bob, "my own", user="ann")
        assert refused.value.code == "session_not_yours"
        assert refused.value.type == "permission_error"


async def test_the_same_name_is_another_session_for_another_token(tmp_path):
    async with asking(tmp_path, key=TOKEN, tokens=TOKENS) as web:
        await ask(web.openai, "alice's", user="ann")
        async with client_of(web, key=OTHER) as bob:
            await ask(bob, "bob's", user="ann")
        assert shown(web) == [("user", "bob's")]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "名前", "x" * 400, "google|1:2"])
async def test_any_name_is_a_session_and_no_path(web, name):
    await ask(web.openai, "one", user=name)
    await ask(web.openai, "two", user=name)
    assert len(shown(web)) == 3


async def test_an_id_that_is_none_is_not_found(web):
    with pytest.raises(openai.NotFoundError):
        await ask(web.openai, "one", **in_session("web:local.nobody"))
    with pytest.raises(openai.BadRequestError):
        await ask(web.openai, "one", **in_session("web:../x"))


async def test_an_agent_asked_for_by_name_answers_from_now_on(tmp_path):
    settings = {"agents": {"pirate": {"prompt": "Speak like a pirate."}}}
    async with asking(tmp_path, settings=settings) as web:
        await ask(web.openai, "one", user="ann")
        await ask(web.openai, "two", user="ann", model="pirate")
        assert "pirate" in web.provider.calls[-1].messages[0]["content"]
        names = [model.id async for model in web.openai.models.list()]
    assert sorted(names) == ["assistant", "pirate"]


SEALED = {"encryption_key": Fernet.generate_key().decode()}
EMAIL = "ann.canary@example.com"


def plain_in(folder):
    """The files that have the user's name, or an end of it, in their own or in their content."""
    parts = (b"canary", hashlib.sha256(f"web:local.{EMAIL}".encode()).hexdigest()[:20].encode())
    texts = {path: bytes(path) + path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [path for path, text in texts.items() if any(part in text for part in parts)]


@pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])
async def test_the_name_of_a_user_stands_nowhere_beside_a_sealed_store(tmp_path, url):
    settings = {"store": {"url": url, **SEALED}}
    for _ in range(2):
        async with asking(tmp_path / "data", settings=settings) as web:
            await ask(web.openai, "one", user=EMAIL)
            assert plain_in(tmp_path) == []
    assert [one["content"] for one in web.provider.calls[-1].messages if one["role"] == "user"] == [
        "one",
        "one",
    ]


@pytest.mark.parametrize("bound", [False, True])
async def test_a_session_from_before_the_store_was_sealed_goes_on(tmp_path, bound):
    async with asking(tmp_path, **COMMANDS) as web:
        await ask(web.openai, "one", user="ann")
        if bound:
            await ask(web.openai, "/new", user="ann")
            await ask(web.openai, "one", user="ann")
    async with asking(tmp_path, settings={"store": SEALED}, **COMMANDS) as web:
        await ask(web.openai, "two", user="ann")
        assert shown(web)[0] == ("user", "one")


async def test_a_name_is_the_same_session_on_each_machine_of_a_sealed_store(tmp_path):
    shared = {
        "url": f"sqlite:{tmp_path / 'shared.sqlite'}",
        "keys_file": tmp_path / "keys" / "store.keys",
    }
    settings = {"store": {**shared, **SEALED}}
    for machine in ("one", "two"):
        async with asking(tmp_path / machine, settings=settings) as web:
            await ask(web.openai, machine, user=EMAIL)
    assert [text for role, text in shown(web) if role == "user"] == ["one", "two"]
