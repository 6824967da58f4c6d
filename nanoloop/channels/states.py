"""How each channel stands, for `nanoloop status`: a small file that the daemon keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from nanoloop.events import (
    ChannelConnected,
    ChannelConnecting,
    ChannelFailed,
    ChannelLost,
    ChannelRefused,
    ChannelStarted,
    Event,
    LoopStarted,
)
from nanoloop.session.entry import rfc3339
from nanoloop.stores.folder import make_folder
from nanoloop.stores.jsonl.writing import replace_file

FILE = "status.json"
"""Its name in the data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """How one channel stands."""

    state: str
    """`running`, `connecting`, `connected`, `waiting`, `refused` or `failed`."""
    since: str
    reason: str = ""
    """Why it is not connected, and what to do about it."""


@dataclass(slots=True, kw_only=True)
class Running:
    """A daemon and its channels."""

    pid: int
    since: str
    channels: dict[str, ChannelState] = field(default_factory=dict)

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
    """Hears events and keeps the file; a disk that fails stops nothing."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._file = folder / FILE
        self._now = now
        self._running: Running | None = None

    def hear(self, event: Event) -> None:
        """Note what has become of a channel."""
        match event:
            case LoopStarted():  # not before: until then the folder may be another daemon's
                self._running = Running(pid=os.getpid(), since=rfc3339(self._now()))
                self._write()
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

    def end(self) -> None:
        """The daemon ends: nothing stands any more."""
        if self._running is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _note(self, channel: str, state: str, reason: str = "") -> None:
        if self._running is not None:
            since = rfc3339(self._now())
            self._running.channels[channel] = ChannelState(state=state, since=since, reason=reason)
            self._write()

    def _write(self) -> None:
        with suppress(OSError):
            make_folder(self._file.parent)
            said = json.dumps(self._running, default=asdict)
            replace_file(self._file, said.encode(), durable=False)


def running(folder: Path) -> Running | None:
    """The daemon that serves this folder now, or None."""
    try:
        said = json.loads((folder / FILE).read_text())
        channels = {name: ChannelState(**state) for name, state in said.pop("channels").items()}
        found = Running(channels=channels, **said)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.is_alive else None
