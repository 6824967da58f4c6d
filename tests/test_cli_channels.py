"""A channel of another package, served by the daemon, checked, and its rules changed on SIGHUP."""

import json
import signal
import subprocess
from functools import partial

import pytest

from nanoloop.testing.channels.stage import comes_to
from tests.openai_server import OpenAIServer
from tests.packages import make_package
from tests.stages.command_line import CommandLine, ended, line_with

SETTINGS = """
[channels.quiet]
users = ["1"]
token = "right"
"""


@pytest.fixture
async def nanoloop(tmp_path):
    packages = tmp_path / "packages"
    make_package(packages)
    (tmp_path / "nanoloop.toml").write_text(SETTINGS)
    async with OpenAIServer(otherwise="ok") as server:
        nanoloop = CommandLine(tmp_path, server.url)
        path = nanoloop._env["PYTHONPATH"]
        nanoloop.set(PYTHONPATH=f"{packages}:{path}", NANOLOOP_CONFIG="nanoloop.toml")
        yield nanoloop


@pytest.fixture
def change(tmp_path):
    """Change the settings file."""

    def change(old, new):
        file = tmp_path / "nanoloop.toml"
        file.write_text(file.read_text().replace(old, new))

    return change


async def kept_state(folder):
    """What the daemon has written down of it, a moment after it happened."""
    for file in folder.rglob("status/*.json"):
        if known := json.loads(file.read_text())["channels"].get("quiet"):
            return known["state"]
    return None


@pytest.mark.slow
async def test_the_daemon_serves_it_and_its_state_is_shown(nanoloop, tmp_path):
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        said = json.loads(await line_with(process.stderr, "channel_connected"))
        assert said["channel"] == "quiet"
        await comes_to(partial(kept_state, tmp_path), "connected")
        assert "connected" in (await nanoloop.run("status"))[0]
        assert "ok     quiet: connected in process" in (await nanoloop.run("check"))[0]
        process.terminate()
        assert await ended(process) == 0
    await nanoloop.run("status", code=1)


@pytest.mark.slow
async def test_a_refused_token_is_told_and_the_daemon_goes_on(nanoloop, change, tmp_path):
    change("right", "wrong")
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        said = json.loads(await line_with(process.stderr, "channel_refused"))
        assert said["reason"] == "the token is wrong: get another one"
        await comes_to(partial(kept_state, tmp_path), "refused")
        assert "get another one" in (await nanoloop.run("status", code=1))[0]
        assert process.returncode is None


async def test_a_hangup_takes_over_what_can_be_changed_and_says_what_can_not(nanoloop, change):
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        await line_with(process.stderr, "channel_connected")
        change('users = ["1"]', 'users = ["1", "2"]')
        change("\n[channels", 'prompt = "Be brief."\nloop.max_concurrent_turns = 3\n[channels')
        process.send_signal(signal.SIGHUP)
        said = json.loads(await line_with(process.stderr, "settings_reloaded"))
        assert said["applied"] == ["channels.quiet.users", "prompt"]
        assert said["needs_restart"] == ["loop.max_concurrent_turns"]
        change("prompt", "promt")
        process.send_signal(signal.SIGHUP)
        refused = json.loads(await line_with(process.stderr, "settings_refused"))
        assert "did you mean prompt?" in refused["reason"]
        assert process.returncode is None


@pytest.mark.slow
async def test_a_changed_file_is_applied_without_a_signal_and_a_wrong_one_changes_nothing(
    nanoloop, change
):
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        await line_with(process.stderr, "channel_connected")
        change('users = ["1"]', 'users = ["1", "2"]')
        said = json.loads(await line_with(process.stderr, "settings_"))
        assert said["applied"] == ["channels.quiet.users"]
        assert said["needs_restart"] == []
        change("users", "usres")
        said = json.loads(await line_with(process.stderr, "settings_"))
        assert said["event"] == "settings_refused"
        change("usres", "users")
        said = json.loads(await line_with(process.stderr, "settings_"))
        assert (said["event"], said["applied"]) == ("settings_reloaded", [])


@pytest.mark.slow
async def test_the_file_of_a_new_agent_is_applied(nanoloop, tmp_path):
    async with nanoloop.started("run", stdin=subprocess.DEVNULL) as process:
        await line_with(process.stderr, "channel_connected")
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "cook.md").write_text("You cook.")
        said = json.loads(await line_with(process.stderr, "settings_"))
        assert "agents.cook.prompt" in said["applied"]


@pytest.mark.slow
async def test_a_check_says_that_all_is_well(nanoloop):
    said, _ = await nanoloop.run("check")
    *checks, advice = said.splitlines()
    assert {line.split()[0] for line in checks} == {"ok"}
    assert advice.startswith("next: `nanoloop run` serves now")
    assert "quiet: it connects" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("right", "wrong", "WRONG  quiet: the token is wrong: get another one"),
        (
            'users = ["1"]',
            "",
            "WRONG  quiet: it connects, but nobody may talk to the bot: set users",
        ),
        ('token = "right"', "", "WRONG  quiet: not set: token; set it in [channels.quiet]"),
    ],
)
async def test_a_check_says_what_is_wrong_and_the_next_step(nanoloop, change, old, new, line):
    change(old, new)
    said, _ = await nanoloop.run("check", code=1)
    assert line in said


@pytest.mark.slow
async def test_a_model_that_does_not_answer_is_told_by_the_check(nanoloop):
    nanoloop.set(OPENAI_BASE_URL="http://127.0.0.1:9")
    assert "WRONG  model: " in (await nanoloop.run("check", code=1))[0]
