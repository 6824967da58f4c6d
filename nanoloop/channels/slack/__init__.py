"""The Slack channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from nanoloop.errors import SettingsError
from nanoloop.plugins import Plugin
from nanoloop.settings.channels import PlatformSettings

if TYPE_CHECKING:
    from nanoloop.channels.slack.platform import SlackPlatform


class SlackSettings(PlatformSettings):
    """Slack, over Socket Mode: no public address is needed."""

    needs = ("token", "app_token")

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot token, xoxb-…; better kept in NANOLOOP_CHANNELS__SLACK__TOKEN."""
    app_token: SecretStr | None = Field(default=None, examples=["..."])
    """The app-level token, xapp-…, with connections:write."""


def make(own: SlackSettings, folder: Path) -> SlackPlatform:
    """The platform; raises `SettingsError`."""
    # Not before: whoever reads the settings needs no library.
    from nanoloop.channels.slack.platform import SlackPlatform  # noqa: PLC0415 - as above
    from nanoloop.channels.slack.web import ADVICE, APP_TOKEN, BOT_TOKEN  # noqa: PLC0415

    token = own.token.get_secret_value().strip() if own.token else ""
    app_token = own.app_token.get_secret_value().strip() if own.app_token else ""
    for given, begins, setting in (
        (token, "xoxb-", BOT_TOKEN),
        (app_token, "xapp-", APP_TOKEN),
    ):
        if not given.startswith(begins):
            raise SettingsError(f"{setting} does not begin with {begins}: {ADVICE[setting]}")
    return SlackPlatform(token, app_token, folder=folder)


PLUGIN = Plugin(name="slack", settings=SlackSettings, make=make, extra="slack")
