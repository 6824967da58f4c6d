"""Calls a model server through its vendor's SDK, with time limits and retries.

Before an answer begins, the SDK retries failures; afterwards, this module does.
"""

from __future__ import annotations

import asyncio
import os
import random
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread

from nanoloop.errors import (
    BrokenOff,
    NoConnection,
    ProviderError,
    ProviderTimeout,
    ServerFailed,
    SettingsError,
)
from nanoloop.protocols import OnText, Reply
from nanoloop.providers import failures
from nanoloop.providers.answer import AnswerLimits, PartialAnswer
from nanoloop.providers.failures import Asked

if TYPE_CHECKING:  # loaded in a thread with the first call, because loading takes long
    import httpx2

    from nanoloop.providers.http import Patience

OF_THIS_MACHINE = (
    "X-Stainless-Arch",
    "X-Stainless-Async",
    "X-Stainless-Lang",
    "X-Stainless-OS",
    "X-Stainless-Package-Version",
    "X-Stainless-Runtime",
    "X-Stainless-Runtime-Version",
)
"""Headers with which an SDK reveals details about this machine."""
CLOSE_SECONDS = 1
LINGER_SECONDS = 0.25
"""How long a finished stream may take to end, so that its connection can be reused."""
USAGE_SECONDS = 5
"""How long to wait for the usage after an answer, and for the stream to end."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
_PASSING = (BrokenOff, NoConnection, ServerFailed)
"""Failures that occur after an answer has begun and may be temporary."""

MakeSDK = Callable[["httpx2.AsyncClient"], "SDK"]
"""Makes a vendor's client that uses this HTTP client."""
Take = Callable[[PartialAnswer, Mapping[str, Any]], str]
"""Adds an event, or a whole answer, to the draft; returns the new text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SDK:
    """A vendor's SDK, with the arguments for using it here."""

    client: Any
    options: Mapping[str, Any]
    """The arguments to `post` for each request."""
    error: type[Exception]
    """The base class of the SDK's errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits on a server's time, retries and data."""

    first_token_timeout_seconds: float
    call_timeout_seconds: float
    max_retries: int
    limits: AnswerLimits


@dataclass(slots=True)
class _Client:
    """The SDK's client for one event loop, because connections can't be shared between loops."""

    sdk: Any = None
    """An `SDK`, once it has been created."""
    calls: int = 0
    """The number of calls in progress."""
    making: anyio.Lock = field(default_factory=anyio.Lock)


class HostedServer:
    """Sends requests to one server as bytes and returns its replies."""

    def __init__(self, url: str, path: str, *, make_sdk: MakeSDK, terms: Terms) -> None:
        """Create the object; `path` is the URL of the call, as the SDK's `post` expects it."""
        self._url = url
        self._path = path
        self._make_sdk = make_sdk
        self._terms = terms
        self._clients: WeakKeyDictionary[AbstractEventLoop, _Client] = WeakKeyDictionary()
        self._http: Any = None
        """The module that imports slow libraries."""
        self._is_closed = False

    async def ask(self, asked: Asked, take: Take, on_text: OnText | None) -> Reply:
        """Return the answer, streaming text to `on_text` if given; raises only `ProviderError`."""
        client = await self._client()
        with anyio.move_on_after(self._terms.call_timeout_seconds):
            return await self._asked(client, asked, take, on_text)
        raise ProviderTimeout(
            f"{asked.where} did not finish within {self._terms.call_timeout_seconds:g} seconds: "
            "try again, or raise call_timeout_seconds"
        )

    async def _asked(
        self, client: _Client, asked: Asked, take: Take, on_text: OnText | None
    ) -> Reply:
        patience = self._http.Patience(self._terms.max_retries)
        for tried in count():
            call = _HostedCall(asked, take, on_text, self._terms.limits)
            try:
                reply = await self._answer(client, call, patience)
            except (*self._http.ERRORS, client.sdk.error) as error:
                failure = self._http.failure(asked, error)
            except ProviderError as error:
                failure = error
            else:
                return reply
            # Raised outside of `except`: the original error quotes the server, so no traceback may
            # show it.
            if not (patience.retries_left and call.may_be_made_again(failure)):
                raise failure
            await anyio.sleep(_pause(tried))
        raise AssertionError("unreachable: the numbers never run out")

    async def _answer(self, client: _Client, call: _HostedCall, patience: Patience) -> Reply:
        client.calls += 1
        try:
            if call.on_text is None:
                return await self._answer_of(client, call, patience)
            with anyio.CancelScope() as scope:
                patience.watch(scope, self._terms.first_token_timeout_seconds)
                return await self._answer_of(client, call, patience)
        finally:
            client.calls -= 1
            if self._is_closed and not client.calls:
                await client.sdk.client.close()
        raise ProviderTimeout(
            f"{call.asked.where} sent nothing for {patience.seconds:g} seconds: "
            "try again, or raise first_token_timeout_seconds"
        )

    async def _answer_of(self, client: _Client, call: _HostedCall, patience: Patience) -> Reply:
        response = await self._posted(client, call, patience)
        try:
            return await call.read(response, patience, self._http)
        finally:
            if not response.is_closed:
                with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await response.aclose()

    async def _posted(
        self, client: _Client, call: _HostedCall, patience: Patience
    ) -> httpx2.Response:
        try:
            response: httpx2.Response = await self._http.post(
                client.sdk, self._path, call.asked.body, patience
            )
        except RuntimeError:
            if not self._is_closed:
                raise
        else:
            return response
        raise _closed()

    async def load(self) -> None:
        """Load the SDK and create its client in a thread; the first call also does this."""
        await self._client()

    async def _client(self) -> _Client:
        if self._is_closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop) or self._clients.setdefault(loop, _Client())
        if client.sdk is None:
            async with client.making:
                if client.sdk is None:
                    self._http, client.sdk = await to_thread.run_sync(self._made)
        return client

    def _made(self) -> tuple[Any, SDK]:
        try:
            from nanoloop.providers import http  # noqa: PLC0415 - with an SDK

            return http, self._make_sdk(http.make_client(self._url))
        except ProviderError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's error may quote settings
            what = type(error).__name__
        raise ProviderError(
            f"{failures.shown_url(self._url)} can't be called ({what}): check that address, the "
            "proxies in the environment, SSL_CERT_FILE, and the installed SDK"
        )

    async def close(self) -> None:
        """Close each connection once its call has finished; safe to call twice."""
        self._is_closed = True
        while self._clients:
            loop, client = self._clients.popitem()
            if client.sdk is None or client.calls:
                continue
            if loop is asyncio.get_running_loop():
                await client.sdk.client.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(client.sdk.client.close(), loop)
                with anyio.move_on_after(CLOSE_SECONDS):  # the other loop may end meanwhile
                    await asyncio.wrap_future(closing)


def headers_in(variable: str) -> list[str]:
    """Return the names of the headers that an environment variable adds to an SDK's requests."""
    lines = os.environ.get(variable, "").split("\n")
    return [line.partition(":")[0].strip() for line in lines if ":" in line]


def _closed() -> ProviderError:
    return ProviderError("this provider is closed: create a new one")


def _pause(tried: int) -> float:
    longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(tried, 10), LONGEST_PAUSE_SECONDS)
    return longest * random.uniform(0.75, 1)  # noqa: S311 - spreads out the retries


class _HostedCall:
    """One request and its answer."""

    def __init__(
        self, asked: Asked, take: Take, on_text: OnText | None, limits: AnswerLimits
    ) -> None:
        self.asked = asked
        self.on_text = on_text
        self._take = take
        self._limits = limits
        self._draft = PartialAnswer(limits)
        self._has_answered = False
        self._was_heard = False

    def may_be_made_again(self, failure: ProviderError) -> bool:
        """Return whether to retry: only if the answer has begun but no text has been shown."""
        return self._has_answered and not self._was_heard and isinstance(failure, _PASSING)

    async def read(self, response: httpx2.Response, patience: Patience, http: Any) -> Reply:
        """Read the answer from a stream, or from a server that doesn't stream."""
        self._has_answered = True
        kind = response.headers.get("content-type", "")
        if self.on_text is not None and "json" not in kind and "html" not in kind:
            await self._read_events(response, patience, http)
        else:
            await self._read_whole(response, http)
        return self._draft.reply()

    async def _read_whole(self, response: httpx2.Response, http: Any) -> None:
        try:
            data = failures.answered(self.asked, await http.body(response, self._limits.body_bytes))
        except http.TooMuch as cut:
            data = http.begun(cut.data)
            self._draft.cut()
        self._tell(self._take(self._draft, data))

    async def _read_events(self, response: httpx2.Response, patience: Patience, http: Any) -> None:
        try:
            with anyio.CancelScope() as ending:
                async for event in http.events(response, self._limits):
                    patience.end()
                    if not self._draft.is_done:
                        self._hear(event)
                    if self._draft.is_full:
                        return
                    if self._draft.has_ended:
                        seconds = LINGER_SECONDS if self._draft.is_done else USAGE_SECONDS
                        ending.deadline = min(ending.deadline, anyio.current_time() + seconds)
        except http.TooMuch:
            self._draft.cut()
        except http.ERRORS:
            # The answer was complete when the connection broke.
            if not self._draft.has_ended:
                raise
        if not (self._draft.has_ended or self._draft.is_full):
            raise BrokenOff(
                f"the answer from {self.asked.where} broke off in the middle: try again"
            )

    def _hear(self, event: bytes) -> None:
        if event == b"[DONE]":
            self._draft.is_done = True
        else:
            self._tell(self._take(self._draft, failures.answered(self.asked, event)))

    def _tell(self, text: str) -> None:
        if text and self.on_text is not None and not self._draft.has_failed:
            self._was_heard = True
            self.on_text(text)


# Arguments of providers


def clean_key(key: str | None) -> str:
    """Return the key without surrounding space; raises `SettingsError` if it is invalid."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("the key contains invalid characters: copy it again")
    return key


def clean_url(base_url: str) -> str:
    """Return the base URL; raises `SettingsError` if it is invalid."""
    url = base_url.strip()
    try:
        parts = urlsplit(url)
        failures.shown_url(url)
        _ = parts.port  # raises ValueError above 65535
    except ValueError:
        raise SettingsError(
            "base_url is not a URL: write one such as http://localhost:8080/v1"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("base_url must begin with http:// or https:// and name a host")
    return url


def clean_options(options: Mapping[str, Any] | None, own: Collection[str]) -> dict[str, Any]:
    """Return a request's options; raises `SettingsError` for those set by the provider."""
    if taken := sorted(set(own) & set(options or ())):
        raise SettingsError(f"options may not set {', '.join(taken)}: remove it")
    return dict(options or {})


def asked_of(
    url: str, *, key: str, key_name: str = "OPENAI_API_KEY"
) -> Callable[[str, bytes], Asked]:
    """Return a function that returns what a call's errors need, given its model and its body."""
    where, secrets = failures.shown_url(url), (key, *failures.url_secrets(url))
    told = tuple(secret for secret in secrets if secret)
    return lambda model, body: Asked(
        where=where, model=model, has_key=bool(key), secrets=told, body=body, key_name=key_name
    )
