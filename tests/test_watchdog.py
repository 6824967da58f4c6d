"""systemd hears that a daemon is ready, lives and ends; the log says where it stands still."""

import os
import socket
import sys
import threading

import anyio
import pytest

from nanoloop.cli.watchdog import ServiceManager, Watchdog
from nanoloop.events import LoopStalled, hearing
from tests.openai_server import OpenAIServer
from tests.stages.command_line import CommandLine, ended

SECRET = "what was said"


class Manager:
    """Hears as systemd does, at a path or under a name that is in no folder."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0"))
        self.socket.setblocking(False)
        self.env = {"NOTIFY_SOCKET": address}

    async def hears(self):
        with anyio.fail_after(20):
            await anyio.wait_readable(self.socket)
        return self.socket.recv(100).decode()

    async def hears_nothing(self):
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BlockingIOError):
            self.socket.recv(100)


@pytest.fixture(params=["/", "@"])
def manager(request, tmp_path):
    address = str(tmp_path / "notify")
    manager = Manager(address if request.param == "/" else f"@{address}")
    yield manager
    manager.socket.close()


@pytest.fixture
def heard_now():
    events = []
    with hearing(events.append):
        yield events


@pytest.mark.slow
async def test_systemd_hears_that_a_daemon_is_ready_lives_and_ends(tmp_path, manager):
    async with OpenAIServer() as server:
        nanoloop = CommandLine(tmp_path, server.url)
        nanoloop.set(**manager.env, WATCHDOG_USEC="100000")
        async with nanoloop.started("run") as process:
            assert [await manager.hears() for _ in range(2)] == ["READY=1", "WATCHDOG=1"]
            process.terminate()
            while (said := await manager.hears()) == "WATCHDOG=1":
                """It lives on until it is told to stop."""
            assert said == "STOPPING=1"
            assert await ended(process) == 0


@pytest.mark.parametrize(
    "more",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"}],
    ids=["not-asked", "never", "of-another-process"],
)
async def test_a_manager_that_does_not_ask_hears_nothing_but_ready(manager, more):
    async with anyio.create_task_group() as group:
        group.start_soon(ServiceManager(manager.env | more).keep)
        assert await manager.hears() == "READY=1"
        await manager.hears_nothing()


async def test_a_manager_that_asks_this_process_hears_that_it_lives(manager):
    more = {"WATCHDOG_USEC": "10000", "WATCHDOG_PID": str(os.getpid())}
    async with anyio.create_task_group() as group:
        group.start_soon(ServiceManager(manager.env | more).keep)
        assert [await manager.hears() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        group.cancel_scope.cancel()


def test_a_manager_that_is_gone_stops_nothing(tmp_path):
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).stopping()


@pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_manager_there_is_nobody_to_tell(env):
    assert not ServiceManager(env).is_there


async def test_where_the_event_loop_stands_still_is_told_while_it_does_and_nothing_that_was_said(
    heard,
):
    told = threading.Event()

    def stands_still(text):
        assert told.wait(20)
        return text

    with hearing(lambda _: told.set()):
        async with anyio.create_task_group() as group:
            group.start_soon(Watchdog(0.05).keep)
            await anyio.wait_all_tasks_blocked()
            stands_still(SECRET)
            group.cancel_scope.cancel()
    (stalled,) = heard
    assert stalled.seconds >= 0.05
    assert "stands_still < test_watchdog.py:" in stalled.where
    assert SECRET not in stalled.where


def test_each_standstill_is_told_once(heard_now):
    watchdog = Watchdog(1e-9)
    for _ in range(3):
        watchdog.look(threading.get_ident())
    assert [type(event) for event in heard_now] == [LoopStalled]
    watchdog._last = float("inf")  # it turned
    watchdog.look(threading.get_ident())
    watchdog._last = 0
    watchdog.look(threading.get_ident())
    assert len(heard_now) == 2


def test_a_thread_that_is_gone_is_nowhere(heard_now):
    Watchdog(1e-9).look(max(sys._current_frames()) + 1)
    assert [event.where for event in heard_now] == [""]
