"""Whether Slack lets the bot in, with all the rights it needs."""

from __future__ import annotations

from nanoloop.channels.platform.errors import Refused
from nanoloop.channels.slack.web import BOT_TOKEN, Web, missing

NEEDED = ("chat:write", "im:history", "users:read")
"""Without these a bot is of no use; others are missed where they are used."""


async def admitted(web: Web) -> str:
    """The bot's own id; raises `Refused` with what to do."""
    answer, headers = await web.answer("auth.test")
    granted = headers.get("x-oauth-scopes")
    if granted is not None:
        has = {scope.strip() for scope in granted.split(",")}
        if lacking := [scope for scope in NEEDED if scope not in has]:
            raise Refused(missing(BOT_TOKEN, ", ".join(lacking)))
    return str(answer["user_id"])
