"""Calls to a Matrix homeserver, and the events it tells of."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

from aiohttp import ClientError
from nio import (  # type: ignore[import-untyped]  # its annotations go unannounced
    AsyncClient,
    AsyncClientConfig,
    ErrorResponse,
)

from nanoloop.channels.kit.platform import Refused, TooLong
from nanoloop.errors import Declined, NanoloopError, SendLater

REQUEST_SECONDS = 30.0
DOWNLOAD_SECONDS = 60.0
LIMITED_SECONDS = 5.0
"""How long to wait where the homeserver doesn't say."""
NEXT_STEP = (
    "get a new access token as config/matrix.example.toml says, and set it as channels.matrix.token"
)
_NO_ENTRY = frozenset(
    {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"},
)


class Homeserver:
    """Asks it, once for each call: whoever calls decides what is tried again."""

    def __init__(self, url: str, token: str) -> None:
        # What nio can't read it quotes in its log, and that may be what people say.
        logging.getLogger("nio").setLevel(logging.CRITICAL)
        config = AsyncClientConfig(
            encryption_enabled=False,
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_SECONDS,
        )
        self.client = AsyncClient(url.rstrip("/"), config=config)
        self._token = token

    @property
    def me(self) -> str:
        """The bot's id; empty before it has signed in."""
        return str(self.client.user_id)

    async def sign_in(self, user: str | None) -> None:
        """See that the token is good, and this user's; raises `Refused` where it isn't."""
        self.client.access_token = self._token
        await self.ask(self.client.whoami())
        if user not in (None, self.me):
            raise Refused(f"the Matrix token is {self.me}'s, not {user}'s: {NEXT_STEP}")

    async def ask(self, request: Awaitable[Any]) -> Any:
        """What it answers; raises `SendLater`, `Refused`, `TooLong` or `Declined`."""
        try:
            answer = await request
        except (ClientError, OSError) as error:  # a timeout is an OSError
            raise _unreachable(error) from error
        if isinstance(answer, ErrorResponse):
            raise _failure(answer, self.client.homeserver)
        return answer

    async def send(self, request: Awaitable[Any]) -> Any:
        """As `ask`, for what is owed to a chat: a token that is refused may be set right."""
        try:
            return await self.ask(request)
        except Refused as refused:
            raise SendLater("the token is refused") from refused

    async def download(self, address: str, limit_bytes: int) -> bytes:
        """The file at an mxc address, or so much of it that it is seen to be too large."""
        place = urlsplit(address)
        file = f"{quote(place.netloc, safe='')}/{quote(place.path.strip('/'), safe='')}"
        answer = await self.client.send(
            "GET",
            f"/_matrix/client/v1/media/download/{file}",
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=DOWNLOAD_SECONDS,
        )
        async with answer:
            answer.raise_for_status()
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > limit_bytes:
                    break
        return bytes(data)

    async def close(self) -> None:
        """Let go of its connections; the next question opens new ones."""
        await self.client.close()


def _unreachable(error: Exception) -> SendLater:
    return SendLater(f"no connection to the homeserver, {type(error).__name__}")


def _failure(answer: ErrorResponse, url: str) -> NanoloopError:
    code = answer.status_code or ""
    status = answer.transport_response.status
    if code in _NO_ENTRY or status == 401:  # noqa: PLR2004 - HTTP's own
        return Refused(f"{url} refuses the Matrix access token ({code}): {NEXT_STEP}")
    if code == "M_LIMIT_EXCEEDED" or status == 429:  # noqa: PLR2004 - as above
        return SendLater("rate limit", seconds=_rest(answer))
    if code == "M_TOO_LARGE" or status == 413:  # noqa: PLR2004 - as above
        return TooLong()
    if not code or status >= 500:  # noqa: PLR2004 - as above
        return SendLater(f"the homeserver answers {status}")
    return Declined(code)


def _rest(answer: ErrorResponse) -> float:
    milliseconds = answer.retry_after_ms
    return milliseconds / 1000 if milliseconds else LIMITED_SECONDS


Event = Mapping[str, Any]

MESSAGE, STICKER = "m.room.message", "m.sticker"
MEMBER, REDACTION = "m.room.member", "m.room.redaction"
ENCRYPTED, TOMBSTONE = "m.room.encrypted", "m.room.tombstone"

_FALLBACK = re.compile(r"> <.*\n(?:>.*\n)*\n?")
"""What older clients put before a reply: the words that it answers."""


def table(of: Any, *keys: str) -> Mapping[str, Any]:
    """What stands there, if it is an object; else an empty one."""
    for key in keys:
        of = of.get(key) if isinstance(of, Mapping) else None
    return of if isinstance(of, Mapping) else {}


def words(of: Any, *keys: str) -> str:
    """What stands there, if it is a text; else an empty one."""
    *path, last = keys
    found = table(of, *path).get(last)
    return found if isinstance(found, str) else ""


def content(event: Event) -> Mapping[str, Any]:
    """What an event says."""
    return table(event, "content")


def moment(event: Event) -> datetime:
    """When its homeserver says it was; now, where that can't be."""
    try:
        return datetime.fromtimestamp(event["origin_server_ts"] / 1000, timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.now(timezone.utc)


def thread(said: Mapping[str, Any]) -> str:
    """The message that begins the thread it was said in; empty outside threads."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.thread" else ""


def answered(said: Mapping[str, Any]) -> str:
    """The message that it answers; what threads name for clients that know none is not meant."""
    relation = table(said, "m.relates_to")
    if thread(said) and relation.get("is_falling_back"):
        return ""
    return words(relation, "m.in_reply_to", "event_id")


def edited(said: Mapping[str, Any]) -> str:
    """The message that is edited by it; empty where it is none."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.replace" else ""


def redacted(event: Event) -> str:
    """The message that it takes back."""
    return words(event, "redacts") or words(content(event), "redacts")


def text(said: Mapping[str, Any], name: str = "") -> str:
    """What a message says in words; `name` is who said it."""
    body = words(said, "body")
    if words(table(said, "m.relates_to"), "m.in_reply_to", "event_id"):
        body = _FALLBACK.sub("", body, count=1) if body.startswith("> <") else body
    match words(said, "msgtype"):
        case "m.emote":
            return f"* {name} {body}"
        case "m.location":
            return f"{body} {words(said, 'geo_uri')}".strip()
        case "m.image" | "m.file" | "m.audio" | "m.video":
            # Without a name of its own, the name of the file is all that it says.
            return "" if words(said, "filename") in ("", body) else body
        case _:
            return body
