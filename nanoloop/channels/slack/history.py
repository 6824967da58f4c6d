"""What was said in a place after a message, as Slack still knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoloop.channels.platform.platform import Place
from nanoloop.channels.slack.web import Web

_PAGE = 200
_PAGES = 10


async def since(web: Web, place: Place, message: str) -> list[Mapping[str, Any]]:
    """The messages as events, oldest first; raises as `Web.call` does."""
    found: dict[str, Mapping[str, Any]] = {}
    cursor: str | None = None
    for _ in range(_PAGES):
        answer = await web.call(
            "conversations.replies" if place.thread else "conversations.history",
            channel=place.chat,
            ts=place.thread or None,
            oldest=message,
            limit=_PAGE,
            cursor=cursor,
        )
        for said in answer.get("messages") or ():
            found[str(said.get("ts"))] = {"type": "message", **said, "channel": place.chat}
        cursor = (answer.get("response_metadata") or {}).get("next_cursor") or None
        if cursor is None:
            break
    # A thread's first message comes with each page of its answers.
    return [found[ts] for ts in sorted(found) if ts > message]
