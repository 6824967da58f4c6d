"""The settings that all chat platforms share; the plugin of each adds its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nanoloop.messages import Language
from nanoloop.settings.keys import Messages, Names, Section, Unit


class PlatformSettings(Section):
    """A chat platform by its NAME; config/NAME.example.toml shows its own settings."""

    needs: ClassVar[Sequence[str]] = ()
    """What has to be set before it can connect."""

    enabled: bool = True
    """Whether to serve it, if it has what it needs to connect."""
    users: Names = Field(default=(), examples=[["12345678"]])
    """Who may talk, by their ids on the platform; "*" is everyone."""
    chats: Names = Field(default=(), examples=[["-1001234567"]])
    """Chats in which everyone may talk, by their ids."""
    roles: Names = Field(default=(), examples=[["members"]])
    """Roles whose members may talk, by their ids, if the platform has roles."""
    operators: Names = Field(default=(), examples=[["12345678"]])
    """Who may talk, approve others with /pair, and use commands that change things in groups."""
    pairing: bool = True
    """Whether a stranger in a private chat gets a code for `nanoloop pair approve`."""
    groups: Literal["mention", "always", "never"] = "mention"
    """When the bot answers in a group: if it is mentioned, always, or never."""
    overheard: Literal["keep", "ignore"] = "keep"
    """Whether the model is told what a group said between the questions to it."""
    threads: Literal["own", "shared"] = "own"
    """Whether a thread is a conversation of its own, or part of its chat's."""
    burst_seconds: Annotated[float, Field(ge=0, le=60), Unit("seconds")] = 0
    """Messages within this time are answered together; each answer waits this long."""
    steers: bool = False
    """Whether a message during an answer is added to it, instead of waiting its turn."""
    per_minute: Messages = 20
    """How many messages of one person are answered per minute; more wait."""
    per_day: Messages | None = Field(default=None, examples=[500])
    """How many messages are answered in one chat per day; left out, there is no limit."""
    stream: bool = True
    """Whether an answer is shown as it grows."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations here; by default, the default agent."""
    language: Language | None = Field(default=None, examples=["fr"])
    """The language of what people are told here, unless their agent has one."""

    @property
    def lacks(self) -> list[str]:
        """The required settings that are not set yet."""
        return [name for name in self.needs if getattr(self, name) is None]

    @property
    def is_wanted(self) -> bool:
        """Whether it should be served."""
        return self.enabled and not self.lacks
