"""The Matrix channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, SecretStr

from nanoloop.errors import SettingsError
from nanoloop.plugins import Plugin
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.problems import http_address

if TYPE_CHECKING:
    from nanoloop.channels.matrix.platform import MatrixPlatform


class MatrixSettings(PlatformSettings):
    """Matrix; the bot has an account on any homeserver."""

    needs = ("token",)

    homeserver: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://matrix.example.org"]
    )
    """Where the account's homeserver is."""
    user: str | None = Field(default=None, examples=["@bot:example.org"])
    """The account."""
    token: SecretStr | None = Field(default=None, examples=["..."])
    """Its access token."""


def make(own: MatrixSettings, folder: Path) -> MatrixPlatform:
    """The platform; raises `SettingsError`."""
    # Not before: whoever reads the settings needs no library.
    from nanoloop.channels.matrix.platform import MatrixPlatform  # noqa: PLC0415 - as above

    token = own.token.get_secret_value().strip() if own.token else ""
    if own.homeserver is None:
        raise SettingsError(
            "channels.matrix.homeserver is not set: the address of the server that the bot's "
            'account is on, such as "https://matrix.example.org"'
        )
    if not token or not token.isascii() or " " in token:
        raise SettingsError(
            "channels.matrix.token is no access token: config/matrix.example.toml says how to "
            "get one"
        )
    return MatrixPlatform(homeserver=own.homeserver, token=token, user=own.user, folder=folder)


PLUGIN = Plugin(name="matrix", settings=MatrixSettings, make=make, extra="matrix")
