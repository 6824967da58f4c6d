"""How each channel stands and what failed last: a small file that the daemon keeps for `status`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.events import (
    ChannelConnected,
    ChannelConnecting,
    ChannelFailed,
    ChannelLost,
    ChannelRefused,
    ChannelStarted,
    Event,
    LoopStarted,
    RequestFailed,
    TurnFailed,
    current_session,
)
from nanoloop.files import save_json
from nanoloop.session.entry import rfc3339

FILE = "status.json"
"""Its name in the data folder."""
FAILURES = 5
"""Failures that are told, the last ones."""
APART_SECONDS = 0.5
"""How often the file is written at most, however much happens."""


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
    """Hears events, and keeps the file beside all else; a disk that fails stops nothing."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._file = folder / FILE
        self._now = now
        self._running: RunningChannel | None = None
        self._changed = anyio.Event()

    def hear(self, event: Event) -> None:
        """Note what has become of a channel, and what failed."""
        match event:
            case LoopStarted():  # not before: until then the folder may be another daemon's
                self._running = RunningChannel(pid=os.getpid(), since=rfc3339(self._now()))
                self._changed.set()
            case ChannelStarted():
                self._note(event.channel, "running")
            case ChannelConnecting():
                self._note(event.channel, "connecting")
            case ChannelConnected():
                self._note(event.channel, "connected")
            case ChannelLost():
                reason = f"{event.reason}; next try in {event.seconds:.0f} s"
                self._note(event.channel, "waiting", reason)
            case ChannelRefused():
                self._note(event.channel, "refused", event.reason)
            case ChannelFailed():
                self._note(event.channel, "failed", event.error)
            case TurnFailed():
                self._note_failure(current_session(), event)
            case RequestFailed():
                self._note_failure(event.path, event)

    async def keep(self) -> None:
        """Write down what changed, in a thread and not often; until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            await run_sync(self._write)
            await anyio.sleep(APART_SECONDS)

    def end(self) -> None:
        """The daemon ends: nothing stands any more."""
        if self._running is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _note(self, channel: str, state: str, reason: str = "") -> None:
        if self._running is not None:
            since = rfc3339(self._now())
            stands = ChannelState(state=state, since=since, reason=reason)
            # Another object: the old one may be on its way to the disk, in a thread.
            self._running.channels = {**self._running.channels, channel: stands}
            self._changed.set()

    def _note_failure(self, where: str, event: TurnFailed | RequestFailed) -> None:
        if self._running is not None:
            now = rfc3339(self._now())
            failed = Failed(time=now, incident=event.incident, where=where, said=event.said)
            self._running.failures = [*self._running.failures, failed][-FAILURES:]
            self._changed.set()

    def _write(self) -> None:
        if self._running is not None:
            with suppress(OSError):
                save_json(self._file, asdict(self._running))


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
