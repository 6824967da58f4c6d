"""Any server that speaks OpenAI's chat completions; the only file that imports the SDK."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any

import anyio
import httpx2
import openai

from nanoloop.errors import ProviderError, ProviderTimeout, SettingsError
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec
from nanoloop.providers import answer, failures
from nanoloop.providers.by_loop import ByLoop
from nanoloop.providers.failures import Asked
from nanoloop.providers.pools import small_pools
from nanoloop.providers.wire import request_bytes

DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "none"
"""What a server that wants no key is sent."""
HEADERS: Mapping[str, str | openai.Omit] = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "User-Agent": "nanoloop",
}
OWN = {"messages", "model", "stream", "tools"}
"""What a request says that no option may."""
CLOSE_SECONDS = 1
CONNECTIONS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)

_patience: ContextVar[anyio.CancelScope | None] = ContextVar("patience", default=None)
"""The scope that ends a stream whose first piece is late."""


class _Client(openai.AsyncOpenAI):
    """The SDK's client, with these headers and no others from the environment."""

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return {**HEADERS}


class OpenAIProvider:
    """A model behind a chat completions URL."""

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        connect_timeout_seconds: float = 10,
        first_token_timeout_seconds: float = 60,
        call_timeout_seconds: float = 300,
        max_retries: int = 2,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` go into each request as they are (`temperature` …); None leaves one out."""
        self._model = model
        self._key = _clean_key(api_key)
        self._url = _clean_url(base_url)
        self._options = _clean_options(options)
        self._first_token_timeout_seconds = first_token_timeout_seconds
        self._call_timeout_seconds = call_timeout_seconds
        self._clients = ByLoop(partial(self._connect, connect_timeout_seconds, max_retries))

    def _connect(self, connect_timeout_seconds: float, max_retries: int) -> _Client:
        http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=connect_timeout_seconds),
            limits=CONNECTIONS,
            transport=small_pools(),
            event_hooks={"request": [self._begin_attempt], "response": [self._end_attempt]},
        )
        url = httpx2.URL(self._url)
        return _Client(
            api_key=self._key or NO_KEY,
            admin_api_key="",
            base_url=url.copy_with(query=None, fragment=None),
            default_query=dict(url.params),
            max_retries=max_retries,
            http_client=http,
        )

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer; with `on_text` the text comes in pieces too. Raises `ProviderError` only."""
        model = model or self._model
        body = request_bytes(
            model=model,
            options=self._options,
            tools=tools or (),
            messages=messages,
            stream=on_text is not None,
        )
        asked = self._asked(model, body)
        with anyio.move_on_after(self._call_timeout_seconds):
            try:
                return await (self._stream(asked, on_text) if on_text else self._whole(asked))
            except (openai.OpenAIError, httpx2.HTTPError, answer.ServerSaid) as error:
                failure = _failure(asked, error)
            # Raised outside of `except`: what the SDK raised quotes the server, and no traceback
            # may lead there.
            raise failure
        raise ProviderTimeout(
            f"{asked.where} had not finished after {self._call_timeout_seconds:g} seconds: "
            "try again, or raise call_timeout_seconds"
        )

    def with_options(self, options: Mapping[str, Any]) -> OpenAIProvider:
        """One whose requests have these options too; it shares the connections."""
        other = copy(self)
        other._options = {**self._options, **_clean_options(options)}  # noqa: SLF001 - its own
        return other

    async def close(self) -> None:
        """Let go of connections; closing twice is fine."""
        await self._clients.close()

    def _asked(self, model: str, body: bytes) -> Asked:
        secrets = (self._key, *failures.url_secrets(self._url))
        return Asked(
            where=failures.shown_url(self._url),
            model=model,
            has_key=bool(self._key),
            secrets=tuple(secret for secret in secrets if secret),
            body=body,
        )

    async def _post(self, body: bytes, *, stream: bool) -> httpx2.Response:
        # Not `chat.completions.create`, which checks each message again: ten times as slow.
        if self._clients.is_closed:
            raise ProviderError("this provider is closed: make a new one")
        return await self._clients.here().post(
            "/chat/completions", content=body, cast_to=httpx2.Response, stream=stream
        )

    async def _whole(self, asked: Asked) -> Reply:
        response = await self._post(asked.body, stream=False)
        return answer.whole(asked, response.content)[0]

    async def _stream(self, asked: Asked, on_text: OnText) -> Reply:
        with anyio.CancelScope() as patience:
            mark = _patience.set(patience)
            try:
                response = await self._post(asked.body, stream=True)
            finally:
                _patience.reset(mark)
            try:
                return await answer.read(asked, response, on_text, patience)
            finally:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await response.aclose()
        raise ProviderTimeout(
            f"{asked.where} said nothing for {self._first_token_timeout_seconds:g} seconds: "
            "try again, or raise first_token_timeout_seconds"
        )

    async def _begin_attempt(self, _: httpx2.Request) -> None:
        if patience := _patience.get():
            patience.deadline = anyio.current_time() + self._first_token_timeout_seconds

    async def _end_attempt(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        if patience := _patience.get():
            # The wait before the next attempt is as long as the server asks.
            patience.deadline = math.inf
        if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
            await response.aread()
            if failures.out_of_credit(429, answer.decoded(response.content)):
                response.headers["x-should-retry"] = "false"


def _failure(asked: Asked, error: Exception) -> ProviderError:
    if isinstance(error, openai.APIStatusError):
        return failures.refusal(
            asked,
            status=error.status_code,
            said=error.body,
            retry_after=error.response.headers.get("retry-after"),
        )
    if isinstance(error, answer.ServerSaid):
        return failures.refusal(asked, status=_status_in(error.said), said=error.said)
    cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    if isinstance(cause, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)):
        return failures.no_connection(asked, str(cause))
    return failures.broken_off(asked)


def _status_in(said: Mapping[str, Any]) -> int | None:
    inner = said["error"]
    code = inner.get("code") if isinstance(inner, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else None  # noqa: PLR2004


def _clean_key(key: str | None) -> str:
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("the key holds characters that no key has: copy it again")
    return key


def _clean_url(base_url: str | None) -> str:
    url = (base_url or DEFAULT_BASE_URL).strip()
    try:
        parsed = httpx2.URL(url)
        failures.shown_url(url)
    except (ValueError, httpx2.InvalidURL):
        raise SettingsError("base_url is no URL: it looks like http://localhost:8080/v1") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingsError("base_url has to begin with http:// or https:// and name a host")
    return url


def _clean_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if taken := sorted(OWN & set(options or ())):
        raise SettingsError(f"options may not set {', '.join(taken)}: leave it out")
    return dict(options or {})
