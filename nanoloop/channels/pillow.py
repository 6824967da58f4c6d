"""A picture decoded and written anew. Loaded with the first one; the only file with Pillow."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from io import BytesIO

from PIL import Image, ImageOps

from nanoloop.channels.images import Header, Picture, bound
from nanoloop.errors import PictureRefused

LONG_SIDE = 2000
"""Pixels that a picture is scaled down to: models take no more when there are many."""
MOST_BYTES = 3_700_000
"""Bytes of a picture that stays as it is: 5 MB as base64, which some models take at most."""
PROFILE_BYTES = 65_536
QUALITY = 90
_SHOWN = frozenset(("1", "L", "LA", "P", "RGB", "RGBA"))
"""The ways to store colours that every model's server knows."""
_OPAQUE = frozenset(("L", "RGB"))


def cleaned(data: bytes, header: Header) -> Picture:
    """The picture upright, scaled down and with nothing beside it; as it is if it is like that.

    Raises `PictureRefused` for one that can't be read to its end.
    """
    try:
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
    """The picture small, and turned as its camera was held."""
    turned = _in_plain_colours(image)
    turned.thumbnail((LONG_SIDE, LONG_SIDE), reducing_gap=2.0)
    with suppress(Exception):  # what stands beside a good picture may be nonsense
        ImageOps.exif_transpose(turned, in_place=True)
    return turned


def _in_plain_colours(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode in _OPAQUE:
        return image
    is_grey = image.mode == "1" or image.mode.startswith("I")
    if image.mode not in ("P", "1"):
        image.info.pop("icc_profile", None)  # it is for other colours
    return image.convert("L" if is_grey else "RGB")


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
