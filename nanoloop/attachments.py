"""Files that people send: checked, kept by owner, and deleted with their conversation."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from struct import (  # noqa: N812 - what it means here
    error as CutOff,
)
from struct import (
    unpack_from,
)
from typing import Any

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import AttachmentsFull, PictureRefused, SessionDamaged, SessionNotFound
from nanoloop.fairness import FairLimiter
from nanoloop.files import make_folder, put_file, read_file, replace_file
from nanoloop.protocols import Seal
from nanoloop.session.entry import Entry
from nanoloop.session.head import WAITING
from nanoloop.session.session import Session

SCHEME = "attachment:"
"""The prefix of a reference to a file."""
TEXT_SHOWN = 20_000
"""How many characters of a text file the model sees."""
_ID = re.compile(r"[0-9a-f]{40}")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """What is known about one file."""

    id: str
    owner: str
    """The prefix of the sessions of the person who uploaded it."""
    kind: str
    name: str
    mime_type: str
    size: int


def mime_type_of(data: bytes) -> str | None:
    """The MIME type of these bytes, judged by their content; None if it isn't accepted."""
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
    """Keeps files in a folder, created with the first one; encrypts them if it has a seal."""

    def __init__(self, folder: Path, *, limit_bytes: int, seal: Seal | None = None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._seal = seal
        self._bytes: int | None = None
        # One at a time: no other thread waits for one.
        self._checks = FairLimiter(1)

    async def keep(self, data: bytes, *, owner: str, name: str, mime_type: str) -> StoredFile:
        """Store a file, durable when this returns; the same file is stored once.

        A picture is checked, and stored as models and people should see it. Raises
        `AttachmentsFull` and `PictureRefused`.
        """
        if mime_type in TYPES:
            picture = await checked(data, limiter=self._checks.turn(owner))
            data, mime_type = picture.data, picture.mime_type
        # The owner is part of it: nobody learns by an upload what others have.
        digest = hashlib.sha256(owner.encode() + b"\0" + data).hexdigest()
        kept = StoredFile(
            id=digest[:40],
            owner=owner,
            kind="image" if mime_type in TYPES else "file",
            name=name,
            mime_type=mime_type,
            size=len(data),
        )
        if await run_sync(self._take_room_for, kept):
            await self._put(f"{kept.id}.data", data)
        # Last: what is known of a file is known of a whole one.
        await self._put(f"{kept.id}.json", json.dumps(asdict(kept)).encode())
        return kept

    async def about(self, attachment_id: str) -> StoredFile | None:
        """What is known about it, or None if there is no such file."""
        if not _ID.fullmatch(attachment_id):
            return None
        text = await self._read(attachment_id, ".json")
        return None if text is None else StoredFile(**json.loads(text))

    async def data(self, attachment_id: str) -> bytes | None:
        """The file, or None if there is no such file."""
        if not _ID.fullmatch(attachment_id):
            return None
        return await self._read(attachment_id, ".data")

    async def _read(self, attachment_id: str, suffix: str) -> bytes | None:
        data = await read_file(self._folder / f"{attachment_id}{suffix}")
        seal = self._seal
        return data if data is None or seal is None else await run_sync(seal.open, data.decode())

    async def _put(self, name: str, data: bytes) -> None:
        sealed = data if self._seal is None else (await run_sync(self._seal.seal, data)).encode()
        await put_file(self._folder / name, sealed, durable=True)

    def _take_room_for(self, kept: StoredFile) -> bool:
        """Reserve its room; returns whether its data must be written. Raises `AttachmentsFull`."""
        make_folder(self._folder)
        if (self._folder / f"{kept.id}.data").exists():
            return False
        self._take_room(kept.size)
        return True

    def _take_room(self, size: int) -> None:
        # Counted anew where there seems to be no room: some may have gone with their messages.
        if self._bytes is None or self._bytes + size > self._limit_bytes:
            self._bytes = sum(file.stat().st_size for file in self._folder.glob("*.data"))
        if self._bytes + size > self._limit_bytes:
            raise AttachmentsFull(self._limit_bytes)
        self._bytes += size


MOST_PIXELS = 50_000_000
"""The pixel limit for a non-progressive JPEG, which is decoded directly to the smaller size."""
_SHARE = {"image/png": 2, "image/gif": 2, "image/webp": 4}
"""That limit is divided by this for other formats: their decoders take more memory."""
MOST_SIDE = 65_535
"""The pixel limit for one side: each row takes memory too."""
MOST_SCANS = 500_000_000
"""The limit on a JPEG's pixels times the number of passes its decoder makes over them."""
READ_SECONDS = 30.0
SLOW = "it takes too long to read"
_PARTS = 20_000
"""How many parts of a file are scanned; a file with more is decoded to see what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a picture's header says."""

    mime_type: str
    width: int
    height: int
    is_bare: bool
    """Whether it holds one picture and nothing else: no location, no camera, no second file."""
    scans: int = 1
    is_progressive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that was checked."""

    data: bytes
    mime_type: str


async def checked(data: bytes, *, limiter: AbstractAsyncContextManager[None]) -> Picture:
    """The picture, upright and without the camera's metadata; raises `PictureRefused`.

    Without Pillow only its header is checked, and it stays unchanged.
    """
    async with limiter:
        with anyio.move_on_after(READ_SECONDS):
            # Nobody can stop the thread: what it may have to do is bounded by the header.
            return await run_sync(_checked, data, abandon_on_cancel=True)
    raise PictureRefused(SLOW)


def _checked(data: bytes) -> Picture:
    header = header_of(data)
    try:
        # Loaded with the first picture, and an extra.
        from nanoloop.pillow import cleaned  # noqa: PLC0415 - as above
    except ImportError:
        return Picture(data=data, mime_type=header.mime_type)
    return cleaned(data, header)


def is_pillow_here() -> bool:
    """Whether pictures can be decoded; if not, only their headers are checked."""
    return find_spec("PIL") is not None


def header_of(data: bytes) -> Header:
    """A picture's header; raises `PictureRefused` if its size is nonsense or too large."""
    try:
        header = next(read(data) for magic, read in _HEADERS.items() if data.startswith(magic))
    except (CutOff, IndexError, StopIteration):
        raise PictureRefused("it is damaged") from None
    bound(header)
    return header


def bound(header: Header) -> None:
    """Raise `PictureRefused` for a picture that would take too much memory or time."""
    pixels = header.width * header.height
    share = 2 if header.is_progressive else _SHARE.get(header.mime_type, 1)
    most = MOST_PIXELS // share
    if not pixels:
        raise PictureRefused("it has no pixels")
    if pixels > most:
        raise PictureRefused(f"it has {pixels:,} pixels, more than {most:,}")
    if max(header.width, header.height) > MOST_SIDE:
        raise PictureRefused(f"one side of it has more than {MOST_SIDE:,} pixels")
    if pixels * header.scans > MOST_SCANS:
        raise PictureRefused(SLOW)


_PNG_KEPT = frozenset(
    b"IHDR PLTE IDAT IEND bKGD cHRM cICP gAMA hIST iCCP pHYs sBIT sRGB tRNS".split()
)


def _png(data: bytes) -> Header:
    width, height = unpack_from(">II", data, 16)
    return Header(mime_type="image/png", width=width, height=height, is_bare=_is_bare_png(data))


def _is_bare_png(data: bytes) -> bool:
    at = 8
    for _ in range(_PARTS):
        if at + 12 > len(data):
            return False
        size, name = unpack_from(">I4s", data, at)
        at += size + 12
        if name == b"IEND":
            return bool(at == len(data))
        if name not in _PNG_KEPT:
            return False
    return False


_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_KEPT = _SIZES | {0xC4, 0xDA, 0xDB, 0xDD}
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))


def _jpeg(data: bytes) -> Header:
    at, scans, is_bare, size = 2, 0, True, None
    is_progressive = False
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == 0xD9:  # noqa: PLR2004 - the end
            break
        if marker in (0x01, 0xD8):
            continue
        (length,) = unpack_from(">H", data, at)
        if marker in _SIZES:
            size = size or unpack_from(">HH", data, at + 3)
            is_progressive |= marker in _PROGRESSIVE
        scans += marker == 0xDA  # noqa: PLR2004 - the start of one
        is_bare &= marker in _JPEG_KEPT or _is_harmless(marker, data[at : at + length])
        at += length
    height, width = size or unpack_from(">HH", b"")
    return Header(
        mime_type="image/jpeg",
        width=width,
        height=height,
        is_bare=is_bare and at == len(data),
        scans=max(scans, 1),
        is_progressive=is_progressive,
    )


def _is_harmless(marker: int, segment: bytes) -> bool:
    """Whether it is plain JFIF (no thumbnail), Adobe's colour transform or a colour profile."""
    name = segment[2:]
    return (
        (marker == 0xE0 and name.startswith(b"JFIF\0") and len(segment) == 16)  # noqa: PLR2004
        or (marker == 0xEE and name.startswith(b"Adobe"))  # noqa: PLR2004 - APP14
        or (marker == 0xE2 and name.startswith(b"ICC_PROFILE\0"))  # noqa: PLR2004 - APP2
    )


def _gif(data: bytes) -> Header:
    width, height, flags = unpack_from("<HHB", data, 6)
    at, is_bare = 13 + _table(flags), True
    while data[at] == 0x21:  # noqa: PLR2004 - an extension
        is_bare &= data[at + 1] == 0xF9  # noqa: PLR2004 - how the next frame is shown
        at = _behind_blocks(data, at + 2)
    left, top, wide, high, flags = unpack_from("<HHHHB", data, at + 1)
    at += 10 + _table(flags) + 1
    try:
        at = _behind_blocks(data, at)
        is_bare &= data[at] == 0x3B and at + 1 == len(data)  # noqa: PLR2004 - the end
    except (CutOff, IndexError):
        is_bare = False
    width, height = max(width, left + wide), max(height, top + high)
    return Header(mime_type="image/gif", width=width, height=height, is_bare=is_bare)


def _table(flags: int) -> int:
    """The size in bytes of the colour table that follows."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _behind_blocks(data: bytes, at: int) -> int:
    for _ in range(_PARTS):
        size = data[at]
        at += size + 1
        if not size:
            return at
    raise IndexError


_WEBP_KEPT = frozenset((b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP"))


def _webp(data: bytes) -> Header:
    if data[8:12] != b"WEBP":
        raise IndexError
    width, height = _webp_size(data)
    return Header(mime_type="image/webp", width=width, height=height, is_bare=_is_bare_webp(data))


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            width, height = unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            wide, high = data[24:27], data[27:30]
            return int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
    raise IndexError


def _is_bare_webp(data: bytes) -> bool:
    at = 12
    for _ in range(_PARTS):
        if at + 8 > len(data):
            break
        name, size = unpack_from("<4sI", data, at)
        if name not in _WEBP_KEPT:
            return False
        at += 8 + size + size % 2
    return at == len(data)


_HEADERS: Mapping[bytes, Callable[[bytes], Header]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
    b"RIFF": _webp,
}
TYPES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""The picture types that the model can see."""


NOTE = ".forgetting"
"""The file next to them that lists those that may need to be deleted."""
READ_AT_ONCE = 500
"""How many entries are examined at a time."""
_REFERENCE = re.compile(rf"{SCHEME}([0-9a-f]{{40}})")


class Forgetting:
    """Wraps a store so that it also deletes uploaded files.

    A file stays as long as any session refers to it; an unreadable session refers to none.
    """

    def __init__(self, store: Any, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Erase as the store does, then the files that only these entries referred to."""
        gone = await self._noted(await self._files_of(session.id, seqs))
        await self._store.erase(session, seqs)
        await self._let_go(gone)

    async def delete(self, session_id: str) -> None:
        """Delete as the store does, then the files that only this session referred to."""
        gone = await self._noted(await self._files_ever_of(session_id))
        await self._store.delete(session_id)
        await self._let_go(gone)

    async def delete_expired(self) -> int:
        """Delete as the store does, then any noted files still there, for example after a kill."""
        removed = int(await self._store.delete_expired())
        await self._let_go(await self._noted(set()))
        return removed

    def _has_any(self) -> bool:
        # In no thread: where nothing is uploaded, nothing waits on the way to the store.
        return self._folder.is_dir()

    async def _noted(self, gone: set[str]) -> set[str]:
        """These files and any noted earlier, recorded on disk until they are deleted."""
        return await run_sync(self._note, gone) if self._has_any() else gone

    def _note(self, gone: set[str]) -> set[str]:
        file = self._folder / NOTE
        known = set(file.read_text().split()) if file.exists() else set()
        if gone - known:
            replace_file(file, " ".join(gone | known).encode(), durable=True)
        return gone | known

    async def _let_go(self, gone: set[str]) -> None:
        if not gone:
            return
        for session_id in [info.id async for info in self._store.list()]:
            gone -= await self._files_of(session_id)
            if not gone:
                break
        await run_sync(self._remove, gone)

    def _remove(self, gone: Collection[str]) -> None:
        for name in gone:
            # What is known of it goes first: a half of it is none.
            for suffix in (".json", ".data"):
                (self._folder / f"{name}{suffix}").unlink(missing_ok=True)
        (self._folder / NOTE).unlink(missing_ok=True)

    async def _files_of(self, session_id: str, seqs: Collection[int] | None = None) -> set[str]:
        """The files that a session, or only these entries of it, refers to."""
        found: set[str] = set()
        if not self._has_any():
            return found
        with suppress(SessionNotFound, SessionDamaged):
            if seqs is None:
                waiting = (await self._store.load(session_id)).waiting
                found.update(*map(_files_in, waiting))
            async for entry in self._entries(session_id, seqs):
                found |= _files_in(entry)
        return found

    async def _files_ever_of(self, session_id: str) -> set[str]:
        """The same, including the files of entries that were undone or precede a reset."""
        found: set[str] = set()
        if self._has_any():
            with suppress(SessionNotFound, SessionDamaged):
                snapshot = await self._store.snapshot(session_id)
                found.update(_REFERENCE.findall(str(snapshot.sections.get(WAITING))))
                found.update(*map(_files_in, snapshot.entries))
        return found

    async def _entries(self, session_id: str, seqs: Collection[int] | None) -> AsyncIterator[Entry]:
        after, upto = (
            (0, None) if seqs is None else (min(seqs, default=1) - 1, max(seqs, default=0))
        )
        part = {"upto": upto, "limit": READ_AT_ONCE}
        while some := await self._store.entries(session_id, after=after, **part):
            for entry in some:
                if seqs is None or entry.seq in seqs:
                    yield entry
            after = some[-1].seq


def _files_in(entry: Entry) -> set[str]:
    told = (entry.content.get("parts"), entry.metadata.get("attachments"))
    return set(_REFERENCE.findall(str(told))) if any(told) else set()
