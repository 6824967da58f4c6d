"""Files in an answer: `![name](attachment:ID)` is taken out of the text and sent as a file."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from nanoloop.channels.attachments import SCHEME, Attachments
from nanoloop.channels.platform.platform import Upload

_ENCLOSED = re.compile(rf"!?\[[^\]\n]*\]\({SCHEME}(?P<id>[0-9a-f]{{40}})\)")

Fetch = Callable[[str], Awaitable[Upload | None]]
"""The file with this id, or None where there is none."""


def enclosed(text: str) -> list[str]:
    """The ids of the files that a text names, each once, in order."""
    return list(dict.fromkeys(match["id"] for match in _ENCLOSED.finditer(text)))


def without(text: str) -> str:
    """The text without them."""
    return _ENCLOSED.sub("", text).strip() if SCHEME in text else text


def fetched_from(attachments: Attachments) -> Fetch:
    """Fetches them from where uploads are kept."""

    async def fetch(attachment_id: str) -> Upload | None:
        kept = await attachments.about(attachment_id)
        data = await attachments.data(attachment_id)
        if kept is None or data is None:
            return None
        return Upload(name=kept.name, mime_type=kept.mime_type, data=data)

    return fetch
