"""Files that come with messages: fetched, kept, and told to the model where they can't be."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import anyio

from nanoloop.channels.attachments import SCHEME, TEXT_SHOWN, Attachments, mime_type_of
from nanoloop.channels.platform.platform import File
from nanoloop.channels.platform.transcriber import Transcriber
from nanoloop.errors import Declined, PictureRefused, reason_of
from nanoloop.events import Announce, FileLeftOut
from nanoloop.messages import Attachment

FETCH_SECONDS = 60.0
NOT_KEPT = "(it could not be kept)"
NOT_SHOWN = "(a picture of a kind that can't be shown)"
NOT_READ = "(this voice message could not be read)"


class Keep(Protocol):
    """Keeps a file that came with a message."""

    async def __call__(self, file: File, data: bytes) -> Attachment:
        """The attachment that stands for it, durable when this returns; may raise."""
        ...


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
            mime_type=kept.mime_type,
            size=kept.size,
            text=_text_of(data, known, mime_type),
        )

    return keep


def _text_of(data: bytes, known: str | None, mime_type: str) -> str | None:
    """What the model reads of it, where it sees nothing."""
    if known == "text/plain":
        return data.decode()[:TEXT_SHOWN]
    return NOT_SHOWN if known is None and mime_type.startswith("image/") else None


class Files:
    """Makes attachments of them; none of their failures costs the message."""

    def __init__(
        self,
        *,
        channel: str,
        limit_bytes: int,
        keep: Keep | None = None,
        transcriber: Transcriber | None = None,
        announce: Announce,
    ) -> None:
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._keep = keep
        self._transcriber = transcriber
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
        if self._keep is None and self._transcriber is None:
            return known
        try:
            data = await self._fetched(file)
        except Exception as error:  # noqa: BLE001 - the message counts more than its file
            return replace(known, text=self._left_out(error, NOT_KEPT))
        kept = await self._kept(file, data, known)
        if file.kind != "audio" or self._transcriber is None:
            return kept
        return replace(kept, text=await self._words(self._transcriber, file, data))

    async def _fetched(self, file: File) -> bytes:
        if file.size is not None and file.size > self._limit_bytes:
            raise Declined("too large")
        with anyio.fail_after(FETCH_SECONDS):
            data = await file.fetch()
        if len(data) > self._limit_bytes:
            raise Declined("too large")
        return data

    async def _kept(self, file: File, data: bytes, known: Attachment) -> Attachment:
        try:
            return known if self._keep is None else await self._keep(file, data)
        except PictureRefused as refused:
            return replace(known, text=self._left_out(refused, f"({refused})"))
        except Exception as error:  # noqa: BLE001 - as above
            return replace(known, text=self._left_out(error, NOT_KEPT))

    async def _words(self, transcriber: Transcriber, file: File, data: bytes) -> str:
        try:
            return (await transcriber.words(file, data))[:TEXT_SHOWN]
        except Exception as error:  # noqa: BLE001 - as above
            return self._left_out(error, NOT_READ)

    def _left_out(self, error: Exception, words: str) -> str:
        """What the model reads instead of it."""
        reason = reason_of(error)
        self._announce(FileLeftOut(channel=self._channel, reason=reason))
        return words
