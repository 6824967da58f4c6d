"""The Telegram channel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, SecretStr

from nanoloop.errors import SettingsError, how_to_install
from nanoloop.plugins import Connected, ConnectQuestion, Plugin
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.problems import http_address

if TYPE_CHECKING:
    from nanoloop.channels.telegram.platform import TelegramPlatform
    from nanoloop.channels.telegram.receiving import Webhook

_TOKEN = re.compile(r"\d+:[\w-]+", re.ASCII)


class TelegramSettings(PlatformSettings):
    """Settings for Telegram; get the bot's token from @BotFather."""

    needs = ("token",)

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot's token; the variable NANOLOOP_CHANNELS__TELEGRAM__TOKEN is a safer place for it."""
    api: Annotated[str, AfterValidator(http_address)] = "https://api.telegram.org"
    """The address of the Bot API; your own Bot API server has no file size limit."""
    webhook_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://bot.example.org/telegram"]
    )
    """The public address for Telegram to send messages to; without one, nanoloop polls."""
    webhook_host: str = "127.0.0.1"
    """The address to listen on, behind a proxy that has the certificate."""
    webhook_port: Annotated[int, Field(ge=0, le=65535)] = 8443
    """The port to listen on."""


def make(own: TelegramSettings, folder: Path) -> TelegramPlatform:
    """Create the platform, or raise `SettingsError` if a setting can't be used."""
    # Imported here, because reading the settings must not require the library.
    from nanoloop.channels.telegram.hearing import Moves  # noqa: PLC0415 - as above
    from nanoloop.channels.telegram.platform import TelegramPlatform  # noqa: PLC0415 - as above

    token = _checked(own.token.get_secret_value() if own.token else "")
    moves = Moves(folder / "channels" / "telegram.moves.json")
    return TelegramPlatform(token, api=own.api, webhook=_webhook(own), moves=moves)


def _checked(token: str) -> str:
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise SettingsError(
            "channels.telegram.token is not a Telegram token, which looks like 12345678:AbC-dEf: "
            "get it from @BotFather with /mybots"
        )
    return token


def _webhook(own: TelegramSettings) -> Webhook | None:
    if own.webhook_url is None:
        return None
    try:
        # Imported here, because polling needs no web server.
        from nanoloop.channels.telegram.receiving import Webhook  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"channels.telegram.webhook_url needs {missing.name}, which is not installed: "
            + how_to_install("web")
        ) from None
    return Webhook(own.webhook_url, host=own.webhook_host, port=own.webhook_port)


async def connect(own: TelegramSettings, told: Mapping[str, str]) -> Connected:
    """Return the bot that the token belongs to."""
    from nanoloop.channels.telegram.platform import connect as connected  # noqa: PLC0415 - as above

    return await connected(_checked(told["token"]), api=own.api)


ASKS = (
    ConnectQuestion(
        name="token",
        help="the bot's token, from @BotFather",
        asks="The bot's token (write /newbot to @BotFather; not shown)",
        is_secret=True,
    ),
    ConnectQuestion(
        name="operator",
        help="your own numeric id, to give yourself access to the bot and all its commands",
        asks="Your own numeric id (Enter: get a code by writing to the bot)",
        is_needed=False,
    ),
)
PLUGIN = Plugin(
    name="telegram",
    settings=TelegramSettings,
    make=make,
    extra="telegram",
    asks=ASKS,
    connect=connect,
)
