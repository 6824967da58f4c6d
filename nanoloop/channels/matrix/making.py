"""Matrix as its settings want it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from nanoloop.channels.matrix.invitations import Welcomes
from nanoloop.channels.matrix.platform import MatrixPlatform
from nanoloop.channels.platform.door import Door
from nanoloop.channels.platform.making import rules_of
from nanoloop.channels.platform.pairing import Pairing
from nanoloop.channels.platform.platform import Heard
from nanoloop.errors import SettingsError
from nanoloop.events import silent

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
    return MatrixPlatform(
        homeserver=own.homeserver,
        token=token,
        user=own.user,
        folder=folder,
        welcomes=_known_to(own, folder),
    )


def _known_to(own: MatrixSettings, folder: Path) -> Welcomes:
    """Who may talk may invite; who may ask to be let in may do so in a private room."""
    rules = rules_of(own)

    def welcomes(heard: Heard) -> bool:
        with closing(Pairing(folder)) as pairing:
            door = Door("matrix", rules=lambda: rules, pairing=pairing, announce=silent)
            return door.may_talk(heard) or (heard.private and rules.pairing)

    return welcomes
