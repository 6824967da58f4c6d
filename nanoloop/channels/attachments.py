"""Files that came in chats: under a name made of their content, with what is known of each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.channels.images import TYPES, checked
from nanoloop.errors import AttachmentsFull
from nanoloop.protocols import Seal
from nanoloop.stores.folder import make_folder

SCHEME = "attachment:"
"""How a reference to one begins."""
TEXT_SHOWN = 20_000
"""Characters of a text file that the model is shown."""
_ID = re.compile(r"[0-9a-f]{40}")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is known of one file."""

    id: str
    owner: str
    """How the sessions of who uploaded it begin."""
    kind: str
    name: str
    mime_type: str
    size: int


def mime_type_of(data: bytes) -> str | None:
    """What these bytes are, by their own word; None where it is nothing we take."""
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            return mime_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if _CONTROL.search(data):
        return None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return "text/plain"


class Attachments:
    """Keeps them in a folder, which is made with the first one; sealed where a seal is given."""

    def __init__(self, folder: Path, *, limit_bytes: int, seal: Seal | None = None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._seal = seal
        self._bytes: int | None = None
        # One at a time: no other thread waits for one.
        self._checks = anyio.CapacityLimiter(1)

    async def keep(self, data: bytes, *, owner: str, name: str, mime_type: str) -> Kept:
        """Keep a file, durable when this returns; the same one twice is one.

        A picture is checked, and kept as models and people are to see it. Raises
        `AttachmentsFull` and `PictureRefused`.
        """
        if mime_type in TYPES:
            picture = await checked(data, limiter=self._checks)
            data, mime_type = picture.data, picture.mime_type
        # The owner is part of it: nobody learns by an upload what others have.
        digest = hashlib.sha256(owner.encode() + b"\0" + data).hexdigest()
        kept = Kept(
            id=digest[:40],
            owner=owner,
            kind="image" if mime_type in TYPES else "file",
            name=name,
            mime_type=mime_type,
            size=len(data),
        )
        await run_sync(self._write, kept, data)
        return kept

    async def about(self, attachment_id: str) -> Kept | None:
        """What is known of it, or None where there is no such file."""
        if not _ID.fullmatch(attachment_id):
            return None
        text = await run_sync(self._read, attachment_id, ".json")
        return None if text is None else Kept(**json.loads(text))

    async def data(self, attachment_id: str) -> bytes | None:
        """The file, or None where there is no such file."""
        if not _ID.fullmatch(attachment_id):
            return None
        return await run_sync(self._read, attachment_id, ".data")

    def _read(self, attachment_id: str, suffix: str) -> bytes | None:
        try:
            data = (self._folder / f"{attachment_id}{suffix}").read_bytes()
        except FileNotFoundError:
            return None
        return data if self._seal is None else self._seal.open(data.decode())

    def _write(self, kept: Kept, data: bytes) -> None:
        make_folder(self._folder)
        if not (self._folder / f"{kept.id}.data").exists():
            self._take_room(len(data))
            self._put(f"{kept.id}.data", data)
        # Last: what is known of a file is known of a whole one.
        self._put(f"{kept.id}.json", json.dumps(asdict(kept)).encode())

    def _put(self, name: str, data: bytes) -> None:
        sealed = data if self._seal is None else self._seal.seal(data).encode()
        beside = self._folder / f".{secrets.token_hex(8)}"
        try:
            # For its owner's eyes only, whatever the umask is.
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(sealed)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._folder / name)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def _take_room(self, size: int) -> None:
        # Counted anew where there seems to be no room: some may have gone with their messages.
        if self._bytes is None or self._bytes + size > self._limit_bytes:
            self._bytes = sum(file.stat().st_size for file in self._folder.glob("*.data"))
        if self._bytes + size > self._limit_bytes:
            raise AttachmentsFull(self._limit_bytes)
        self._bytes += size
