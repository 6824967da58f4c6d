"""Decode and re-encode pictures. Only this module uses Pillow, and it is imported when needed."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from threading import Lock

from PIL import Image, ImageOps

from nanoloop.errors import PictureRefused
from nanoloop.images import Header, Picture, bound

LONG_SIDE = 2000
"""The longest side of a picture after scaling; models accept no more if there are many pictures."""
MOST_BYTES = 3_700_000
"""The largest picture that is left unchanged: 5 MB as base64, which is some models' limit."""
PROFILE_BYTES = 65_536
QUALITY = 90
STRIP = 64
"""How many rows of the smaller picture are computed at a time."""
_SHOWN = frozenset(("1", "L", "LA", "P", "RGB", "RGBA"))
"""The colour modes that all models' servers support."""
_OPAQUE = frozenset(("L", "RGB"))
_one_at_a_time = Lock()
"""Allows one picture at a time: each may need 200 MB, and warning filters are process-wide."""


def cleaned(data: bytes, header: Header) -> Picture:
    """Return the picture upright, scaled down and without metadata; unchanged if it already is.

    Raise `PictureRefused` if decoding fails.
    """
    try:
        # Pillow's warnings are about pictures that are refused or cleaned anyway.
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _cleaned(data, header)
    except PictureRefused:
        raise
    except Exception:  # noqa: BLE001 - decoders raise anything for crafted input
        raise PictureRefused("it is damaged") from None


def _cleaned(data: bytes, header: Header) -> Picture:
    kind = header.mime_type.removeprefix("image/")
    with Image.open(BytesIO(data), formats=[kind]) as image:
        bound(replace(header, width=image.width, height=image.height))
        image.draft(None, (LONG_SIDE, LONG_SIDE))  # a JPEG is decoded directly to this size
        image.load()
        is_small = len(data) <= MOST_BYTES and max(header.width, header.height) <= LONG_SIDE
        if header.is_bare and is_small and image.mode in _SHOWN:
            return Picture(data=data, mime_type=header.mime_type)
        return _written(_upright(image), header.mime_type)


def _upright(image: Image.Image) -> Image.Image:
    """Return the picture scaled down and turned upright."""
    turned = _reduced(_in_plain_colours(image))
    turned.thumbnail((LONG_SIDE, LONG_SIDE))
    with suppress(Exception):  # a good picture may have invalid metadata
        ImageOps.exif_transpose(turned, in_place=True)
    return turned


def _reduced(image: Image.Image) -> Image.Image:
    """Return the picture reduced by an integer factor, in strips to save memory."""
    factor = max(image.size) // LONG_SIDE
    if factor <= 1:
        return image
    small = Image.new(image.mode, (-(-image.width // factor), -(-image.height // factor)))
    small.info = image.info
    for top in range(0, image.height, factor * STRIP):
        bottom = min(top + factor * STRIP, image.height)
        strip = image.crop((0, top, image.width, bottom))
        small.paste(strip.reduce(factor), (0, top // factor))
    return small


def _in_plain_colours(image: Image.Image) -> Image.Image:
    wanted = "RGBA" if image.has_transparency_data else "RGB"
    if image.mode == wanted or (image.mode in _OPAQUE and wanted == "RGB"):
        return image  # a copy may be a hundred MB
    if wanted == "RGBA":
        return image.convert("RGBA")
    if image.mode in ("1", "P"):
        return image.convert("L" if image.mode == "1" else "RGB")
    image.info.pop("icc_profile", None)  # it applies to other colours
    if image.mode.startswith("I"):  # a 16-bit PNG
        return image.convert("I").point(lambda shade: shade / 256).convert("L")
    return image.convert("RGB")


def _written(image: Image.Image, mime_type: str) -> Picture:
    profile = image.info.get("icc_profile") or b""
    known = profile if len(profile) <= PROFILE_BYTES else None
    # Otherwise Pillow would also write the other metadata.
    image.info = {}
    is_photo = mime_type in ("image/jpeg", "image/webp") and image.mode in _OPAQUE
    data = b"" if is_photo else _as("PNG", image, known)
    if is_photo or (image.mode in _OPAQUE and len(data) > MOST_BYTES):
        return Picture(data=_as("JPEG", image, known), mime_type="image/jpeg")
    return Picture(data=data, mime_type="image/png")


def _as(form: str, image: Image.Image, profile: bytes | None) -> bytes:
    file = BytesIO()
    image.save(file, form, quality=QUALITY, icc_profile=profile or None)
    return file.getvalue()
