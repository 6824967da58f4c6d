"""Pictures for tests, whole and broken, made in memory."""

import struct
import zlib
from io import BytesIO

from PIL import Image


def saved(image, form, **more):
    file = BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


def opened(data):
    image = Image.open(BytesIO(data))
    image.load()
    return image


def png(color="red", size=(4, 3), mode="RGB", **more):
    return saved(Image.new(mode, size, color), "PNG", **more)


def picture(form, size=(40, 30), mode="RGB", **more):
    """One with a corner that differs: it shows how it was turned."""
    image = Image.new("RGB", size)
    image.paste("white", (0, 0, size[0] // 2, size[1] // 2))
    return saved(image.convert(mode), form, **more)


def camera(orientation=1):
    """What a camera writes beside a picture: how it was held, its name, and where."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "Leaky camera"
    exif.get_ifd(0x8825)[1] = "N"
    return exif


def chunk(name, data):
    crc = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)


def with_chunk(data, name, inner):
    """A PNG with one more chunk right after its header."""
    return data[:33] + chunk(name, inner) + data[33:]


def huge_png(width, height):
    """A PNG that says it is so large, and is a few bytes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(99))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def animation(form, frames=3, size=(8, 8)):
    images = [Image.new("RGB", size, (index * 7 % 256, 0, 0)) for index in range(frames)]
    return saved(images[0], form, save_all=True, append_images=images[1:], duration=50)
