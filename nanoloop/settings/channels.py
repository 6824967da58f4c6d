"""What every chat platform takes, to which the plugin of each adds its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nanoloop.settings.keys import Messages, Names, Section, Unit


class PlatformSettings(Section):
    """A chat platform by its NAME; of its own it has what config/NAME.example.toml shows."""

    needs: ClassVar[Sequence[str]] = ()
    """What has to be set before it can connect."""

    enabled: bool = True
    """Whether it is served, once it has what it needs to connect."""
    users: Names = Field(default=(), examples=[["12345678"]])
    """Who may talk, by the platform's own ids; "*" stands for everyone."""
    chats: Names = Field(default=(), examples=[["-1001234567"]])
    """Chats in which everyone may talk, by their ids."""
    roles: Names = Field(default=(), examples=[["members"]])
    """Roles whose holders may talk, by their ids, where the platform has such."""
    operators: Names = Field(default=(), examples=[["12345678"]])
    """Who may talk, approve others with /pair, and use commands that change things in groups."""
    pairing: bool = True
    """Whether an unknown person in a private chat gets a code, for `nanoloop pair approve`."""
    groups: Literal["mention", "always", "never"] = "mention"
    """When what is said in a group is answered: where it names the bot, always, or never."""
    overheard: Literal["keep", "ignore"] = "keep"
    """Whether what a group says among itself is told to the model with the next question."""
    threads: Literal["own", "shared"] = "own"
    """Whether a thread is a conversation of its own, or a part of its chat's."""
    burst_seconds: Annotated[float, Field(ge=0, le=60), Unit("seconds")] = 0
    """What is said within so short a time is answered together; each answer waits so long."""
    steers: bool = False
    """Whether a message during an answer is told to that answer, instead of waiting its turn."""
    per_minute: Messages = 20
    """What one person is answered in a minute; what is more waits, and is answered later."""
    per_day: Messages | None = Field(default=None, examples=[500])
    """What is answered in one chat in a day; left out, there is no limit."""
    stream: bool = True
    """Whether an answer is shown as it grows."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations here; left out, it is the one for all."""

    @property
    def lacks(self) -> list[str]:
        """What has to be set before it can connect, and is not."""
        return [name for name in self.needs if getattr(self, name) is None]

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled and not self.lacks
