"""Calls Slack's Web API, and translates its errors for the kit and the operator."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from nanoloop.channels.kit.platform import MessageGone, Refused, TooLong
from nanoloop.errors import Declined, NanoloopError, SendLater

ADDRESS = "https://slack.com/api/"
_SECONDS = 30.0
_LIMITED = 429
_FAILED = 500
_KNOWN: Mapping[str, type[NanoloopError]] = {
    "cant_update_message": MessageGone,
    "edit_window_closed": MessageGone,
    "message_not_found": MessageGone,
    "msg_blocks_too_long": TooLong,
    "msg_too_long": TooLong,
}
_PASSING = {
    "fatal_error",
    "internal_error",
    "request_timeout",
    "service_unavailable",
    "team_added_to_org",
}
_UNKNOWN = {
    "account_inactive",
    "invalid_auth",
    "not_allowed_token_type",
    "not_authed",
    "token_expired",
    "token_revoked",
}


class Web:
    """The Web API, called with one of the two tokens."""

    def __init__(
        self, session: aiohttp.ClientSession, *, token: str, setting: str, address: str
    ) -> None:
        """Create the object; `setting` is the name of the setting that holds the token."""
        self._setting = setting
        self._client = AsyncWebClient(
            token,
            address,
            session=session,
            retry_handlers=[],  # a retried post might appear twice
            logger=_quiet(),
        )

    async def call(self, method: str, **arguments: Any) -> Mapping[str, Any]:
        """Return Slack's response; raises the kit's errors, or `Declined` for any other error."""
        return (await self.answer(method, **arguments))[0]

    async def answer(
        self, method: str, **arguments: Any
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Return Slack's response and its headers; raises the same errors as `call`."""
        try:
            response = await self._client.api_call(method, data=_form(arguments))
        except SlackApiError as error:
            # Without the cause, which contains the whole request.
            raise self._meaning(error.response) from None
        except (aiohttp.ClientError, OSError) as error:
            raise SendLater(f"the network failed ({type(error).__name__})") from None
        if not isinstance(response.data, dict):
            raise SendLater("Slack's response can't be read")
        return response.data, response.headers

    def _meaning(self, response: Any) -> NanoloopError:
        said = getattr(response, "data", None)
        said = said if isinstance(said, dict) else {}
        word = str(said.get("error", ""))
        status = getattr(response, "status_code", _FAILED)
        if status == _LIMITED or word == "ratelimited":
            return SendLater("rate limit", seconds=_seconds(response))
        if word in _PASSING or not word:
            return SendLater(f"Slack failed ({word or status})")
        if word == "missing_scope":
            return Refused(missing(self._setting, str(said.get("needed", "it needs"))))
        if word in _UNKNOWN:
            return Refused(f"Slack rejects {self._setting} ({word}): {ADVICE[self._setting]}")
        return _KNOWN.get(word, Declined)(word)


def missing(setting: str, scopes: str) -> str:
    """Tell the operator how to add a scope that the token lacks."""
    where = "App-Level Tokens" if setting.endswith("app_token") else "OAuth & Permissions"
    return (
        f"{setting} lacks the scope {scopes}: add it under {where} at api.slack.com/apps, "
        "reinstall the app, "
        "and set the new token"
    )


BOT_TOKEN = "channels.slack.token"  # noqa: S105 - a setting's name
APP_TOKEN = "channels.slack.app_token"  # noqa: S105 - as above
ADVICE = {
    BOT_TOKEN: "copy the Bot User OAuth Token, xoxb-…, from OAuth & Permissions at "
    "api.slack.com/apps, and set NANOLOOP_CHANNELS__SLACK__TOKEN",
    APP_TOKEN: "create one, xapp-…, with connections:write under Basic Information at "
    "api.slack.com/apps, and set NANOLOOP_CHANNELS__SLACK__APP_TOKEN",
}


def _form(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Encode the arguments as a form, which every method accepts; not all accept JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
        if value is not None
    }


def _seconds(response: Any) -> float:
    try:
        return float(response.headers.get("Retry-After", 1))
    except ValueError:
        return 1.0


def _quiet() -> logging.Logger:
    """Return a logger without debug messages, because the SDK would log everything it sends."""
    logger = logging.getLogger("nanoloop.slack_sdk")
    logger.setLevel(logging.WARNING)
    return logger
