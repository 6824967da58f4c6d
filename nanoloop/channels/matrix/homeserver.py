"""Calls a Matrix homeserver and reads its events."""

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
    RoomPreset,
)

from nanoloop.channels.kit.platform import Refused, TooLong
from nanoloop.errors import Declined, NanoloopError, SendLater
from nanoloop.plugins import Connected

REQUEST_SECONDS = 30.0
DOWNLOAD_SECONDS = 60.0
LIMITED_SECONDS = 5.0
"""How long to wait after a rate-limit error that does not specify a delay."""
NEXT_STEP = (
    "get a new access token as config/matrix.example.toml says, and set it as channels.matrix.token"
)
_NO_ENTRY = frozenset(
    {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"},
)


class Homeserver:
    """Sends each request to the homeserver once; the caller decides whether to retry."""

    def __init__(self, url: str, token: str) -> None:
        # nio logs events that it can't parse, which may contain users' messages.
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
        """The bot's own id; empty until it has logged in."""
        return str(self.client.user_id)

    async def sign_in(self, user: str | None) -> None:
        """Check that the token is valid and belongs to this user; raises `Refused` if not."""
        self.client.access_token = self._token
        await self.ask(self.client.whoami())
        if user not in (None, self.me):
            raise Refused(f"the Matrix token belongs to {self.me}, not to {user}: {NEXT_STEP}")

    async def ask(self, request: Awaitable[Any]) -> Any:
        """Return the response.

        Raise `SendLater`, `Refused`, `TooLong` or `Declined` if the request fails.
        """
        try:
            answer = await request
        except (ClientError, OSError) as error:  # TimeoutError is an OSError
            raise _unreachable(error) from error
        if isinstance(answer, ErrorResponse):
            raise _failure(answer, self.client.homeserver)
        return answer

    async def send(self, request: Awaitable[Any]) -> Any:
        """Like `ask`, but postpone the message if the token is rejected, as it may be replaced."""
        try:
            return await self.ask(request)
        except Refused as refused:
            raise SendLater("the token was refused") from refused

    async def download(self, address: str, limit_bytes: int) -> bytes:
        """Download the file at an mxc address, stopping once it is larger than the limit."""
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
        """Close the connections; the next call opens new ones."""
        await self.client.close()


DEVICE = "nanoloop"
"""The bot's name in the account's list of sessions."""


async def connect(told: Mapping[str, str]) -> Connected:
    """Return an access token, and invite the operator to a room.

    Raise `Refused` if the login fails.
    """
    url = told["homeserver"].rstrip("/")
    home = Homeserver(url, told.get("token", ""))
    try:
        if told.get("token"):
            await home.sign_in(told.get("user"))
        else:
            await _enter(home, told)
        me, says = home.me, [f"The account is {home.me}"]
        if operator := told.get("operator"):
            request = home.client.room_create(
                invite=[operator], is_direct=True, preset=RoomPreset.trusted_private_chat
            )
            try:
                await home.ask(request)
                says.append(f"{operator} has been invited to a room with the bot")
            except Declined as declined:
                says.append(f"{operator} could not be invited ({declined.reason}): check the id")
        token = str(home.client.access_token)
    finally:
        await home.close()
    return Connected(settings={"homeserver": url, "user": me, "token": token}, says=says)


async def _enter(home: Homeserver, told: Mapping[str, str]) -> None:
    """Log in with the password, creating the account first if requested."""
    client, user, password = home.client, told["user"], told["password"]
    if "register" in told:
        name = user.removeprefix("@").partition(":")[0]
        token = told.get("registration-token", "")
        made = (
            client.register_with_token(name, password, token, DEVICE)
            if token
            else client.register(name, password, DEVICE)
        )
        await _answered(made, _REGISTER, home, user)
    else:
        client.user = user
        await _answered(client.login(password, device_name=DEVICE), _LOG_IN, home, user)


_REGISTER = (
    "{url} did not create the account {user} ({code}): the name may be taken, or the server may "
    "require more than a password; create it in a Matrix client, and omit --register"
)
_LOG_IN = (
    "{url} rejected the login of {user} ({code}): check the name and password, or use --register"
)


async def _answered(request: Awaitable[Any], refusal: str, home: Homeserver, user: str) -> None:
    """Await a request; raises `Refused` with this text, or `SendLater`."""
    try:
        answer = await request
    except (ClientError, OSError) as error:
        raise _unreachable(error) from error
    if isinstance(answer, ErrorResponse):
        code = answer.status_code or answer.message or "no reason"
        raise Refused(refusal.format(url=home.client.homeserver, user=user, code=code))


def _unreachable(error: Exception) -> SendLater:
    return SendLater(f"no connection to the homeserver ({type(error).__name__})")


def _failure(answer: ErrorResponse, url: str) -> NanoloopError:
    code = answer.status_code or ""
    status = answer.transport_response.status
    if code in _NO_ENTRY or status == 401:  # noqa: PLR2004 - HTTP's own
        return Refused(f"{url} rejects the Matrix access token ({code}): {NEXT_STEP}")
    if code == "M_LIMIT_EXCEEDED" or status == 429:  # noqa: PLR2004 - as above
        return SendLater("rate limit", seconds=_rest(answer))
    if code == "M_TOO_LARGE" or status == 413:  # noqa: PLR2004 - as above
        return TooLong()
    if not code or status >= 500:  # noqa: PLR2004 - as above
        return SendLater(f"the homeserver returned {status}")
    return Declined(code)


def _rest(answer: ErrorResponse) -> float:
    milliseconds = answer.retry_after_ms
    return milliseconds / 1000 if milliseconds else LIMITED_SECONDS


Event = Mapping[str, Any]

MESSAGE, STICKER = "m.room.message", "m.sticker"
MEMBER, REDACTION = "m.room.member", "m.room.redaction"
ENCRYPTED, TOMBSTONE = "m.room.encrypted", "m.room.tombstone"

_FALLBACK = re.compile(r"> <.*\n(?:>.*\n)*\n?")
"""The quoted text that older clients put before a reply."""


def table(of: Any, *keys: str) -> Mapping[str, Any]:
    """Return the nested value if it is an object, otherwise an empty one."""
    for key in keys:
        of = of.get(key) if isinstance(of, Mapping) else None
    return of if isinstance(of, Mapping) else {}


def words(of: Any, *keys: str) -> str:
    """Return the nested value if it is a string, otherwise an empty one."""
    *path, last = keys
    found = table(of, *path).get(last)
    return found if isinstance(found, str) else ""


def content(event: Event) -> Mapping[str, Any]:
    """Return an event's content."""
    return table(event, "content")


def moment(event: Event) -> datetime:
    """Return the time given by the homeserver, or the current time if that is invalid."""
    try:
        return datetime.fromtimestamp(event["origin_server_ts"] / 1000, timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.now(timezone.utc)


def thread(said: Mapping[str, Any]) -> str:
    """Return the id of the thread's first message, or an empty string outside threads."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.thread" else ""


def answered(said: Mapping[str, Any]) -> str:
    """Return the id of the answered message, ignoring fallbacks for clients without threads."""
    relation = table(said, "m.relates_to")
    if thread(said) and relation.get("is_falling_back"):
        return ""
    return words(relation, "m.in_reply_to", "event_id")


def edited(said: Mapping[str, Any]) -> str:
    """Return the id of the edited message, or an empty string if this is not an edit."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.replace" else ""


def redacted(event: Event) -> str:
    """Return the id of the deleted message."""
    return words(event, "redacts") or words(content(event), "redacts")


def text(said: Mapping[str, Any], name: str = "") -> str:
    """Return the text of a message; `name` is the sender's name."""
    body = words(said, "body")
    if words(table(said, "m.relates_to"), "m.in_reply_to", "event_id"):
        body = _FALLBACK.sub("", body, count=1) if body.startswith("> <") else body
    match words(said, "msgtype"):
        case "m.emote":
            return f"* {name} {body}"
        case "m.location":
            return f"{body} {words(said, 'geo_uri')}".strip()
        case "m.image" | "m.file" | "m.audio" | "m.video":
            # Without a caption, the body only repeats the file's name.
            return "" if words(said, "filename") in ("", body) else body
        case _:
            return body
