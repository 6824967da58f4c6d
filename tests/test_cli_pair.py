"""`nanoloop pair` and `nanoloop status`, beside a daemon or without one."""

import json
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import asdict

import anyio
import pytest
from anyio.to_thread import run_sync

from nanoloop.app import App
from nanoloop.channels.kit.access import Pairing, Person
from nanoloop.channels.kit.connection import State
from nanoloop.channels.states import (
    GONE_SECONDS,
    SIGN_SECONDS,
    ChannelState,
    RunningProcess,
    States,
    running,
)
from nanoloop.cli import Exit, main
from nanoloop.errors import WrongKey
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import Incidents
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry


@pytest.fixture
def nanoloop(tmp_path, capsys):
    """Run a command in a folder of its own; returns its exit code and what it printed."""

    def nanoloop(*words):
        code = main([*words, "--data", str(tmp_path)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return nanoloop


@pytest.fixture
def code(tmp_path):
    ann = Person(channel="fake", id="1", name="Ann", chat="with-ann", time=0)
    return Pairing(tmp_path).code_for(ann)


@pytest.fixture
def standing():
    """How each channel stands."""
    return {}


@pytest.fixture
def incidents():
    return Incidents()


@pytest.fixture
def states(tmp_path, standing, incidents):
    return States(tmp_path, name="a", channels=lambda: standing, failures=incidents.last)


@pytest.fixture
def keep(states):
    """Have it written down."""

    return lambda: anyio.run(kept, states)


def test_who_waits_is_listed_without_the_code(nanoloop, code):
    exit_code, said = nanoloop("pair", "list")
    assert exit_code == Exit.DONE
    assert "fake  1  Ann  asked at" in said
    assert code not in said


def test_a_code_lets_its_holder_in_once(nanoloop, code, tmp_path):
    assert nanoloop("pair", "approve", code.lower()) == (0, "Ann now has access on fake\n")
    assert Pairing(tmp_path).is_in("fake", "1")
    assert nanoloop("pair", "approve", code)[0] == Exit.NOT_FOUND
    assert json.loads(nanoloop("pair", "list", "--json")[1])["people"][0]["id"] == "1"


def test_who_was_let_in_can_be_let_in_no_more(nanoloop, code, tmp_path):
    nanoloop("pair", "approve", code)
    assert nanoloop("pair", "revoke", "fake", "1")[0] == Exit.DONE
    assert not Pairing(tmp_path).is_in("fake", "1")
    assert nanoloop("pair", "revoke", "fake", "1")[0] == Exit.NOT_FOUND


def test_without_a_daemon_the_status_says_so(nanoloop):
    exit_code, said = nanoloop("status")
    assert exit_code == Exit.FAILED
    assert "start one with `nanoloop run`" in said


def test_the_status_shows_the_daemon_and_each_channel(nanoloop, standing, keep):
    standing |= {"terminal": ("running", ""), "fake": ("connected", "")}
    keep()
    exit_code, said = nanoloop("status")
    assert exit_code == Exit.DONE
    assert f"process {os.getpid()}" in said
    assert "fake      connected" in said


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("waiting", "gone; retrying in 5 s"),
        ("refused", "get another token"),
        ("failed", "Bug at x.py:1"),
    ],
)
def test_a_channel_that_is_not_well_is_told_with_its_reason(
    nanoloop, standing, keep, state, reason
):
    standing["fake"] = state, reason
    keep()
    exit_code, said = nanoloop("status")
    assert exit_code == Exit.FAILED
    assert reason in said


def failed(incidents, number):
    return incidents.of(WrongKey(f"key {number} refused"), place="fake:1").incident


def test_the_status_shows_the_last_failures_and_what_the_operator_is_told(
    nanoloop, incidents, keep
):
    *_, last = [failed(incidents, number) for number in range(7)]
    keep()
    _, said = nanoloop("status")
    assert f"incident {last}  fake:1: key 6 refused" in said
    assert said.count("incident ") == 5


async def test_however_many_failures_there_are_the_file_is_seldom_written(
    states, incidents, tmp_path, monkeypatch
):
    monkeypatch.setattr("nanoloop.channels.states.APART_SECONDS", 60)

    def written():
        if not (tmp_path / "status" / "a.json").exists():
            return []
        told = json.loads((tmp_path / "status" / "a.json").read_text())["failures"]
        return [each["incident"] for each in told]

    async with anyio.create_task_group() as group:
        first = failed(incidents, 0)
        group.start_soon(states.keep)
        while not written():
            await run_sync(written)
        for number in range(1, 9):
            failed(incidents, number)
            await run_sync(written)
        assert written() == [first]
        group.cancel_scope.cancel()


def test_a_daemon_that_has_ended_or_was_killed_has_no_status(nanoloop, states, keep, tmp_path):
    keep()
    file = tmp_path / "status" / "a.json"
    file.write_text(file.read_text().replace(str(os.getpid()), "999999999"))
    assert nanoloop("status")[0] == Exit.FAILED
    states.end()
    assert not file.exists()


async def kept(states):
    """Have how it stands written down."""
    async with anyio.create_task_group() as group:
        group.start_soon(states.keep)
        with anyio.fail_after(5):
            while not states._file.exists():
                await run_sync(lambda: None)
        group.cancel_scope.cancel()


@asynccontextmanager
async def daemon_in(folder, *, name="other", **told):
    """Another process that lives, with the file of one."""
    async with living_process() as process:
        standing = RunningProcess(**{"pid": process.pid, "since": "2026-01-01T00:00:00Z", **told})
        file = folder / "status" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(asdict(standing)))
        yield standing, process, file


async def status(nanoloop, *args):
    return await run_sync(nanoloop, "status", *args)


async def test_each_process_of_a_folder_has_a_status_of_its_own(nanoloop, tmp_path, states):
    channels = {"fake": ChannelState(state="connected", since="2026-01-01T00:00:01Z")}
    told = {"command": "serve", "holds": ["fake 0123"], "channels": channels}
    async with daemon_in(tmp_path, **told) as (standing, process, file):
        states._channels = lambda: {"fake": ("waiting", "another process serves its account")}
        await kept(states)
        assert [each.pid for each in running(tmp_path)] == [process.pid, os.getpid()]
        code, said = await status(nanoloop)
        assert code == Exit.DONE  # it is served, by the one that has the account
        assert f"daemon  process {process.pid}" in said
        assert "(serve, holds fake 0123)" in said
        assert said.count("daemon  ") == 2
        listed = json.loads((await status(nanoloop, "--json"))[1])
        assert (listed["pid"], listed["channels"]) == (process.pid, asdict(standing)["channels"])
        assert [each["command"] for each in listed["processes"]] == ["serve", "run"]
        process.kill()
        await process.wait()
        assert [each.pid for each in running(tmp_path)] == [os.getpid()]
        assert not file.exists()
        code, _ = await status(nanoloop)
        assert code == Exit.FAILED  # and now nobody has it
    states.end()
    assert running(tmp_path) == []


async def test_a_process_that_gives_no_sign_is_dead_whoever_has_its_number_now(tmp_path):
    async with daemon_in(tmp_path) as (_, __, file):
        os.utime(file, (0, time.time() - GONE_SECONDS - 1))
        assert running(tmp_path) == []
        assert not file.exists()


async def test_a_process_that_has_nothing_to_say_gives_a_sign_that_it_lives(states, monkeypatch):
    monkeypatch.setattr("nanoloop.channels.states.APART_SECONDS", 0.001)
    async with anyio.create_task_group() as group:
        group.start_soon(states.keep)
        with anyio.fail_after(5):
            while not states._file.exists():
                await run_sync(lambda: None)
            os.utime(states._file, (0, time.time() - SIGN_SECONDS - 1))
            while time.time() - states._file.stat().st_mtime > SIGN_SECONDS:
                await run_sync(lambda: None)
        group.cancel_scope.cancel()


async def test_a_process_elsewhere_is_told_by_its_signs_alone(nanoloop, tmp_path):
    async with daemon_in(tmp_path, pid=999_999_999, place="box1 0 0"):
        assert "process 999999999 on box1" in (await status(nanoloop))[1]


async def test_a_chat_alone_is_no_daemon(nanoloop, tmp_path):
    async with daemon_in(tmp_path, command="chat"):
        assert (await status(nanoloop))[0] == Exit.FAILED
        async with daemon_in(tmp_path, name="third"):
            assert "chat    process" in (await status(nanoloop))[1]


@asynccontextmanager
async def living_process():
    process = await anyio.open_process([sys.executable, "-c", "input()"])
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


class Serving:
    """A channel that does this when it is run, and may say how it stands."""

    streams = False

    def __init__(self, name, run, **says):
        self.name, self._run = name, run
        self.__dict__ |= says

    async def run(self, _):
        await self._run()

    async def send(self, item):
        raise NotImplementedError


async def test_each_channel_that_was_begun_says_how_it_stands():
    async def broken():
        raise RuntimeError("a bug")

    settings = Settings(store={"url": "memory:"}, recall={"enabled": False})
    app = App.of(settings, provider=ScriptedProvider(), telemetry=Telemetry(level="error"))
    refused = State(name="refused", reason="get another token")
    app.add(Serving("plain", anyio.sleep_forever))
    app.add(Serving("fake", anyio.sleep_forever, state=refused))
    app.add(Serving("bad", broken))
    assert app.states == {}
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        await anyio.wait_all_tasks_blocked()
        states = app.states
        app.stop()
    assert (states["plain"], states["fake"]) == (("running", ""), ("refused", "get another token"))
    assert states["bad"][0] == "failed"
    assert states["bad"][1].startswith("RuntimeError at ")
