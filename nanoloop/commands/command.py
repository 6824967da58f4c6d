"""A command of the chat, and what commands need of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nanoloop.messages import Inbound

BUSY = "An answer is going on here: wait for it, or /stop it first."


class Runner(Protocol):
    """What commands need of the loop."""

    @property
    def channels(self) -> Mapping[str, str]:
        """How each channel stands, of those that can tell."""
        ...

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        ...

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        ...

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        ...

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its name, its line in /help, and what it does."""

    name: str
    usage: str
    run: Callable[[Inbound, str], Awaitable[str]]


def messages(count: int) -> str:
    """So many messages, as people say it."""
    return "1 message" if count == 1 else f"{count} messages"
