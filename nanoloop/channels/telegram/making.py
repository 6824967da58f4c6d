"""Telegram as its settings want it."""

from __future__ import annotations

from pathlib import Path

from nanoloop.channels.telegram.moves import Moves
from nanoloop.channels.telegram.platform import TelegramPlatform, is_token
from nanoloop.errors import SettingsError
from nanoloop.settings.channels import TelegramSettings


def make(own: TelegramSettings, folder: Path) -> TelegramPlatform:
    """The platform; raises `SettingsError`."""
    token = own.token.get_secret_value().strip() if own.token else ""
    if not is_token(token):
        raise SettingsError(
            "channels.telegram.token is no token of Telegram's: it looks like 12345678:AbC-dEf; "
            "@BotFather shows it with /mybots"
        )
    return TelegramPlatform(token, moves=Moves(folder / "channels" / "telegram.moves.json"))
