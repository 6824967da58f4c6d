"""The settings that all chat platforms share; each platform's plugin adds its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nanoloop.messages import Language
from nanoloop.settings.keys import Messages, Names, Section, Unit
from nanoloop.settings.problems import DEFAULT_AGENT


class PlatformSettings(Section):
    """Settings for the chat platform NAME; config/NAME.example.toml also shows its own settings."""

    needs: ClassVar[Sequence[str]] = ()
    """The settings that are required to connect."""

    enabled: bool = True
    """Serve this platform once its required settings are set."""
    users: Names = Field(default=(), examples=[["12345678"]])
    """The people who may talk to the bot, by their ids on the platform; "*" means everyone."""
    chats: Names = Field(default=(), examples=[["-1001234567"]])
    """The chats in which everyone may talk to the bot, by their ids."""
    roles: Names = Field(default=(), examples=[["members"]])
    """The roles whose members may talk to the bot, by their ids, if the platform has roles."""
    operators: Names = Field(default=(), examples=[["12345678"]])
    """Who may talk to the bot, approve others with /pair, and change a group's conversation."""
    pairing: bool = True
    """Give strangers in private chats a code for `nanoloop pair approve`."""
    groups: Literal["mention", "always", "never"] = "mention"
    """When the bot answers in a group: if it is mentioned, always, or never."""
    overheard: Literal["keep", "ignore"] = "keep"
    """Keep or ignore what is said in a group between questions to the bot."""
    threads: Literal["own", "shared"] = "own"
    """Make each thread a conversation of its own, or part of the chat's conversation."""
    burst_seconds: Annotated[float, Field(ge=0, le=60), Unit("seconds")] = 0
    """How long to wait for more messages, which are then answered together."""
    steers: bool = False
    """Add a message sent during an answer to that turn, instead of letting it wait."""
    per_minute: Messages = 20
    """How many messages from one person are answered per minute; further messages wait."""
    per_day: Messages | None = Field(default=None, examples=[500])
    """How many messages are answered in one chat per day; by default, there is no limit."""
    stream: bool = True
    """Show an answer while it is being written."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations on this platform; by default, the default agent."""
    agents: Names | None = Field(default=None, examples=[["assistant", "cook"]])
    """The agents that people may choose with /agent; by default, none. Operators may choose any."""
    language: Language | None = Field(default=None, examples=["fr"])
    """The language of the bot's own messages on this platform, unless the agent sets one."""

    @property
    def first_agent(self) -> str | None:
        """The agent for new conversations; None means the default agent."""
        if self.agent is None and self.agents and DEFAULT_AGENT not in self.agents:
            return self.agents[0]
        return self.agent

    @property
    def agents_of_all(self) -> tuple[str, ...]:
        """The agents that anyone may choose; empty if there is only the default agent."""
        first = () if self.agent is None else (self.agent,)
        return (*first, *(self.agents or ()))

    @property
    def lacks(self) -> list[str]:
        """The required settings that are still missing."""
        return [name for name in self.needs if getattr(self, name) is None]

    @property
    def is_wanted(self) -> bool:
        """True if the platform should be served."""
        return self.enabled and not self.lacks
