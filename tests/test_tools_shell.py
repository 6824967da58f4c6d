"""The tool `shell`: what a command can reach in its sandbox, and where there is none."""

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from nanoloop.protocols import ToolCall, effect_of
from nanoloop.tools import shell
from nanoloop.tools.approval import ApprovalRules, digest_of
from nanoloop.tools.shell import Sandbox, ShellSettings, ShellTool
from nanoloop.tools.toolbox import Toolbox
from tests.raw_server import RawServer
from tests.test_approvals import asks, call, chatting
from tests.test_tools_functions import names, world

__all__ = ["world"]


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "secret").write_text("tea")
    return folder


@pytest.fixture
def sandbox(work):
    return made(work)


def made(work, **more):
    """A sandbox; where there can be none, CI fails and others skip."""
    program, own = shutil.which("bwrap"), ShellSettings(folder=work, **more)
    problem = "apt install bubblewrap"
    if program is not None:
        sandbox = Sandbox(own, program=program)
        problem = sandbox.problem()
    if problem:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no sandbox here: {problem}")
    return sandbox


async def said_in(sandbox, command):
    """How a command ended, and what it wrote."""
    how, _, text = (await sandbox.run(command)).partition("\n")
    return how.strip("[]").partition(" after")[0], text


# What a command can reach


async def test_a_command_works_in_its_folder_and_tells_how_it_ended(sandbox, work):
    assert await said_in(sandbox, "pwd; echo tea > a; echo bad >&2; exit 3") == (
        "ended with 3",
        "/work\nbad\n",
    )
    assert (work / "a").read_text() == "tea\n"


async def test_it_sees_no_other_file_and_nothing_of_the_system_is_changed(sandbox, work):
    command = f"cat {work.parent}/secret /etc/passwd /etc/shadow ~/.ssh/id; ls /root /home /var"
    _, text = await said_in(sandbox, f"{command}; touch /usr/x /bin/x; ls -A /tmp /; ls -d /proc/*")
    assert text.count("No such file or directory") == 7
    assert text.count("Read-only file system") == 2
    assert "tea" not in text
    processes = {word for word in text.split("/proc/") if word.strip().isdigit()}
    assert len(processes) < 6


async def test_it_gets_no_variable_of_ours(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("LC_ANN", "usual")
    _, text = await said_in(sandbox, "env")
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert found.keys() <= {"HOME", "LANG", "PATH", "PWD", "SHLVL", "_"}
    assert found["HOME"] == "/tmp"
    assert "sk-secret" not in (await sandbox.run("cat /proc/*/environ"))


async def test_a_link_out_of_the_folder_leads_nowhere(sandbox, work):
    (work / "out").symlink_to(work.parent)
    how, text = await said_in(sandbox, "cat out/secret; cat ../secret")
    assert how == "ended with 1"
    assert "tea" not in text


CONNECT = (
    "import socket; socket.create_connection(('127.0.0.1', {port}), 5).close(); print('there')"
)


async def test_it_has_no_network_unless_the_settings_say_so(work):
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no python3 in /usr")
    async with RawServer(b"") as server:
        command = f'python3 -c "{CONNECT.format(port=server.url.split(":")[2].strip("/"))}"'
        assert (await said_in(made(work), command))[0] == "ended with 1"
        assert server.connections_made == 0
        assert await said_in(made(work, network=True), command) == ("ended with 0", "there\n")


async def test_what_it_writes_to_its_tmp_is_gone_with_it(sandbox):
    assert await said_in(sandbox, "echo tea > /tmp/a; cat /tmp/a") == ("ended with 0", "tea\n")
    assert (await said_in(sandbox, "ls /tmp/a"))[0] == "ended with 2"


async def test_it_gains_no_rights(sandbox):
    how, text = await said_in(sandbox, "grep CapEff /proc/self/status; mount -t tmpfs x /work")
    assert (how, text.split()[1]) == ("ended with 32", "0" * 16) or how == "ended with 1"


async def test_it_has_nothing_to_read_and_no_terminal(sandbox):
    assert await said_in(sandbox, "cat; tty") == ("ended with 1", "not a tty\n")


# What it may take


async def test_one_that_takes_too_long_is_stopped_with_all_that_it_began(work):
    began, mark = time.monotonic(), f"7{os.getpid()}"
    command = f"echo begun; (setsid sleep {mark} &) ; sleep {mark}"
    assert await said_in(made(work, timeout_seconds=0.5), command) == ("stopped", "begun\n")
    assert time.monotonic() - began < 10
    await gone(mark)


async def test_one_that_is_cancelled_leaves_no_process(sandbox, work):
    mark = f"6{os.getpid()}"
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.run, f"touch begun; sleep {mark}")
        with anyio.fail_after(10):
            while not (work / "begun").exists():  # noqa: ASYNC110 - the file tells
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    await gone(mark)


async def gone(mark):
    """Wait until no process has this among its arguments."""
    with anyio.fail_after(10):
        while await anyio.to_thread.run_sync(is_run, mark):  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.01)


def is_run(mark):
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in each.read_bytes().split(b"\0"):
                return True
    return False


async def test_of_a_long_output_head_and_tail_are_kept(sandbox):
    _, text = await said_in(sandbox, "echo first; yes | head -c 3000000; echo last")
    assert len(text) < shell.MOST_BYTES + 100
    assert (text[:6], text[-5:]) == ("first\n", "last\n")
    assert "\n[2,000,011 bytes are left out here]\n" in text


async def test_a_file_that_grows_without_end_is_stopped(work, monkeypatch):
    monkeypatch.setattr(shell, "_BEGIN", shell._BEGIN.replace("2000000", "100"))
    how, _ = await said_in(made(work), "head -c 10000000 /dev/zero > big")
    assert (how, (work / "big").stat().st_size) == ("was killed (SIGXFSZ)", 51_200)


# As a tool


async def test_the_model_calls_it_with_one_argument_and_each_call_is_to_be_approved(sandbox, work):
    tool = ShellTool(sandbox, ShellSettings(folder=work))
    assert (tool.approve, effect_of(tool), tool.repeatable) == ("always", "writes", True)
    assert [*tool.spec.parameters["properties"]] == ["command"]
    assert "There is no network." in tool.spec.description
    run = Toolbox([tool]).run
    assert "tea" in (await run(asked('{"command": "echo tea"}'))).text
    assert "at most 20,000" in (await run(asked(f'{{"command": "{"x" * 20_001}"}}'))).error
    assert "it is required" in (await run(asked("{}"))).error


def asked(arguments):
    return ToolCall(id="c", name="shell", arguments=arguments)


async def test_a_command_runs_once_a_person_has_approved_it_and_not_before(sandbox, work):
    tool = ShellTool(sandbox, ShellSettings(folder=work))
    asked, refused = (
        asks(call("shell", command=f"echo {word} >> log")) for word in ("tea", "coffee")
    )
    rules = ApprovalRules(rules=(("*", "never"),))
    async with chatting(asked, "done", refused, "ok", tools=[tool], rules=rules) as chat:
        assert "echo tea >> log" in await chat.say("log tea")
        assert not (work / "log").exists()
        assert await chat.say("/yes") == "done"
        await chat.say("log coffee")
        assert await chat.say("/no") == "ok"
    assert (work / "log").read_text() == "tea\n"


def test_an_approval_holds_for_the_folder_that_it_was_given_for(sandbox, work):
    here, there = (
        ShellTool(sandbox, ShellSettings(folder=folder)) for folder in (work, work.parent)
    )
    assert digest_of(here) != digest_of(there)


def test_it_is_on_only_where_the_settings_name_it(world, sandbox, work):
    assert "shell" not in names(world.agents("").default)
    agents = world.agents(
        f'[tools.shell]\nfolder = "{work}"\n[agents.cook]\ntools = ["clock", "shell"]'
    )
    assert names(agents["cook"]) == ["clock", "shell"]


def test_where_there_is_no_bubblewrap_it_is_refused(world, work, monkeypatch):
    monkeypatch.setenv("PATH", str(work))
    assert world.refusal(f'[tools.shell]\nfolder = "{work}"') == (
        "nanoloop.toml:1: tools.shell needs bubblewrap, which is not installed: `apt install "
        "bubblewrap`, or remove [tools.shell]"
    )


def test_where_no_sandbox_can_be_made_it_is_refused_with_the_reason(world, work, monkeypatch):
    (work / "bwrap").write_text(f"#!{sys.executable}\nraise SystemExit('bwrap: no namespaces')\n")
    (work / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(work))
    assert world.refusal(f'[tools.shell]\nfolder = "{work}"') == (
        "nanoloop.toml:1: tools.shell can't be used, because there is no sandbox here (bwrap: no "
        "namespaces): allow user namespaces, or run nanoloop outside of a container"
    )


def test_a_wrong_folder_is_refused(world):
    assert 'nanoloop.toml:2: tools.shell.folder is "/nowhere", but there is no such folder' in (
        world.refusal('[tools.shell]\nfolder = "/nowhere"')
    )
    assert "would be in reach" in world.refusal('[tools.shell]\nfolder = "/"')
