"""A URL that is asked until it answers, as often as that helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count

import anyio
import httpx2

from nanoloop.errors import ProviderError
from nanoloop.providers import attempts
from nanoloop.providers.answer import decoded
from nanoloop.providers.connections import direct
from nanoloop.providers.failures import out_of_credit

CONNECTIONS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
"""Where a proxy stands between; else there are as many as there are calls."""


class Refused(Exception):
    """The server answered, and not with success."""

    def __init__(self, status: int, *, said: object, retry_after: str | None) -> None:
        super().__init__()
        self.status = status
        self.said = said
        self.retry_after = retry_after


class Endpoint:
    """Connections to one URL."""

    def __init__(
        self,
        url: httpx2.URL,
        *,
        headers: Mapping[str, str],
        connect_timeout_seconds: float,
        max_retries: int,
    ) -> None:
        self._url = url
        self._max_retries = max_retries
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=connect_timeout_seconds),
            limits=CONNECTIONS,
            transport=direct(url.host),
        )

    async def post(
        self,
        body: bytes,
        *,
        stream: bool = False,
        patience: anyio.CancelScope | None = None,
        patience_seconds: float = math.inf,
    ) -> httpx2.Response:
        """The answer, whole or still to be read; raises `Refused` and `httpx2.HTTPError`.

        `patience` ends so long after each attempt begins, and not while the next one is awaited:
        that wait is as long as the server asks.
        """
        patience = patience or anyio.CancelScope()
        for tried in count():
            patience.deadline = anyio.current_time() + patience_seconds
            try:
                response = await self._sent(body, stream=stream)
                if response.is_success:
                    return response
                await response.aread()
            except httpx2.TransportError:
                if tried >= self._max_retries:
                    raise
                pause = attempts.pause(tried=tried)
            else:
                patience.deadline = math.inf
                pause = self._pause_after(response, tried=tried)
            patience.deadline = math.inf
            await anyio.sleep(pause)
        raise AssertionError("counting has no end")

    async def _sent(self, body: bytes, *, stream: bool) -> httpx2.Response:
        if self._http.is_closed:
            raise ProviderError("this provider is closed: make a new one")
        request = self._http.build_request("POST", self._url, content=body)
        return await self._http.send(request, stream=stream)

    def _pause_after(self, response: httpx2.Response, *, tried: int) -> float:
        """Seconds until the next try; raises `Refused` where there is none."""
        said = decoded(response.content) or response.text
        status, headers = response.status_code, response.headers
        pause = attempts.pause_after(status, headers, tried=tried)
        is_over = tried >= self._max_retries or out_of_credit(status, said)
        if pause is None or is_over or _is_too_long(pause):
            raise Refused(status, said=said, retry_after=headers.get("retry-after"))
        return pause

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()


def _is_too_long(pause: float) -> bool:
    """Whether the call will be given up before."""
    return anyio.current_time() + pause > anyio.current_effective_deadline()
