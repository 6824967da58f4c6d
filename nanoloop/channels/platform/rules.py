"""Who may talk in a channel, when the bot answers, and how much: what its settings say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All of it may change while the channel runs; with none of it set, nobody may talk."""

    users: frozenset[str] = frozenset()
    """Who may talk, by the platform's id; `*` stands for everyone."""
    chats: frozenset[str] = frozenset()
    """Chats in which everyone may talk."""
    roles: frozenset[str] = frozenset()
    """Roles whose holders may talk."""
    operators: frozenset[str] = frozenset()
    """Who may talk, approve others, and use commands that change a group's conversation."""
    pairing: bool = True
    """Whether an unknown person in a private chat gets a code that an operator may approve."""
    groups: Literal["mention", "always", "never"] = "mention"
    """When a message in a group is answered."""
    overheard: Literal["keep", "ignore"] = "keep"
    """Whether what a group says among itself is told to the model with the next question."""
    threads: Literal["own", "shared"] = "own"
    """Whether a thread is a conversation of its own, or a part of its chat's."""
    burst_seconds: float = 0
    """What is said within so short a time is answered together."""
    steers: bool = False
    """Whether a message during an answer is told to that answer, instead of waiting its turn."""
    per_minute: int = 20
    """Messages that one person may send in a minute."""
    per_day: int | None = None
    """Messages that are answered in one chat in a day."""
    stream: bool = True
    """Whether an answer is shown as it grows, where the platform lets messages be edited."""
