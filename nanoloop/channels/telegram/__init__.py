"""The Telegram channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nanoloop.channels.telegram.hearing import Moves
from nanoloop.channels.telegram.platform import TelegramPlatform, is_token
from nanoloop.errors import SettingsError, how_to_install

if TYPE_CHECKING:
    from nanoloop.channels.telegram.receiving import Webhook
    from nanoloop.settings.channels import TelegramSettings


def make(own: TelegramSettings, folder: Path) -> TelegramPlatform:
    """The platform; raises `SettingsError`."""
    token = own.token.get_secret_value().strip() if own.token else ""
    if not is_token(token):
        raise SettingsError(
            "channels.telegram.token is no token of Telegram's: it looks like 12345678:AbC-dEf; "
            "@BotFather shows it with /mybots"
        )
    moves = Moves(folder / "channels" / "telegram.moves.json")
    return TelegramPlatform(token, api=own.api, webhook=_webhook(own), moves=moves)


def _webhook(own: TelegramSettings) -> Webhook | None:
    if own.webhook_url is None:
        return None
    try:
        # Polling needs no server.
        from nanoloop.channels.telegram.receiving import Webhook  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"channels.telegram.webhook_url needs {missing.name}, which is not installed: "
            + how_to_install("web")
        ) from None
    return Webhook(own.webhook_url, host=own.webhook_host, port=own.webhook_port)
