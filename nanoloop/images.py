"""Check the headers of incoming pictures before anything decodes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from struct import (  # noqa: N812 - what it means here
    error as CutOff,
)
from struct import (
    unpack_from,
)

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import PictureRefused

MOST_PIXELS = 50_000_000
"""The pixel limit for a non-progressive JPEG, which is decoded directly to the smaller size."""
_SHARE = {"image/png": 2, "image/gif": 2, "image/webp": 4}
"""The limit is divided by this number for these formats, because their decoders use more memory."""
MOST_SIDE = 65_535
"""The maximum number of pixels on one side, because each row takes memory too."""
MOST_SCANS = 500_000_000
"""The limit on a JPEG's pixels times its scans, as the decoder processes each scan in full."""
READ_SECONDS = 30.0
SLOW = "it takes too long to read"
_PARTS = 20_000
"""How many parts of a file are scanned; a file with more parts is decoded instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a picture's header says about the picture."""

    mime_type: str
    width: int
    height: int
    is_bare: bool
    """True if the file contains only a picture: no location, no camera, no second file."""
    scans: int = 1
    is_progressive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that has passed the check."""

    data: bytes
    mime_type: str


async def checked(data: bytes, *, limiter: AbstractAsyncContextManager[None]) -> Picture:
    """Return the picture upright and without metadata; raise `PictureRefused` if unusable.

    Without Pillow, only the header is checked, and the picture is returned unchanged.
    """
    async with limiter:
        with anyio.move_on_after(READ_SECONDS):
            # The thread can't be stopped, so the header's limits have to bound its work.
            return await run_sync(_checked, data, abandon_on_cancel=True)
    raise PictureRefused(SLOW)


def _checked(data: bytes) -> Picture:
    header = header_of(data)
    try:
        # Imported with the first picture, because Pillow is an extra.
        from nanoloop.pillow import cleaned  # noqa: PLC0415 - as above
    except ImportError:
        return Picture(data=data, mime_type=header.mime_type)
    return cleaned(data, header)


def is_pillow_here() -> bool:
    """Return True if pictures can be decoded; otherwise only their headers are checked."""
    return find_spec("PIL") is not None


def header_of(data: bytes) -> Header:
    """Read a picture's header; raise `PictureRefused` if the size is invalid or too large."""
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
    """Return True for plain JFIF, Adobe's colour transform or a colour profile."""
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
    """Return the size of the colour table that follows, in bytes."""
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
"""The picture types that models can see."""
