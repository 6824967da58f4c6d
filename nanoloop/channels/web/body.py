"""Reading the body of a request: so much at most, and in so much time."""

from __future__ import annotations

import anyio
from starlette.requests import Request

from nanoloop.channels.web.number import number_in
from nanoloop.channels.web.refusal import Refusal


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """All of it; raises a refusal where it is too large or too slow."""
    told = request.headers.get("content-length", "")
    length = number_in(told)
    if (length is None and told) or (length and length > limit):
        raise _too_large(limit)
    try:
        with anyio.fail_after(seconds):
            return await _read(request, limit)
    except TimeoutError:
        closing = {"Connection": "close"}
        raise Refusal(408, "the request took too long to arrive", headers=closing) from None


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> Refusal:
    # The connection stays open: what still comes is thrown away, so that the client hears of this.
    return Refusal(413, f"that is more than {limit} bytes: send less")
