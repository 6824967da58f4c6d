"""Pictures for a model over real HTTP: one that can't be read is left out alone, and only it."""

import base64
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from nanoloop.attachments import Attachments
from nanoloop.errors import BadImage, ImagesRefused, NoConnection, ProviderError
from nanoloop.events import PictureLeftOut, hearing
from nanoloop.pictures import NOT_FETCHED, UNREAD, Pictures
from nanoloop.providers.models import UNSEEN
from nanoloop.session.entry import SCHEME
from nanoloop.session.session import Session
from nanoloop.tools.toolbox import here
from tests.images import png
from tests.openai_client import connected, error
from tests.openai_server import Answer

HOUR = 3600.0
NO_IMAGES = error(404, "No endpoints found that support image input")
NOT_READ = error(400, "Could not process image")
CAT, DOG, OWL = png("red"), png("blue"), png("green")


class Bench:
    """A provider with pictures, the server behind it, and a clock set by hand."""

    def __init__(self, provider, server, folder):
        self.now = 0.0
        self.server = server
        self.events = []
        self.attachments = Attachments(folder, limit_bytes=10**6)
        self.pictures = Pictures(provider, self.attachments, clock=lambda: self.now)

    async def message(self, *pictures, text="look"):
        """What a person says with these pictures."""
        parts = [{"type": "text", "text": text}]
        for data in pictures:
            given = {"owner": "web:", "name": "a.png", "mime_type": "image/png"}
            kept = await self.attachments.keep(data, **given)
            await self.attachments.refer("s", [kept.id])
            parts.append({"type": "image_url", "image_url": {"url": f"{SCHEME}{kept.id}"}})
        return {"role": "user", "content": parts}

    async def ask(self, *messages, model=None, session="s", **more):
        here.set(Session(id=session))
        return (await self.pictures.chat(messages=messages, model=model, **more)).text

    def seen(self, request=-1):
        """The pictures of one request, by name."""
        return [name for name, data in NAMES.items() if in_base64(data) in body(self, request)]


NAMES = {"cat": CAT, "dog": DOG, "owl": OWL}


def in_base64(data):
    return base64.b64encode(data).decode()


def body(bench, request=-1):
    return bench.server.requests[request].body.decode()


def blind(request):
    return NO_IMAGES if b"image_url" in request.body else "I see nothing."


def choking_on(*bad):
    """Says that it can't read one of these, and not which."""

    def say(request):
        sent = request.body.decode()
        return NOT_READ if any(in_base64(data) in sent for data in bad) else "I see."

    return say


def at_most(count):
    refused = error(400, f"At most {count} image(s) may be provided in one request.")
    return lambda request: refused if request.body.count(b"data:image") > count else "I see."


@asynccontextmanager
async def bench(folder, *answers, otherwise="I see.", **settings):
    async with connected(*answers, otherwise=otherwise, **settings) as (provider, server):
        made = Bench(provider, server, folder)
        with hearing(made.events.append):
            yield made


async def test_one_chats_broken_picture_leaves_those_of_other_chats_alone(tmp_path):
    async with bench(tmp_path, otherwise=choking_on(CAT)) as chats:
        assert await chats.ask(await chats.message(CAT)) == "I see."
        assert chats.seen() == []
        await chats.ask(await chats.message(DOG))
        assert chats.seen() == ["dog"]
        assert chats.server.count == 3


async def test_a_broken_picture_is_never_sent_again_and_the_model_is_told(tmp_path):
    async with bench(tmp_path, otherwise=choking_on(CAT)) as chats:
        first = await chats.message(CAT)
        await chats.ask(first)
        await chats.ask(first, await chats.message(DOG))
        assert chats.server.count == 3
        assert chats.seen() == ["dog"]
        assert UNREAD["text"] in body(chats)
        assert [(event.reason, event.count) for event in chats.events] == [("unreadable", 1)]


async def test_a_new_broken_picture_costs_one_more_call_and_not_the_older_ones(tmp_path):
    async with bench(tmp_path, otherwise=choking_on(OWL)) as chats:
        older = await chats.message(CAT, DOG)
        await chats.ask(older)
        await chats.ask(older, await chats.message(OWL))
        assert chats.seen() == ["cat", "dog"]
        assert chats.server.count == 3


@pytest.mark.parametrize("bad", [CAT, DOG, OWL])
async def test_in_an_album_the_broken_one_is_found_in_the_end(tmp_path, bad):
    async with bench(tmp_path, otherwise=choking_on(bad)) as chats:
        album = await chats.message(CAT, DOG, OWL)
        for _ in range(3):
            assert await chats.ask(album) == "I see."
        before = chats.server.count
        await chats.ask(album)
        assert chats.server.count == before + 1
        assert chats.seen() == [name for name, data in NAMES.items() if data != bad]


async def test_two_broken_pictures_do_not_stop_the_answer(tmp_path):
    async with bench(tmp_path, otherwise=choking_on(CAT, OWL)) as chats:
        album = await chats.message(CAT, DOG, OWL)
        for _ in range(5):
            assert await chats.ask(album) == "I see."
        assert chats.seen() == ["dog"]


async def test_a_model_that_takes_no_images_is_learnt_once(tmp_path):
    async with bench(tmp_path, otherwise=blind) as chats:
        assert await chats.ask(await chats.message(CAT)) == "I see nothing."
        assert await chats.ask(await chats.message(DOG)) == "I see nothing."
        assert chats.server.count == 3
        assert UNSEEN["text"] in body(chats)
        assert [event.reason for event in chats.events] == ["refused"]


async def test_it_is_tried_again_after_an_hour_by_one_request_only(tmp_path):
    trial = replace(NO_IMAGES, held=True)
    async with bench(tmp_path, NO_IMAGES, "Nothing.", trial) as chats:
        cat = await chats.message(CAT)
        await chats.ask(cat)
        chats.now = HOUR
        async with anyio.create_task_group() as group:
            group.start_soon(chats.ask, cat)
            await chats.server.arrived(3)
            await chats.ask(cat)
            chats.server.release()
        assert [chats.seen(request) for request in (2, 3, 4)] == [["cat"], [], []]


async def test_a_model_that_takes_images_by_now_is_shown_them(tmp_path):
    async with bench(tmp_path, NO_IMAGES, "Nothing.") as chats:
        cat = await chats.message(CAT)
        await chats.ask(cat)
        chats.now = HOUR
        for _ in range(2):
            assert await chats.ask(cat) == "I see."
            assert chats.seen() == ["cat"]


async def test_what_one_model_refuses_another_is_shown(tmp_path):
    async with bench(tmp_path, NO_IMAGES, "Nothing.") as chats:
        cat = await chats.message(CAT)
        await chats.ask(cat, model="blind")
        await chats.ask(cat, model="other")
        assert chats.seen() == ["cat"]


async def test_a_model_that_takes_few_is_shown_the_newest(tmp_path):
    async with bench(tmp_path, otherwise=at_most(1)) as chats:
        album = await chats.message(CAT, DOG, OWL)
        for _ in range(2):
            assert await chats.ask(album) == "I see."
            assert chats.seen() == ["owl"]
        assert chats.server.count == 3


@pytest.mark.parametrize("words", ["image input is not supported", "failed to decode image"])
async def test_a_refused_image_is_not_asked_for_again_as_a_failure_of_the_server(tmp_path, words):
    async with bench(tmp_path, error(500, words), max_retries=2) as chats:
        assert await chats.ask(await chats.message(CAT)) == "I see."
        assert (chats.server.count, chats.seen()) == (2, [])


async def test_where_text_must_be_a_string_it_is_one(tmp_path):
    def strict(request):
        content = json.loads(request.body)["messages"][0]["content"]
        said = error(400, "messages[0].content must be a string")
        return "Fine." if isinstance(content, str) else said

    async with bench(tmp_path, otherwise=strict) as chats:
        assert await chats.ask(await chats.message(CAT)) == "Fine."


@pytest.mark.parametrize(
    "answer",
    [error(400, "tools need --jinja"), error(503, "Loading"), Answer(status=500, body=b"oops")],
)
async def test_any_other_failure_is_told_and_teaches_nothing(tmp_path, answer):
    async with bench(tmp_path, answer) as chats:
        cat = await chats.message(CAT)
        with pytest.raises(ProviderError):
            await chats.ask(cat)
        assert chats.server.count == 1
        await chats.ask(cat)
        assert chats.seen() == ["cat"]


async def test_nothing_that_was_heard_is_said_twice(tmp_path):
    said = b'data: {"choices": [{"index": 0, "delta": {"content": "I see"}}]}\n\n'
    broken = b'data: {"error": {"message": "Could not process image"}}\n\n'
    pieces = []
    async with bench(tmp_path, Answer(chunks=(said, broken))) as chats:
        with pytest.raises(BadImage):
            await chats.ask(await chats.message(CAT), on_text=pieces.append)
        assert pieces == ["I see"]
        assert chats.server.count == 1


async def test_a_picture_of_a_client_is_passed_on_and_so_is_its_failure(tmp_path):
    theirs = {"type": "image_url", "image_url": {"url": "https://example.org/y.png"}}
    async with bench(tmp_path, NOT_READ, NO_IMAGES) as chats:
        for kind in (BadImage, ImagesRefused):
            with pytest.raises(kind):
                await chats.ask({"role": "user", "content": [theirs]})
        assert chats.events == []


@pytest.mark.parametrize("ours", [(), (CAT,)])
async def test_an_image_kept_with_a_private_address_is_no_longer_fetched(tmp_path, ours):
    urls = ["http://169.254.169.254/", "https://[::1]/", "file:///etc/passwd", "data:,"]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    async with bench(tmp_path) as chats:
        mine = await chats.message(*ours)
        await chats.ask({**mine, "content": [*mine["content"], *parts, UNREAD]})
        sent = body(chats)
    assert [url for url in urls if url in sent] == ["data:,"]
    assert sent.count(NOT_FETCHED["text"]) == 3


async def test_what_is_learnt_with_other_options_is_known(tmp_path):
    async with bench(tmp_path, otherwise=blind) as chats:
        cat = await chats.message(CAT)
        await chats.pictures.with_options({"temperature": 0}).chat(messages=[cat])
        await chats.ask(cat)
        assert chats.server.count == 3


async def test_a_picture_that_could_be_read_before_may_be_unreadable_now(tmp_path):
    async with bench(tmp_path, "I see.", otherwise=choking_on(CAT)) as chats:
        cat = await chats.message(CAT)
        for _ in range(2):
            assert await chats.ask(cat) == "I see."
        assert chats.server.count == 3


async def test_without_a_server_nothing_is_learnt(tmp_path):
    async with bench(tmp_path, base_url="http://127.0.0.1:1/v1") as chats:
        with pytest.raises(NoConnection):
            await chats.ask(await chats.message(CAT))
        assert not [event for event in chats.events if isinstance(event, PictureLeftOut)]


async def test_a_session_sees_no_picture_that_it_was_not_sent(tmp_path):
    async with bench(tmp_path) as chats:
        cat = await chats.message(CAT)
        await chats.ask(cat, session="another")
        assert chats.seen() == []
        assert UNSEEN["text"] in body(chats)
        await chats.ask(cat)
        assert chats.seen() == ["cat"]
