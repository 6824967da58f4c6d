"""The Matrix channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, SecretStr

from nanoloop.errors import SettingsError
from nanoloop.plugins import Connected, ConnectQuestion, Plugin
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.problems import http_address

if TYPE_CHECKING:
    from nanoloop.channels.matrix.platform import MatrixPlatform


class MatrixSettings(PlatformSettings):
    """Settings for Matrix; the bot may have its account on any homeserver."""

    needs = ("token",)

    homeserver: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://matrix.example.org"]
    )
    """The address of the account's homeserver."""
    user: str | None = Field(default=None, examples=["@bot:example.org"])
    """The bot's account, such as @bot:example.org."""
    token: SecretStr | None = Field(default=None, examples=["..."])
    """The account's access token."""


def make(own: MatrixSettings, folder: Path) -> MatrixPlatform:
    """Create the platform, or raise `SettingsError` if a setting is missing or invalid."""
    # Imported here, because reading the settings must not require the library.
    from nanoloop.channels.matrix.platform import MatrixPlatform  # noqa: PLC0415 - as above

    token = own.token.get_secret_value().strip() if own.token else ""
    if own.homeserver is None:
        raise SettingsError(
            "channels.matrix.homeserver is not set: set it to the address of the bot's "
            'homeserver, such as "https://matrix.example.org"'
        )
    if not token or not token.isascii() or " " in token:
        raise SettingsError(
            "channels.matrix.token is not an access token: config/matrix.example.toml says how to "
            "get one"
        )
    return MatrixPlatform(homeserver=own.homeserver, token=token, user=own.user, folder=folder)


async def connect(_: MatrixSettings, told: Mapping[str, str]) -> Connected:
    """Log in, registering first if requested, and invite the operator."""
    from nanoloop.channels.matrix.homeserver import connect as connected  # noqa: PLC0415 - as above

    return await connected(told)


ASKS = (
    ConnectQuestion(
        name="homeserver",
        help="the address of the bot's homeserver, such as https://matrix.example.org",
        asks="The homeserver, such as https://matrix.example.org",
    ),
    ConnectQuestion(
        name="user",
        help="the bot's account, such as @bot:example.org",
        asks="The bot's account, such as @bot:example.org",
        unless="token",
    ),
    ConnectQuestion(
        name="token",
        help="the account's access token, instead of a password",
        is_secret=True,
        is_needed=False,
    ),
    ConnectQuestion(
        name="password",
        help="the account's password; it is used once and not stored",
        asks="Its password (used once and not stored; not shown)",
        is_secret=True,
        unless="token",
    ),
    ConnectQuestion(
        name="register",
        help="create the account first, with this password",
        is_switch=True,
        is_needed=False,
    ),
    ConnectQuestion(
        name="registration-token",
        help="the registration token, if the homeserver requires one",
        is_secret=True,
        is_needed=False,
    ),
    ConnectQuestion(
        name="operator",
        help="your own id, so that the bot can invite you to a room and let you use all commands",
        asks="Your own id, such as @you:example.org, to be invited (Enter to skip)",
        is_needed=False,
    ),
)
PLUGIN = Plugin(
    name="matrix",
    settings=MatrixSettings,
    make=make,
    extra="matrix",
    asks=ASKS,
    connect=connect,
)
