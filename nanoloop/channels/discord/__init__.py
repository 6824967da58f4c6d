"""The Discord channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from nanoloop.errors import SettingsError
from nanoloop.plugins import Connected, ConnectQuestion, Plugin
from nanoloop.settings.channels import PlatformSettings

if TYPE_CHECKING:
    from nanoloop.channels.discord.platform import DiscordPlatform

_PARTS = 3


class DiscordSettings(PlatformSettings):
    """Settings for Discord; get the bot's token from the developer portal."""

    needs = ("token",)

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot's token; the variable NANOLOOP_CHANNELS__DISCORD__TOKEN is a safer place for it."""


def make(own: DiscordSettings, folder: Path) -> DiscordPlatform:
    """Create the platform, or raise `SettingsError` if the token can't be valid."""
    # Imported here, because reading the settings must not require the library.
    from nanoloop.channels.discord.platform import DiscordPlatform  # noqa: PLC0415 - as above

    token = own.token.get_secret_value().strip() if own.token else ""
    if len(token.split(".")) != _PARTS:
        raise SettingsError(
            "channels.discord.token is not a Discord token, which contains two dots: copy it from "
            "Bot at discord.com/developers/applications"
        )
    return DiscordPlatform(token, folder=folder)


async def connect(_: DiscordSettings, told: Mapping[str, str]) -> Connected:
    """Return the bot that the token belongs to, after checking its permissions."""
    from nanoloop.channels.discord.platform import connect as connected  # noqa: PLC0415 - as above

    return await connected(told["token"])


ASKS = (
    ConnectQuestion(
        name="token",
        help="the bot's token, from Bot at discord.com/developers/applications",
        asks="The bot's token (discord.com/developers/applications, Bot, Reset Token; not shown)",
        is_secret=True,
    ),
    ConnectQuestion(
        name="operator",
        help="your own user id, to give yourself access to the bot and all its commands",
        asks="Your own user id (Enter: get a code by writing to the bot)",
        is_needed=False,
    ),
)
PLUGIN = Plugin(
    name="discord",
    settings=DiscordSettings,
    make=make,
    extra="discord",
    asks=ASKS,
    connect=connect,
)
