"""Requests to Telegram that leave no token and no text in a log."""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import anyio
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

CONNECTIONS = 256
POOL_SECONDS = 30.0
"""How long a message waits for one of them."""
ANSWER_SECONDS = 20.0
"""A message whose answer takes longer is sent again, and may be seen twice: better wait."""
PARTING_SECONDS = 5.0
"""How long the connections stay open for what is on its way."""
POLL = "/GetUpdates"
"""How the address of a poll ends; Telegram takes a method's name in any case."""
_WITH_TOKEN = re.compile(r"/bot\d+:")


class Limited(TelegramError):
    """Too many requests; `seconds` says when the next one is welcome."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__("too many requests")
        self.seconds = seconds


class Request(HTTPXRequest):
    """As the library has it, but for its logs, and for its end: what is on its way arrives."""

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
        """What was answered; raises `Limited`, and else as the library."""
        # A message whose answer nobody hears would be sent again, and seen twice.
        with anyio.CancelScope(shield=not url.endswith(POLL)):
            code, payload = await self._request(url, *args, **kwargs)
        if code == HTTPStatus.TOO_MANY_REQUESTS:
            raise Limited(_retry_after(payload))
        return code, payload

    async def shutdown(self) -> None:
        """Close all connections, as soon as nothing is on its way or that takes too long."""
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
        """Read an answer; the library would log one that can't be read, with all it says."""
        with suppress(ValueError):
            said = json.loads(payload)
            if isinstance(said, dict):
                return said
        raise TelegramError("the answer is no JSON")


def _retry_after(payload: bytes) -> float | None:
    with suppress(ValueError, KeyError, TypeError):
        return float(json.loads(payload)["parameters"]["retry_after"])
    return None


def _hush() -> None:
    """Each address holds the token, and each parameter may be a text: none is logged."""
    logging.getLogger("httpx").addFilter(_names_no_token)
    logging.getLogger("telegram").setLevel(logging.WARNING)


def _names_no_token(record: logging.LogRecord) -> bool:
    return _WITH_TOKEN.search(record.getMessage()) is None
