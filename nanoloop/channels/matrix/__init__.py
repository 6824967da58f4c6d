"""The Matrix channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nanoloop.channels.matrix.platform import MatrixPlatform
from nanoloop.errors import SettingsError

if TYPE_CHECKING:
    from nanoloop.settings.channels import MatrixSettings


def make(own: MatrixSettings, folder: Path) -> MatrixPlatform:
    """The platform; raises `SettingsError`."""
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
