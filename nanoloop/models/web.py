"""Model files from the web: a URL, or a file of a hub; a lost connection is taken up again."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from nanoloop.errors import SettingsError
from nanoloop.models.part import DownloadPart, SourceFailed
from nanoloop.proxies import is_socks, proxy_for, shown

if TYPE_CHECKING:
    import aiohttp

TRIES = 4
"""Lost connections in a row, without a byte between them, after which it is given up."""
PAUSE_SECONDS = 1.0
REDIRECTS = 20
_SILENCE_SECONDS = 60
_SUCCESS, _PARTIAL, _NOTHING_BEYOND = 2, 206, 416
_PROXY_REFUSED = 407
_TURNED_AWAY = "the proxy refused (407): put its name and password into HTTPS_PROXY"
_NO_WAY = "the proxy finds no way there: check the address, or NO_PROXY"
_HEADERS = {"User-Agent": "nanoloop", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A file behind an address."""

    url: str
    pause_seconds: float = PAUSE_SECONDS
    """How long to wait after a lost connection; longer each time."""

    def __str__(self) -> str:
        """The address without name, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    async def fetch(self, part: DownloadPart, hub: str | None) -> None:  # noqa: ARG002 - hubs need it
        """Add what is missing; raises `SourceFailed`, and what came until then stays."""
        import aiohttp  # noqa: PLC0415 - it takes a while, and few commands fetch anything

        lost = 0
        async with await _client() as client:
            while True:
                before = part.size
                try:
                    return await self._go_on(client, part)
                except aiohttp.ClientError as error:
                    lost = 0 if part.size > before else lost + 1
                    reason, may_pass = _reason(error)
                    if lost == TRIES or not may_pass:
                        raise SourceFailed(reason) from None
                await anyio.sleep(self.pause_seconds * lost)

    async def _go_on(self, client: aiohttp.ClientSession, part: DownloadPart) -> None:
        where = _from_where(part)
        async with client.get(self.url, headers=where, max_redirects=REDIRECTS) as response:
            if response.status == _NOTHING_BEYOND and part.size:
                part.begin(None)  # it is longer than the file there: another one
                return await self._go_on(client, part)
            _take_up(part, response)
            part.need_room()
            # Written here and not in a thread: what aiohttp holds back meanwhile would be lost when
            # the connection breaks.
            with part.grows() as file:
                done = part.size
                async for piece in response.content.iter_any():
                    file.write(piece)
                    part.told(done := done + len(piece))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A file in a repository of a model hub, at whatever address the hub is."""

    repository: str
    file: str
    revision: str = "main"

    def __str__(self) -> str:
        """Where it is on the hub."""
        return f"the hub ({self.repository})"

    async def fetch(self, part: DownloadPart, hub: str | None) -> None:
        """Add what is missing; raises `SourceFailed`, at once where no hub is known."""
        if hub is None:
            raise SourceFailed("no hub is known: set HF_ENDPOINT to its address, https://…")
        url = f"{hub}/{self.repository}/resolve/{self.revision}/{self.file}"
        await Url(url=url).fetch(part, hub)


async def _client() -> aiohttp.ClientSession:
    import aiohttp  # noqa: PLC0415 - as above

    try:
        trusted = await anyio.to_thread.run_sync(_trusted)  # it reads all certificates there are
    except OSError:
        raise SourceFailed("SSL_CERT_FILE or SSL_CERT_DIR names what can't be read") from None
    return aiohttp.ClientSession(
        auto_decompress=False,
        connector=aiohttp.TCPConnector(ssl=trusted),
        headers=_HEADERS,
        middlewares=(_through_proxy,),
        timeout=aiohttp.ClientTimeout(connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS),
    )


def _trusted() -> ssl.SSLContext:
    """Trust the certificates that the environment names; otherwise those of the system."""
    import truststore  # noqa: PLC0415 - as above

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _through_proxy(
    request: aiohttp.ClientRequest, go_on: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Ask through the proxy that stands before this address; each redirect has its own."""
    from yarl import URL  # noqa: PLC0415 - it comes with aiohttp

    try:
        proxy = proxy_for(str(request.url))
    except SettingsError as error:
        raise SourceFailed(str(error)) from None
    if proxy is not None:
        if is_socks(proxy):
            raise SourceFailed(
                f"{shown(proxy)} is a SOCKS proxy, and files come through HTTP proxies only: "
                "set HTTPS_PROXY to one, or fetch the file by other means"
            )
        request.update_proxy(URL(proxy), None, None)
    return await go_on(request)


def _from_where(part: DownloadPart) -> dict[str, str]:
    """Ask for what is missing only, and only if it is of the same version."""
    if part.sha256 is None and part.tag is None and part.size:
        part.begin(None)
    if not part.size:
        return {}
    same = {} if part.sha256 is not None else {"If-Range": part.tag or ""}
    return {"Range": f"bytes={part.size}-"} | same


def _take_up(part: DownloadPart, response: aiohttp.ClientResponse) -> None:
    """Make the part ready for what comes: the rest, or all of it from the beginning."""
    if response.status // 100 != _SUCCESS:
        raise SourceFailed(_refusal(response.status))
    start = 0
    if response.status == _PARTIAL:
        place = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
        start = int(place[1]) if place else -1
        if start != part.size:
            raise SourceFailed("it sent another part of the file than was asked for")
    _agree(part, start, response.headers.get("content-length"))
    if start == 0:
        tag = response.headers.get("etag") or ""
        part.begin(tag if tag.startswith('"') else None)


def _agree(part: DownloadPart, start: int, length: str | None) -> None:
    """See that the file there is as long as the one that is wanted."""
    if length is None:
        return
    total = start + int(length)
    if part.total not in (None, total):
        raise SourceFailed(f"its file has {total:,} bytes and not {part.total:,}")
    part.total = total


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"it gives the file only to whom it knows ({status})"
    if status == _PROXY_REFUSED:
        return _TURNED_AWAY
    if status in (404, 410):
        return f"it has no such file ({status})"
    return f"it refused ({status}): try again in a while"


def _reason(error: aiohttp.ClientError) -> tuple[str, bool]:
    """What to say of a connection that failed, without the address; and if it may pass."""
    import aiohttp  # noqa: PLC0415 - as above

    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "no address to fetch from: begin it with https://", False
        case aiohttp.TooManyRedirects():
            return "it redirects without an end: check the address", False
        case aiohttp.ClientHttpProxyError():
            return _TURNED_AWAY if error.status == _PROXY_REFUSED else _NO_WAY, False
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted: name your own CA's in SSL_CERT_FILE", False
        case aiohttp.ClientProxyConnectionError():
            said = "the proxy does not answer: check its address"
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            said = "nothing answers there: check the address and the network"
        case aiohttp.ServerTimeoutError():
            said = "it fell silent: try again in a while"
        case _:
            said = "the connection was lost again and again: try again in a while"
    return said, True
