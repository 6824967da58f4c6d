"""What a message of Telegram holds: its words, and its files, which are fetched later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from telegram import Message

from nanoloop.channels.platform.platform import File
from nanoloop.channels.telegram.failures import answered

Kind = Literal["image", "audio", "video", "file"]


def words(message: Message) -> str:
    """Its text; of what has none, what can be said of it in a few words."""
    if text := message.text or message.caption:
        return text
    if message.sticker:
        return message.sticker.emoji or "[sticker]"
    if place := message.location:
        name = f"{message.venue.title}, {message.venue.address}: " if message.venue else ""
        return f"[place: {name}{place.latitude}, {place.longitude}]"
    if who := message.contact:
        return f"[contact: {who.first_name} {who.last_name or ''} {who.phone_number}]"
    if poll := message.poll:
        return f"[poll: {poll.question} {' / '.join(option.text for option in poll.options)}]"
    return ""


def files(message: Message) -> Iterator[File]:
    """Its photo, voice note, video, music or document."""
    if message.photo:
        yield _file(message.photo[-1], "image", "image/jpeg")  # the largest comes last
    if found := message.voice or message.audio:
        yield _file(found, "audio", "audio/ogg")
    if seen := message.video or message.video_note or message.animation:
        yield _file(seen, "video", "video/mp4")
    elif message.document:  # an animation comes as a document too
        kind = (message.document.mime_type or "").partition("/")[0]
        yield _file(message.document, _KINDS.get(kind, "file"), "")


_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


def _file(found: Any, kind: Kind, usual: str) -> File:
    async def fetch() -> bytes:
        with answered():
            whole = await found.get_file()
            return bytes(await whole.download_as_bytearray())

    return File(
        kind=kind,
        fetch=fetch,
        name=getattr(found, "file_name", None) or "",
        mime_type=getattr(found, "mime_type", None) or usual,
        size=found.file_size,
    )
