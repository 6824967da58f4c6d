"""Calls to Telegram, their limits and their failures."""

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
"""How long a message waits for a free connection."""
ANSWER_SECONDS = 20.0
"""After this long a message is sent again and may be seen twice, so it is better to wait."""
PARTING_SECONDS = 5.0
"""How long the connections stay open for requests in progress."""
POLL = "/GetUpdates"
"""The end of a poll's address; Telegram accepts a method's name in any case."""
_WITH_TOKEN = re.compile(r"/bot\d+:")


class Limited(TelegramError):
    """Too many requests; `seconds` says when the next one is allowed."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__("too many requests")
        self.seconds = seconds


class TelegramRequest(HTTPXRequest):
    """The library's class with quieter logs; it lets requests in progress finish on shutdown."""

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
        """The response; raises `Limited`, or whatever the library raises."""
        # A message whose answer nobody hears would be sent again, and seen twice.
        with anyio.CancelScope(shield=not url.endswith(POLL)):
            code, payload = await self._request(url, *args, **kwargs)
        if code == HTTPStatus.TOO_MANY_REQUESTS:
            raise Limited(_retry_after(payload))
        return code, payload

    async def shutdown(self) -> None:
        """Close all connections once no request is in progress or waiting takes too long."""
        with anyio.move_on_after(PARTING_SECONDS):
            while self._running:
                if self._ended.is_set():  # the library shuts it down twice at once
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
        """Read a response; the library would log an unreadable one with all its content."""
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
    """Keep addresses, which contain the token, and parameters, which may be text, out of logs."""
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
"""Why an edit that changes nothing is declined."""
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
"""What Telegram says about chats, where documented and free of users' words."""
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


@contextmanager
def explained() -> Iterator[None]:
    """Raise errors that the kit understands; for a group that has moved, the library's own.

    The library's errors may contain an address with the token, so none is shown as a cause.
    """
    try:
        yield
    except ChatMigrated:
        raise
    except TelegramError as error:
        raise _meaning(error) from None


@contextmanager
def answered() -> Iterator[None]:
    """Like `explained`, while a message is sent: the listener reports a refused token."""
    try:
        with explained():
            yield
    except Refused:
        raise SendLater("the token was refused") from None


def _meaning(error: TelegramError) -> Exception:
    match error:
        case Limited():
            return SendLater("rate limit", seconds=error.seconds)
        case InvalidToken() | EndPointNotFound():  # the latter where it is asked by name
            return Refused(UNKNOWN_BOT)
        case Conflict():
            return SendLater(OTHER_WEBHOOK if "webhook" in str(error).lower() else OTHER_POLLER)
        case NetworkError() if not isinstance(error, BadRequest):  # which is one to the library
            return SendLater("the network failed")
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
    # Its whole text may quote what was sent.
    known = next((phrase for phrase in _KNOWN if phrase in words), None)
    return Declined(known or type(error).__name__)
