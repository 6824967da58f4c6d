"""What a platform may ask of its channel: whether someone is welcome, and to tell what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nanoloop.channels.platform.platform import Heard
from nanoloop.events import Announce, SenderRefused, silent


def nobody(_: Heard) -> bool:
    """Whom a platform lets in that was told of no one."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The channel, as its platform sees it."""

    channel: str = ""
    """Its name."""
    welcomes: Callable[[Heard], bool] = nobody
    """Whether who says this may talk, by the rules of this moment, or may ask to."""
    announce: Announce = silent
    """Takes the platform's own events, for log and counts; never message text."""

    def refuse(self, heard: Heard, reason: str) -> None:
        """Tell that this sender was refused something."""
        self.announce(
            SenderRefused(channel=self.channel, chat=heard.chat, sender=heard.sender, reason=reason)
        )


@runtime_checkable
class Guest(Protocol):
    """A platform that wants to know its host: nothing more than this method is needed."""

    def meet(self, host: Host) -> None:
        """Called once, before `listen`."""
        ...
