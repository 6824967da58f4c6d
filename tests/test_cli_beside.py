"""Commands beside a daemon that runs on the same folder: each sees what the other did."""

import json
import re

import pytest

from tests.openai_server import OpenAIServer
from tests.stages.command_line import CommandLine, ended, line_with

STORES = ["jsonl:", "sqlite:"]


@pytest.fixture
async def server():
    async with OpenAIServer(otherwise="Here you are.") as server:
        yield server


@pytest.fixture(params=STORES)
def nanoloop(request, tmp_path, server):
    command_line = CommandLine(tmp_path, server.url)
    command_line.set(NANOLOOP_STORE__URL=request.param)
    return command_line


async def answered(process, text):
    """Say this to a daemon, and wait for its answer."""
    await process.stdin.send(f"{text}\n".encode())
    assert await line_with(process.stdout, "Here") == "Here you are."


@pytest.mark.slow
async def test_a_conversation_goes_on_after_a_command_changed_it(nanoloop, server):
    async with nanoloop.started("run") as process:
        await answered(process, "one")
        await nanoloop.run("sessions", "rename", "default", "Our trip")
        await nanoloop.run("sessions", "fork", "default", "--as", "other")
        await answered(process, "two")
        await nanoloop.run("sessions", "undo", "default")
        await answered(process, "three")
        listed = json.loads((await nanoloop.run("sessions", "list", "--json"))[0])
        assert {each["title"] for each in listed} == {"Our trip"}
        await nanoloop.run("sessions", "delete", "other", "--yes")
        process.terminate()
        assert await ended(process) == 0
    said = [m["content"] for m in server.requests[-1].json["messages"] if m["role"] == "user"]
    assert [re.sub(r".*\n", "", text) for text in said] == ["one", "three"]


@pytest.mark.slow
async def test_a_deleted_conversation_begins_anew(nanoloop):
    async with nanoloop.started("run") as process:
        await answered(process, "one")
        await nanoloop.run("sessions", "delete", "default", "--yes")
        await answered(process, "two")
        listed = json.loads((await nanoloop.run("sessions", "list", "--json"))[0])
        assert [each["title"] for each in listed] == ["two"]
        process.terminate()
        assert await ended(process) == 0


@pytest.mark.slow
async def test_another_may_chat_meanwhile_and_edit_what_is_remembered(nanoloop):
    async with nanoloop.started("run") as process:
        await answered(process, "one")
        out, _ = await nanoloop.run("chat", "-m", "hello", "--session", "mine")
        assert out == "Here you are.\n"
        await nanoloop.run("memory", "edit", "default", text="We spoke of tea.")
        await answered(process, "two")
        assert "We spoke of tea." in (await nanoloop.run("sessions", "export", "default"))[0]
        process.terminate()
        assert await ended(process) == 0


@pytest.mark.slow
async def test_a_second_daemon_runs_beside_the_first(nanoloop):
    async with nanoloop.started("run") as first, nanoloop.started("run") as second:
        await line_with(first.stderr, "loop_started")
        await line_with(second.stderr, "loop_started")
        for process in (first, second):
            process.terminate()
            assert await ended(process) == 0
