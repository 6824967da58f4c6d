"""Keeps each channel's state and the latest failures in a file per process, for `status`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import anyio
from anyio.to_thread import run_sync

from nanoloop.files import connection_limit, load_file, save_json
from nanoloop.nodes import PLACE, is_there
from nanoloop.sentences import IncidentReport
from nanoloop.session.entry import rfc3339, utc_now

FOLDER = "status"
"""The folder for state files, within the data folder."""
FORMER_FILE = "status.json"
"""The single file that earlier versions used for all processes."""
FAILURES = 5
"""How many of the latest failures are shown."""
APART_SECONDS = 0.5
"""How often to check for changes; limits how often the file is written."""
SIGN_SECONDS = 15
"""How often an idle process touches the file to show that it is alive."""
GONE_SECONDS = 60
"""A process that has not touched its file for this long is dead, even if its pid exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """The state of one channel."""

    state: str
    """`running`, `connecting`, `connected`, `waiting`, `refused` or `failed`."""
    since: str
    reason: str = ""
    """Why the channel is not connected, and how to fix it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """One failure, as reported to the operator."""

    time: str
    incident: str
    """The incident's id, as shown in the chat."""
    where: str
    """The session's id, or the path of a request."""
    said: str

    @classmethod
    def of(cls, report: IncidentReport) -> Self:
        """Convert an incident report to the form used in the state file."""
        incident, now = report.incident, rfc3339(report.time)
        return cls(time=now, incident=incident.incident, where=report.place, said=incident.said)


@dataclass(slots=True, kw_only=True)
class RunningProcess:
    """A process that answers chats, with its channels and latest failures."""

    pid: int
    since: str
    command: str = "run"
    """The command that started the process: `run`, `serve` or `chat`."""
    place: str = PLACE
    """The machine or container in which the pid is valid."""
    connections: int = 0
    """How many connections the process can serve at once."""
    holds: list[str] = field(default_factory=list)
    """The accounts on chat platforms that only this process may use."""
    channels: dict[str, ChannelState] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    """The latest failures, newest last."""

    @property
    def is_daemon(self) -> bool:
        """Whether the process runs until it is told to stop."""
        return self.command != "chat"

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; True if it runs on another machine and can't be checked."""
        return self.place != PLACE or is_there(self.pid)


class States:
    """Keeps this process's state file up to date; a disk error stops nothing else."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        command: str = "run",
        channels: Callable[[], Mapping[str, tuple[str, str]]],
        holds: Callable[[], Collection[str]] = tuple,
        failures: Callable[[int], list[IncidentReport]],
    ) -> None:
        """Create it; `channels` returns all states and reasons, `failures(n)` the last `n`."""
        self._file = folder / FOLDER / f"{name}.json"
        self._command = command
        self._channels = channels
        self._holds = holds
        self._failures = failures
        self._running: RunningProcess | None = None
        self._written: RunningProcess | None = None

    async def keep(self) -> None:
        """Write the file in a thread whenever the state changes, until cancelled."""
        since = rfc3339(utc_now())
        while True:
            self._running = RunningProcess(
                pid=os.getpid(),
                since=since,
                command=self._command,
                connections=connection_limit(),
                holds=sorted(self._holds()),
                channels=self._standing(),
                failures=[Failed.of(report) for report in self._failures(FAILURES)],
            )
            await run_sync(self._write, self._running)
            await anyio.sleep(APART_SECONDS)

    def end(self) -> None:
        """Remove the file, because the process is ending."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _standing(self) -> dict[str, ChannelState]:
        """Return the state of each channel; an unchanged state keeps its timestamp."""
        before = self._running.channels if self._running else {}
        now = rfc3339(utc_now())
        standing = {}
        for name, (state, reason) in self._channels().items():
            stands = before.get(name)
            if stands is None or (stands.state, stands.reason) != (state, reason):
                stands = ChannelState(state=state, since=now, reason=reason)
            standing[name] = stands
        return standing

    def _write(self, standing: RunningProcess) -> None:
        with suppress(OSError):
            if self._written is None:
                (self._file.parent.parent / FORMER_FILE).unlink(missing_ok=True)
            if self._written != standing or (age := _age(self._file)) is None:
                save_json(self._file, asdict(standing))
                self._written = standing
            elif age > SIGN_SECONDS:
                os.utime(self._file)


def running(folder: Path) -> list[RunningProcess]:
    """Return the live processes that serve this folder, oldest first; remove files of dead ones."""
    found = []
    for file in (folder / FOLDER).glob("*.json"):
        process, age = _read(file), _age(file)
        if process is None or age is None:
            continue
        if age < GONE_SECONDS and process.is_alive:
            found.append(process)
        else:
            with suppress(OSError):
                file.unlink()
    return sorted(found, key=lambda process: (process.since, process.pid))


def _read(file: Path) -> RunningProcess | None:
    try:
        said = json.loads(load_file(file))
        channels = {name: ChannelState(**state) for name, state in said.pop("channels").items()}
        failures = [Failed(**failed) for failed in said.pop("failures", ())]
        return RunningProcess(channels=channels, failures=failures, **said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _age(file: Path) -> float | None:
    """Return how many seconds ago the process last touched its file; None if it has no file."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return None
