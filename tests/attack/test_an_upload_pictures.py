"""Someone who sends pictures that are broken: those of others are kept, and seen by the model."""

from base64 import b64encode

import anyio
import pytest

from nanoloop.attachments import Attachments, StoredFile
from nanoloop.errors import BadImage, ImagesRefused, PictureRefused
from nanoloop.pictures import Pictures
from nanoloop.protocols import Reply
from nanoloop.session.entry import SCHEME
from nanoloop.session.session import Session
from nanoloop.tools.toolbox import here
from tests.images import chunk, huge_png, picture, png, with_chunk

MANY, PEOPLE = 200, 10
BROKEN = {
    "png cut short": picture("PNG")[:-30],
    "png that is a head only": picture("PNG")[:33],
    "png of nonsense": picture("PNG")[:40] + b"nonsense" * 9,
    "png without pixels": huge_png(0, 5),
    "png without end": huge_png(50_000, 50_000),
    "png with a wrong sum": picture("PNG").replace(b"IDAT", b"IDAt"),
    "png in a png": with_chunk(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)), b"IDAT", b""),
    "jpeg cut short": picture("JPEG")[:200],
    "jpeg without a size": b"\xff\xd8\xff\xe0\x00\x10JFIF\0" + bytes(9) + b"\xff\xd9",
    "jpeg of nonsense": b"\xff\xd8\xff" + b"nonsense" * 100,
    "gif cut short": picture("GIF")[:20],
    "gif of many parts": b"GIF89a" + bytes(7) + b"\x21\xfe\x01a\x00" * 5_000,
    "webp cut short": picture("WEBP")[:25],
    "webp that is another file": b"RIFF\x24\x00\x00\x00WEBPVP8X" + bytes(40),
}
REFUSALS = {
    "can't be read": lambda: BadImage("Could not process image"),
    "is taken for none": lambda: ImagesRefused("this model does not support image input"),
    "is one too many": lambda: ImagesRefused("too many images", most=None),
}


class Model:
    """Refuses a request with a broken picture, and notes which good ones it has seen."""

    def __init__(self):
        self.broken = {}
        self.seen = set()
        self.count = 0

    async def chat(self, *, messages, **_):
        self.count += 1
        shown = {part["image_url"]["url"] for part in parts_of(messages)}
        for url, refusal in self.broken.items():
            if url in shown:
                raise refusal()
        self.seen |= shown
        return Reply(text="I see.")

    async def close(self):
        pass


def parts_of(messages):
    contents = (m["content"] for m in messages if isinstance(m["content"], list))
    return [part for content in contents for part in content if part["type"] == "image_url"]


@pytest.fixture
def files(tmp_path):
    return Attachments(tmp_path, limit_bytes=10**8)


async def kept(files, data, owner):
    return await files.keep(data, owner=owner, name="a", mime_type=type_of(data))


def type_of(data):
    signs = {b"\x89": "png", b"\xff": "jpeg", b"G": "gif", b"R": "webp"}
    return f"image/{signs[data[:1]]}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
async def test_those_of_others_are_kept_between_broken_ones(files, kind):
    found, refused = [], []

    async def others(person):
        found.append(await kept(files, png("red", size=(4, 3 + person)), f"person-{person}"))

    async def attacker():
        with pytest.raises(PictureRefused):
            await kept(files, BROKEN[kind], "attacker")
        refused.append(kind)

    async with anyio.create_task_group() as group:
        for number in range(MANY):
            group.start_soon(attacker)
            if number % (MANY // PEOPLE) == 0:
                group.start_soon(others, number)
    assert (len(found), len(refused)) == (PEOPLE, MANY)


class Stored(dict):
    """Uploads that are kept already: owner by id."""

    async def held(self, session, file):
        return StoredFile(
            id=file, owner=self[file], kind="image", name="a", mime_type="image/png", size=1
        )

    async def data(self, file):
        return file.encode()


@pytest.mark.parametrize("together", [True, False], ids=["in one room", "each in their own chat"])
@pytest.mark.parametrize("kind", REFUSALS)
async def test_those_of_others_are_seen_between_broken_ones(kind, together):
    model, files = Model(), Stored()
    pictures = Pictures(model, files)
    good, rooms = set(), {}
    here.set(Session(id="s"))

    async def ask(who, file):
        files[file] = who
        part = {"type": "image_url", "image_url": {"url": f"{SCHEME}{file}"}}
        url = f"data:image/png;base64,{b64encode(file.encode()).decode()}"
        if who == "attacker":
            model.broken[url] = REFUSALS[kind]
        else:
            good.add(url)
        room = rooms.setdefault("all" if together else who, [])
        room.append({"role": "user", "content": [{"type": "text", "text": "look"}, part]})
        before = model.count
        assert (await pictures.chat(messages=room[-12:])).text == "I see."
        assert model.count - before <= 12
        if who != "attacker":
            assert url in model.seen, who

    for number in range(MANY):
        if number % (MANY // PEOPLE) == 0:
            await ask(f"person-{number}", f"good-{number}")
        await ask("attacker", f"broken-{number}")
    assert good <= model.seen
