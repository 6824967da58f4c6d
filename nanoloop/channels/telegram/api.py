"""Calls Telegram's API, and handles its limits and failures."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import anyio
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    InvalidToken,
    NetworkError,
    TelegramError,
)
from telegram.request import HTTPXRequest

from nanoloop.channels.kit.platform import FormatRefused, MessageGone, Refused, TooLong
from nanoloop.errors import Declined, NanoloopError, SendLater

CONNECTIONS = 256
POOL_SECONDS = 30.0
"""How long a request waits for a free connection."""
ANSWER_SECONDS = 20.0
"""The timeout is generous, because a message that is sent again may appear twice."""
PARTING_SECONDS = 5.0
"""On shutdown, how long to wait for requests in progress."""
POLL = "/GetUpdates"
"""How the URL for polling ends; Telegram accepts a method's name in any case."""
_WITH_TOKEN = re.compile(r"/bot\d+:")


class Limited(TelegramError):
    """Telegram received too many requests; `seconds` is how long to wait."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__("too many requests")
        self.seconds = seconds


class TelegramRequest(HTTPXRequest):
    """An HTTP client with quieter logs that lets requests in progress finish on shutdown."""

    def __init__(self) -> None:
        super().__init__(
            connection_pool_size=CONNECTIONS,
            pool_timeout=POOL_SECONDS,
            read_timeout=ANSWER_SECONDS,
            connect_timeout=ANSWER_SECONDS,
        )
        self._running = 0
        self._ended = anyio.Event()
        _hush()

    async def do_request(self, url: str, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        """Send a request; raises `Limited` and the library's errors."""
        # If its response were lost, a message would be sent again and appear twice.
        with anyio.CancelScope(shield=not url.endswith(POLL)):
            code, payload = await self._request(url, *args, **kwargs)
        if code == HTTPStatus.TOO_MANY_REQUESTS:
            raise Limited(_retry_after(payload))
        return code, payload

    async def shutdown(self) -> None:
        """Close all connections once all requests have ended, or after waiting too long."""
        with anyio.move_on_after(PARTING_SECONDS):
            while self._running:
                if self._ended.is_set():  # the library may call this twice at the same time
                    self._ended = anyio.Event()
                await self._ended.wait()
        await super().shutdown()

    async def _request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        self._running += 1
        try:
            return await super().do_request(*args, **kwargs)
        finally:
            self._running -= 1
            self._ended.set()

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Parse a response; the library would log the content of an unreadable one."""
        with suppress(ValueError):
            said = json.loads(payload)
            if isinstance(said, dict):
                return said
        raise TelegramError("the response is not JSON")


def _retry_after(payload: bytes) -> float | None:
    with suppress(ValueError, KeyError, TypeError):
        return float(json.loads(payload)["parameters"]["retry_after"])
    return None


def _hush() -> None:
    """Keep URLs and parameters out of logs, as they may contain the token or users' text."""
    logging.getLogger("httpx").addFilter(_names_no_token)
    logging.getLogger("telegram").setLevel(logging.WARNING)


def _names_no_token(record: logging.LogRecord) -> bool:
    return _WITH_TOKEN.search(record.getMessage()) is None


UNKNOWN_BOT = (
    "Telegram rejects this token: get it from @BotFather with /mybots, and set "
    "NANOLOOP_CHANNELS__TELEGRAM__TOKEN or channels.telegram.token"
)
OTHER_POLLER = "another program reads this bot's messages: stop it, or use another bot"
OTHER_WEBHOOK = (
    "another program set a webhook for this bot: stop that program, or set "
    "channels.telegram.webhook_url"
)
UNCHANGED = "message is not modified"
"""The reason Telegram gives for declining an edit that changes nothing."""
_KNOWN = (
    UNCHANGED,
    "bad webhook",
    "blocked by the user",
    "chat not found",
    "file is too big",
    "group chat was deactivated",
    "have no rights to send",
    "message thread not found",
    "not a member of",
    "not enough rights",
    "can't initiate conversation",
    "topic_closed",
    "user is deactivated",
    "was kicked from",
)
"""Telegram's known error messages about chats; none of them contains users' text."""
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


@contextmanager
def explained() -> Iterator[None]:
    """Convert the library's errors to the kit's, except when a group has moved.

    The library's errors may contain a URL with the token, so they are not kept as the cause.
    """
    try:
        yield
    except ChatMigrated:
        raise
    except TelegramError as error:
        raise _meaning(error) from None


@contextmanager
def answered() -> Iterator[None]:
    """Like `explained`, but for sending: a rejected token is left for the listener to report."""
    try:
        with explained():
            yield
    except Refused:
        raise SendLater("the token was refused") from None


def _meaning(error: TelegramError) -> Exception:
    match error:
        case Limited():
            return SendLater("rate limit", seconds=error.seconds)
        case InvalidToken() | EndPointNotFound():  # the latter for a malformed token
            return Refused(UNKNOWN_BOT)
        case Conflict():
            return SendLater(OTHER_WEBHOOK if "webhook" in str(error).lower() else OTHER_POLLER)
        case NetworkError() if not isinstance(error, BadRequest):  # a subclass of NetworkError
            is_large = "too large" in str(error).lower()
            return Declined("file is too big") if is_large else SendLater("the network failed")
        case _ if type(error) is TelegramError:
            return SendLater("the response can't be read")
    return _refusal(error)


def _refusal(error: TelegramError) -> NanoloopError:
    words = str(error).lower()
    if "can't parse entities" in words:
        return FormatRefused()
    if "is too long" in words:
        return TooLong()
    if any(gone in words for gone in _GONE):
        return MessageGone()
    # The full text may quote the message.
    known = next((phrase for phrase in _KNOWN if phrase in words), None)
    return Declined(known or type(error).__name__)
