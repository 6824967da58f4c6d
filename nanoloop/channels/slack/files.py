"""Files of Slack: fetched with the bot's token from where they lie, and posted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import aiohttp
from yarl import URL

from nanoloop.channels.platform.platform import File, Place, Upload
from nanoloop.channels.slack.web import Web
from nanoloop.errors import Declined, SendLater

LIMIT_BYTES = 20_000_000
_OWN = (".slack.com", ".slack-edge.com", ".slack-files.com")
_OK = 200
Kind = Literal["image", "audio", "video", "file"]
_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


class Files:
    """Fetches and posts them for one bot."""

    def __init__(
        self, session: aiohttp.ClientSession, web: Web, *, token: str, address: str
    ) -> None:
        self._session = session
        self._web = web
        self._token = token
        self._host = URL(address).host or ""

    def file(self, said: Mapping[str, Any]) -> File:
        """What an event says of a file."""
        address = str(said.get("url_private_download") or said.get("url_private") or "")
        kind = _KINDS.get(str(said.get("mimetype") or "").partition("/")[0], "file")
        size = said.get("size")
        return File(
            kind="audio" if said.get("subtype") == "slack_audio" else kind,
            fetch=partial(self._fetch, address),
            name=str(said.get("name") or said.get("title") or ""),
            mime_type=str(said.get("mimetype") or ""),
            size=size if isinstance(size, int) else None,
        )

    async def post(self, place: Place, file: Upload) -> str:
        """Bring one to a chat; returns its id."""
        begun = await self._web.call(
            "files.getUploadURLExternal", filename=file.name, length=len(file.data)
        )
        await self._put(str(begun["upload_url"]), file.data)
        await self._web.call(
            "files.completeUploadExternal",
            files=[{"id": begun["file_id"], "title": file.name}],
            channel_id=place.chat,
            thread_ts=place.thread or None,
        )
        return str(begun["file_id"])

    async def _put(self, address: str, data: bytes) -> None:
        try:
            async with self._session.post(address, data=data) as answer:
                if answer.status != _OK:
                    raise SendLater(f"the file was not taken ({answer.status})")
        except (aiohttp.ClientError, OSError) as error:
            raise SendLater(f"the network failed ({type(error).__name__})") from None

    async def _fetch(self, address: str) -> bytes:
        host = URL(address).host or ""
        # The token is shown to nobody else, whatever a message says of its file.
        if host != self._host and not host.endswith(_OWN):
            raise Declined("the file lies elsewhere")
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.get(address, headers=headers) as answer:
            if answer.status != _OK or _is_login(answer, address):
                raise Declined(f"the file can't be fetched ({answer.status})")
            return await _bounded(answer)


def _is_login(answer: aiohttp.ClientResponse, address: str) -> bool:
    """Whether Slack shows a page for logging in instead: the scope files:read is missing."""
    return answer.content_type == "text/html" and answer.url.path != URL(address).path


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    data = b""
    async for piece in answer.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > LIMIT_BYTES:
            break  # the kit sees that it is too large
    return data
