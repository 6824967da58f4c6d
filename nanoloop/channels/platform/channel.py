"""A channel made of a platform: who may talk, what is answered, and answers that always arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import anyio

from nanoloop.channels.platform.platform import File, Platform
from nanoloop.channels.platform.rules import Rules
from nanoloop.events import Announce, TextStreamed, silent
from nanoloop.messages import Attachment, Outbound
from nanoloop.protocols import Bus


class Keep(Protocol):
    """Keeps a file that came with a message."""

    async def __call__(self, file: File, data: bytes) -> Attachment:
        """The attachment that stands for it, durable when this returns."""
        ...


Transcribe = Callable[[File, bytes], Awaitable[str | None]]
"""What is said in a voice note; None where it can't be told."""


class PlatformChannel:
    """Serves a chat platform over the bus."""

    confirms = True
    """An answer is owed until the platform has taken it."""

    def __init__(
        self,
        platform: Platform,
        *,
        rules: Rules | None = None,
        folder: Path | None = None,
        agent: str | None = None,
        keep: Keep | None = None,
        transcribe: Transcribe | None = None,
        announce: Announce = silent,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """With a `folder` pairings and half-sent answers outlast the process."""
        self.platform = platform
        self.name = platform.name
        self.rules = rules or Rules()
        self._folder = folder
        self._agent = agent
        self._keep = keep
        self._transcribe = transcribe
        self._announce = announce
        self._sleep = sleep

    @property
    def streams(self) -> bool:
        """Whether answers are shown as they grow."""
        return self.rules.stream and self.platform.limits.edit_seconds is not None

    async def run(self, bus: Bus) -> None:
        """Serve the platform until cancelled, or until it refuses the bot for good."""
        raise NotImplementedError

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Bring one item to its chat; raises `SendLater` where it is worth another try."""
        raise NotImplementedError
