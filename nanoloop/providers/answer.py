"""An answer, read off a response: streamed or whole."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import httpx2

from nanoloop.errors import BadAnswer
from nanoloop.protocols import OnText, Reply
from nanoloop.providers import failures
from nanoloop.providers.failures import Asked
from nanoloop.providers.wire import Draft

LINGER_SECONDS = 0.25
"""How long a finished stream may take to end, so that its connection can be used again."""


class ServerSaid(Exception):
    """An error object in place of an answer."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__()
        self.said = said


async def read(
    asked: Asked, response: httpx2.Response, on_text: OnText, patience: anyio.CancelScope
) -> Reply:
    """The answer of a stream, or of a server that doesn't stream; `patience` ends with a piece."""
    kind = response.headers.get("content-type", "")
    if "json" not in kind and "html" not in kind:
        return await _streamed(asked, response, on_text, patience)
    reply, text = whole(asked, await response.aread())
    if text:
        on_text(text)
    return reply


async def _streamed(
    asked: Asked, response: httpx2.Response, on_text: OnText, patience: anyio.CancelScope
) -> Reply:
    draft = Draft()
    is_done = False
    try:
        with anyio.CancelScope() as ending:
            async for event in _events(response):
                if patience.deadline != math.inf:
                    patience.deadline = math.inf
                if event == b"[DONE]":
                    is_done = True
                    ending.deadline = anyio.current_time() + LINGER_SECONDS
                elif not is_done and (text := draft.add(_answer(asked, event))):
                    on_text(text)
    except httpx2.HTTPError:
        # All was said before the connection broke.
        if draft.finish_reason is None:
            raise
    if not is_done and draft.finish_reason is None:
        raise BadAnswer(f"the answer of {asked.where} broke off in the middle: try again")
    return draft.reply()


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def whole(asked: Asked, body: bytes) -> tuple[Reply, str]:
    """The answer in a body, and its text."""
    draft = Draft()
    text = draft.add(_answer(asked, body))
    return draft.reply(), text


def _answer(asked: Asked, body: bytes) -> dict[str, Any]:
    data = decoded(body)
    if not isinstance(data, dict):
        raise failures.no_answer(asked, body)
    if data.get("error"):
        raise ServerSaid(data)
    return data


def decoded(body: bytes) -> Any:
    """The JSON in it, or None."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
