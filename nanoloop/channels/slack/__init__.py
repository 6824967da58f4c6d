"""The Slack channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nanoloop.channels.slack.platform import SlackPlatform
from nanoloop.channels.slack.web import ADVICE, APP_TOKEN, BOT_TOKEN
from nanoloop.errors import SettingsError

if TYPE_CHECKING:
    from nanoloop.settings.channels import SlackSettings


def make(own: SlackSettings, folder: Path) -> SlackPlatform:
    """The platform; raises `SettingsError`."""
    token = own.token.get_secret_value().strip() if own.token else ""
    app_token = own.app_token.get_secret_value().strip() if own.app_token else ""
    for given, begins, setting in (
        (token, "xoxb-", BOT_TOKEN),
        (app_token, "xapp-", APP_TOKEN),
    ):
        if not given.startswith(begins):
            raise SettingsError(f"{setting} does not begin with {begins}: {ADVICE[setting]}")
    return SlackPlatform(token, app_token, folder=folder)
