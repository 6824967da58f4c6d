"""Any server that speaks OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2

from nanoloop.errors import ProviderError, ProviderTimeout, SettingsError
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec
from nanoloop.providers import answer, failures
from nanoloop.providers.by_loop import ByLoop
from nanoloop.providers.endpoint import Endpoint, Refused
from nanoloop.providers.failures import Asked
from nanoloop.providers.wire import request_bytes

DEFAULT_BASE_URL = "https://api.openai.com/v1"
HEADERS: Mapping[str, str] = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "User-Agent": "nanoloop",
}
OWN = {"messages", "model", "stream", "tools"}
"""What a request says that no option may."""
CLOSE_SECONDS = 1


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
        self._endpoints = ByLoop(
            partial(
                Endpoint,
                _completions(self._url),
                headers={**HEADERS, **_authorization(self._key)},
                connect_timeout_seconds=connect_timeout_seconds,
                max_retries=max_retries,
            )
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
            except (Refused, httpx2.HTTPError, httpx2.InvalidURL, answer.ServerSaid) as error:
                failure = _failure(asked, error)
            # Raised outside of `except`: what was raised there quotes the server, and no traceback
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
        await self._endpoints.close()

    def _asked(self, model: str, body: bytes) -> Asked:
        secrets = (self._key, *failures.url_secrets(self._url))
        return Asked(
            where=failures.shown_url(self._url),
            model=model,
            has_key=bool(self._key),
            secrets=tuple(secret for secret in secrets if secret),
            body=body,
        )

    @property
    def _endpoint(self) -> Endpoint:
        if self._endpoints.is_closed:
            raise ProviderError("this provider is closed: make a new one")
        return self._endpoints.here()

    async def _whole(self, asked: Asked) -> Reply:
        response = await self._endpoint.post(asked.body)
        return answer.whole(asked, response.content)[0]

    async def _stream(self, asked: Asked, on_text: OnText) -> Reply:
        with anyio.CancelScope() as patience:
            response = await self._endpoint.post(
                asked.body,
                stream=True,
                patience=patience,
                patience_seconds=self._first_token_timeout_seconds,
            )
            try:
                return await answer.read(asked, response, on_text, patience)
            finally:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await response.aclose()
        raise ProviderTimeout(
            f"{asked.where} said nothing for {self._first_token_timeout_seconds:g} seconds: "
            "try again, or raise first_token_timeout_seconds"
        )


def _failure(asked: Asked, error: Exception) -> ProviderError:
    if isinstance(error, Refused):
        return failures.refusal(
            asked, status=error.status, said=error.said, retry_after=error.retry_after
        )
    if isinstance(error, answer.ServerSaid):
        return failures.refusal(asked, status=_status_in(error.said), said=error.said)
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)):
        return failures.no_connection(asked, str(error))
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
        _ = urlsplit(url).port  # which is below 65536
    except (ValueError, httpx2.InvalidURL):
        raise SettingsError("base_url is no URL: it looks like http://localhost:8080/v1") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingsError("base_url has to begin with http:// or https:// and name a host")
    return url


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _completions(url: str) -> httpx2.URL:
    parsed = httpx2.URL(url)
    path, mark, query = parsed.raw_path.partition(b"?")
    path = path.rstrip(b"/") + b"/chat/completions"
    return parsed.copy_with(raw_path=path + mark + query, fragment=None)


def _clean_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if taken := sorted(OWN & set(options or ())):
        raise SettingsError(f"options may not set {', '.join(taken)}: leave it out")
    return dict(options or {})
