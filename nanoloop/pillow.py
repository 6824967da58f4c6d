"""Decodes and re-encodes pictures; loaded with the first one, and the only file to use Pillow."""

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
"""How many pixels a picture is scaled down to: models accept no more if there are many."""
MOST_BYTES = 3_700_000
"""The maximum size of a picture left unchanged: 5 MB as base64, the limit of some models."""
PROFILE_BYTES = 65_536
QUALITY = 90
STRIP = 64
"""How many rows of the smaller picture are made at a time."""
_SHOWN = frozenset(("1", "L", "LA", "P", "RGB", "RGBA"))
"""The colour modes that every model's server knows."""
_OPAQUE = frozenset(("L", "RGB"))
_one_at_a_time = Lock()
"""Each picture may briefly take up to 200 MB, and the warning limit is process-wide."""


def cleaned(data: bytes, header: Header) -> Picture:
    """The picture upright, scaled down and without metadata; unchanged if it already is.

    Raises `PictureRefused` if it can't be read to the end.
    """
    try:
        # What Pillow warns of is refused, or dropped: nobody has to read of it on standard error.
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _cleaned(data, header)
    except PictureRefused:
        raise
    except Exception:  # noqa: BLE001 - decoders raise anything for what somebody made up
        raise PictureRefused("it is damaged") from None


def _cleaned(data: bytes, header: Header) -> Picture:
    kind = header.mime_type.removeprefix("image/")
    with Image.open(BytesIO(data), formats=[kind]) as image:
        bound(replace(header, width=image.width, height=image.height))
        image.draft(None, (LONG_SIDE, LONG_SIDE))  # a JPEG is decoded as small as that
        image.load()
        is_small = len(data) <= MOST_BYTES and max(header.width, header.height) <= LONG_SIDE
        if header.is_bare and is_small and image.mode in _SHOWN:
            return Picture(data=data, mime_type=header.mime_type)
        return _written(_upright(image), header.mime_type)


def _upright(image: Image.Image) -> Image.Image:
    """The picture, small and turned upright."""
    turned = _reduced(_in_plain_colours(image))
    turned.thumbnail((LONG_SIDE, LONG_SIDE))
    with suppress(Exception):  # what stands beside a good picture may be nonsense
        ImageOps.exif_transpose(turned, in_place=True)
    return turned


def _reduced(image: Image.Image) -> Image.Image:
    """The picture, reduced by an integer factor; in strips, because all of it would be copied."""
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
    image.info.pop("icc_profile", None)  # it is for other colours
    if image.mode.startswith("I"):  # a PNG of 16 bits
        return image.convert("I").point(lambda shade: shade / 256).convert("L")
    return image.convert("RGB")


def _written(image: Image.Image, mime_type: str) -> Picture:
    profile = image.info.get("icc_profile") or b""
    known = profile if len(profile) <= PROFILE_BYTES else None
    # All else that was known of it would be written too.
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
