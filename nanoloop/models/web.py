"""Model files from the web: a URL, or a file of a hub; a lost connection is taken up again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from nanoloop.models.errors import SourceFailed
from nanoloop.models.part import Part

if TYPE_CHECKING:
    import httpx2

TRIES = 4
"""Lost connections in a row, without a byte between them, after which it is given up."""
PAUSE_SECONDS = 1.0
_SILENCE_SECONDS = 60
_PARTIAL, _NOTHING_BEYOND = 206, 416
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

    async def fetch(self, part: Part, hub: str | None) -> None:  # noqa: ARG002 - hubs need it
        """Add what is missing; raises `SourceFailed`, and what came until then stays."""
        import httpx2  # noqa: PLC0415 - it takes a while, and few commands fetch anything

        timeout = httpx2.Timeout(_SILENCE_SECONDS)
        lost = 0
        async with httpx2.AsyncClient(
            follow_redirects=True, timeout=timeout, headers=_HEADERS
        ) as client:
            while True:
                before = part.size
                try:
                    return await self._go_on(client, part)
                except (httpx2.RequestError, httpx2.InvalidURL) as error:
                    lost = 0 if part.size > before else lost + 1
                    if lost == TRIES or not isinstance(error, httpx2.TransportError):
                        raise SourceFailed(_reason(error)) from None
                await anyio.sleep(self.pause_seconds * lost)

    async def _go_on(self, client: httpx2.AsyncClient, part: Part) -> None:
        async with client.stream("GET", self.url, headers=_from_where(part)) as response:
            if response.status_code == _NOTHING_BEYOND and part.size:
                part.begin(None)  # it is longer than the file there: another one
                return await self._go_on(client, part)
            _take_up(part, response)
            part.need_room()
            async with await anyio.open_file(part.path, "ab") as file:
                done = part.size
                async for piece in response.aiter_raw():
                    await file.write(piece)
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

    async def fetch(self, part: Part, hub: str | None) -> None:
        """Add what is missing; raises `SourceFailed`, at once where no hub is known."""
        if hub is None:
            raise SourceFailed("no hub is known: set HF_ENDPOINT to its address, https://…")
        url = f"{hub}/{self.repository}/resolve/{self.revision}/{self.file}"
        await Url(url=url).fetch(part, hub)


def _from_where(part: Part) -> dict[str, str]:
    """Ask for what is missing only, and only if it is of the same version."""
    if part.sha256 is None and part.tag is None and part.size:
        part.begin(None)
    if not part.size:
        return {}
    same = {} if part.sha256 is not None else {"If-Range": part.tag or ""}
    return {"Range": f"bytes={part.size}-"} | same


def _take_up(part: Part, response: httpx2.Response) -> None:
    """Make the part ready for what comes: the rest, or all of it from the beginning."""
    if not response.is_success:
        raise SourceFailed(_refusal(response.status_code))
    start = 0
    if response.status_code == _PARTIAL:
        place = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
        start = int(place[1]) if place else -1
        if start != part.size:
            raise SourceFailed("it sent another part of the file than was asked for")
    _agree(part, start, response.headers.get("content-length"))
    if start == 0:
        tag = response.headers.get("etag") or ""
        part.begin(tag if tag.startswith('"') else None)


def _agree(part: Part, start: int, length: str | None) -> None:
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
    if status in (404, 410):
        return f"it has no such file ({status})"
    return f"it refused ({status}): try again in a while"


def _reason(error: Exception) -> str:
    """What to say of a connection that failed, without the address."""
    kind = type(error).__name__
    if "Connect" in kind or "Proxy" in kind:
        return "nothing answers there: check the address and the network"
    if "Timeout" in kind:
        return "it fell silent: try again in a while"
    if kind in ("InvalidURL", "UnsupportedProtocol"):
        return "no address to fetch from: begin it with https://"
    return "the connection was lost again and again: try again in a while"
