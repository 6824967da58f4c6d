"""`nanoloop pair` and `nanoloop status`, beside a daemon or without one."""

import json
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict

import anyio
import pytest
from anyio.to_thread import run_sync

from nanoloop.app import App
from nanoloop.channels.kit.access import Pairing, Person
from nanoloop.channels.kit.connection import State
from nanoloop.channels.states import RunningChannel, States, running
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
    return States(tmp_path, channels=lambda: standing, failures=incidents.last)


@pytest.fixture
def keep(states, tmp_path):
    """Have it written down."""

    async def keep():
        (tmp_path / "status.json").unlink(missing_ok=True)
        async with anyio.create_task_group() as group:
            group.start_soon(states.keep)
            with anyio.fail_after(5):
                while not (tmp_path / "status.json").exists():
                    await run_sync(lambda: None)
            group.cancel_scope.cancel()

    return lambda: anyio.run(keep)


def test_who_waits_is_listed_without_the_code(nanoloop, code):
    exit_code, said = nanoloop("pair", "list")
    assert exit_code == Exit.DONE
    assert "fake  1  Ann  asked at" in said
    assert code not in said


def test_a_code_lets_its_holder_in_once(nanoloop, code, tmp_path):
    assert nanoloop("pair", "approve", code.lower()) == (0, "Ann may talk on fake now\n")
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
        ("waiting", "gone; next try in 5 s"),
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
        if not (tmp_path / "status.json").exists():
            return []
        told = json.loads((tmp_path / "status.json").read_text())["failures"]
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
    file = tmp_path / "status.json"
    file.write_text(file.read_text().replace(str(os.getpid()), "999999999"))
    assert nanoloop("status")[0] == Exit.FAILED
    states.end()
    assert not file.exists()


async def test_of_two_daemons_the_first_has_the_status_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoloop.channels.states.APART_SECONDS", 0.001)
    file = tmp_path / "status.json"
    async with living_process() as other:
        standing = RunningChannel(pid=other.pid, since="2026-01-01T00:00:00Z")
        file.write_text(json.dumps(asdict(standing)))
        mine, asked = States(tmp_path, channels=dict, failures=Incidents().last), []
        mine._channels = lambda: asked.append(None) or {}
        async with anyio.create_task_group() as group:
            group.start_soon(mine.keep)
            while len(asked) < 3:
                await anyio.lowlevel.checkpoint()
            assert running(tmp_path) == standing
            mine.end()
            assert running(tmp_path) == standing
            other.kill()
            await other.wait()
            with anyio.fail_after(10):
                while running(tmp_path) is None:
                    await anyio.lowlevel.checkpoint()
            assert running(tmp_path).pid == os.getpid()
            group.cancel_scope.cancel()
    mine.end()
    assert not file.exists()


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


def test_a_daemon_that_never_began_leaves_the_other_ones_status(keep, tmp_path):
    keep()
    States(tmp_path, channels=dict, failures=Incidents().last).end()
    assert (tmp_path / "status.json").exists()


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
