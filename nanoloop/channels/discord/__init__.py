"""The Discord channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nanoloop.channels.discord.platform import DiscordPlatform
from nanoloop.errors import SettingsError

if TYPE_CHECKING:
    from nanoloop.settings.channels import DiscordSettings


_PARTS = 3


def make(own: DiscordSettings, folder: Path) -> DiscordPlatform:
    """The platform; raises `SettingsError`."""
    token = own.token.get_secret_value().strip() if own.token else ""
    if len(token.split(".")) != _PARTS:
        raise SettingsError(
            "channels.discord.token is no token of Discord's, which has two dots in it: take it "
            "from Bot at discord.com/developers/applications"
        )
    return DiscordPlatform(token, folder=folder)
