"""The files of nanoloop that one "hello" goes through, from the channel and back."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Self

import anyio

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.loop import AgentLoop
from nanoloop.protocols import Bus
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from tests.structure.house import ROOT

FOLDER = f"{ROOT}/nanoloop/"
QUIET_SECONDS = 0.05


@dataclass(kw_only=True)
class Walk:
    steps: list[str] = field(default_factory=list)
    """The file of each call, in the order of the calls, whichever thread made it."""
    is_counted: bool = False

    def __enter__(self) -> Self:
        threading.setprofile(self._hear)  # for the threads that begin from here on
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _hear(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if self.is_counted and event == "call" and file.startswith(FOLDER):
            self.steps.append(file.removeprefix(FOLDER))

    @property
    def files(self) -> list[str]:
        """Each once, in the order in which they were entered."""
        return list(dict.fromkeys(self.steps))

    @property
    def switches(self) -> int:
        """How often a call was in another file than the call before."""
        return sum(before != file for before, file in pairwise(self.steps))


async def walk_in_memory() -> Walk:
    """Through a loop that keeps nothing."""
    loop = AgentLoop(provider=ScriptedProvider(otherwise="Hello!"))
    return await _hello(loop.bus, loop.run, loop.bus.close)


async def walk_of_app(folder: Path) -> Walk:
    """Through a whole program: SQLite, recall and the log."""
    app = App.of(
        Settings(data=folder, model="scripted"),
        provider=ScriptedProvider(otherwise="Hello!"),
        telemetry=Telemetry(format="json", stream=io.StringIO()),
    )
    return await _hello(app.loop.bus, app.run, app.stop)


async def _hello(bus: Bus, run: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> Walk:
    """Three times: what is loaded, opened or begun only once is there when the last counts."""
    chat = DirectChannel(bus)
    async with anyio.create_task_group() as group:
        with Walk() as walk:
            group.start_soon(run)
            for walk.is_counted in (False, False, True):
                await chat.ask("hello")
                seen = -1
                while seen != len(walk.steps):  # what comes after the answer counts too
                    seen = len(walk.steps)
                    await anyio.sleep(QUIET_SECONDS)
        stop()
    return walk
