"""How each channel stands and what failed last: a small file that the daemon keeps for `status`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import anyio
from anyio.to_thread import run_sync

from nanoloop.files import save_json
from nanoloop.sentences import IncidentReport
from nanoloop.session.entry import rfc3339, utc_now

FILE = "status.json"
"""Its name in the data folder."""
FAILURES = 5
"""Failures that are told, the last ones."""
APART_SECONDS = 0.5
"""How often a look is taken, so that the file is seldom written, however much happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """How one channel stands."""

    state: str
    """`running`, `connecting`, `connected`, `waiting`, `refused` or `failed`."""
    since: str
    reason: str = ""
    """Why it is not connected, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """One failure, as the operator is told of it."""

    time: str
    incident: str
    """The id that the chat was told."""
    where: str
    """The session, or the path of a request."""
    said: str

    @classmethod
    def of(cls, report: IncidentReport) -> Self:
        """It as the file has it."""
        incident, now = report.incident, rfc3339(report.time)
        return cls(time=now, incident=incident.incident, where=report.place, said=incident.said)


@dataclass(slots=True, kw_only=True)
class RunningChannel:
    """A daemon, its channels, and what failed last."""

    pid: int
    since: str
    channels: dict[str, ChannelState] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    """The newest last."""

    @property
    def is_alive(self) -> bool:
        """Whether its process is there."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is there, and another user's
            return True
        return True


class States:
    """Keeps the file beside all else; a disk that fails stops nothing."""

    def __init__(
        self,
        folder: Path,
        *,
        channels: Callable[[], Mapping[str, tuple[str, str]]],
        failures: Callable[[int], list[IncidentReport]],
    ) -> None:
        """`channels` tells how each one stands, and why; `failures` so many of the last."""
        self._file = folder / FILE
        self._channels = channels
        self._failures = failures
        self._running: RunningChannel | None = None

    async def keep(self) -> None:
        """Write down how things stand when that has changed, in a thread; until cancelled.

        Of several daemons on one folder the first does; when that is gone, another.
        """
        since = rfc3339(utc_now())
        while True:
            self._running = RunningChannel(
                pid=os.getpid(),
                since=since,
                channels=self._standing(),
                failures=[Failed.of(report) for report in self._failures(FAILURES)],
            )
            await run_sync(self._write, self._running)
            await anyio.sleep(APART_SECONDS)

    def end(self) -> None:
        """The daemon ends: nothing stands any more."""
        there = running(self._file.parent)
        if self._running is not None and (there is None or there.pid == self._running.pid):
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _standing(self) -> dict[str, ChannelState]:
        """How each channel stands, those that stand as before since they did."""
        before = self._running.channels if self._running else {}
        now = rfc3339(utc_now())
        standing = {}
        for name, (state, reason) in self._channels().items():
            stands = before.get(name)
            if stands is None or (stands.state, stands.reason) != (state, reason):
                stands = ChannelState(state=state, since=now, reason=reason)
            standing[name] = stands
        return standing

    def _write(self, standing: RunningChannel) -> None:
        there = running(self._file.parent)
        if there == standing or (there is not None and there.pid != standing.pid):
            return
        with suppress(OSError):
            save_json(self._file, asdict(standing))


def running(folder: Path) -> RunningChannel | None:
    """The daemon that serves this folder now, or None."""
    try:
        said = json.loads((folder / FILE).read_text())
        channels = {name: ChannelState(**state) for name, state in said.pop("channels").items()}
        failures = [Failed(**failed) for failed in said.pop("failures", ())]
        found = RunningChannel(channels=channels, failures=failures, **said)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.is_alive else None
