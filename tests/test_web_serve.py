"""`nanoloop serve` as a supervisor uses it: where it listens, what it says, how it ends."""

import json
import signal
import socket
import subprocess
from pathlib import Path

import httpx2
import pytest
from anyio.to_thread import run_sync

from tests.openai_server import OpenAIServer
from tests.stages.command_line import CommandLine, Terminal, ended, line_with


@pytest.fixture
async def nanoloop(tmp_path):
    async with OpenAIServer(otherwise="Here you are.") as server:
        yield CommandLine(tmp_path, server.url)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "run"])
async def test_it_serves_until_it_is_told_to_stop_also_with_streams_open(nanoloop, command):
    port = free_port()
    nanoloop.set(NANOLOOP_CHANNELS__WEB__ENABLED="true", NANOLOOP_CHANNELS__WEB__PORT=port)
    async with nanoloop.started(command, stdin=subprocess.DEVNULL) as process:
        made = json.loads(await line_with(process.stderr, "web_token_made"))
        token = await run_sync(lambda: Path(made["file"]).read_text().strip())
        assert token not in json.dumps(made)
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client,
            client.stream("GET", "/api/events") as events,
        ):
            assert (await anext(events.aiter_lines())).startswith("retry")
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0


@pytest.mark.slow
async def test_a_terminal_is_told_the_address(nanoloop):
    port = free_port()
    with Terminal() as terminal:
        async with nanoloop.started("serve", "--port", port, terminal=terminal) as process:
            await terminal.shows(f"http://127.0.0.1:{port}/#token=")
            await terminal.shows("channel_started")
            process.terminate()
            assert await ended(process) == 0


@pytest.mark.slow
async def test_a_changed_settings_file_is_applied_and_a_typed_port_is_no_change(nanoloop, tmp_path):
    (tmp_path / "nanoloop.toml").write_text('prompt = "Be brief."\n')
    nanoloop.set(NANOLOOP_CONFIG="nanoloop.toml")
    command = ("serve", "--port", free_port())
    async with nanoloop.started(*command, stdin=subprocess.DEVNULL) as process:
        await line_with(process.stderr, "channel_started")
        changed = 'prompt = "Be long."\nhandover = true\nagents.cook.language = "fr"\n'
        changed += 'channels.web.language = "de"\n'
        (tmp_path / "nanoloop.toml").write_text(changed)
        said = json.loads(await line_with(process.stderr, "settings_reloaded"))
    assert said["applied"] == ["agents.cook.language", "prompt"]
    assert said["needs_restart"] == ["channels.web.language", "handover"]


async def test_an_open_door_is_refused_with_a_sentence(nanoloop):
    _, said = await nanoloop.run("serve", "--host", "0.0.0.0", code=2)
    assert "no token: add [channels.web.tokens.NAME]" in said


async def test_an_address_that_is_taken_is_refused_with_a_sentence(nanoloop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        _, said = await nanoloop.run("serve", "--port", port, code=2)
    assert f"can't listen on 127.0.0.1 port {port}" in said


async def test_a_short_token_is_refused_without_being_told(nanoloop):
    nanoloop.set(NANOLOOP_CHANNELS__WEB__TOKENS__ALICE__TOKEN="sesame")
    _, said = await nanoloop.run("serve", code=2)
    told = "channels.web.tokens.alice.token has fewer than 16 characters"
    assert f"env NANOLOOP_CHANNELS__WEB__TOKENS__ALICE__TOKEN: {told}" in said
    assert "sesame" not in said


async def test_a_short_token_in_a_file_is_told_with_its_line(nanoloop, tmp_path):
    (tmp_path / "bot.toml").write_text('[channels.web.tokens.alice]\ntoken = "sesame"\n')
    _, said = await nanoloop.run("serve", "--config", "bot.toml", code=2)
    assert "bot.toml:2: channels.web.tokens.alice.token has fewer than 16" in said


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
async def test_what_is_no_port_is_refused_with_a_sentence(nanoloop, port):
    _, said = await nanoloop.run("serve", "--port", port, code=2)
    assert f"argument --port: {port!r} is not a whole number from 0 to 65535" in said
    assert said.count("\n") == 1
