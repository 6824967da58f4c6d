"""Files that come with messages: fetched, kept, and told to the model where they can't be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import anyio

from nanoloop.channels.platform.platform import File
from nanoloop.channels.web.attachments import SCHEME, TEXT_SHOWN, Attachments, mime_type_of
from nanoloop.events import Announce, FileLeftOut
from nanoloop.messages import Attachment

FETCH_SECONDS = 60.0


class Keep(Protocol):
    """Keeps a file that came with a message."""

    async def __call__(self, file: File, data: bytes) -> Attachment:
        """The attachment that stands for it, durable when this returns; may raise."""
        ...


Transcribe = Callable[[File, bytes], Awaitable[str | None]]
"""What is said in a voice note; None where it can't be told."""


def kept_in(attachments: Attachments, *, owner: str) -> Keep:
    """Keeps them where uploads are kept; the model sees images, and reads texts."""

    async def keep(file: File, data: bytes) -> Attachment:
        known = mime_type_of(data)
        name, mime_type = (
            file.name or file.kind,
            known or file.mime_type or "application/octet-stream",
        )
        kept = await attachments.keep(data, owner=owner, name=name, mime_type=mime_type)
        return Attachment(
            kind="file" if file.kind == "image" and kept.kind != "image" else file.kind,
            ref=f"{SCHEME}{kept.id}",
            name=name,
            mime_type=mime_type,
            size=len(data),
            text=data.decode()[:TEXT_SHOWN] if known == "text/plain" else None,
        )

    return keep


class Files:
    """Makes attachments of them; none of their failures costs the message."""

    def __init__(
        self,
        *,
        channel: str,
        limit_bytes: int,
        keep: Keep | None = None,
        transcribe: Transcribe | None = None,
        announce: Announce,
    ) -> None:
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._keep = keep
        self._transcribe = transcribe
        self._announce = announce

    async def attachment(self, file: File) -> Attachment:
        """What stands for this file in the conversation."""
        known = Attachment(
            kind=file.kind,
            ref=f"unkept:{file.kind}",
            name=file.name or None,
            mime_type=file.mime_type or None,
            size=file.size,
        )
        if self._keep is None and self._transcribe is None:
            return known
        try:
            return await self._kept(file, known)
        except Exception as error:  # noqa: BLE001 - the message counts more than its file
            return self._without(known, type(error).__name__)

    async def _kept(self, file: File, known: Attachment) -> Attachment:
        if file.size is not None and file.size > self._limit_bytes:
            return self._without(known, "too large")
        with anyio.fail_after(FETCH_SECONDS):
            data = await file.fetch()
        if len(data) > self._limit_bytes:
            return self._without(known, "too large")
        kept = known if self._keep is None else await self._keep(file, data)
        if self._transcribe is None or file.kind != "audio":
            return kept
        return replace(kept, text=await self._transcribe(file, data))

    def _without(self, known: Attachment, reason: str) -> Attachment:
        self._announce(FileLeftOut(channel=self._channel, reason=reason))
        return replace(known, text="(it could not be kept)")
