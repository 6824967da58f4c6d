"""`nanoloop run` as a supervisor uses it: signals, logs, and who talks to it."""

import json
import re
import signal
import subprocess
import sys

import anyio
import pytest

from tests.openai_server import Answer, OpenAIServer
from tests.packages import is_gone
from tests.stages.command_line import CommandLine, Terminal, ended, line_with


@pytest.fixture
async def server():
    async with OpenAIServer(otherwise="Here you are.") as server:
        yield server


@pytest.fixture
def nanoloop(tmp_path, server):
    return CommandLine(tmp_path, server.url)


async def rest(stream):
    return b"".join([piece async for piece in stream]).decode()


@pytest.mark.slow
async def test_a_service_without_input_serves_on_until_it_is_told_to_stop(nanoloop):
    nanoloop.set(NANOLOOP_CHANNELS__WEB__ENABLED="true", NANOLOOP_CHANNELS__WEB__PORT="0")
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        assert json.loads(await line_with(process.stderr, "loop_started"))["channels"] == ["web"]
        process.terminate()
        assert await ended(process) == 0
        assert "loop_stopped" in await rest(process.stderr)


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_with_nothing_to_serve_it_says_so_and_ends(nanoloop, enabled):
    nanoloop.set(NANOLOOP_CHANNELS__TERMINAL__ENABLED=enabled)
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        assert await ended(process) == 3
        assert (await rest(process.stderr)).startswith("nanoloop: there is nothing to serve: ")


@pytest.mark.slow
async def test_a_pipe_is_a_chat_and_its_end_stops_nothing(nanoloop):
    async with nanoloop.started("run") as process:
        await process.stdin.send(b"hello\n")
        await process.stdin.aclose()
        assert await line_with(process.stdout, "Here") == "Here you are."
        assert process.returncode is None
        process.terminate()
        assert await ended(process) == 0


@pytest.mark.slow
async def test_what_failed_is_in_the_status_under_the_id_that_the_chat_was_told(nanoloop, server):
    server.otherwise = Answer(status=401, body=b'{"error": {"message": "wrong"}}')
    async with nanoloop.started("run") as process:
        await process.stdin.send(b"hello\n")
        said = await line_with(process.stderr, "(incident ")
        (incident,) = re.findall(r"\(incident (\w+)\)", said)
        with anyio.fail_after(20):
            while f"incident {incident}" not in (status := (await nanoloop.run("status"))[0]):
                """It is written beside all else."""
    assert f"incident {incident}  terminal:default: {server.url} requires a key" in status
    assert "hello" not in status


@pytest.mark.slow
async def test_sigterm_lets_a_running_turn_finish(nanoloop, server):
    server.otherwise = Answer(text="Here you are.", held=True)
    async with nanoloop.started("run") as process:
        await process.stdin.send(b"hello\n")
        await server.arrived(1)
        process.terminate()
        server.release()
        assert await ended(process) == 0
        assert await rest(process.stdout) == "Here you are.\n"
        logged = [json.loads(line) for line in (await rest(process.stderr)).splitlines()]
    assert logged[-1]["event"] == "loop_stopped"
    assert logged[-1]["unfinished_turns"] == 0


@pytest.mark.slow
async def test_a_second_signal_ends_at_once_and_the_message_is_answered_at_the_next_start(
    nanoloop, server
):
    server.answers.append(Answer(held=True))
    async with nanoloop.started("run") as process:
        await process.stdin.send(b"hello\n")
        await server.arrived(1)
        await ended(process, pressing=signal.SIGTERM)
    async with nanoloop.started("run") as process:
        assert await line_with(process.stdout, "Here") == "Here you are."
        process.terminate()
        assert await ended(process) == 0
    assert server.count == 2


@pytest.mark.skipif(is_gone("web"), reason="its folder is gone")
async def test_settings_can_leave_standard_input_alone(nanoloop, tmp_path):
    only = "channels.terminal.enabled = false\nchannels.web = {enabled = true, port = 0}\n"
    (tmp_path / "nanoloop.toml").write_text(only)
    nanoloop.set(NANOLOOP_CONFIG="nanoloop.toml")
    async with nanoloop.started("run") as process:
        assert json.loads(await line_with(process.stderr, "loop_started"))["channels"] == ["web"]


@pytest.mark.slow
async def test_in_a_terminal_it_has_a_prompt_and_leaving_that_stops_it(nanoloop):
    with Terminal() as terminal:
        async with nanoloop.started("run", terminal=terminal) as process:
            await terminal.shows("/help")
            terminal.type("hello\r")
            await terminal.shows("Here you are.")
            terminal.type("\x04")
            assert await ended(process) == 0


LITTER = """
import gc, weakref
from nanoloop.cli import GARBAGE_THRESHOLDS, collect_garbage_seldom

class Node:
    pass

collect_garbage_seldom()
kept = gc.get_freeze_count()
seen = []
gc.callbacks.append(lambda when, about: seen.append(about["generation"]))
node = Node()
node.itself = node
gone = weakref.ref(node)
del node
rest = [[number] for number in range(GARBAGE_THRESHOLDS[0] - 100)]
print(kept > 1000, len(seen), gone() is None)
rest += [[number] for number in range(GARBAGE_THRESHOLDS[0])]
print(len(seen) > 0, gone() is None)
"""


def test_garbage_is_found_after_ten_thousand_new_objects_and_what_was_loaded_is_left_alone():
    done = subprocess.run(
        [sys.executable, "-c", LITTER], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0", "False", "True", "True"]
