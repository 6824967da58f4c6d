"""The HTTP client for the SDKs, with limits on the data that servers may send.

Imported with the first call to a hosted model, because it imports the OpenAI SDK.
"""

from __future__ import annotations

import math
import time
import zlib
from codecs import BOM_UTF8
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import anyio
import httpx2
import jiter
import openai

from nanoloop.errors import ProviderError, ServerFailed, SettingsError, how_to_install
from nanoloop.providers import failures
from nanoloop.providers.answer import AnswerLimits
from nanoloop.providers.failures import Asked, ServerSaid
from nanoloop.proxies import is_socks, proxy_for, shown

try:
    from socksio import ProtocolError

    _SOCKS_ERRORS: tuple[type[Exception], ...] = (ProtocolError,)
except ImportError:  # an optional dependency
    _SOCKS_ERRORS = ()

if TYPE_CHECKING:
    from nanoloop.providers.hosted import SDK

CONNECT_TIMEOUT_SECONDS = 10
"""How long connecting to a server may take."""
CLOSE_SECONDS = 1
KEPT_SECONDS = 4
"""Idle connections are closed after this time, because some servers close them after 5 s."""
REFUSAL_BYTES = 65_536
REFUSAL_SECONDS = 5
"""How much of an error response is read, and for how long."""
SLICE_SECONDS = 0.004
"""How long one answer may be processed before others get their turn."""
PIECE = 16_384
REDIRECTS = 5
"""How many redirects are followed."""
_ASKS_NOTHING = (301, 302, 303)
"""Redirects that turn the request into a GET for another URL."""


class TooMuch(Exception):
    """The server sent more data than an answer may contain."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__()
        self.data = data
        """The data received before the limit."""


class Redirected(Exception):
    """The server redirects the request in a way that can't be followed."""

    def __init__(self, place: str | None = None) -> None:
        super().__init__()
        self.place = place
        """The target of the redirect; None if there were too many redirects."""


class UnreadableAnswer(Exception):
    """The server sent data in a format that was not requested."""


class Patience:
    """Limits the retries of a call, and the time that each attempt may take to begin an answer."""

    def __init__(self, retries: int) -> None:
        self.retries_left = retries
        self.seconds = math.inf
        self._scope = anyio.CancelScope()
        self._has_tried = False

    def watch(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Cancel this scope if an attempt takes longer than this to begin an answer."""
        self._scope, self.seconds = scope, seconds

    @property
    def retries_of_next(self) -> int:
        """How many times the SDK may retry the next request."""
        return max(0, self.retries_left - self._has_tried)

    def begin(self) -> None:
        """Record the start of an attempt."""
        if self._has_tried:
            self.retries_left -= 1
        self._has_tried = True
        self._scope.deadline = anyio.current_time() + self.seconds

    def end(self) -> None:
        """Stop the clock, so that the rest may take as long as necessary."""
        self._scope.deadline = math.inf


patience: ContextVar[Patience | None] = ContextVar("patience", default=None)
"""The limits for the current call."""


_parsed = lru_cache(maxsize=64)(httpx2.URL)
"""Parses a URL, which takes long; a URL never changes."""


class _HTTPClient(openai.DefaultAioHttpClient):
    """The SDK's client, which parses the URL of its server once and not with each request."""

    def build_request(self, method: str, url: httpx2.URL | str, **about: Any) -> httpx2.Request:
        return super().build_request(method, _parsed(url), **about)


def make_client(url: str) -> httpx2.AsyncClient:
    """Create a client for one server, through the proxy set for it in the environment."""
    client = _client_for(
        url,
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
        # 0 means no limit: every call may have its own connection.
        limits=httpx2.Limits(max_connections=0, keepalive_expiry=KEPT_SECONDS),
        event_hooks={"request": [_before], "response": [_after]},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    client.headers.clear()  # the SDK sets all headers
    return client


def _client_for(url: str, **settings: Any) -> httpx2.AsyncClient:
    try:
        proxy = proxy_for(url)
    except SettingsError as error:
        raise ProviderError(str(error)) from None
    if proxy is None:
        # Servers on this machine are reached without a proxy, but certificates are checked as
        # usual.
        settings |= {"trust_env": False, "verify": httpx2.create_ssl_context(trust_env=True)}
    elif is_socks(proxy):
        return _through_socks(proxy, settings)
    return _HTTPClient(**settings)


def _through_socks(proxy: str, settings: dict[str, Any]) -> httpx2.AsyncClient:
    # The SDK's aiohttp client would speak HTTP to a SOCKS proxy.
    settings["limits"] = httpx2.Limits(max_connections=None, keepalive_expiry=KEPT_SECONDS)
    settings["event_hooks"]["request"].append(_watch)
    try:
        return openai.DefaultAsyncHttpxClient(**settings)
    except ImportError:
        raise ProviderError(
            f"the proxy {shown(proxy)} needs a package: {how_to_install('socks')}"
        ) from None


async def _watch(request: httpx2.Request) -> None:
    request.extensions["trace"] = _Handshake().heard


class _Handshake:
    """Closes the connection after a SOCKS proxy refuses it; httpx2 would leave it open."""

    async def heard(self, event: str, info: Mapping[str, Any]) -> None:
        """Observe an event on the connection."""
        if event == "socks.setup_socks5_connection.started":
            self._stream = info["stream"]
        elif event == "socks.setup_socks5_connection.failed":
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._stream.aclose()


async def post(sdk: SDK, path: str, body: bytes, waits: Patience) -> httpx2.Response:
    """Return the response without reading its body; raises one of `ERRORS` or the SDK's errors."""
    token = patience.set(waits)
    try:
        # Not `create`, which spends most of its time validating every message and the answer.
        response: httpx2.Response = await sdk.client.post(
            path,
            cast_to=httpx2.Response,
            content=body,
            options={**sdk.options, "max_retries": waits.retries_of_next},
            stream=True,
            stream_cls=openai.AsyncStream,
        )
    except UnicodeError as error:  # a redirect to an invalid host name
        raise httpx2.InvalidURL("the server redirects to an invalid host name") from error
    finally:
        patience.reset(token)
    return response


# Around each request


async def _before(request: httpx2.Request) -> None:
    if (waits := patience.get()) is not None and "redirects" not in request.extensions:
        waits.begin()


async def _after(response: httpx2.Response) -> None:
    """Read an error response up to a limit, and mark it if retrying is pointless."""
    if response.is_success:
        return
    if response.has_redirect_location:
        _follow(response)
    raw, said = cast("httpx2.AsyncByteStream", response.stream), bytearray()
    with anyio.move_on_after(REFUSAL_SECONDS):
        try:
            async for piece in _inflated(response, raw, REFUSAL_BYTES):
                said += piece
        except (TooMuch, UnreadableAnswer):
            """The part read so far is sufficient."""
    if (waits := patience.get()) is not None:
        waits.end()  # the server decides when to retry
    await raw.aclose()
    response.headers.pop("content-encoding", None)
    response.stream = httpx2.ByteStream(bytes(said))
    told = failures.decoded(bytes(said))
    is_final = failures.out_of_credit(response.status_code, told) or failures.is_of_images(told)
    is_final = is_final or (waits is not None and not waits.retries_left)
    if is_final or _is_too_late(response):
        response.headers["x-should-retry"] = "false"


def _follow(response: httpx2.Response) -> None:
    """Raise `Redirected` if the next request would differ, or after too many redirects."""
    seen = response.request.extensions.get("redirects", 0)
    place = response.request.url.join(response.headers["location"])
    if response.status_code in _ASKS_NOTHING and response.request.method == "POST":
        raise Redirected(str(place))
    if (place.scheme, place.netloc) != (response.request.url.scheme, response.request.url.netloc):
        # httpx2 removes only the Authorization header.
        response.request.headers.pop("x-api-key", None)
    if seen == REDIRECTS:
        raise Redirected
    response.request.extensions["redirects"] = seen + 1


def _is_too_late(response: httpx2.Response) -> bool:
    """Return whether the call's deadline comes before the server's retry time."""
    return anyio.current_time() + _asked_for(response) > anyio.current_effective_deadline()


def _asked_for(response: httpx2.Response) -> float:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(name, "")) * unit
        except ValueError:
            continue
        return 0.0 if math.isnan(seconds) else seconds
    try:
        date = parsedate_to_datetime(response.headers.get("retry-after", ""))
        return date.timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


# Reading responses


async def body(response: httpx2.Response, limit: int) -> bytes:
    """Return the whole body; raises `TooMuch` with the data up to the limit."""
    size = response.headers.get("content-length", "")
    is_bounded = size.isdecimal() and len(size) < len(str(limit))
    if is_bounded and "content-encoding" not in response.headers:  # the usual case
        return b"".join([piece async for piece in response.aiter_raw()])
    data = bytearray()
    try:
        async with aclosing(_inflated(response, response.aiter_raw(), limit)) as pieces:
            async for piece in pieces:
                data += piece
    except TooMuch:
        raise TooMuch(bytes(data)) from None
    return bytes(data)


async def events(response: httpx2.Response, limits: AnswerLimits) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event; raise `TooMuch` if a limit is exceeded."""
    raw, rest, is_first = response.aiter_raw(), bytearray(), True
    async with aclosing(_inflated(response, raw, limits.stream_bytes)) as pieces:
        async for piece in pieces:
            for line in piece.splitlines(keepends=True):
                rest += line
                if len(rest) > limits.event_bytes:
                    raise TooMuch
                if line[-1] in b"\r\n":
                    if is_first:  # some servers send a byte order mark first
                        rest, is_first = rest.removeprefix(BOM_UTF8), False
                    if rest.startswith(b"data:"):
                        yield bytes(rest[5:]).strip()
                    rest.clear()
    if rest.startswith(b"data:"):
        yield bytes(rest[5:]).strip()


async def _inflated(
    response: httpx2.Response, raw: AsyncIterable[bytes], limit: int
) -> AsyncGenerator[bytes]:
    """Yield decompressed data in small pieces; raises `TooMuch` after `limit` bytes."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    pace = _Pace()
    inflate = _inflater(encoding)
    async for packed in raw:
        for piece in inflate(packed):
            pace.begin()
            limit -= len(piece)
            if limit < 0:
                yield piece[:limit]
                raise TooMuch
            yield piece
            await pace.keep()


def _inflater(encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    if encoding in ("", "identity"):
        return lambda data: (data,)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnreadableAnswer
    packed = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects the format from the header

    def inflate(data: bytes) -> Iterator[bytes]:
        while data:
            try:
                yield packed.decompress(data, PIECE)
            except zlib.error:
                raise UnreadableAnswer from None
            data = packed.unconsumed_tail

    return inflate


class _Pace:
    """Makes processing pause regularly, and take at most half of the time, for each answer."""

    def __init__(self) -> None:
        self._worked = 0.0
        self._since = time.monotonic()

    def begin(self) -> None:
        """Record that data has arrived; the time since the last call was a pause."""
        now = time.monotonic()
        self._worked = max(0.0, self._worked - (now - self._since))
        self._since = now

    async def keep(self) -> None:
        """Record that the data has been processed, and pause if that took long."""
        now = time.monotonic()
        self._worked += now - self._since
        self._since = now
        if self._worked > SLICE_SECONDS:
            await anyio.sleep(self._worked)


def begun(data: bytes) -> Mapping[str, Any]:
    """Parse as much as possible of an incomplete answer."""
    if failures.has_too_many_parts(data):
        return {}
    try:
        said = jiter.from_json(data, partial_mode="trailing-strings")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


# Errors

ERRORS = (
    ServerSaid,
    Redirected,
    UnreadableAnswer,
    *_SOCKS_ERRORS,
    aiohttp.ClientError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
)
"""The errors that a call may raise, besides those of the vendor's SDK."""
_PROXY_REFUSED = 407
_NO_CONNECTION = (
    httpx2.InvalidURL,
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    httpx2.ConnectError,
    httpx2.UnsupportedProtocol,
)


def failure(asked: Asked, error: Exception) -> ProviderError:
    """Convert one of `ERRORS`, or an SDK's error, to an error for people."""
    if isinstance(error, ServerSaid):
        return failures.refusal(asked, status=_status_in(error.said), said=error.said)
    # Some SDKs wrap every error in one of their own.
    moved = next((cause for cause in _causes(error) if isinstance(cause, Redirected)), None)
    if moved is not None:
        return failures.redirected(asked, moved.place)
    status, proxy = getattr(error, "status_code", None), _shown_proxy(asked)
    if status is None:
        return _on_the_way(asked, list(_causes(error)), proxy)
    if status == _PROXY_REFUSED and proxy:
        return failures.turned_away(asked, proxy)
    after = error.response.headers.get("retry-after")  # type: ignore[attr-defined]
    failed = failures.refusal(asked, status=status, said=error.body, retry_after=after)  # type: ignore[attr-defined]
    # Without encryption, the error may come from the proxy.
    may_be_proxy = isinstance(failed, ServerFailed) and asked.where.startswith("http:")
    return failures.through(proxy if may_be_proxy else None, failed)


def _on_the_way(asked: Asked, causes: Sequence[BaseException], proxy: str | None) -> ProviderError:
    """Return the error for a failed connection."""

    def is_any(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if proxy and is_any(aiohttp.ClientHttpProxyError, httpx2.ProxyError):
        return failures.turned_away(asked, proxy)
    if is_any(aiohttp.ClientResponseError, UnreadableAnswer):
        return failures.through(proxy, failures.no_answer(asked, b""))
    if is_any(*_NO_CONNECTION):
        words = " ".join(map(str, causes))
        return failures.through(proxy, failures.no_connection(asked, words))
    return failures.through(proxy, failures.broken_off(asked))


def _shown_proxy(asked: Asked) -> str | None:
    with suppress(SettingsError):
        return shown(proxy) if (proxy := proxy_for(asked.where)) else None
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


_STATUS_OF = {
    "authentication_error": 401,
    "billing_error": 402,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "request_too_large": 413,
}
"""The HTTP status for each type of error within a stream."""


def _status_in(said: Mapping[str, Any]) -> int | None:
    inner = said["error"]
    if not isinstance(inner, dict):
        return None
    kind = inner.get("type")
    code = inner.get("code") or (_STATUS_OF.get(kind) if isinstance(kind, str) else None)
    return code if isinstance(code, int) and 400 <= code < 600 else None  # noqa: PLR2004
