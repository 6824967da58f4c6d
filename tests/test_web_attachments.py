"""Files over the web: taken in by what they are, given out so that no browser runs them."""

import base64
import os

import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import documents
from nanoloop.attachments import mime_type_of
from nanoloop.channels.web.channel import _safe_name
from nanoloop.errors import ImagesRefused
from nanoloop.providers.scripted import ScriptedProvider
from tests.images import camera, opened, picture, png
from tests.web_server import OTHER, TOKENS, bearer, serving

PNG = png()


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def uploaded(web, data, name="a.png", **more):
    given = {"X-Name": name, **more}
    return await web.call("POST", "/api/attachments", status=201, content=data, headers=given)


async def answered(web, session, attachment):
    async with web.reading(session) as reader:
        await reader.until("hello")
        await web.say(session, "look", attachments=[attachment["id"]])
        return await reader.until("answer")


async def test_a_file_comes_back_as_it_was_and_is_never_run(web):
    kept = await uploaded(web, PNG, "caf%C3%A9.png")
    assert (kept["kind"], kept["name"], kept["mime_type"]) == ("image", "café.png", "image/png")
    response = await web.client.get(kept["url"])
    assert response.content == PNG
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in response.headers["content-security-policy"]


@pytest.fixture
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("url", "place"), [("sqlite:", "sessions.sqlite"), ("jsonl:", "sessions")])
async def test_what_is_kept_is_for_its_owners_eyes_only(tmp_path, url, place):
    data = tmp_path / "data"
    async with serving(data, settings={"store": {"url": url}}) as web:
        session = await web.begin()
        await answered(web, session, await uploaded(web, PNG))
        await web.call("GET", "/readyz", status=200)
        kept = {path: path.stat().st_mode & 0o077 for path in (data, *data.rglob("*"))}
    assert {"recall.sqlite", place, "attachments"} <= {path.name for path in kept}
    assert [path for path, others in kept.items() if others] == []


async def test_a_text_is_for_saving_whatever_it_says_it_is(web):
    kept = await uploaded(
        web, b"<script>alert(1)</script>", "../../x.html", **{"Content-Type": "text/html"}
    )
    response = await web.client.get(kept["url"])
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''x.html"


async def test_the_model_sees_an_image_and_the_log_only_names_it(web, tmp_path):
    session = await web.begin()
    await answered(web, session, await uploaded(web, PNG))
    said = web.provider.calls[-1].messages[-1]["content"]
    data = base64.b64encode(PNG).decode()
    assert said[1]["image_url"]["url"] == f"data:image/png;base64,{data}"
    assert data not in "".join(f.read_text() for f in tmp_path.glob("sessions/*.jsonl"))
    shown = (await web.messages(session))[0]
    assert (shown["text"], shown["attachments"][0]["name"]) == ("look", "a.png")


async def test_a_model_that_takes_no_images_answers_without_them(tmp_path):
    def blind(messages, _tools, _model):
        return ImagesRefused("no images") if "data:image" in str(messages) else "I see nothing."

    async with serving(tmp_path, provider=ScriptedProvider(otherwise=blind)) as web:
        session = await web.begin()
        events = await answered(web, session, await uploaded(web, PNG))
        assert events[-1].data["text"] == "I see nothing."
        await web.answered(session, "and now?")
    assert web.provider.count == 3  # it is not tried again


async def test_the_model_reads_a_text_up_to_a_limit_and_the_page_shows_its_name(tmp_path):
    async with serving(tmp_path, provider=ScriptedProvider(otherwise="Tea.")) as web:
        session = await web.begin()
        kept = await uploaded(web, b"tea " * 10_000, "notes.txt")
        await answered(web, session, kept)
        said = web.provider.calls[-1].messages[-1]["content"]
        shown = (await web.messages(session))[0]
    assert said[1]["text"].startswith("[file: notes.txt, text/plain, 40000 bytes]\n| tea tea")
    assert said[1]["text"].endswith(
        f"[cut: 20,000 of 40,000 characters; the file is attachment:{kept['id']}]"
    )
    assert shown["text"] == "look"
    assert shown["attachments"] == [
        {**shown["attachments"][0], "kind": "file", "name": "notes.txt", "size": 40_000}
    ]


async def test_a_question_with_a_file_can_be_asked_again(web):
    session = await web.begin()
    await web.answered(session, "first")
    await answered(web, session, await uploaded(web, PNG))
    async with web.reading(session) as reader:
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={"text": "again"})
        await reader.until("answer")
    shown = (await web.messages(session))[2]
    assert (shown["text"], len(shown["attachments"])) == ("again", 1)


async def test_a_broken_picture_is_refused_with_a_reason(web):
    refused = await web.call("POST", "/api/attachments", status=422, content=PNG[:50])
    assert refused["error"]["message"] == "this picture can't be used: it is damaged"


async def test_an_uploaded_photo_comes_back_upright_and_without_its_place(web):
    kept = await uploaded(web, picture("JPEG", exif=camera(6)), "a.jpg")
    data = (await web.client.get(kept["url"])).content
    assert kept["size"] == len(data)
    assert (opened(data).size, len(opened(data).getexif())) == ((30, 40), 0)


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x00\x01", b"PK\x03\x04 a.txt", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"]
)
async def test_other_files_are_refused(web, data):
    refused = await web.call("POST", "/api/attachments", status=415, content=data)
    assert "send an image" in refused["error"]["message"]


async def test_nobody_gets_anothers_file(tmp_path):
    async with serving(tmp_path, tokens=TOKENS) as web:
        kept = await uploaded(web, PNG, **bearer())
        await web.call("GET", kept["url"], status=404, headers=bearer(OTHER))
        begun = await web.call("POST", "/api/sessions", json={}, headers=bearer(OTHER))
        path, said = f"/api/sessions/{begun['id']}/messages", {"attachments": [kept["id"]]}
        await web.call("POST", path, status=422, headers=bearer(OTHER), json=said)
        mine = await uploaded(web, PNG, **bearer(OTHER))
        assert mine["id"] != kept["id"]


async def test_all_files_together_have_a_limit(tmp_path):
    async with serving(tmp_path, uploads_bytes=1000) as web:
        await uploaded(web, b"x" * 600)
        await uploaded(web, b"x" * 600)  # the same one
        await web.call("POST", "/api/attachments", status=413, content=b"y" * 600)


async def test_files_are_sealed_where_sessions_are(tmp_path):
    store = {"encryption_key": Fernet.generate_key().decode()}
    async with serving(tmp_path, settings={"store": store}) as web:
        kept = await uploaded(web, b"a secret recipe")
        assert (await web.client.get(kept["url"])).content == b"a secret recipe"
        files = list(tmp_path.glob("attachments/*"))
        assert files
        assert not any(b"recipe" in file.read_bytes() for file in files)


@given(st.binary(max_size=20))
def test_what_is_taken_for_text_is_text(data):
    if mime_type_of(data) == "text/plain":
        [(_, text)] = documents._text(data)
        assert "\0" not in text


@given(st.text(max_size=300))
def test_a_name_is_one_part_of_a_path_and_prints(name):
    safe = _safe_name(name)
    assert 0 < len(safe) <= 120
    assert not set(safe) & {"/", "\\"}
    assert safe.isprintable()


async def test_what_was_sent_before_the_key_is_still_shown_and_seen_with_it(tmp_path):
    with_key = {"settings": {"store": {"encryption_key": Fernet.generate_key().decode()}}}
    async with serving(tmp_path) as web:
        session = await web.begin()
        picture, notes = await uploaded(web, PNG), await uploaded(web, b"tea", "notes.txt")
        await answered(web, session, picture)
    for more in (with_key, with_key):
        async with serving(tmp_path, **more) as web:
            await web.answered(session, "and now?")
            assert "data:image" in str(web.provider.calls[-1].messages)
            assert (await web.client.get(picture["url"])).content == PNG
            assert (await web.client.get(notes["url"])).content == b"tea"


async def test_an_upload_that_no_key_opens_is_gone_and_the_chat_goes_on(tmp_path):
    with_key = {"settings": {"store": {"encryption_key": Fernet.generate_key().decode()}}}
    async with serving(tmp_path, **with_key) as web:
        session = await web.begin()
        picture = await uploaded(web, PNG)
        await answered(web, session, picture)
        for file in tmp_path.glob("attachments/*.data"):
            file.write_bytes(b"somebody else wrote this")
        await web.answered(session, "and now?")
        assert "[an image that can't be shown]" in str(web.provider.calls[-1].messages[1])
        await web.call("GET", picture["url"], status=404)
