"""The memory panel's side: what is where, the summary set right, a summary asked for."""

import pytest

from nanoloop.providers.scripted import ScriptedProvider
from tests.web_server import serving

SMALL = {"message_buffer_limit": 6, "message_buffer_min": 2}


def answering(messages, _tools, _model):
    """A summary for who asks for one, else an answer."""
    return "They talk of cake." if "summar" in str(messages[0]).lower() else "Yes."


@pytest.fixture
async def web(tmp_path):
    provider = ScriptedProvider(otherwise=answering)
    async with serving(tmp_path, provider=provider, settings=SMALL) as web:
        yield web


async def talked(web, times):
    session = await web.begin()
    for number in range(times):
        await web.answered(session, f"message {number}")
    return session


async def test_every_entry_is_in_exactly_one_place(web):
    session = await talked(web, 2)
    memory = await web.call("GET", f"/api/sessions/{session}/memory", status=200)
    assert memory["log"] == {"entries": 4, "first": 1, "last": 4}
    assert (memory["covered"], memory["pending"]["count"], memory["window"]["count"]) == (0, 0, 4)
    assert memory["tokens"]["window"] > 0


async def test_a_summary_is_made_on_request_and_seen_happening(web):
    session = await talked(web, 2)
    async with web.reading(session) as reader:
        await reader.until("hello")
        await web.call("POST", f"/api/sessions/{session}/memory/summarise", status=202)
        reasons = []
        while "summary_committed" not in reasons:
            reasons.append((await reader.until("memory"))[-1].data["reason"])
    assert reasons == ["trimmed", "summary_started", "summary_committed"]
    memory = await web.call("GET", f"/api/sessions/{session}/memory")
    assert memory["summary"] == {"text": "They talk of cake.", "seq": 2}
    assert (memory["covered"], memory["window"]["first"]) == (2, 3)
    assert [(r["first_seq"], r["last_seq"]) for r in memory["receipts"]] == [(1, 2)]


async def test_the_summary_can_be_set_right(web):
    session = await talked(web, 2)
    path = f"/api/sessions/{session}/memory/summary"
    async with web.reading(session) as reader:
        await reader.until("hello")
        memory = await web.call("PUT", path, status=200, json={"text": " They bake. "})
        assert (await reader.until("memory"))[-1].data == {"reason": "edited"}
    assert memory["summary"]["text"] == "They bake."
    await web.answered(session, "and now?")
    assert "They bake." in web.provider.calls[-1].messages[0]["content"]


async def test_a_summary_that_comes_late_gives_way_to_a_correction(web):
    session = await talked(web, 2)
    path = f"/api/sessions/{session}/memory"
    web.provider.hold()
    async with web.reading(session) as reader:
        await web.call("POST", f"{path}/summarise", status=202)
        await web.provider.asked(3)
        assert (await web.call("GET", path))["running"]
        edited = await web.call("PUT", f"{path}/summary", json={"text": "They bake."})
        assert edited["running"]
        web.provider.release()
        told = []
        while "summary_committed" not in told:
            told.append((await reader.until("memory"))[-1].data["reason"])
    assert "summary_dropped" in told
    assert "They bake." in str(web.provider.calls[-1].messages)  # the next one builds on it


async def test_nothing_to_summarise_is_said_so(web):
    session = await web.begin()
    path = f"/api/sessions/{session}/memory/summarise"
    refused = await web.call("POST", path, status=409)
    assert "word for word" in refused["error"]["message"]
