"""The tables of chat platforms: what all of them have, and what each has of its own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr

from nanoloop.settings.keys import Messages, Names, Section, Unit
from nanoloop.settings.problems import http_address


class PlatformSettings(Section):
    """A chat platform: who may talk there, when the bot answers, how much."""

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
    """What one person may send in a minute; what is more is not taken, and the person told."""
    per_day: Messages | None = Field(default=None, examples=[500])
    """What is answered in one chat in a day; left out, there is no limit."""
    stream: bool = True
    """Whether an answer is shown as it grows."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations here; left out, it is the one for all."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled


class TelegramSettings(PlatformSettings):
    """Telegram; the token is from @BotFather."""

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot's token; better kept in NANOLOOP_CHANNELS__TELEGRAM__TOKEN."""
    api: Annotated[str, AfterValidator(http_address)] = "https://api.telegram.org"
    """Where the Bot API is; a server of one's own knows no limit for files."""
    webhook_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://bot.example.org/telegram"]
    )
    """Where Telegram is to bring messages; left out, it is asked for them: no address is needed."""
    webhook_host: str = "127.0.0.1"
    """Where to listen for them, behind a proxy that has the certificate."""
    webhook_port: Annotated[int, Field(ge=0, le=65535)] = 8443
    """The port."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled and self.token is not None


class MatrixSettings(PlatformSettings):
    """Matrix; the bot has an account on any homeserver."""

    homeserver: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://matrix.example.org"]
    )
    """Where the account's homeserver is."""
    user: str | None = Field(default=None, examples=["@bot:example.org"])
    """The account."""
    token: SecretStr | None = Field(default=None, examples=["..."])
    """Its access token."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled and self.token is not None


class DiscordSettings(PlatformSettings):
    """Discord; the token is from the developer portal."""

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot's token; better kept in NANOLOOP_CHANNELS__DISCORD__TOKEN."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled and self.token is not None


class SlackSettings(PlatformSettings):
    """Slack, over Socket Mode: no public address is needed."""

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot token, xoxb-…; better kept in NANOLOOP_CHANNELS__SLACK__TOKEN."""
    app_token: SecretStr | None = Field(default=None, examples=["..."])
    """The app-level token, xapp-…, with connections:write."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be served."""
        return self.enabled and None not in (self.token, self.app_token)


class OtherSettings(PlatformSettings):
    """A channel of another package, by the name that it has there."""

    options: dict[str, Any] = Field(default_factory=dict, examples=[{"server": "irc.example.org"}])
    """What that package wants to know."""
