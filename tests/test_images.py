"""Pictures that come in: broken ones are refused, and whole ones lose what nobody meant to send."""

import json
import subprocess
import sys
import zlib

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nanoloop import images
from nanoloop.attachments import Attachments
from nanoloop.errors import PictureRefused
from nanoloop.images import MOST_SIDE, checked, header_of
from nanoloop.pillow import LONG_SIDE, MOST_BYTES, cleaned
from tests.images import (
    animation,
    camera,
    chunk,
    huge_png,
    opened,
    picture,
    png,
    saved,
    with_chunk,
)

FORMS = ["PNG", "JPEG", "GIF", "WEBP"]
WHOLE = {form: picture(form) for form in FORMS}


def look(data):
    """The picture as it is kept."""
    return cleaned(data, header_of(data))


def corners(image):
    """Whether the upper left, the upper right, the lower right and the lower left are light."""
    grey, (right, bottom) = image.convert("L"), (image.width - 3, image.height - 3)
    spots = [(2, 2), (right, 2), (right, bottom), (2, bottom)]
    return [grey.getpixel(spot) > 128 for spot in spots]


@pytest.fixture
def limiter():
    return anyio.CapacityLimiter(1)


# What is whole


@pytest.mark.parametrize("form", FORMS)
async def test_a_picture_with_nothing_beside_it_stays_as_it_is(form, limiter):
    kept = await checked(WHOLE[form], limiter=limiter)
    assert (kept.data, kept.mime_type) == (WHOLE[form], f"image/{form.lower()}")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
async def test_where_it_was_taken_is_dropped(form, limiter):
    data = picture(form, exif=camera())
    assert b"Leaky camera" in data
    kept = await checked(data, limiter=limiter)
    assert b"Leaky camera" not in kept.data
    assert not opened(kept.data).getexif()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(("orientation", "light"), [(1, 0), (3, 2), (6, 1), (8, 3), (2, 1)])
def test_a_picture_is_turned_as_its_camera_was_held(form, orientation, light):
    image = opened(look(picture(form, exif=camera(orientation))).data)
    assert image.size == ((30, 40) if orientation in {6, 8} else (40, 30))
    assert corners(image) == [spot == light for spot in range(4)]


def test_a_wrong_orientation_costs_no_picture():
    assert opened(look(picture("JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 40)).data).size == (40, 30)


SECRET = b"secret-place"
HIDDEN = {
    "jpeg comment": picture("JPEG", comment=SECRET),
    "jpeg xmp": picture("JPEG", xmp=b"<x>" + SECRET),
    "jpeg tail": WHOLE["JPEG"] + SECRET,
    "png text": with_chunk(WHOLE["PNG"], b"tEXt", b"Comment\0" + SECRET),
    "png of its own": with_chunk(WHOLE["PNG"], b"pRVt", SECRET),
    "png tail": WHOLE["PNG"] + b"<html>" + SECRET,
    "gif comment": picture("GIF", comment=SECRET),
    "gif tail": WHOLE["GIF"] + SECRET,
    "webp xmp": picture("WEBP", xmp=b"<x>" + SECRET),
    "webp tail": WHOLE["WEBP"] + SECRET,
}


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_what_is_hidden_beside_a_picture_is_dropped(data):
    assert SECRET in data
    kept = look(data)
    assert SECRET not in kept.data
    assert corners(opened(kept.data)) == [True, False, False, False]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "MPO"])
def test_of_an_animation_the_first_picture_is_kept(form):
    kept = opened(look(animation(form)).data)
    assert getattr(kept, "n_frames", 1) == 1
    assert kept.size == (8, 8)


def test_a_large_picture_is_scaled_down():
    kept = opened(look(picture("PNG", size=(9000, 30))).data)
    assert kept.size == (LONG_SIDE, 7)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_a_large_picture_looks_as_before(mode):
    image = opened(look(picture("PNG", size=(4100, 4010), mode=mode)).data)
    assert max(image.size) == LONG_SIDE
    assert corners(image) == [True, False, False, False]


def test_colours_of_a_printer_become_those_of_a_screen():
    kept = opened(look(picture("JPEG", mode="CMYK", size=(40, 30))).data)
    assert (kept.mode, kept.size) == ("RGB", (40, 30))


def test_grey_of_sixteen_bits_keeps_its_shades():
    shades = Image.new("I;16", (2, 1))
    shades.putpixel((0, 0), 65535)
    shades.putpixel((1, 0), 0x8000)
    kept = opened(look(saved(shades, "PNG")).data)
    assert (kept.mode, kept.getpixel((0, 0)), kept.getpixel((1, 0))) == ("L", 255, 128)


def test_what_is_transparent_stays_so():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    data = saved(image, "PNG", transparency=1)
    noted = with_chunk(data, b"tEXt", b"a\0b")
    assert opened(look(noted).data).convert("RGBA").getpixel((0, 0))[3] == 0


@pytest.mark.slow
def test_a_picture_of_many_bytes_becomes_fewer():
    noise = Image.effect_noise((1990, 1990), 100).convert("RGB")
    data = saved(noise, "PNG", compress_level=0)
    assert len(look(data).data) < MOST_BYTES < len(data)


def test_a_profile_of_colours_stays():
    profile = b"profile of a screen"
    kept = look(picture("JPEG", exif=camera(), icc_profile=profile))
    assert opened(kept.data).info["icc_profile"] == profile


# What is not


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_what_is_cut_off_is_refused(form, part):
    data = saved(Image.effect_noise((64, 64), 90), form)
    with pytest.raises(PictureRefused, match="it is damaged"):
        look(data[: int(len(data) * part)])


def jpeg_of(size):
    data = WHOLE["JPEG"]
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + size + data[at + 4 :]


BOMBS = {
    "png": huge_png(30_000, 30_000),
    "gif": b"GIF89a" + b"\xff" * 4 + WHOLE["GIF"][10:],
    "jpeg": jpeg_of(b"\xff" * 4),
    "webp": b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6 + bytes(20),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_by_its_header(data):
    with pytest.raises(PictureRefused, match="more than"):
        header_of(data)


def test_a_frame_outside_of_its_picture_counts():
    data = WHOLE["GIF"]
    at = data.index(b",", 13 + (3 << (data[10] & 7) + 1))
    with pytest.raises(PictureRefused, match="more than"):
        header_of(data[: at + 5] + b"\xff" * 4 + data[at + 9 :])


def test_a_jpeg_of_a_thousand_passes_is_refused():
    data = picture("JPEG", size=(3000, 2000), progressive=True)
    at = data.rindex(b"\xff\xda")
    passes = data[at:-2] * 1000
    with pytest.raises(PictureRefused, match="takes too long"):
        header_of(data[:at] + passes + data[-2:])


def test_a_picture_that_is_nothing_but_long_is_refused():
    with pytest.raises(PictureRefused, match="one side of it"):
        header_of(huge_png(1, MOST_SIDE + 1))


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_what_has_no_pixels_is_refused(size):
    with pytest.raises(PictureRefused, match="no pixels"):
        header_of(huge_png(*size))


def deep():
    """Texts of many MB, in a few kB."""
    return zlib.compress(bytes(50_000_000))


@pytest.mark.skipif(sys.platform != "linux", reason="measured as Linux tells it")
@pytest.mark.parametrize(
    "data",
    [
        with_chunk(png(), b"zTXt", b"a\0\0" + deep()),
        with_chunk(png(), b"iTXt", b"a\0\1\0\0\0" + deep()),
        with_chunk(png(), b"iCCP", b"a\0\0" + deep()),
        animation("GIF", frames=1000),
        huge_png(5000, 4999),
        huge_png(1, MOST_SIDE),
    ],
    ids=["text", "utf-8", "profile", "frames", "empty", "thin"],
)
def test_little_that_wants_to_be_much_takes_little_memory(data, tmp_path):
    (tmp_path / "picture").write_bytes(data)
    said = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path / "picture"], capture_output=True, check=True
    )
    assert float(said.stdout) < 150


MEASURED = """
import re, sys
from pathlib import Path
from nanoloop.images import header_of
from nanoloop.pillow import cleaned
from nanoloop.errors import PictureRefused
from nanoloop.images import MOST_SIDE, checked, header_of

def most():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

data, before = Path(sys.argv[1]).read_bytes(), most()
try:
    cleaned(data, header_of(data))
except PictureRefused:
    pass
print(most() - before)
"""


@pytest.mark.parametrize("form", FORMS)
@given(at=st.integers(0, 400), junk=st.binary(min_size=1, max_size=8))
def test_whatever_comes_is_read_or_refused(form, at, junk):
    data = WHOLE[form][:at] + junk + WHOLE[form][at + len(junk) :]
    try:
        kept = look(data)
    except PictureRefused:
        return
    assert header_of(kept.data).mime_type == kept.mime_type


@given(form=st.sampled_from([data[:12] for data in WHOLE.values()]), junk=st.binary(max_size=200))
def test_junk_behind_a_beginning_is_read_or_refused(form, junk):
    try:
        look(form + junk)
    except PictureRefused:
        return


# Kept


async def test_one_and_the_same_upload_is_one_file(tmp_path):
    attachments = Attachments(tmp_path, limit_bytes=10**6)
    data, given = picture("JPEG", exif=camera(6)), {"owner": "web:", "mime_type": "image/jpeg"}
    kept = [await attachments.keep(data, name="a.jpg", **given) for _ in range(2)]
    assert kept[0].id == kept[1].id
    assert kept[0].size == len(await attachments.data(kept[0].id))


async def test_a_refused_picture_leaves_nothing(tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=10**6)
    with pytest.raises(PictureRefused):
        await attachments.keep(png()[:50], owner="web:", name="a.png", mime_type="image/png")
    assert not (tmp_path / "kept").exists()


async def test_a_picture_that_takes_too_long_is_refused(monkeypatch, limiter):
    monkeypatch.setattr(images, "READ_SECONDS", 0)
    with pytest.raises(PictureRefused, match="takes too long"):
        await checked(png(), limiter=limiter)


async def test_without_pillow_a_header_is_enough(monkeypatch, limiter):
    monkeypatch.setitem(sys.modules, "nanoloop.pillow", None)
    data = picture("JPEG", exif=camera())
    assert (await checked(data, limiter=limiter)).data == data
    with pytest.raises(PictureRefused, match="more than"):
        await checked(huge_png(30_000, 30_000), limiter=limiter)


def test_pillow_is_loaded_with_the_first_picture():
    loaded = "import nanoloop.app, sys, json; print(json.dumps('PIL' in sys.modules))"
    said = subprocess.run([sys.executable, "-c", loaded], capture_output=True, check=True)
    assert json.loads(said.stdout) is False


def test_a_picture_that_is_none_is_refused():
    with pytest.raises(PictureRefused, match="damaged"):
        header_of(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"")[:8])
