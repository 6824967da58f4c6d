"""Two web servers on one store: who reads at one of them hears what the other one commits."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest

from nanoloop.channels.web import watch
from tests.web_server import ASKED, Web, serving

ROOT = Path(__file__).parents[1]
STORES = ["sqlite:sessions.sqlite", "jsonl:sessions"]


@pytest.fixture(params=STORES)
async def both(request, tmp_path):
    """The server that talks, and the one where somebody reads."""
    settings = {"store": {"url": request.param.replace(":", f":{tmp_path}/")}}
    async with (
        serving(tmp_path, settings=settings) as here,
        serving(tmp_path, settings=settings) as there,
    ):
        yield here, there


async def looked(web, reader, name):
    """The events up to one of this name, once the server has looked at what others wrote."""
    await web.channel.backend.watch.look()
    return await reader.until(name)


def told(events, name):
    return [event.data for event in events if event.name == name]


async def test_a_message_and_its_answer_are_told_where_another_process_took_them(both):
    here, there = both
    session = await here.begin()
    async with there.reading(session) as reader:
        await reader.until("hello")
        await here.answered(session, "hello")
        events = await looked(there, reader, "turn")
    (message,) = told(events, "accepted")
    assert (message["text"], message["attachments"]) == ("hello", [])
    answer = {"message_id": message["message_id"], "text": "You said: hello", "kind": "answer"}
    assert told(events, "answer") == [answer]
    assert told(events, "turn") == [{"state": "finished"}]


async def test_each_is_told_once_whoever_answers_and_however_often_it_is_looked_for(both):
    here, there = both
    session = await here.begin()
    await here.answered(session, "first")  # from now on it has a title and an agent
    async with there.reading(session) as reader:
        await reader.until("hello")
        for number, web in enumerate((here, there, here, there, there, here)):
            await web.answered(session, f"number {number}")
            if number in {2, 5}:  # behind one of our own, between two of the other's
                await there.channel.backend.watch.look()
        await there.call("PATCH", f"/api/sessions/{session}", status=200, json={"title": "End"})
        events = await reader.until("session")
    assert [said["text"] for said in told(events, "accepted")] == [f"number {n}" for n in range(6)]
    answers = [said["text"] for said in told(events, "answer")]
    assert answers == [f"You said: number {n}" for n in range(6)]


async def test_a_reader_that_comes_back_hears_what_others_said_while_nobody_read(both):
    here, there = both
    session = await here.begin()
    async with there.reading(session) as reader:
        await reader.until("hello")
        last = reader.last_id
    await here.answered(session, "hello")
    async with there.reading(session, last_id=last) as reader:
        events = await reader.until("turn")
        assert [event.name for event in events] == ["hello", "accepted", "answer", "turn"]
        last = reader.last_id
    async with there.reading(session, last_id=last) as reader:
        await here.answered(session, "again")
        events = await looked(there, reader, "turn")
    assert [said["text"] for said in told(events, "answer")] == ["You said: again"]


async def test_a_place_of_another_process_is_a_reset(both):
    here, there = both
    session = await here.begin()
    async with there.reading(session) as reader:
        await reader.until("hello")
    async with here.reading(session) as reader:
        await here.say(session, "hello")
        await reader.until("answer")
        last = reader.last_id
    async with there.reading(session, last_id=last) as reader:
        assert [(await reader.next()).name for _ in range(2)] == ["hello", "reset"]


async def test_a_turn_of_another_process_is_seen_to_go_on_and_to_end(both):
    here, there = both
    session = await here.begin()
    await here.answered(session, "first")
    async with there.reading(session) as reader:
        await reader.until("hello")
        here.provider.hold()
        await here.say(session, "hello")
        await here.provider.asked(2)
        assert told(await looked(there, reader, "turn"), "turn") == [{"state": "started"}]
        about = await there.call("GET", f"/api/sessions/{session}", status=200)
        assert about["busy"]
        async with here.reading(session) as own:
            here.provider.release()
            await own.until("answer")
        assert [e.name for e in await looked(there, reader, "turn")] == ["answer", "turn"]


async def test_what_another_process_does_to_the_memory_and_the_name_is_told(both):
    here, there = both
    session = await here.begin()
    await here.answered(session, "hello")
    path = f"/api/sessions/{session}"
    async with there.reading(session, list="1") as reader:
        await reader.until("hello")
        await here.call("PUT", f"{path}/memory/summary", status=200, json={"text": "They met."})
        assert told(await looked(there, reader, "memory"), "memory") == [{"reason": "changed"}]
        await here.call("PATCH", path, status=200, json={"title": "Other"})
        events = await looked(there, reader, "sessions")
        assert told(events, "session") == [
            {"title": "Other", "agent": "assistant", "archived": False}
        ]
        await here.call("DELETE", path, status=204)
        events = await looked(there, reader, "session")
        assert told(events, "session") == [{"deleted": True}]


async def test_an_exchange_that_another_process_takes_back_is_told(both):
    here, there = both
    session = await here.begin()
    await here.answered(session, "hello")
    async with there.reading(session) as reader:
        await reader.until("hello")
        await here.answered(session, "/undo")
        await looked(there, reader, "undone")
    assert await there.messages(session) == []


@pytest.mark.slow
async def test_it_is_told_after_one_look_and_looks_are_seconds_apart_at_most(both, monkeypatch):
    here, there = both
    watch, looks = there.channel.backend.watch, []
    look = watch.look

    async def looked_once():
        await look()
        looks.append(watch._nodes.look_seconds)

    monkeypatch.setattr(watch, "look", looked_once)
    session = await here.begin()
    async with there.reading(session) as reader:
        await reader.until("hello")
        await here.answered(session, "one")
        await reader.until("answer")
        for number in range(3):
            await here.answered(session, f"number {number}")
            since = len(looks)
            await reader.until("answer")
            assert len(looks) - since <= 2  # one may be going on
    assert max(looks) <= 2


async def test_nobody_looks_at_what_nobody_reads(both, monkeypatch):
    here, there = both
    session, other = await here.begin(), await here.begin()
    asked, revision = [], there.app.loop.sessions.store.revision

    async def noted(session_id):
        asked.append(session_id)
        return await revision(session_id)

    monkeypatch.setattr(there.app.loop.sessions.store, "revision", noted)
    async with there.reading(other) as reader:
        await reader.until("hello")
    async with there.reading(session) as reader:
        await reader.until("hello")
        monkeypatch.setattr(there.channel.backend.feeds.of(other), "_readers", set())
        asked.clear()
        await there.channel.backend.watch.look()
    assert set(asked) == {session}


async def test_with_more_readers_than_one_look_takes_each_has_its_turn(both, monkeypatch):
    monkeypatch.setattr(watch, "LOOKED_AT", 1)
    here, there = both
    sessions = [await here.begin() for _ in range(2)]
    async with there.reading(sessions[0]) as one, there.reading(sessions[1]) as two:
        for session, reader in zip(sessions, (one, two), strict=True):
            await reader.until("hello")
            await here.answered(session, "hello")
        for _ in range(2):
            await there.channel.backend.watch.look()
        assert told(await one.until("answer"), "answer")
        assert told(await two.until("answer"), "answer")


@pytest.mark.slow
async def test_a_client_of_openai_waits_for_its_turn_behind_another_process(both, monkeypatch):
    monkeypatch.setattr("nanoloop.channels.web.openai.answer.LOOK_SECONDS", 0.01)
    here, there = both
    session = await here.begin()
    here.provider.hold()
    await here.say(session, "one")
    await here.provider.asked()
    asked = {"model": "assistant", "messages": [{"role": "user", "content": "two"}]}
    found = []

    async def ask():
        more = {"headers": {"X-Nanoloop-Session": session}, "json": asked}
        found.append(await there.call("POST", "/v1/chat/completions", status=200, **more))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        async with here.reading(session) as reader:
            with anyio.fail_after(5):
                while not (await there.app.loop.sessions.fresh(session)).waiting:
                    await anyio.wait_all_tasks_blocked()
            here.provider.release()
            await reader.until("answer")
    assert found[0]["choices"][0]["message"]["content"] == "You said: two"


SERVER = """
import anyio, sys
from tests.web_server import serving

async def main(folder):
    async with serving(folder) as web:
        print(web.client.base_url, flush=True)
        await anyio.sleep_forever()

anyio.run(main, sys.argv[1])
"""


@asynccontextmanager
async def process_of(folder):
    """A client of a server in a process of its own."""
    command = [sys.executable, "-c", SERVER, str(folder)]
    async with await anyio.open_process(command, stderr=None, cwd=ROOT) as process:
        address = await process.stdout.receive()
        try:
            url = address.decode().strip()
            async with httpx2.AsyncClient(base_url=url, headers=ASKED) as client:
                yield Web(None, None, client, None, None)
        finally:
            process.kill()


@pytest.mark.slow
async def test_what_a_process_says_is_read_at_another_one(tmp_path):
    async with process_of(tmp_path) as here, process_of(tmp_path) as there:
        session = await here.begin()
        async with there.reading(session) as reader:
            await reader.until("hello")
            await here.answered(session, "one")
            await reader.until("answer")
            for number in range(5):
                await here.answered(session, f"number {number}")
                (answer,) = told(await reader.until("answer"), "answer")
                assert answer["text"] == f"You said: number {number}"
