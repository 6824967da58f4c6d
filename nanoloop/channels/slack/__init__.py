"""The Slack channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from nanoloop.errors import SettingsError
from nanoloop.plugins import Connected, ConnectQuestion, Plugin
from nanoloop.settings.channels import PlatformSettings

if TYPE_CHECKING:
    from nanoloop.channels.slack.platform import SlackPlatform


class SlackSettings(PlatformSettings):
    """Settings for Slack in Socket Mode, which needs no public address."""

    needs = ("token", "app_token")

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The bot token, xoxb-…; the variable NANOLOOP_CHANNELS__SLACK__TOKEN is a safer place for it.
    """
    app_token: SecretStr | None = Field(default=None, examples=["..."])
    """The app-level token, xapp-…, with the scope connections:write."""


def make(own: SlackSettings, folder: Path) -> SlackPlatform:
    """Create the platform, or raise `SettingsError` if a token can't be valid."""
    # Imported here, because reading the settings must not require the library.
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


async def connect(_: SlackSettings, told: Mapping[str, str]) -> Connected:
    """Return the account that the tokens belong to, after checking their permissions."""
    from nanoloop.channels.slack.platform import connect as connected  # noqa: PLC0415 - as above

    return await connected(told["token"], told["app-token"])


ASKS = (
    ConnectQuestion(
        name="token",
        help="the bot token, xoxb-…, from OAuth & Permissions at api.slack.com/apps",
        asks="The bot token, xoxb-… (api.slack.com/apps, OAuth & Permissions; not shown)",
        is_secret=True,
    ),
    ConnectQuestion(
        name="app-token",
        help="the app-level token, xapp-…, with connections:write",
        asks="The app-level token, xapp-… (Basic Information, App-Level Tokens; not shown)",
        is_secret=True,
    ),
    ConnectQuestion(
        name="operator",
        help="your own member id, such as U0123456789, to give yourself access to the bot "
        "and all its commands",
        asks="Your own member id, U… (Enter: get a code by writing to the bot)",
        is_needed=False,
    ),
)
PLUGIN = Plugin(
    name="slack",
    settings=SlackSettings,
    make=make,
    extra="slack",
    asks=ASKS,
    connect=connect,
)
